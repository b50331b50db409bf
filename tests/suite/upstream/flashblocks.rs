//! A Flashblocks server that does what its test tells it.

use std::{
    io::Write,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use futures::{SinkExt, StreamExt};
use op_alloy::rpc_types_engine::OpFlashblockPayload;
use serde_json::Value;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::{broadcast, watch},
    task::AbortHandle,
    time::timeout,
};
use tokio_tungstenite::{
    accept_async,
    tungstenite::{
        Message,
        protocol::{CloseFrame, frame::coding::CloseCode},
    },
};

use crate::support::BOUND;

/// A WebSocket server on a port of its own. What it sends goes to all clients that are connected at that moment.
pub struct FlashblocksServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    orders: broadcast::Sender<Order>,
    /// Connections opened or refused so far, and open now.
    opened: watch::Sender<usize>,
    open: watch::Sender<usize>,
    /// Nothing is sent or read while it is set.
    stalled: watch::Sender<bool>,
    refusing: AtomicBool,
}

#[derive(Clone, Debug)]
enum Order {
    Send(Message),
    Close(CloseFrame),
    Drop,
}

impl FlashblocksServer {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            orders: broadcast::Sender::new(65_536),
            opened: watch::Sender::new(0),
            open: watch::Sender::new(0),
            stalled: watch::Sender::new(false),
            refusing: AtomicBool::new(false),
        });
        let accepting = shared.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, accepting.clone()));
            }
        });
        Self { address, shared, task: task.abort_handle() }
    }

    pub fn url(&self) -> String {
        format!("ws://{}/ws", self.address)
    }

    /// How many connections have been opened or refused so far.
    pub fn connections(&self) -> usize {
        *self.shared.opened.borrow()
    }

    /// Waits until so many connections have been opened or refused, from the first on. Those that are open get what is sent from then on.
    pub async fn connected(&self, count: usize) {
        reaches(&self.shared.opened, |opened| *opened >= count, "connections").await;
    }

    /// Waits until so many connections are open.
    pub async fn open(&self, count: usize) {
        reaches(&self.shared.open, |open| *open == count, "open connections").await;
    }

    /// Sends a sub-block as JSON text.
    pub fn send(&self, payload: &OpFlashblockPayload) {
        self.send_json(&serde_json::to_value(payload).expect("a payload is JSON"));
    }

    /// Sends a sub-block as JSON, compressed with brotli.
    pub fn send_brotli(&self, payload: &OpFlashblockPayload) {
        let json = serde_json::to_vec(payload).expect("a payload is JSON");
        self.send_message(Message::binary(compress(&json)));
    }

    /// Sends any JSON as text.
    pub fn send_json(&self, json: &Value) {
        self.send_message(Message::text(json.to_string()));
    }

    /// Sends anything.
    pub fn send_message(&self, message: Message) {
        self.order(Order::Send(message));
    }

    /// Ends all connections without a word.
    pub fn drop_connections(&self) {
        self.order(Order::Drop);
    }

    /// Closes all connections as the protocol has it.
    pub fn close(&self, reason: &'static str) {
        self.order(Order::Close(CloseFrame { code: CloseCode::Restart, reason: reason.into() }));
    }

    /// Connections stay open while it is stalled, and nothing is sent or read on them, pings neither. What was to be sent is sent after.
    pub fn stall(&self, stalled: bool) {
        self.shared.stalled.send_replace(stalled);
    }

    /// New connections are answered with HTTP status 503 while it refuses.
    pub fn refuse(&self, refusing: bool) {
        self.shared.refusing.store(refusing, SeqCst);
    }

    fn order(&self, order: Order) {
        // An error is that nobody is connected.
        let _ = self.shared.orders.send(order);
    }
}

impl Drop for FlashblocksServer {
    fn drop(&mut self) {
        self.task.abort();
        self.drop_connections();
    }
}

/// JSON as the stream's binary messages have it.
pub fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    brotli::CompressorWriter::new(&mut out, 4096, 5, 22).write_all(bytes).expect("memory takes it");
    out
}

async fn reaches(counter: &watch::Sender<usize>, reached: impl FnMut(&usize) -> bool, what: &str) {
    let mut counter = counter.subscribe();
    let waited = timeout(BOUND, counter.wait_for(reached)).await;
    waited.unwrap_or_else(|_| panic!("not so many {what} in time")).expect("the server runs");
}

async fn serve(mut stream: TcpStream, shared: Arc<Shared>) {
    if shared.refusing.load(SeqCst) {
        let _ = stream
            .write_all(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            .await;
        let _ = stream.shutdown().await;
        shared.opened.send_modify(|opened| *opened += 1);
        return;
    }
    let mut orders = shared.orders.subscribe();
    let mut stalled = shared.stalled.subscribe();
    let Ok(mut socket) = accept_async(stream).await else { return };
    shared.open.send_modify(|open| *open += 1);
    shared.opened.send_modify(|opened| *opened += 1);
    loop {
        if stalled.wait_for(|stalled| !stalled).await.is_err() {
            break;
        }
        tokio::select! {
            biased;
            _ = stalled.changed() => {}
            order = orders.recv() => match order {
                Ok(Order::Send(message)) => if socket.send(message).await.is_err() { break },
                Ok(Order::Close(frame)) => {
                    let _ = socket.close(Some(frame)).await;
                    // Until the client has read all there is, and gone.
                    while let Some(Ok(_)) = socket.next().await {}
                    break;
                }
                Ok(Order::Drop) => break,
                Err(error) => panic!("the server was told more than it could send: {error}"),
            },
            message = socket.next() => if !matches!(message, Some(Ok(_))) { break },
        }
    }
    drop(socket);
    shared.open.send_modify(|open| *open -= 1);
}
