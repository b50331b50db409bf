//! The proofs of clients that have a token of the wallet, by which other nodes forward their requests.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    fleet::Proof,
    lock::Mutex,
    rpc::{
        protocol::error::{Result, RpcError},
        run::client::Client,
        server::auth::tokens::Access,
    },
};

/// The age from which a proof counts no more, and the time by which the clocks of two nodes may differ.
const VALID: Duration = Duration::from_secs(30);

/// The proofs that clients of other nodes have given, of which each counts once.
#[derive(Debug)]
pub struct WalletProofs {
    /// Whether the wallet has keys of its own.
    has_keys: bool,
    /// The most proofs that are remembered.
    most: usize,
    /// The proofs that were seen, each with the last time at which it would count.
    seen: Mutex<BTreeSet<(u64, [u8; 32])>>,
    /// The time from which on proofs count, in milliseconds since 1970: those before were seen by a process that is gone.
    since: u64,
}

impl WalletProofs {
    /// Creates the proofs for a wallet that has keys of its own or not. Remembers at most `most` proofs.
    pub fn new(has_keys: bool, most: usize) -> Self {
        Self { has_keys, most, seen: Mutex::default(), since: now_ms() }
    }

    /// Returns the client of the wallet that has given a proof.
    ///
    /// # Errors
    ///
    /// Returns 4100 if the proof is wrong, too old, or was seen before, and -32005 if too many proofs are remembered.
    pub fn client(&self, access: &Access, proof: &Result<Proof<'_>, &'static str>) -> Result<Arc<Client>> {
        let refused = |problem: &str| RpcError::new(4100, format!("the proof of a token of the wallet {problem}"));
        let &Proof { client, time, mac, ref texts } = proof.as_ref().map_err(|problem| refused(problem))?;
        let client = access
            .wallet_clients(client)
            .find(|client| client.wallet_token().is_some_and(|token| token.has_proved(texts, &mac)));
        let client = client
            .ok_or_else(|| refused("is not one of this node's --wallet-token-file: give both nodes the same file"))?;
        let (now, valid) = (now_ms(), u64::try_from(VALID.as_millis()).unwrap_or(u64::MAX));
        if time < self.since || now.abs_diff(time) > valid {
            return Err(refused(
                "is older than 30 s, or from before this node's start: check the clocks of both nodes",
            ));
        }
        let mut seen = self.seen.lock();
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
        Ok(client)
    }

    /// Returns whether a request without a proof may use the wallet: where nobody needs a token, and the keys are known to
    /// everybody.
    pub fn is_open(&self, access: &Access) -> bool {
        !self.has_keys && access.opens_wallet()
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
