//! Replicas of a node behind one address.

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::AbortHandle};

use super::{SmallUpstream, UpstreamBlock, UpstreamChain};

/// A balancer before three replicas of a node, which are 0, 1 and 2 blocks behind. Each request goes to another one.
pub struct BalancedUpstream {
    shared: Arc<Balancer>,
    url: String,
    accepting: AbortHandle,
}

struct Balancer {
    replicas: [SmallUpstream; 3],
    /// All blocks, oldest first.
    blocks: Mutex<Vec<UpstreamBlock>>,
    /// The error with which a replica answers that does not have a block; `null` where there is none.
    unknown: Mutex<Option<(i64, &'static str)>>,
    requests: AtomicUsize,
    behind: AtomicUsize,
    client: reqwest::Client,
}

impl BalancedUpstream {
    /// Starts replicas that all have this block.
    pub async fn start(chain_id: u64, first: UpstreamBlock) -> Self {
        let replica = || SmallUpstream::start(chain_id, UpstreamChain::new(vec![first.clone()]));
        let shared = Arc::new(Balancer {
            replicas: [replica().await, replica().await, replica().await],
            blocks: Mutex::new(vec![first.clone()]),
            unknown: Mutex::default(),
            requests: AtomicUsize::new(0),
            behind: AtomicUsize::new(0),
            client: crate::http(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let accepting = tokio::spawn(accept(listener, shared.clone())).abort_handle();
        Self { shared, url, accepting }
    }

    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// Appends a block to the first replica. The other two come by one block nearer.
    pub fn push(&self, block: UpstreamBlock) {
        let mut blocks = self.shared.blocks.lock().expect("no thread panics with it");
        blocks.push(block);
        for (behind, replica) in self.shared.replicas.iter().enumerate() {
            // The first block is everywhere.
            if let Some(block) = blocks.len().checked_sub(behind + 1).filter(|at| *at > 0).map(|at| &blocks[at]) {
                replica.push(block.clone());
            }
        }
    }

    /// Sets the error with which a replica answers that does not have a block, or `None` for `null`.
    pub fn answer_unknown(&self, error: Option<(i64, &'static str)>) {
        *self.shared.unknown.lock().expect("no thread panics with it") = error;
    }

    /// Returns how many requests and batches were answered.
    pub fn requests(&self) -> usize {
        self.shared.requests.load(SeqCst)
    }

    /// Returns how many calls were answered by a replica that does not have their block.
    pub fn behind(&self) -> usize {
        self.shared.behind.load(SeqCst)
    }
}

impl Drop for BalancedUpstream {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Balancer>) {
    while let Ok((stream, _)) = listener.accept().await {
        let shared = shared.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let shared = shared.clone();
            async move { Ok::<_, Infallible>(Response::new(Full::new(shared.answer(request).await))) }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

impl Balancer {
    async fn answer(&self, request: Request<Incoming>) -> Bytes {
        let body = request.into_body().collect().await.expect("a body").to_bytes();
        let asked: Value = serde_json::from_slice(&body).expect("JSON");
        // Neither in turns nor by chance: a generator with a period of 2^32, of which the high bits are used.
        let number = self.requests.fetch_add(1, SeqCst) as u32;
        let replica = &self.replicas[(number.wrapping_mul(2_654_435_761) >> 16) as usize % 3];
        let answer = self.client.post(replica.url()).body(body).send().await.expect("a replica answers");
        let mut answer: Value = answer.json().await.expect("JSON");
        match (&asked, &mut answer) {
            (Value::Array(asked), Value::Array(answers)) => {
                asked.iter().zip(answers).for_each(|(asked, answer)| self.put_in_words(asked, answer));
            }
            (asked, answer) => self.put_in_words(asked, answer),
        }
        answer.to_string().into()
    }

    /// Puts it in the words of a node that the block of a call is not known.
    fn put_in_words(&self, asked: &Value, answer: &mut Value) {
        let names_block = ["eth_getBlockByHash", "eth_getBlockByNumber", "eth_getBlockReceipts"]
            .contains(&asked["method"].as_str().unwrap_or_default());
        let is_unknown = answer["error"]["message"] == "header not found" || names_block && answer["result"].is_null();
        let names_tag = asked["params"][0].as_str().is_some_and(|param| !param.starts_with("0x"));
        if !is_unknown || names_tag {
            return;
        }
        self.behind.fetch_add(1, SeqCst);
        let error = *self.unknown.lock().expect("no thread panics with it");
        *answer = match error {
            Some((code, message)) => {
                json!({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": code, "message": message}})
            }
            None => json!({"jsonrpc": "2.0", "id": asked["id"], "result": null}),
        };
    }
}
