//! `debug_storageRangeAt`: the storage of a contract in the middle of a block, in the order of the hashed keys.

use std::collections::BTreeMap;

use alloy_primitives::{B256, U256, keccak256};

use crate::{
    meter::Stopped,
    rpc::{
        json::{self, Object},
        params::StorageRangeRequest,
        protocol::error::{Result, RpcError},
        run::{Backend, Run},
    },
    state::{Account, Overlay},
};

/// A page of a storage trie.
struct StoragePage {
    /// The slots by their hashed keys: the key, once it is known, and the value.
    slots: BTreeMap<B256, (Option<U256>, U256)>,
    /// The hashed key of the first slot after the page.
    next: Option<B256>,
}

impl Backend {
    pub(crate) fn storage_range(&self, run: &mut Run<'_>, request: StorageRangeRequest) -> Result<()> {
        // Before the transactions that genesis does not have, its state is there.
        let is_genesis = self.select(run.published, request.selector)?.header().number == 0;
        let index = Some(request.index).filter(|index| *index > 0 || !is_genesis);
        let (_, overlay) = self.set_up_at(run, request.selector, index, "params[1]")?;
        let world = overlay.changed_world();
        let world = world.local().ok_or_else(|| {
            RpcError::new(
                -32000,
                "the state is an upstream's, whose storage cannot be listed: presim knows single slots",
            )
        })?;
        let account = world.account(&request.address);
        let page = account.map(|account| StoragePage::read(account, &request, overlay)).transpose()?;
        let out = &mut run.out;
        let mut object = Object::new(out);
        let mut storage = Object::new(object.key("storage"));
        for (hash, (key, value)) in page.iter().flat_map(|page| &page.slots) {
            let mut slot = Object::new(storage.key(&hash.to_string()));
            json::value(slot.key("key"), &key.map(B256::from));
            slot.data("value", &value.to_be_bytes::<32>());
            slot.end();
        }
        storage.end();
        json::value(object.key("nextKey"), &page.and_then(|page| page.next));
        object.end();
        if run.out.len() > self.limits.max_response {
            return Err(json::too_long(self.limits.max_response));
        }
        Ok(())
    }
}

impl StoragePage {
    fn read(account: &Account, request: &StorageRangeRequest, overlay: &mut Overlay) -> Result<Self, Stopped> {
        let mut page = Self { slots: BTreeMap::new(), next: None };
        for (hash, value) in account.storage_trie().iter().filter(|(hash, _)| *hash >= request.start) {
            if page.slots.len() >= request.most {
                page.next = Some(hash);
                break;
            }
            page.slots.insert(hash, (None, *value));
            count(overlay, 1)?;
        }
        // The trie knows hashes alone, so the keys are found by hashing those of all slots.
        let mut unknown = page.slots.len();
        for (key, _) in account.slots() {
            if unknown == 0 {
                break;
            }
            count(overlay, 16)?;
            if let Some(slot) = page.slots.get_mut(&keccak256(key.to_be_bytes::<32>())) {
                slot.0 = Some(*key);
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
