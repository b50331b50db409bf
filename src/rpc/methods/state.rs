//! Look-ups in the state of a block.

use std::sync::Arc;

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use revm::state::AccountInfo;

use super::{Backend, Run};
use crate::{
    ledger::Selector,
    rpc::{
        encode::{self, Object},
        error::{Result, RpcError},
        wire::{ProofRequest, Slots},
    },
    state::Account,
};

impl Backend {
    pub(super) fn get_balance(&self, run: &mut Run<'_>, named: (Address, Selector)) -> Result<()> {
        let balance = self.account(run, named, |account| account.balance)?;
        encode::quantity_u256(&mut run.out, balance);
        Ok(())
    }

    pub(super) fn get_transaction_count(&self, run: &mut Run<'_>, named: (Address, Selector)) -> Result<()> {
        let nonce = self.account(run, named, |account| account.nonce)?;
        // Pooled transactions count, because a client that sends several in a row would otherwise reuse a nonce.
        let next = match named {
            (address, Selector::Pending) => self.pool.next_nonce(address, nonce),
            _ => nonce,
        };
        encode::quantity(&mut run.out, next);
        Ok(())
    }

    pub(super) fn get_code(&self, run: &mut Run<'_>, named: (Address, Selector)) -> Result<()> {
        let code: Bytes =
            self.account(run, named, |account| account.code.map(|code| code.original_bytes()).unwrap_or_default())?;
        encode::data(&mut run.out, &code);
        Ok(())
    }

    pub(super) fn get_storage_at(
        &self,
        run: &mut Run<'_>,
        (address, slot, selector): (Address, U256, Selector),
    ) -> Result<()> {
        let snapshot = self.select(run.published, selector)?;
        let value = run.overlay.look_up_slot(&snapshot.world, address, slot);
        encode::data(&mut run.out, &value.to_be_bytes::<32>());
        Ok(())
    }

    /// Answers `eth_getStorageValues`: slots of several accounts at once.
    pub(super) fn get_storage_values(&self, run: &mut Run<'_>, (accounts, selector): (Slots, Selector)) -> Result<()> {
        let snapshot = self.select(run.published, selector)?;
        let overlay = &*run.overlay;
        let mut object = Object::new(&mut run.out);
        for (address, slots) in accounts {
            encode::list(object.key(&format!("{address:#x}")), slots, |out, slot| {
                let value = overlay.look_up_slot(&snapshot.world, address, slot);
                encode::data(out, &value.to_be_bytes::<32>());
            });
        }
        object.end();
        Ok(())
    }

    /// Answers `eth_getProof` (EIP-1186).
    pub(super) fn get_proof(&self, run: &mut Run<'_>, request: ProofRequest) -> Result<()> {
        let snapshot = self.select(run.published, request.selector)?;
        let world = snapshot.world.local();
        let world =
            world.ok_or_else(|| RpcError::internal("only the upstream can prove its state: nothing was forwarded"))?;
        let absent = Account::default();
        let account = world.account(&request.address).map_or(&absent, Arc::as_ref);
        let trie = account.storage_trie();
        let mut object = Object::new(&mut run.out);
        object.data("address", request.address.as_slice());
        nodes(object.key("accountProof"), &world.trie().proof(keccak256(request.address)));
        encode::quantity_u256(object.key("balance"), account.balance);
        object
            .data("codeHash", account.code.hash.as_slice())
            .quantity("nonce", account.nonce)
            .data("storageHash", trie.root_hash().as_slice());
        encode::list(object.key("storageProof"), request.slots, |out, key| {
            let mut object = Object::new(out);
            let word = B256::from(key.slot);
            match key.in_full {
                true => {
                    object.data("key", word.as_slice());
                }
                false => encode::quantity_u256(object.key("key"), key.slot),
            }
            encode::quantity_u256(object.key("value"), account.slot(&key.slot));
            nodes(object.key("proof"), &trie.proof(keccak256(word)));
            object.end();
        });
        object.end();
        Ok(())
    }

    /// Returns the value that `get` reads from an account, or its default if the account does not exist.
    fn account<T: Default>(
        &self,
        run: &Run<'_>,
        (address, selector): (Address, Selector),
        get: impl FnOnce(AccountInfo) -> T,
    ) -> Result<T> {
        let snapshot = self.select(run.published, selector)?;
        Ok(run.overlay.look_up(&snapshot.world, address).map_or_else(T::default, get))
    }
}

/// Writes the RLP of the nodes of a proof.
fn nodes(out: &mut Vec<u8>, proof: &[Bytes]) {
    encode::list(out, proof, |out, node| encode::data(out, node));
}
