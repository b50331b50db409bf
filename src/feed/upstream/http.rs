//! JSON-RPC over HTTP, with a bound on the bytes of an answer.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use alloy_json_rpc::{RequestPacket, ResponsePacket};
use alloy_transport::{TransportError, TransportErrorKind, TransportFut};
use alloy_transport_http::reqwest::{
    self, Client,
    header::{HeaderMap, RETRY_AFTER},
    redirect::Policy,
};
use rustls::crypto::ring;
use tower::Service;
use url::Url;

/// Creates a client that sends `headers` with each request. It follows no redirect, because one would send the request, and any
/// key or token with it, to another server.
///
/// # Errors
///
/// Returns an error if the certificates that the system trusts cannot be used.
pub fn http_client(headers: HeaderMap) -> reqwest::Result<Client> {
    // Fails if the provider was installed before.
    let _ = ring::default_provider().install_default();
    Client::builder().redirect(Policy::none()).default_headers(headers).build()
}

/// An HTTP transport that accepts at most `most` bytes of an answer.
#[derive(Clone, Debug)]
pub(super) struct Http {
    client: Client,
    url: Url,
    most: usize,
}

impl Http {
    /// Characters of an answer that an error shows.
    const SHOWN: usize = 200;

    pub fn new(url: Url, most: usize) -> Result<Self, TransportError> {
        let client = http_client(HeaderMap::new()).map_err(TransportErrorKind::custom)?;
        Ok(Self { client, url, most })
    }

    async fn send(self, request: RequestPacket) -> Result<ResponsePacket, TransportError> {
        // Errors do not show the URL, because it may hold a key.
        let hide = |error: reqwest::Error| TransportErrorKind::custom(error.without_url());
        let mut response = self.client.post(self.url).json(&request).send().await.map_err(hide)?;
        let status = response.status();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = retry_after.and_then(|value| value.trim().parse().ok()).map(Duration::from_secs);
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(hide)? {
            if body.len() + chunk.len() > self.most {
                let text = format!("the answer is longer than {} bytes", self.most);
                return Err(TransportErrorKind::non_retryable_str(&text));
            }
            body.extend_from_slice(&chunk);
        }
        if !status.is_success() {
            // Some nodes put a JSON-RPC error into the body.
            if let Ok(packet) = serde_json::from_slice::<ResponsePacket>(&body)
                && packet.is_error()
                && retry_after.is_none()
                && status.as_u16() != 429
                && !status.is_server_error()
            {
                return Ok(packet);
            }
            let text = shown(&body);
            return Err(TransportErrorKind::http_error_with_retry_after(status.as_u16(), text, retry_after));
        }
        serde_json::from_slice(&body).map_err(|error| TransportError::deser_err(error, shown(&body)))
    }
}

fn shown(body: &[u8]) -> String {
    String::from_utf8_lossy(body).chars().take(Http::SHOWN).collect()
}

impl Service<RequestPacket> for Http {
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
