//! The cache at one block, to be kept on disk between two starts.

use alloy_primitives::{Address, B256, Bytes, U256, map::HashMap};
use alloy_rlp::{RlpDecodable, RlpEncodable};

use super::{Fetched, RemoteState, RemoteView, cell::AccountFields};
use crate::state::CodeCache;

/// All that is known of the state after one block.
#[derive(Clone, Debug, Default, PartialEq, Eq, RlpEncodable, RlpDecodable)]
pub struct RemoteImage {
    /// The block's number.
    pub number: u64,
    /// Its hash.
    pub hash: B256,
    /// Hashes of blocks before it.
    pub hashes: Vec<ImageHash>,
    /// Bytecode, each once.
    pub codes: Vec<Bytes>,
    /// Accounts.
    pub accounts: Vec<ImageAccount>,
}

/// The hash of an ancestor.
#[derive(Clone, Debug, Default, PartialEq, Eq, RlpEncodable, RlpDecodable)]
pub struct ImageHash {
    /// Its number.
    pub number: u64,
    /// Its hash.
    pub hash: B256,
}

/// An account with those of its slots that are known.
#[derive(Clone, Debug, Default, PartialEq, Eq, RlpEncodable, RlpDecodable)]
pub struct ImageAccount {
    /// Where it is.
    pub address: Address,
    /// Whether its fields are known; where they are not, only slots are.
    pub is_known: bool,
    /// Balance in wei.
    pub balance: U256,
    /// Nonce.
    pub nonce: u64,
    /// Its code's place in the list, from 1 on; 0 where it has none.
    pub code: u64,
    /// Slots.
    pub slots: Vec<ImageSlot>,
}

/// A storage slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, RlpEncodable, RlpDecodable)]
pub struct ImageSlot {
    /// Which.
    pub slot: U256,
    /// Its value.
    pub value: U256,
}

impl RemoteState {
    /// All that is known at the block of `view`. Nothing where that is of the chain no more.
    pub fn export(&self, view: &RemoteView) -> RemoteImage {
        let (block, since) = (view.number(), view.anchor.since);
        let mut image = RemoteImage { number: block, hash: view.hash(), ..RemoteImage::default() };
        let mut places: HashMap<B256, u64> = HashMap::default();
        for entry in &self.accounts {
            let known = entry.value().read();
            let info = known.info.value.at(block, since);
            let slots = known.slots.iter().filter_map(|(slot, versions)| {
                let value = *versions.value.at(block, since)?;
                Some(ImageSlot { slot: *slot, value })
            });
            let mut account = ImageAccount { address: *entry.key(), slots: slots.collect(), ..ImageAccount::default() };
            account.is_known = info.is_some();
            if let Some(Some(AccountFields { balance, nonce, code })) = info {
                (account.balance, account.nonce) = (*balance, *nonce);
                if let Some(held) = code {
                    account.code = *places.entry(held.code.hash).or_insert_with(|| {
                        image.codes.push(held.code.bytecode.original_bytes());
                        image.codes.len() as u64
                    });
                }
            }
            if account.is_known || !account.slots.is_empty() {
                image.accounts.push(account);
            }
        }
        image.hashes = self
            .hashes
            .iter()
            .filter(|entry| *entry.key() < block)
            .map(|entry| ImageHash { number: *entry.key(), hash: *entry.value() })
            .collect();
        // What was read after the block had died may be another branch's.
        if view.is_alive() { image } else { RemoteImage { number: block, hash: view.hash(), ..RemoteImage::default() } }
    }

    /// Takes in what was known of the block of `view`. False where the image is of another block, or its block is of the chain no more.
    pub fn import(&self, view: &RemoteView, image: RemoteImage, codes: &CodeCache) -> bool {
        if (image.number, image.hash) != (view.number(), view.hash()) {
            return false;
        }
        let code_list: Vec<_> = image.codes.into_iter().map(|code| codes.chain(code)).collect();
        let hashes = image.hashes.into_iter().map(|ImageHash { number, hash }| Fetched::BlockHash { number, hash });
        let accounts = image.accounts.into_iter().flat_map(|account| {
            let ImageAccount { address, is_known, balance, nonce, code, slots } = account;
            let code = usize::try_from(code).ok().and_then(|place| code_list.get(place.checked_sub(1)?)).cloned();
            let fields = is_known.then(|| Fetched::Account { address, balance, nonce, code: code.unwrap_or_default() });
            let slots = slots.into_iter().map(move |ImageSlot { slot, value }| Fetched::Slot { address, slot, value });
            fields.into_iter().chain(slots)
        });
        self.insert(view, hashes.chain(accounts))
    }
}
