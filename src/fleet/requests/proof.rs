//! The proof that a request for the wallet, which another node forwards, comes from a client with a token of the wallet.
//!
//! The node that forwards sends no token: it names the token, and an HMAC-SHA-256 that is keyed with it. The node that has the
//! wallet knows the tokens by its own `--wallet-token-file`, and decides. So a node that is in the wrong hands, or whoever hears
//! what goes over NATS, can use no token that the node was not sent.

use std::time::{SystemTime, UNIX_EPOCH};

use async_nats::HeaderMap;

use super::{CLIENT, PAGE, PATH};

/// The header with the time of a proof, in milliseconds since 1970.
const TIME: &str = "x-presim-time-ms";
/// The header with 128 random bits, so that no two requests have the same proof.
const NONCE: &str = "x-presim-nonce";
/// The header with the HMAC.
const PROOF: &str = "x-presim-proof";

/// A proof that a client has a token.
#[derive(Debug)]
pub struct Proof<'a> {
    /// The name of the token.
    pub client: &'a str,
    /// The time of the proof, in milliseconds since 1970.
    pub time: u64,
    /// The HMAC of the texts.
    pub mac: [u8; 32],
    /// The proven texts: the node that is asked, the method and the parameters, which are the body, the dialect, the page,
    /// the time and the nonce.
    pub texts: [&'a [u8]; 6],
}

impl<'a> Proof<'a> {
    /// Reads the proof of a message on `subject`; `None` if it has none.
    pub(super) fn read(
        subject: &'a str,
        headers: Option<&'a HeaderMap>,
        body: &'a [u8],
    ) -> Option<Result<Self, &'static str>> {
        let headers = headers?;
        let header = |name| headers.get(name).map(|value| value.as_str());
        let proof = header(PROOF)?;
        let read = || {
            let client = header(CLIENT).ok_or("names no token")?;
            let time = header(TIME).and_then(|time| time.parse().ok()).ok_or("has no time")?;
            let mac = const_hex::decode_to_array(proof).map_err(|_| "is malformed")?;
            Ok(Self { client, time, mac, texts: texts(subject, headers, body) })
        };
        Some(read())
    }
}

/// Adds to the headers of a message the proof that its client has the token with which `mac` is keyed.
pub fn prove(mac: impl Fn(&[&[u8]]) -> [u8; 32], subject: &str, headers: &mut HeaderMap, body: &[u8]) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    headers.insert(TIME, now.as_millis().to_string());
    headers.insert(NONCE, format!("{:032x}", rand::random::<u128>()));
    let proof = mac(&texts(subject, headers, body));
    headers.insert(PROOF, const_hex::encode(proof));
}

fn texts<'a>(subject: &'a str, headers: &'a HeaderMap, body: &'a [u8]) -> [&'a [u8]; 6] {
    let header = |name| headers.get(name).map_or("", |value| value.as_str()).as_bytes();
    [subject.as_bytes(), body, header(PATH), header(PAGE), header(TIME), header(NONCE)]
}
