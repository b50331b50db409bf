//! The proof that a request for the wallet, which another node forwards, comes from a client with a token of the wallet.
//!
//! The node that forwards sends no token: it names the token, and an HMAC-SHA-256 that is keyed with it. The node that has the
//! wallet knows the tokens by its own `--wallet-token-file`, and decides. So a node that is in the wrong hands, or whoever hears
//! what goes over NATS, can use no token that the node was not sent.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use async_nats::HeaderMap;

use super::{CLIENT, PATH, leader::PAGE};
use crate::rpc::{
    access::{Access, Client},
    error::RpcError,
};

/// The header with the time of a proof, in milliseconds since 1970.
const TIME: &str = "x-presim-time-ms";
/// The header with 128 random bits, so that no two requests have the same proof.
const NONCE: &str = "x-presim-nonce";
/// The header with the HMAC.
const PROOF: &str = "x-presim-proof";
/// The age from which a proof counts no more, and the time by which the clocks of two nodes may differ.
const VALID: Duration = Duration::from_secs(30);

/// The wallet's door for requests of other nodes.
#[derive(Debug)]
pub struct WalletDoor {
    /// Whether the wallet has keys of its own.
    has_keys: bool,
    /// The most proofs that are remembered.
    most: usize,
    /// The proofs that were seen, each with the last time at which it would count.
    seen: Mutex<BTreeSet<(u64, [u8; 32])>>,
    /// The time from which on proofs count, in milliseconds since 1970: those before were seen by a process that is gone.
    since: u64,
}

impl WalletDoor {
    /// Creates the door of a wallet that has keys of its own or not, which remembers at most `most` proofs.
    pub fn new(has_keys: bool, most: usize) -> Self {
        Self { has_keys, most, seen: Mutex::default(), since: now_ms() }
    }

    /// Returns the client of the wallet that a message on `subject` proves to come from; `None` if it proves nothing.
    ///
    /// # Errors
    ///
    /// Returns 4100 if the proof is wrong, too old, or was seen before, and -32005 if too many proofs are remembered.
    pub fn client(
        &self,
        access: &Access,
        subject: &str,
        headers: Option<&HeaderMap>,
        body: &[u8],
    ) -> Result<Option<Arc<Client>>, RpcError> {
        let header = |name| headers?.get(name).map(|value| value.as_str());
        let Some(proof) = header(PROOF) else { return Ok(None) };
        let refused = |problem: &str| RpcError::new(4100, format!("the proof of a token of the wallet {problem}"));
        let name = header(CLIENT).ok_or_else(|| refused("names no token"))?;
        let time: u64 = header(TIME).and_then(|time| time.parse().ok()).ok_or_else(|| refused("has no time"))?;
        let mac: [u8; 32] = const_hex::decode_to_array(proof).map_err(|_| refused("is malformed"))?;
        let parts = parts(subject, headers, body);
        let client = access.wallet_clients(name).find(|client| client.has_proved(&parts, &mac));
        let client = client
            .ok_or_else(|| refused("is not one of this node's --wallet-token-file: give both nodes the same file"))?;
        let (now, valid) = (now_ms(), u64::try_from(VALID.as_millis()).unwrap_or(u64::MAX));
        if time < self.since || now.abs_diff(time) > valid {
            return Err(refused(
                "is older than 30 s, or from before this node's start: check the clocks of both nodes",
            ));
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        while seen.first().is_some_and(|(until, _)| *until < now) {
            seen.pop_first();
        }
        let entry = (time.saturating_add(valid), mac);
        if seen.contains(&entry) {
            return Err(refused("was seen before"));
        }
        if seen.len() >= self.most {
            let text = format!(
                "too busy: {} requests for the wallet within 30 s are remembered already (--wallet-forwarded)",
                self.most
            );
            return Err(RpcError::limit(text));
        }
        seen.insert(entry);
        Ok(Some(client))
    }

    /// Returns whether a request without a proof may use the wallet: where nobody needs a token, and the keys are known to
    /// everybody.
    pub fn is_open(&self, access: &Access) -> bool {
        !self.has_keys && access.may_use_wallet(None)
    }
}

/// Adds to the headers of a request the proof that its client has a token of the wallet.
pub fn prove(client: &Client, subject: &str, headers: &mut HeaderMap, body: &[u8]) {
    headers.insert(TIME, now_ms().to_string());
    headers.insert(NONCE, format!("{:032x}", rand::random::<u128>()));
    let proof = client.proof(&parts(subject, Some(headers), body));
    headers.insert(PROOF, const_hex::encode(proof));
}

/// Returns what a proof is about: the node that is asked, the method and the parameters, which are the body, the dialect, the
/// page, the time and the nonce.
fn parts<'a>(subject: &'a str, headers: Option<&'a HeaderMap>, body: &'a [u8]) -> [&'a [u8]; 6] {
    let header = |name| headers.and_then(|headers| headers.get(name)).map_or("", |value| value.as_str()).as_bytes();
    [subject.as_bytes(), body, header(PATH), header(PAGE), header(TIME), header(NONCE)]
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
