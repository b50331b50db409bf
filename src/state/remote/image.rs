//! The cache at one block, as it is stored on disk between two runs of the program.

use alloy_primitives::{Address, B256, Bytes, U256, map::HashMap};
use alloy_rlp::{RlpDecodable, RlpEncodable};

use super::{Fetched, Miss, RemoteView, cell::AccountFields, held::HeldValue};
use crate::state::CodeCache;

/// The known state after one block.
#[derive(Clone, Debug, Default, PartialEq, Eq, RlpEncodable, RlpDecodable)]
pub struct RemoteImage {
    /// The block's number.
    pub number: u64,
    /// The block's hash.
    pub hash: B256,
    /// Hashes of blocks before it.
    pub hashes: Vec<NumberedHash>,
    /// Bytecode, each once.
    pub codes: Vec<Bytes>,
    /// Accounts.
    pub accounts: Vec<ImageAccount>,
}

/// The hash of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq, RlpEncodable, RlpDecodable)]
pub struct NumberedHash {
    /// The block's number.
    pub number: u64,
    /// The block's hash.
    pub hash: B256,
}

/// An account with its known slots.
#[derive(Clone, Debug, Default, PartialEq, Eq, RlpEncodable, RlpDecodable)]
pub struct ImageAccount {
    /// The account's address.
    pub address: Address,
    /// Whether balance, nonce and code are known. If not, only slots are.
    pub is_known: bool,
    /// Balance in wei.
    pub balance: U256,
    /// Nonce.
    pub nonce: u64,
    /// The index of the code in the list, counted from 1; 0 if the account has no code.
    pub code: u64,
    /// The known slots.
    pub slots: Vec<StoredSlot>,
}

/// A storage slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, RlpEncodable, RlpDecodable)]
pub struct StoredSlot {
    /// The slot's key.
    pub key: U256,
    /// The slot's value.
    pub value: U256,
}

impl StoredSlot {
    /// Returns slots in the order of their keys.
    pub fn sorted<'a>(slots: impl Iterator<Item = (&'a U256, &'a U256)>) -> Vec<Self> {
        let mut slots: Vec<Self> = slots.map(|(key, value)| Self { key: *key, value: *value }).collect();
        slots.sort_unstable_by_key(|slot| slot.key);
        slots
    }
}

impl RemoteImage {
    /// Creates the image of the block of `view`, with nothing in it.
    fn of(view: &RemoteView) -> Self {
        Self { number: view.number(), hash: view.hash(), ..Self::default() }
    }

    /// Returns whether it is of the block of `view`.
    pub fn is_of(&self, view: &RemoteView) -> bool {
        (self.number, self.hash) == (view.number(), view.hash())
    }

    /// Returns the values in it.
    pub fn into_values(self, codes: &CodeCache) -> impl Iterator<Item = Fetched> {
        let code_list: Vec<_> = self.codes.into_iter().map(|code| codes.chain(code)).collect();
        let hashes = self.hashes.into_iter().map(|NumberedHash { number, hash }| Fetched::BlockHash { number, hash });
        let accounts = self.accounts.into_iter().flat_map(move |account| {
            let ImageAccount { address, is_known, balance, nonce, code, slots } = account;
            let code = usize::try_from(code).ok().and_then(|index| code_list.get(index.checked_sub(1)?)).cloned();
            let fields = is_known.then(|| Fetched::Account { address, balance, nonce, code: code.unwrap_or_default() });
            let slots =
                slots.into_iter().map(move |StoredSlot { key: slot, value }| Fetched::Slot { address, slot, value });
            fields.into_iter().chain(slots)
        });
        hashes.chain(accounts)
    }

    /// Returns an account with these fields, as far as they are known. Adds its code if it has no index in `indices`.
    fn account(
        &mut self,
        address: Address,
        fields: Option<&Option<AccountFields>>,
        indices: &mut HashMap<B256, u64>,
    ) -> ImageAccount {
        let mut account = ImageAccount { address, is_known: fields.is_some(), ..ImageAccount::default() };
        if let Some(Some(AccountFields { balance, nonce, code })) = fields {
            (account.balance, account.nonce) = (*balance, *nonce);
            if let Some(held) = code {
                account.code = *indices.entry(held.code.hash).or_insert_with(|| {
                    self.codes.push(held.code.bytecode.original_bytes());
                    self.codes.len() as u64
                });
            }
        }
        account
    }
}

impl RemoteView {
    /// Returns the known state at the block. Empty if the block is no longer part of the chain.
    pub fn export(&self) -> RemoteImage {
        let (block, since) = (self.number(), self.anchor.since);
        let mut image = RemoteImage::of(self);
        let mut indices: HashMap<B256, u64> = HashMap::default();
        for entry in &self.state.accounts {
            let known = entry.value().0.read();
            let info = known.info.value.at(block, since);
            let slots = known.slots.iter().filter_map(|(slot, versions)| {
                let value = *versions.value.at(block, since)?;
                Some(StoredSlot { key: *slot, value })
            });
            let mut account = image.account(*entry.key(), info, &mut indices);
            account.slots = slots.collect();
            if account.is_known || !account.slots.is_empty() {
                image.accounts.push(account);
            }
        }
        image.hashes = self
            .state
            .hashes
            .iter()
            .filter(|entry| *entry.key() < block)
            .map(|entry| NumberedHash { number: *entry.key(), hash: *entry.value() })
            .collect();
        // Values read after the block was removed may belong to another branch.
        if self.is_abandoned() { RemoteImage::of(self) } else { image }
    }

    /// Exports the known ones of these values at the block.
    pub fn export_some(&self, wanted: impl IntoIterator<Item = Miss>) -> RemoteImage {
        let mut image = RemoteImage::of(self);
        let mut indices: HashMap<B256, u64> = HashMap::default();
        for miss in wanted {
            match (miss, self.value(&miss)) {
                (Miss::Account(address), Some(HeldValue::Account(fields))) => {
                    let account = image.account(address, Some(&fields), &mut indices);
                    image.accounts.push(account);
                }
                (Miss::Slot(address, key), Some(HeldValue::Slot(value))) => {
                    let slots = vec![StoredSlot { key, value }];
                    image.accounts.push(ImageAccount { address, slots, ..ImageAccount::default() });
                }
                (Miss::BlockHash(number), Some(HeldValue::Hash(hash))) => {
                    image.hashes.push(NumberedHash { number, hash });
                }
                _ => {}
            }
        }
        image
    }

    /// Adds the state that was known at the block. Returns false if the image is of another block.
    pub fn import(&self, image: RemoteImage, codes: &CodeCache) -> bool {
        let is_same = image.is_of(self);
        if is_same {
            self.insert(image.into_values(codes));
        }
        is_same
    }
}
