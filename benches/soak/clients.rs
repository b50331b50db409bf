//! The clients of the node.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::{net::TcpStream, task::JoinHandle, time::timeout};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async, tungstenite::Message};

/// Contracts and accounts of the devnet.
const ROUTER: &str = "0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9";
const WETH: &str = "0x5FbDB2315678afecb367f032d93F642f64180aa3";
const TOKEN: &str = "0x9fE46736679d2D9a65F0992F2272dE9f3c7fa6e0";
const ALICE: &str = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266";
const BOB: &str = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8";

/// The clients of each kind.
const CALLERS: u64 = 4;
const WATCHERS: u64 = 3;
const SUBSCRIBERS: u64 = 3;
/// The bundles that a client lets stand.
const BUNDLES: u64 = 50;

/// The work that was done, by kind.
#[derive(Debug, Default)]
struct Done {
    requests: AtomicU64,
    watches: AtomicU64,
    rejected: AtomicU64,
    notifications: AtomicU64,
}

/// Clients that load a node until this is dropped.
pub struct Load {
    done: Arc<Done>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    /// Begins to load the node at an address.
    pub fn begin(listen: SocketAddr) -> Self {
        let done = Arc::<Done>::default();
        let client = |number: u64| Client { url: format!("ws://{listen}"), number, done: done.clone() };
        let mut clients = Vec::new();
        clients.extend((0..CALLERS).map(|number| tokio::spawn(client(number).call())));
        clients.extend((0..WATCHERS).map(|number| tokio::spawn(client(number).watch())));
        clients.extend((0..SUBSCRIBERS).map(|number| tokio::spawn(client(number).subscribe())));
        Self { done, clients }
    }

    /// Returns a line about the work that was done.
    pub fn done(&self) -> String {
        let of = |count: &AtomicU64| count.load(Relaxed);
        let Done { requests, watches, rejected, notifications } = &*self.done;
        format!(
            "{} requests, {} watches ({} rejected), {} notifications",
            of(requests),
            of(watches),
            of(rejected),
            of(notifications)
        )
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.clients.iter().for_each(JoinHandle::abort);
    }
}

/// A client with one connection after another.
struct Client {
    url: String,
    number: u64,
    done: Arc<Done>,
}

struct Connection(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Client {
    async fn open(&self) -> Connection {
        Connection(connect_async(&self.url).await.expect("it connects").0)
    }

    /// Calls, simulates, searches and sends, one request after another.
    async fn call(self) {
        for round in self.number.. {
            let mut connection = self.open().await;
            for index in 0..500 {
                let (method, params) = request(round * 500 + index);
                connection.call(method, params).await;
                self.done.requests.fetch_add(1, Relaxed);
                tokio::time::sleep(Duration::from_millis(4)).await;
            }
        }
    }

    /// Lets bundles stand for some time. Half of the times they are left, and not taken back.
    async fn watch(self) {
        for round in self.number.. {
            let mut connection = self.open().await;
            let bundles: Vec<Value> = (0..BUNDLES).map(|index| bundle(round * BUNDLES + index)).collect();
            let answer = connection.call("presim_watch", json!([bundles])).await;
            let watch = &answer["result"]["watch"];
            if watch.is_null() {
                self.done.rejected.fetch_add(1, Relaxed);
            } else {
                self.done.watches.fetch_add(1, Relaxed);
                self.hear(&mut connection, Duration::from_secs(2)).await;
            }
            if round % 2 == 0 && !watch.is_null() {
                connection.call("presim_unwatch", json!([watch])).await;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Subscribes for some time, again and again.
    async fn subscribe(self) {
        for round in self.number.. {
            let mut connection = self.open().await;
            for subject in ["newHeads", "presim_snapshots", "presim_stateChanges", "newFlashblockTransactions"] {
                connection.call("eth_subscribe", json!([subject])).await;
            }
            connection.call("eth_subscribe", json!(["logs", {}])).await;
            self.hear(&mut connection, Duration::from_secs(5 + round % 20)).await;
        }
    }

    /// Takes notifications for some time.
    async fn hear(&self, connection: &mut Connection, time: Duration) {
        let _ = timeout(time, async {
            loop {
                connection.read().await;
                self.done.notifications.fetch_add(1, Relaxed);
            }
        })
        .await;
    }
}

impl Connection {
    async fn read(&mut self) -> Value {
        loop {
            match self.0.next().await.expect("a message").expect("a message") {
                Message::Text(text) => return serde_json::from_str(&text).expect("JSON"),
                _ => continue,
            }
        }
    }

    /// Returns the answer to a request. Notifications before it are skipped.
    async fn call(&mut self, method: &str, params: Value) -> Value {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        self.0.send(Message::text(request.to_string())).await.expect("it is sent");
        loop {
            let answer = self.read().await;
            if answer.get("id").is_some() {
                return answer;
            }
        }
    }
}

/// Returns a call of the router's `getAmountsOut` with an amount of its own.
fn quote(number: u64) -> Value {
    let path = format!("{:064x}{:064x}{:0>64}{:0>64}", 64, 2, &WETH[2..], &TOKEN[2..]);
    json!({ "from": ALICE, "to": ROUTER, "data": format!("0xd06ca61f{:064x}{path}", 1_000_000 + number), "gas": "0x7a120" })
}

/// Returns a bundle that reads a pool, which traffic changes, and a balance.
fn bundle(number: u64) -> Value {
    let balance = format!("0x70a08231{:064x}", number);
    let calls = json!([quote(number), { "to": TOKEN, "data": balance, "gas": "0x186a0" }]);
    json!({ "name": number.to_string(), "simulate": { "blockStateCalls": [{ "calls": calls }], "outputs": ["status", "returnData", "logs"] } })
}

/// Returns the request with this number.
fn request(number: u64) -> (&'static str, Value) {
    let payload =
        json!({ "blockStateCalls": [{ "calls": [quote(number), { "from": ALICE, "to": BOB, "value": "0x1" }] }] });
    match number % 8 {
        0 => ("eth_call", json!([quote(number), "pending"])),
        1 => ("presim_simulate", json!([payload, "pending"])),
        2 => ("eth_simulateV1", json!([payload, "latest"])),
        3 => ("eth_getBlockByNumber", json!(["pending", true])),
        4 => ("eth_getLogs", json!([{ "fromBlock": "latest" }])),
        5 => (
            "presim_search",
            json!([{
                "blockStateCalls": [{ "calls": [{ "from": ALICE, "to": BOB, "value": "0x1" }] }],
                "vary": [{ "path": "blocks[0].calls[0].value", "values": ["0x1", "0x2", "0x3"] }],
                "objective": "gasUsed",
            }, "pending"]),
        ),
        6 => ("debug_traceCall", json!([quote(number), "pending", {}])),
        _ => ("eth_sendTransaction", json!([{ "from": BOB, "to": ALICE, "value": "0x1", "gas": "0x5208" }])),
    }
}
