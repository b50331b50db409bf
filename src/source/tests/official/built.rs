//! Chains that tests build block by block: each block is completed by its execution, may be edited, and is imported.

use std::sync::Arc;

use crate::{
    chain::{Attributes, BlockHashes, BlockTotals, ChainSpec, ChainTx, genesis_block},
    engine::{execute_block, withdrawals_root},
    ledger::Snapshot,
    source::chain_file::{ImportError, import_bytes},
    state::{CodeCache, LocalWorld},
};
use alloy_consensus::{
    Block, BlockBody, Header, Sealable, SignableTransaction, proofs,
    transaction::{Recovered, SignerRecoverable},
};
use alloy_eips::eip7928::compute_block_access_list_hash;
use alloy_genesis::Genesis;
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{B256, Signature, U256};
use alloy_signer::SignerSync;
use alloy_signer_local::PrivateKeySigner;
use serde_json::Value;

pub type RlpBlock = Block<ChainTx>;

/// A valid chain.
pub struct BuiltChain {
    pub spec: ChainSpec,
    base: Snapshot,
    head: Snapshot,
    pub blocks: Vec<RlpBlock>,
}

impl BuiltChain {
    /// Begins a chain with a genesis in geth's format.
    pub fn of(genesis: Value) -> Self {
        let genesis: Genesis = serde_json::from_value(genesis).unwrap();
        let spec = ChainSpec::new(genesis.config.clone(), std::time::Duration::from_secs(12)).unwrap();
        let world = LocalWorld::of_genesis(&genesis, &CodeCache::new(1 << 20));
        let block = genesis_block(&genesis, &spec, world.state_root());
        let mut hashes = BlockHashes::default();
        hashes.push(0, block.hash());
        let base = Snapshot::at_head(world, Arc::new(block), hashes);
        Self { spec, head: base.copy(), base, blocks: Vec::new() }
    }

    pub fn head(&self) -> &Snapshot {
        &self.head
    }

    /// Returns the header of the next block, or of a sibling of one: the block on the block `parent`.
    pub fn header_on(&self, parent: u64) -> Header {
        let parent = match parent {
            0 => &self.base.head.header,
            number => &self.blocks[number as usize - 1].header.clone().seal_slow(),
        };
        let (number, timestamp) = (parent.number + 1, parent.timestamp + 12);
        let attributes = Attributes {
            timestamp,
            fee_recipient: Default::default(),
            prev_randao: B256::ZERO,
            beacon_root: B256::ZERO,
            gas_limit: parent.gas_limit,
        };
        let mut header = self.spec.next_header(parent, number, attributes);
        if !self.spec.is_post_merge(number) {
            header.difficulty = self.spec.next_difficulty(parent, timestamp);
        }
        header
    }

    /// Returns the next block with these contents, which are valid.
    pub fn next(&self, transactions: Vec<ChainTx>, ommers: Vec<Header>) -> RlpBlock {
        let mut header = self.header_on(self.head.head.number());
        header.ommers_hash = proofs::calculate_ommers_root(&ommers);
        let withdrawals = header.withdrawals_root.map(|_| Default::default());
        let signed: Vec<_> = transactions
            .iter()
            .map(|tx| Recovered::new_unchecked(tx.clone(), tx.recover_signer_unchecked().unwrap()))
            .collect();
        if let Ok(done) = execute_block(&self.spec, &self.head, &header, &signed, &ommers, withdrawals.as_ref()) {
            BlockTotals::of(&signed, &done.receipts, done.gas_used, done.blob_gas_used).close(&mut header);
            header.state_root = done.world.local().unwrap().state_root();
            header.requests_hash =
                self.spec.is_prague_active_at_timestamp(header.timestamp).then(|| done.requests.requests_hash());
            header.block_access_list_hash = done.access_list.as_deref().map(compute_block_access_list_hash);
            header.withdrawals_root = withdrawals_root(&self.spec, &header, &done.world, withdrawals.as_ref());
        }
        Block { header, body: BlockBody { transactions, ommers, withdrawals } }
    }

    /// Appends a block, which must be valid.
    pub fn push(&mut self, block: RlpBlock) {
        match self.import(&alloy_rlp::encode(&block)) {
            Ok(head) => self.head = head,
            // Uncles are checked against the blocks of the same import.
            Err(_) if !block.body.ommers.is_empty() => self.head = self.import_with(&block).unwrap(),
            Err(error) => panic!("{}: {error:?}", block.header.number),
        }
        self.blocks.push(block);
    }

    /// Imports bytes on the head.
    pub fn import(&self, bytes: &[u8]) -> Result<Snapshot, ImportError> {
        import_bytes(&self.spec, self.head.copy(), bytes, |_, _| {})
    }

    /// Imports the chain up to the parent of `block`, and then `block`. Returns the error's text and its sources'.
    pub fn import_with(&self, block: &RlpBlock) -> Result<Snapshot, String> {
        let mut bytes = Vec::new();
        for before in &self.blocks[..block.header.number as usize - 1] {
            alloy_rlp::Encodable::encode(before, &mut bytes);
        }
        alloy_rlp::Encodable::encode(block, &mut bytes);
        let imported = import_bytes(&self.spec, self.base.copy(), &bytes, |_, _| {});
        imported.map_err(|error| format!("{:#}", eyre::Report::new(error)))
    }

    /// Returns the error's text for `block`, which must be refused.
    pub fn refusal(&self, block: &RlpBlock) -> String {
        match self.import_with(block) {
            Ok(_) => panic!("block {} is accepted", block.header.number),
            Err(error) => error,
        }
    }
}

/// The first account of the test mnemonic.
pub fn signer() -> PrivateKeySigner {
    "0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80".parse().unwrap()
}

/// Returns a signature whose `s` is at most half of the curve's order (EIP-2).
pub fn sign(tx: &impl SignableTransaction<Signature>) -> Signature {
    signer().sign_hash_sync(&tx.signature_hash()).unwrap()
}

/// Returns the other signature of the same message by the same key: the one with a high `s`.
pub fn high(signature: &Signature) -> Signature {
    let order = U256::from_str_radix("fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141", 16).unwrap();
    Signature::new(signature.r(), order - signature.s(), !signature.v())
}
