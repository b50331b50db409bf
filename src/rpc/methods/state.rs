//! Look-ups in the state of a block.

use std::sync::Arc;

use alloy_primitives::{Address, B256, Bytes, keccak256};
use revm::state::AccountInfo;

use super::{Asked, Backend};
use crate::{
    rpc::{
        encode::{self, Object},
        error::RpcError,
        wire,
    },
    state::{Account, Overlay, Selector},
};

impl Backend {
    pub(super) fn get_balance(&self, asked: Asked<'_>, overlay: &Overlay, out: &mut Vec<u8>) -> Result<(), RpcError> {
        let named = wire::parse_account(asked.params, asked.dialect)?;
        encode::quantity_u256(out, self.account(asked, overlay, named, |account| account.balance)?);
        Ok(())
    }

    pub(super) fn get_transaction_count(
        &self,
        asked: Asked<'_>,
        overlay: &Overlay,
        out: &mut Vec<u8>,
    ) -> Result<(), RpcError> {
        let named = wire::parse_account(asked.params, asked.dialect)?;
        let nonce = self.account(asked, overlay, named, |account| account.nonce)?;
        // What waits to be mined is as good as sent: a client that sends one after another would else give the same nonce twice.
        let next = match named {
            (address, Selector::Pending) => self.pool.next_nonce(address, nonce),
            _ => nonce,
        };
        encode::quantity(out, next);
        Ok(())
    }

    pub(super) fn get_code(&self, asked: Asked<'_>, overlay: &Overlay, out: &mut Vec<u8>) -> Result<(), RpcError> {
        let named = wire::parse_code(asked.params, asked.dialect)?;
        let code: Bytes = self.account(asked, overlay, named, |account| {
            account.code.map(|code| code.original_bytes()).unwrap_or_default()
        })?;
        encode::data(out, &code);
        Ok(())
    }

    pub(super) fn get_storage_at(
        &self,
        asked: Asked<'_>,
        overlay: &Overlay,
        out: &mut Vec<u8>,
    ) -> Result<(), RpcError> {
        let (address, slot, selector) = wire::parse_slot(asked.params, asked.dialect)?;
        let snapshot = self.select(asked.published, selector)?;
        let value = overlay.look_up_slot(&snapshot.world, address, slot);
        encode::data(out, &value.to_be_bytes::<32>());
        Ok(())
    }

    /// `eth_getStorageValues`: slots of several accounts at once.
    pub(super) fn get_storage_values(
        &self,
        asked: Asked<'_>,
        overlay: &Overlay,
        out: &mut Vec<u8>,
    ) -> Result<(), RpcError> {
        let (accounts, selector) = wire::parse_slots(asked.params, asked.dialect)?;
        let snapshot = self.select(asked.published, selector)?;
        let mut object = Object::new(out);
        for (address, slots) in accounts {
            encode::list(object.key(&format!("{address:#x}")), slots, |out, slot| {
                let value = overlay.look_up_slot(&snapshot.world, address, slot);
                encode::data(out, &value.to_be_bytes::<32>());
            });
        }
        object.end();
        Ok(())
    }

    /// `eth_getProof` (EIP-1186).
    pub(super) fn get_proof(&self, asked: Asked<'_>, out: &mut Vec<u8>) -> Result<(), RpcError> {
        let request = wire::parse_proof(asked.params, asked.dialect)?;
        let snapshot = self.select(asked.published, request.selector)?;
        let absent = Account::default();
        let account = snapshot.world.account(&request.address).map_or(&absent, Arc::as_ref);
        let trie = account.storage_trie();
        let mut object = Object::new(out);
        object.data("address", request.address.as_slice());
        nodes(object.key("accountProof"), &snapshot.world.trie().proof(keccak256(request.address)));
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

    /// Something of an account in a state; of an account that does not exist, its default.
    fn account<T: Default>(
        &self,
        asked: Asked<'_>,
        overlay: &Overlay,
        (address, selector): (Address, Selector),
        get: impl FnOnce(AccountInfo) -> T,
    ) -> Result<T, RpcError> {
        let snapshot = self.select(asked.published, selector)?;
        Ok(overlay.look_up(&snapshot.world, address).map_or_else(T::default, get))
    }
}

/// The RLP of the nodes of a proof.
fn nodes(out: &mut Vec<u8>, proof: &[Bytes]) {
    encode::list(out, proof, |out, node| encode::data(out, node));
}
