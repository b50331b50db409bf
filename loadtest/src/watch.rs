//! Follows a target's announcements of its pre-confirmed state, so that answers from an older one are noticed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::{connection::Messages, quantity::quantity, target::Target};

/// Ids of the subscription's request, and of the request at each notification.
const SUBSCRIBE: u64 = 1;
const SNAPSHOT: u64 = 2;

/// Subscribes to `newFlashblocks`, and asks for the snapshot at each announcement: later requests may rely on the
/// snapshot that the target then names. Returns only if the connection fails or ends, with the reason.
pub async fn watch(target: &Target, timeout: Duration, newest: Arc<AtomicU64>) -> String {
    let Ok(opened) = tokio::time::timeout(timeout, Messages::open(target)).await else {
        return "no connection for notifications could be opened in time".to_owned();
    };
    let mut socket = match opened {
        Ok(socket) => socket,
        Err(error) => return error.to_string(),
    };
    let request = |id: u64, method: &str, params: Value| {
        [Bytes::from(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string())]
    };
    if let Err(error) = socket.send(request(SUBSCRIBE, "eth_subscribe", json!(["newFlashblocks"]))).await {
        return error.to_string();
    }
    loop {
        let text = match socket.next().await {
            Ok(text) => text,
            Err(error) => return error.to_string(),
        };
        // A notification carries a whole block, which is not needed.
        if memchr::memmem::find(&text, br#""method":"eth_subscription""#).is_some() {
            if let Err(error) = socket.send(request(SNAPSHOT, "presim_snapshot", json!([]))).await {
                return error.to_string();
            }
            continue;
        }
        let answer: Value = serde_json::from_slice(&text).unwrap_or_default();
        if let Some(error) = answer.get("error") {
            return format!("newFlashblocks: {error}");
        }
        if answer["id"] == SNAPSHOT
            && let Some(id) = quantity(&answer["result"]["id"])
        {
            newest.fetch_max(id, Ordering::Relaxed);
        }
    }
}
