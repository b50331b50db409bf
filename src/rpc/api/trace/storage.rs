//! `debug_storageRangeAt`: the storage of a contract in the middle of a block, in the order of the hashed keys.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, keccak256};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    ledger::Selector,
    meter::Stopped,
    rpc::{
        api::{Example, Method},
        json::{
            self, Lookup,
            hex::{Data, Fixed, Number},
        },
        params::SelectorParam,
        protocol::error::{Result, RpcError},
        run::{Backend, Run},
    },
    state::{Account, Overlay},
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
    /// The most slots to return.
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

    fn run(self, backend: &Backend, run: &mut Run<'_>) -> Result<Lookup> {
        let Data(start) = self.key_start;
        if start.len() > 32 {
            let text = format!("params[3]: {} bytes: expected at most 32, the beginning of a hashed key", start.len());
            return Err(RpcError::params(text));
        }
        let start = B256::right_padding_from(&start);
        let selector = Selector::from(self.block);
        // Before the transactions that genesis does not have, its state is there.
        let is_genesis = backend.select(run.published, selector)?.header().number == 0;
        let index = Some(self.transaction_index.0).filter(|index| *index > 0 || !is_genesis);
        let (_, overlay) = backend.set_up_at(run, selector, index, "params[1]")?;
        let world = overlay.changed_world();
        let world = world.local().ok_or_else(|| {
            RpcError::new(
                -32000,
                "the state is an upstream's, whose storage cannot be listed: presim knows single slots",
            )
        })?;
        let most = usize::try_from(self.max_result.0).unwrap_or(usize::MAX);
        let account = world.account(&Address::from(self.address));
        let page = account.map(|account| StoragePage::read(account, start, most, overlay)).transpose()?;
        json::bounded_value(&mut run.out, &page.unwrap_or_default(), backend.limits.max_response)?;
        Ok(Lookup::Found)
    }
}

impl StoragePage {
    /// Reads at most `most` slots from the hashed key `start` on.
    fn read(account: &Account, start: B256, most: usize, overlay: &mut Overlay) -> Result<Self, Stopped> {
        let mut page = Self::default();
        for (hash, value) in account.storage_trie().iter().filter(|(hash, _)| *hash >= start) {
            if page.storage.len() >= most {
                page.next_key = Some(hash);
                break;
            }
            page.storage.insert(hash, Slot { key: None, value: B256::from(*value) });
            count(overlay, 1)?;
        }
        // The trie knows hashes alone, so the keys are found by hashing those of all slots.
        let mut unknown = page.storage.len();
        for (key, _) in account.slots() {
            if unknown == 0 {
                break;
            }
            count(overlay, 16)?;
            if let Some(slot) = page.storage.get_mut(&keccak256(key.to_be_bytes::<32>())) {
                slot.key = Some(B256::from(*key));
                unknown -= 1;
            }
        }
        Ok(page)
    }
}

/// Counts work of the request, which its deadline may stop.
fn count(overlay: &mut Overlay, ticks: u32) -> Result<(), Stopped> {
    match overlay.meter.tick(ticks) {
        true => Ok(()),
        false => Err(overlay.meter.stopped().unwrap_or(Stopped::Deadline)),
    }
}
