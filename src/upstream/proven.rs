//! Proofs on their way from the leader of a fleet, which fetches them once, to the nodes that check values by them.

use std::sync::Arc;

use alloy_consensus::Header;
use alloy_primitives::{Address, B256, Bytes, map::HashMap};
use alloy_rlp::{RlpDecodable, RlpEncodable};
use quick_cache::{Weighter, sync::Cache};

use super::proof::{self, Proof, SlotProof, size};
use crate::state::{CodeCache, Fetched, Miss};

/// An account and some of its slots, with the proof of them.
#[derive(Clone, Debug, RlpEncodable, RlpDecodable)]
pub struct ProvenAccount {
    address: Address,
    proof: Proof,
    /// The code; none if only slots were asked for.
    code: Vec<Bytes>,
}

/// Accounts and slots of one block, with the header whose state root their proofs lead to.
#[derive(Clone, Debug, RlpEncodable, RlpDecodable)]
pub struct ProvenState {
    /// The block's header.
    pub header: Header,
    /// The accounts and slots.
    pub accounts: Vec<ProvenAccount>,
}

impl ProvenAccount {
    /// Creates an account of the answers to `eth_getProof` and, if the account itself was asked for, `eth_getCode`.
    pub(super) fn new(address: Address, proof: Proof, code: Option<Bytes>) -> Self {
        Self { address, proof, code: code.into_iter().collect() }
    }

    /// Returns the values, checked against the state root of their block.
    ///
    /// # Errors
    ///
    /// Returns a text that names the account or the slot whose proof fails.
    pub(super) fn check(&self, root: B256, codes: &CodeCache) -> Result<Vec<Fetched>, String> {
        proof::check(self.address, &self.proof, root, self.code.first().cloned(), codes)
    }
}

impl ProvenState {
    /// Returns the values, checked against the state root of the block `hash`.
    ///
    /// # Errors
    ///
    /// Returns a text that names the account or the slot whose proof fails, or says that the header is another block's.
    pub fn check(&self, hash: B256, codes: &CodeCache) -> Result<Vec<Fetched>, String> {
        let found = self.header.hash_slow();
        if found != hash {
            return Err(format!("expected the header of block {hash}, got one that hashes to {found}"));
        }
        let mut values = Vec::new();
        for account in &self.accounts {
            values.extend(account.check(self.header.state_root, codes)?);
        }
        Ok(values)
    }
}

/// The proofs that a leader has fetched, by their block. Bounded in bytes.
#[derive(Debug)]
pub(super) struct ProofStore(Cache<(B256, Miss), Arc<ProvenPiece>, PieceBytes>);

/// The proof of one value: of the account, and of the slot if the value is a slot's.
#[derive(Debug)]
struct ProvenPiece {
    account: Arc<Proof>,
    slot: Option<SlotProof>,
    code: Option<Bytes>,
    bytes: u64,
}

#[derive(Clone, Debug)]
struct PieceBytes;

impl Weighter<(B256, Miss), Arc<ProvenPiece>> for PieceBytes {
    fn weight(&self, _: &(B256, Miss), piece: &Arc<ProvenPiece>) -> u64 {
        piece.bytes
    }
}

impl ProofStore {
    /// The most bytes of proofs that are kept.
    const MAX_BYTES: u64 = 64 << 20;
    /// The bytes of a value's proof, as the tables of the cache are sized for.
    const USUAL_BYTES: u64 = 4 << 10;
    /// The bytes of a piece beside its nodes and its code.
    const OVERHEAD: usize = 256;

    pub fn new() -> Self {
        let count = usize::try_from(Self::MAX_BYTES / Self::USUAL_BYTES).unwrap_or_default();
        Self(Cache::with_weighter(count, Self::MAX_BYTES, PieceBytes))
    }

    /// Returns whether the proof of a value at the block `hash` is kept.
    pub fn has(&self, hash: B256, miss: Miss) -> bool {
        self.0.contains_key(&(hash, miss))
    }

    /// Keeps the proofs of an account and its slots at the block `hash`.
    pub fn add(&self, hash: B256, proven: ProvenAccount) {
        let ProvenAccount { address, mut proof, code } = proven;
        let slots = std::mem::take(&mut proof.storage_proof);
        let account = Arc::new(proof);
        let insert = |miss: Miss, slot: Option<SlotProof>, code: Option<Bytes>| {
            let nodes = size(&account.account_proof) + slot.as_ref().map_or(0, |slot| size(&slot.proof));
            let bytes = (Self::OVERHEAD + nodes + code.as_ref().map_or(0, |code| code.len())) as u64;
            self.0.insert((hash, miss), Arc::new(ProvenPiece { account: account.clone(), slot, code, bytes }));
        };
        for slot in slots {
            insert(Miss::Slot(address, slot.key), Some(slot), None);
        }
        if let Some(code) = code.into_iter().next() {
            insert(Miss::Account(address), None, Some(code));
        }
    }

    /// Returns what is kept of these values at the block `hash`, by account.
    pub fn find(&self, hash: B256, wanted: impl IntoIterator<Item = Miss>) -> Vec<ProvenAccount> {
        let mut found: HashMap<Address, ProvenAccount> = HashMap::default();
        for miss in wanted {
            let (Miss::Account(address) | Miss::Slot(address, _)) = miss else { continue };
            let Some(piece) = self.0.get(&(hash, miss)) else { continue };
            let account = found.entry(address).or_insert_with(|| {
                let proof = Proof::clone(&piece.account);
                ProvenAccount { address, proof, code: Vec::new() }
            });
            account.proof.storage_proof.extend(piece.slot.clone());
            account.code.extend(piece.code.clone());
        }
        found.into_values().collect()
    }
}
