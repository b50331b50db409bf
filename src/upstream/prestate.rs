//! The state that the transactions of a block read, in the traces of the upstream.
//!
//! geth, reth and others trace with `prestateTracer`: for each transaction, the accounts and slots that it reads, with their values
//! before it. The first that a block has of each is the value before the block.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use alloy_eips::BlockId;
use alloy_primitives::{
    B256, Bytes, U256,
    map::{AddressMap, Entry, HashSet},
};
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::ask::Ask;
use crate::{
    lock::Mutex,
    state::{AccountChange, CodeCache, Fetched, Miss},
};

/// The time after which an upstream that has refused to trace a block is asked again.
const TRACES_PAUSE: Duration = Duration::from_secs(300);

/// The traces that an upstream has refused.
#[derive(Debug, Default)]
pub(super) struct RefusedTraces {
    /// The time at which it has refused to trace a block, or has returned a wrong trace.
    blocks: Mutex<Option<Instant>>,
    /// Whether it has no `debug_traceCall`.
    pub calls: AtomicBool,
    /// Whether it has no access lists of blocks, or a wrong one.
    pub lists: AtomicBool,
}

impl RefusedTraces {
    /// Forgets all of them, because another node is the upstream now.
    pub fn forget(&self) {
        *self.blocks.lock() = None;
        self.calls.store(false, Relaxed);
        self.lists.store(false, Relaxed);
    }

    /// Notes that it does not trace blocks, or not rightly.
    pub fn refuse_blocks(&self) {
        *self.blocks.lock() = Some(Instant::now());
    }

    /// Returns whether the upstream has refused to trace a block a short time ago.
    pub fn has_blocks(&self) -> bool {
        self.blocks.lock().is_some_and(|since| since.elapsed() < TRACES_PAUSE)
    }
}

/// The values before a block that its transactions read.
#[derive(Clone, Debug, Default)]
pub struct Prestate(Vec<Fetched>);

/// The trace of a transaction. A node that cannot trace one of them has an error in its place.
#[derive(Debug, Deserialize)]
struct Traced {
    result: AddressMap<TracedAccount>,
}

/// The trace of a transaction in the mode of differences.
#[derive(Debug, Deserialize)]
struct TracedChanges {
    result: Changed,
}

/// The accounts that a transaction has changed, each before and after it. One that it has created is after it alone, one that it
/// has destroyed before it alone.
#[derive(Debug, Deserialize)]
struct Changed {
    pre: AddressMap<TracedAccount>,
    post: AddressMap<TracedAccount>,
}

/// Returns the call for the accounts and slots that the transactions of the block with this hash have changed. Their values are of no
/// meaning.
pub(super) fn ask_touched(hash: B256) -> Ask<Vec<AccountChange>> {
    let params = (hash, json!({ "tracer": "prestateTracer", "tracerConfig": { "diffMode": true } }));
    Ask::parsed("debug_traceBlockByHash", &params, |traces: Vec<TracedChanges>| {
        let mut all: AddressMap<AccountChange> = AddressMap::default();
        for TracedChanges { result: Changed { pre, post } } in traces {
            let destroyed: Vec<_> = pre.keys().filter(|address| !post.contains_key(*address)).copied().collect();
            for (address, account) in pre.into_iter().chain(post) {
                let change = all.entry(address).or_insert_with(|| AccountChange { address, ..Default::default() });
                change.slots.extend(account.storage.into_keys().map(|slot| (slot.into(), U256::ZERO)));
            }
            for address in destroyed {
                all.entry(address).and_modify(|change| change.storage_cleared = true);
            }
        }
        Ok(all.into_values().collect())
    })
}

/// An account before a transaction. Fields that are zero or empty may be left out.
#[derive(Debug, Deserialize)]
struct TracedAccount {
    #[serde(default)]
    balance: U256,
    #[serde(default, deserialize_with = "number")]
    nonce: u64,
    #[serde(default)]
    code: Bytes,
    #[serde(default)]
    storage: std::collections::HashMap<B256, U256>,
}

/// Reads a number, which geth writes as a number, and other nodes as a quantity.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Plain(u64),
        Quantity(U256),
    }
    match Number::deserialize(deserializer)? {
        Number::Plain(number) => Ok(number),
        Number::Quantity(quantity) => quantity.try_into().map_err(D::Error::custom),
    }
}

impl Prestate {
    /// Returns the call for the prestate of the block with this hash.
    pub(super) fn ask(hash: B256, codes: &Arc<CodeCache>) -> Ask<Self> {
        // Nodes that otherwise leave out empty accounts report the accounts created in the block only with this option.
        let params = (hash, json!({ "tracer": "prestateTracer", "tracerConfig": { "includeEmpty": true } }));
        let codes = codes.clone();
        Ask::parsed("debug_traceBlockByHash", &params, move |traces: Vec<Traced>| Ok(Self::of(traces, &codes)))
    }

    /// Returns the call for the values that `call` reads after the block `at`.
    pub(super) fn ask_call(call: &Value, at: BlockId, codes: &Arc<CodeCache>) -> Ask<Self> {
        let params = (call, at, json!({ "tracer": "prestateTracer" }));
        let codes = codes.clone();
        let read = move |result| Ok(Self::of(vec![Traced { result }], &codes));
        Ask::parsed("debug_traceCall", &params, read)
    }

    fn of(traces: Vec<Traced>, codes: &CodeCache) -> Self {
        let mut values = Vec::new();
        let mut slots: AddressMap<HashSet<B256>> = AddressMap::default();
        for (address, account) in traces.into_iter().flat_map(|traced| traced.result) {
            let TracedAccount { balance, nonce, code, storage } = account;
            let known = match slots.entry(address) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    values.push(Fetched::Account { address, balance, nonce, code: codes.chain(code) });
                    new.insert(HashSet::default())
                }
            };
            for (slot, value) in storage {
                if known.insert(slot) {
                    values.push(Fetched::Slot { address, slot: slot.into(), value });
                }
            }
        }
        Self(values)
    }

    /// Returns the keys of the values.
    pub fn keys(&self) -> impl Iterator<Item = Miss> {
        self.0.iter().map(|value| match *value {
            Fetched::Account { address, .. } => Miss::Account(address),
            Fetched::Slot { address, slot, .. } => Miss::Slot(address, slot),
            Fetched::BlockHash { number, .. } => Miss::BlockHash(number),
        })
    }

    /// Returns the values.
    pub fn values(&self) -> &[Fetched] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::address;

    use super::*;

    #[test]
    fn the_first_value_of_a_block_is_the_one_before_it() {
        let (one, other) = (
            address!("0x00000000000000000000000000000000000000aa"),
            address!("0x00000000000000000000000000000000000000bb"),
        );
        let slot = |byte| B256::with_last_byte(byte);
        let traces = json!([
            {"txHash": slot(1), "result": {one.to_string(): {"balance": "0x5", "nonce": 3, "storage": {slot(1).to_string(): slot(7)}}}},
            {"txHash": slot(2), "result": {
                one.to_string(): {"balance": "0x4", "nonce": "0x4", "storage": {slot(1).to_string(): slot(8), slot(2).to_string(): slot(9)}},
                other.to_string(): {"balance": "0x1", "code": "0x6001"},
            }},
        ]);
        let read = Prestate::of(serde_json::from_value(traces).unwrap(), &CodeCache::new(1 << 10));
        let mut found: Vec<String> = read
            .values()
            .iter()
            .map(|value| match value {
                Fetched::Account { address, balance, nonce, code } => {
                    format!("{address} {balance} {nonce} {}", code.bytecode.original_bytes())
                }
                Fetched::Slot { address, slot, value } => format!("{address} {slot} {value}"),
                Fetched::BlockHash { .. } => "hash".to_owned(),
            })
            .collect();
        found.sort();
        let mut expected =
            [format!("{one} 5 3 0x"), format!("{one} 1 7"), format!("{one} 2 9"), format!("{other} 1 0 0x6001")];
        expected.sort();
        assert_eq!(found, expected);
    }
}
