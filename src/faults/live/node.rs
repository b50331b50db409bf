//! The upstream, in the process: a transport that answers from the true chain, with the faults of a script.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use alloy_json_rpc::{RequestPacket, ResponsePacket};
use alloy_primitives::{Address, B256, U256};
use alloy_transport::{TransportError, TransportErrorKind, TransportFut};
use serde_json::{Value, json};
use tower::Service;

use super::truth::TrueBlock;

/// A way in which the upstream fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamFault {
    /// HTTP status 429.
    Busy,
    /// The connection fails.
    Unreachable,
    /// The answer is an error of JSON-RPC.
    Limit,
    /// The answer is not a response.
    Garbage,
    /// All results are null.
    Nothing,
}

impl UpstreamFault {
    pub const ALL: [Self; 5] = [Self::Busy, Self::Unreachable, Self::Limit, Self::Garbage, Self::Nothing];
}

/// The state of the upstream.
#[derive(Debug)]
pub struct NodeState {
    /// Every block that the upstream ever had, canonical or not.
    pub known: Vec<Arc<TrueBlock>>,
    /// The canonical blocks, oldest first.
    pub canonical: Vec<Arc<TrueBlock>>,
    /// By how many blocks the newest block that it tells lags behind.
    pub lag: usize,
    /// The fault, and for how many requests it lasts.
    pub fault: Option<(UpstreamFault, usize)>,
    /// The time that an answer takes.
    pub delay: Duration,
    /// Whether it tells balances that are off by one.
    pub lies: bool,
}

/// The transport. All clones are of one upstream.
#[derive(Clone, Debug)]
pub struct SimNode(Arc<Mutex<NodeState>>);

impl SimNode {
    pub fn new(first: Arc<TrueBlock>, lies: bool) -> Self {
        let (known, canonical) = (vec![first.clone()], vec![first]);
        let state = NodeState { known, canonical, lag: 0, fault: None, delay: Duration::from_millis(1), lies };
        Self(Arc::new(Mutex::new(state)))
    }

    pub fn state(&self) -> MutexGuard<'_, NodeState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send(self, packet: RequestPacket) -> Result<ResponsePacket, TransportError> {
        let (delay, fault) = {
            let mut state = self.state();
            let fault = state.fault.map(|(fault, _)| fault);
            state.fault = state.fault.and_then(|(fault, left)| left.checked_sub(1).map(|left| (fault, left)));
            (state.delay, fault)
        };
        tokio::time::sleep(delay).await;
        match fault {
            Some(UpstreamFault::Busy) => {
                return Err(TransportErrorKind::http_error_with_retry_after(429, "slow down".to_owned(), None));
            }
            Some(UpstreamFault::Unreachable) => return Err(TransportErrorKind::custom_str("connection refused")),
            _ => {}
        }
        let request = serde_json::to_value(&packet).expect("a request is JSON");
        let answer = |request: &Value| {
            let id = &request["id"];
            match fault {
                Some(UpstreamFault::Limit) => {
                    json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32005, "message": "limit exceeded"}})
                }
                Some(UpstreamFault::Garbage) => json!({"hello": "world"}),
                Some(UpstreamFault::Nothing) => json!({"jsonrpc": "2.0", "id": id, "result": null}),
                _ => match self.state().answer(request["method"].as_str().unwrap_or_default(), &request["params"]) {
                    Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
                    Err((code, message)) => {
                        json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
                    }
                },
            }
        };
        let answers = match request.as_array() {
            Some(requests) => requests.iter().map(answer).collect(),
            None => answer(&request),
        };
        let text = answers.to_string();
        serde_json::from_str(&text).map_err(|error| TransportError::deser_err(error, text))
    }
}

impl Service<RequestPacket> for SimNode {
    type Response = ResponsePacket;
    type Error = TransportError;
    type Future = TransportFut<'static>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: RequestPacket) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}

impl NodeState {
    pub fn head(&self) -> &Arc<TrueBlock> {
        self.canonical.last().expect("there is a first block")
    }

    /// Makes a branch canonical, whose first block's parent is canonical.
    pub fn put(&mut self, branch: Vec<Arc<TrueBlock>>) {
        for block in branch {
            while self.head().hash != block.parent {
                self.canonical.pop();
            }
            if !self.known.iter().any(|known| known.hash == block.hash) {
                self.known.push(block.clone());
            }
            self.canonical.push(block);
        }
    }

    pub fn by_hash(&self, hash: B256) -> Option<&Arc<TrueBlock>> {
        self.known.iter().find(|block| block.hash == hash)
    }

    fn find(&self, selector: &Value) -> Option<&Arc<TrueBlock>> {
        let selector = selector.get("blockHash").unwrap_or(selector);
        let text = selector.as_str()?;
        match text {
            "latest" => self.canonical.get(self.canonical.len().saturating_sub(1 + self.lag)),
            "safe" | "finalized" => self.canonical.first(),
            hash if hash.len() == 66 => self.by_hash(hash.parse().ok()?),
            number => {
                let number = u64::from_str_radix(number.strip_prefix("0x")?, 16).ok()?;
                self.canonical.iter().find(|block| block.number == number)
            }
        }
    }

    fn answer(&self, method: &str, params: &Value) -> Result<Value, (i64, &'static str)> {
        let account = |at: usize| {
            let block = self.find(&params[at]).ok_or((-32000, "header not found"))?;
            let address: Address = serde_json::from_value(params[0].clone()).map_err(|_| (-32602, "an address"))?;
            let world = block.sealed.world.local().expect("a local world");
            Ok(world.account(&address).cloned())
        };
        Ok(match method {
            "eth_chainId" => json!("0x1092"),
            "eth_getBlockByNumber" | "eth_getBlockByHash" => {
                let Some(block) = self.find(&params[0]) else { return Ok(Value::Null) };
                let mut json = block.json.clone();
                if params[1] == false {
                    let hashes: Value =
                        json["transactions"].as_array().into_iter().flatten().map(|tx| tx["hash"].clone()).collect();
                    json["transactions"] = hashes;
                }
                json
            }
            "eth_getBlockReceipts" => self.find(&params[0]).map_or(Value::Null, |block| block.receipts.clone()),
            "eth_getBalance" => {
                let balance = account(1)?.map_or(U256::ZERO, |account| account.balance);
                json!(if self.lies { balance + U256::ONE } else { balance })
            }
            "eth_getTransactionCount" => json!(U256::from(account(1)?.map_or(0, |account| account.nonce))),
            "eth_getCode" => {
                json!(account(1)?.map(|account| account.code.bytecode.original_bytes()).unwrap_or_default())
            }
            "eth_getStorageAt" => {
                let slot: U256 = serde_json::from_value(params[1].clone()).map_err(|_| (-32602, "a slot"))?;
                json!(B256::from(account(2)?.map_or(U256::ZERO, |account| account.slot(&slot))))
            }
            _ => return Err((-32601, "the method does not exist")),
        })
    }
}
