//! The WebSocket to an upstream.

use std::time::Duration;

use alloy_pubsub::{ConnectionHandle, PubSubConnect};
use alloy_rpc_client::WebSocketConfig;
use alloy_transport::{TransportErrorKind, TransportResult};
use alloy_transport_ws::{WsBackend, WsConnect};
use tokio_tungstenite::{connect_async_with_config, tungstenite::client::IntoClientRequest};

/// A WebSocket whose small messages are sent at once. With Nagle's algorithm, which alloy's own connection leaves on, the
/// second message of a wave waits for the acknowledgement of the first, and so up to 40 ms.
#[derive(Clone, Debug)]
pub struct Socket {
    connect: WsConnect,
    config: WebSocketConfig,
    pause: Duration,
}

impl Socket {
    /// The time between two pings to a silent upstream.
    const PING_EVERY: Duration = Duration::from_secs(10);

    /// Describes a connection to `url`, which is reopened without end after pauses that begin with `pause`. A user and a
    /// password in the URL become a header.
    pub fn new(url: &str, config: WebSocketConfig, pause: Duration) -> Self {
        Self { connect: WsConnect::new(url), config, pause }
    }
}

impl PubSubConnect for Socket {
    fn is_local(&self) -> bool {
        self.connect.is_local()
    }

    async fn connect(&self) -> TransportResult<ConnectionHandle> {
        let request = self.connect.clone().into_client_request().map_err(TransportErrorKind::custom)?;
        let connecting = connect_async_with_config(request, Some(self.config), true);
        let (socket, _) = connecting.await.map_err(TransportErrorKind::custom)?;
        let (handle, interface) = ConnectionHandle::new();
        WsBackend::from_socket(socket, interface, Self::PING_EVERY).spawn();
        Ok(handle.with_max_retries(u32::MAX).with_retry_interval(self.pause))
    }
}
