//! `debug_storageRangeAt`: the storage of a contract in the middle of a block, in the order of the hashed keys.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, keccak256};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    ledger::Selector,
    meter::Meter,
    rpc::{
        api::{Example, Method},
        json::{
            self,
            hex::{Data, Fixed, Number},
        },
        params::SelectorParam,
        protocol::error::{Result, RpcError},
        run::{Attempt, Backend},
    },
    state::Account,
};

/// The storage of a contract in the middle of a block, in the order of the hashed keys.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    expecting = "5 parameters: block, transaction index, address, first hashed key, most results"
)]
pub struct StorageRange {
    block: SelectorParam,
    /// The number of the block's transactions that run first.
    transaction_index: Number<u64>,
    address: Fixed<20>,
    /// The first hashed key, or its beginning.
    key_start: Data,
    /// The maximum number of slots to return.
    max_result: Number<u64>,
}

/// A page of a storage trie.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoragePage {
    /// The slots by their hashed keys.
    #[schemars(with = "BTreeMap<String, Slot>")]
    storage: BTreeMap<B256, Slot>,
    /// The hashed key of the first slot after the page.
    #[schemars(with = "Option<Fixed<32>>")]
    next_key: Option<B256>,
}

/// A slot of a storage trie.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "StorageSlot")]
struct Slot {
    /// The key, if it is known.
    #[schemars(with = "Option<Fixed<32>>")]
    key: Option<B256>,
    #[schemars(with = "Fixed<32>")]
    value: B256,
}

impl Method for StorageRange {
    type Answer = StoragePage;
    const EXAMPLE: Example = Example {
        params: r#"["latest", 0, "0x5fbdb2315678afecb367f032d93f642f64180aa3", "0x", 1]"#,
        answer: r#"{"storage": {}, "nextKey": null}"#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let Data(start) = self.key_start;
        if start.len() > 32 {
            let text = format!("params[3]: {} bytes: expected at most 32, the beginning of a hashed key", start.len());
            return Err(RpcError::params(text));
        }
        let start = B256::right_padding_from(&start);
        let selector = Selector::from(self.block);
        // Genesis has no transactions to stop before, so its state is the one after the block.
        let is_genesis = backend.select(run, selector)?.header().number == 0;
        let index = Some(self.transaction_index.0).filter(|index| *index > 0 || !is_genesis);
        let (_, overlay) = backend.set_up_at(run, selector, index, "params[1]")?;
        let world = overlay.changed_world();
        let world = world.local().ok_or_else(|| {
            RpcError::new(
                -32000,
                "the state is an upstream's, whose storage cannot be listed: presim knows single slots",
            )
        })?;
        let limits = PageLimits {
            slots: usize::try_from(self.max_result.0).unwrap_or(usize::MAX),
            bytes: backend.limits.max_response,
        };
        let account = world.account(&Address::from(self.address));
        let page = account.map(|account| StoragePage::read(account, start, limits, &mut overlay.meter)).transpose()?;
        json::bounded_value(&mut run.out, &page.unwrap_or_default(), limits.bytes)
    }
}

/// The bounds of a page.
#[derive(Clone, Copy, Debug)]
struct PageLimits {
    /// The maximum number of slots.
    slots: usize,
    /// The maximum bytes of its JSON.
    bytes: usize,
}

impl Slot {
    /// The fewest bytes of JSON of a slot with its hashed key: without its key, if that is not known.
    const LEAST_BYTES: usize = r#""0x":{"key":null,"value":"0x"}"#.len() + 2 * 64;
}

impl StoragePage {
    /// Reads slots from the hashed key `start` on.
    ///
    /// # Errors
    ///
    /// Returns -32005 as soon as the page must be longer than its limit, or the reason why the run must stop.
    fn read(account: &Account, start: B256, limits: PageLimits, meter: &mut Meter) -> Result<Self> {
        let mut page = Self::default();
        for (hash, value) in account.storage_trie().iter().filter(|(hash, _)| *hash >= start) {
            if page.storage.len() >= limits.slots {
                page.next_key = Some(hash);
                break;
            }
            if page.storage.len() * Slot::LEAST_BYTES > limits.bytes {
                return Err(json::too_long(limits.bytes));
            }
            page.storage.insert(hash, Slot { key: None, value: B256::from(*value) });
            meter.count(1)?;
        }
        // The trie knows only hashes, so the keys are found by hashing all slots' keys.
        let mut unknown = page.storage.len();
        for (key, _) in account.slots() {
            if unknown == 0 {
                break;
            }
            meter.count(16)?;
            if let Some(slot) = page.storage.get_mut(&keccak256(key.to_be_bytes::<32>())) {
                slot.key = Some(B256::from(*key));
                unknown -= 1;
            }
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::U256;

    use super::*;

    #[test]
    fn slots_are_collected_only_as_long_as_they_fit_the_response() {
        let mut account = Account::default();
        (1..=10_000).for_each(|slot| account.set_slot(U256::from(slot), U256::ONE));
        // Reading 4,096 slots would stop the run.
        let mut meter = Meter::short(1);
        let limits = PageLimits { slots: usize::MAX, bytes: 20_000 };
        let error = StoragePage::read(&account, B256::ZERO, limits, &mut meter).err().map(|error| error.into_object());
        assert_eq!(error.map(|error| error.code()), Some(-32005));
        // A page that fits has all of its slots.
        let limits = PageLimits { slots: 40, bytes: 20_000 };
        let page = StoragePage::read(&account, B256::ZERO, limits, &mut Meter::default()).unwrap_or_default();
        assert_eq!((page.storage.len(), page.next_key.is_some()), (40, true));
        let mut out = Vec::new();
        assert!(json::bounded_value(&mut out, &page, limits.bytes).is_ok(), "{} bytes", out.len());
        assert!(out.len() >= 40 * Slot::LEAST_BYTES, "{} bytes", out.len());
    }
}
