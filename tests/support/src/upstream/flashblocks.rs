//! A Flashblocks server that a test controls.

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

use crate::BOUND;

/// A WebSocket server on a port of its own. It sends each message to all clients that are connected at that moment.
pub struct FlashblocksServer {
    address: SocketAddr,
    shared: Arc<StreamState>,
    task: AbortHandle,
}

struct StreamState {
    orders: broadcast::Sender<Order>,
    /// The number of connections opened or refused so far. `open` is the number open now.
    opened: watch::Sender<usize>,
    open: watch::Sender<usize>,
    /// While set, nothing is sent or read.
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
        let shared = Arc::new(StreamState {
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

    /// Returns how many connections have been opened or refused so far.
    pub fn connections(&self) -> usize {
        *self.shared.opened.borrow()
    }

    /// Waits until `count` connections have been opened or refused. Those that are open get all later messages.
    pub async fn connected(&self, count: usize) {
        reaches(&self.shared.opened, |opened| *opened >= count, "connections").await;
    }

    /// Waits until exactly `count` connections are open.
    pub async fn open(&self, count: usize) {
        reaches(&self.shared.open, |open| *open == count, "open connections").await;
    }

    /// Returns a function that sends a sub-block, also for a task.
    pub fn sender(&self) -> impl Fn(&OpFlashblockPayload) + Send + Sync + use<> {
        let shared = self.shared.clone();
        move |payload| {
            let text = serde_json::to_string(payload).expect("a payload is JSON");
            let _ = shared.orders.send(Order::Send(Message::text(text)));
        }
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

    pub fn send_message(&self, message: Message) {
        self.order(Order::Send(message));
    }

    /// Ends all connections without a close frame.
    pub fn drop_connections(&self) {
        self.order(Order::Drop);
    }

    /// Closes all connections with a close frame.
    pub fn close(&self, reason: &'static str) {
        self.order(Order::Close(CloseFrame { code: CloseCode::Restart, reason: reason.into() }));
    }

    /// Stalls or resumes. Stalled connections stay open without reads, sends and pings; messages are sent later.
    pub fn stall(&self, stalled: bool) {
        self.shared.stalled.send_replace(stalled);
    }

    /// Refuses new connections with HTTP status 503, or accepts them again.
    pub fn refuse(&self, refusing: bool) {
        self.shared.refusing.store(refusing, SeqCst);
    }

    fn order(&self, order: Order) {
        // Sending fails if no client is connected.
        let _ = self.shared.orders.send(order);
    }
}

impl Drop for FlashblocksServer {
    fn drop(&mut self) {
        self.task.abort();
        self.drop_connections();
    }
}

/// Compresses JSON as the binary messages of the stream do.
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

async fn serve(mut stream: TcpStream, shared: Arc<StreamState>) {
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
                    // Reads until the client has read everything and disconnected.
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
