//! Listens to what a target tells of its pre-confirmed state, so that an answer from an older one can be told.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::{connection::web_socket, quantity::quantity, target::Target};

/// The id of the subscription's request, and of what is asked at each notification.
const SUBSCRIBE: u64 = 1;
const SNAPSHOT: u64 = 2;

/// Subscribes to `newFlashblocks`, and asks for the snapshot whenever one is announced: what the target then says it had is what later requests may
/// rely on. Ends only when the target does; returns why.
pub async fn watch(target: &Target, timeout: Duration, newest: Arc<AtomicU64>) -> String {
    let Ok(opened) = tokio::time::timeout(timeout, web_socket(target)).await else {
        return "no WebSocket in time".to_owned();
    };
    let mut socket = match opened {
        Ok(socket) => socket,
        Err(error) => return error.to_string(),
    };
    let request = |id: u64, method: &str, params: Value| {
        Message::text(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string())
    };
    if let Err(error) = socket.send(request(SUBSCRIBE, "eth_subscribe", json!(["newFlashblocks"]))).await {
        return error.to_string();
    }
    while let Some(message) = socket.next().await {
        let text = match message {
            Ok(Message::Text(text)) => text,
            Ok(_) => continue,
            Err(error) => return error.to_string(),
        };
        // A notification carries a whole block, of which nothing is needed.
        if text.contains(r#""method":"eth_subscription""#) {
            if let Err(error) = socket.send(request(SNAPSHOT, "presim_snapshot", json!([]))).await {
                return error.to_string();
            }
            continue;
        }
        let answer: Value = serde_json::from_str(&text).unwrap_or_default();
        if let Some(error) = answer.get("error") {
            return format!("newFlashblocks: {error}");
        }
        if answer["id"] == SNAPSHOT
            && let Some(id) = quantity(&answer["result"]["id"])
        {
            newest.fetch_max(id, Ordering::Relaxed);
        }
    }
    "the target closed the WebSocket".to_owned()
}
