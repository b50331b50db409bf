//! JSON-RPC over HTTP, with a bound on the bytes of the answers.

use std::time::Duration;

use alloy_json_rpc::{RequestPacket, ResponsePacket};
use alloy_transport::{TransportError, TransportErrorKind};
use alloy_transport_http::reqwest::{
    self, Client,
    header::{HeaderMap, RETRY_AFTER},
    redirect::Policy,
};
use rustls::crypto::ring;
use url::Url;

use super::{
    answer_budget::{AnswerBudget, AnswerPermit},
    message::read_packet,
};

/// Creates a client that sends `headers` with each request. It follows no redirect, because one would send the request, and any
/// key or token with it, to another server.
///
/// # Errors
///
/// Returns an error if the certificates that the system trusts cannot be used.
pub fn http_client(headers: HeaderMap) -> reqwest::Result<Client> {
    install_tls();
    Client::builder().redirect(Policy::none()).default_headers(headers).build()
}

/// Makes ring the provider of TLS.
pub(super) fn install_tls() {
    // Fails if the provider was installed before.
    let _ = ring::default_provider().install_default();
}

/// The HTTP status codes with which servers reject a batch that is too large for them: Bad Request and Content Too Large.
pub(super) const REJECTED_BATCH: [u16; 2] = [400, 413];

/// The longest pause that an upstream can ask for.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// An HTTP transport.
#[derive(Clone, Debug)]
pub(super) struct Http {
    client: Client,
    url: Url,
    budget: AnswerBudget,
}

impl Http {
    /// Characters of an answer that an error shows.
    const MAX_SHOWN: usize = 200;

    /// Creates a transport to `url`. All answers together have at most `most` bytes.
    pub fn new(url: Url, most: usize) -> Result<Self, TransportError> {
        let client = http_client(HeaderMap::new()).map_err(TransportErrorKind::custom)?;
        Ok(Self { client, url, budget: AnswerBudget::new(most) })
    }

    /// Sends a request or a batch. Returns the answer, and the permit for its bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if no answer arrives, if it is not a JSON-RPC response, or if there is no memory for its bytes.
    pub async fn send(&self, request: &RequestPacket) -> Result<(ResponsePacket, AnswerPermit), TransportError> {
        // Errors do not show the URL, because it may hold a key.
        let hide = |error: reqwest::Error| TransportErrorKind::custom(error.without_url());
        let mut response = self.client.post(self.url.clone()).json(request).send().await.map_err(hide)?;
        let status = response.status();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| read_retry_after(value.to_str().ok()?));
        let (mut body, mut permit) = (Vec::new(), self.budget.take(0)?);
        while let Some(chunk) = response.chunk().await.map_err(hide)? {
            permit.merge(self.budget.take(chunk.len())?);
            body.extend_from_slice(&chunk);
        }
        if !status.is_success() {
            // Some nodes put a JSON-RPC error into the body. Where a batch is rejected, the status says more.
            let is_batch = matches!(request, RequestPacket::Batch(_));
            if let Ok(packet) = read_packet(&body)
                && packet.is_error()
                && retry_after.is_none()
                && status.as_u16() != 429
                && !status.is_server_error()
                && !(is_batch && REJECTED_BATCH.contains(&status.as_u16()))
            {
                return Ok((packet, Some(permit)));
            }
            let text = shown(&body);
            return Err(TransportErrorKind::http_error_with_retry_after(status.as_u16(), text, retry_after));
        }
        let packet = read_packet(&body).map_err(|error| TransportError::deser_err(error, shown(&body)))?;
        Ok((packet, Some(permit)))
    }
}

/// Returns the pause that a `Retry-After` asks for in seconds, at most [`MAX_PAUSE`].
fn read_retry_after(value: &str) -> Option<Duration> {
    let value = value.trim();
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    // A number that is too large for its type is a long pause, too.
    is_number.then(|| value.parse().map_or(MAX_PAUSE, Duration::from_secs).min(MAX_PAUSE))
}

fn shown(body: &[u8]) -> String {
    String::from_utf8_lossy(body).chars().take(Http::MAX_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::read_retry_after;

    #[test]
    fn the_pause_that_a_server_asks_for_is_bounded() {
        let cases = [
            ("0", Some(0)),
            (" 7 ", Some(7)),
            ("61", Some(60)),
            ("18446744073709551615", Some(60)),
            ("99999999999999999999999", Some(60)),
            ("", None),
            ("-1", None),
            ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        ];
        for (value, seconds) in cases {
            assert_eq!(read_retry_after(value), seconds.map(Duration::from_secs), "{value:?}");
        }
    }
}
