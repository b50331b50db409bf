//! The block that a simulation runs in, for comparison with another snapshot's block.

use alloy_consensus::Header;
use alloy_eips::eip7840::BlobParams;
use alloy_primitives::{Address, B256};

use super::plan::{PlannedBlock, plan};
use crate::{
    chain::{BlockGas, ChainSpec, Fork, GasLeft},
    engine::{
        error::SimulationError,
        request::{SimBlock, Simulation, SimulationRules},
    },
    ledger::Snapshot,
    state::BlockReads,
};

/// The block in which the first calls of a simulation run on a snapshot, if the request overrides none of its fields.
///
/// A run gives the same result on two snapshots if their block contexts and states agree in all values that it has
/// read.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockContext {
    /// The header before any call, with the base fee of the chain.
    header: Header,
    /// The price of blob gas. `None` if the chain has no blobs.
    blob_base_fee: Option<u128>,
    /// The gas that the block has left.
    gas_left: GasLeft,
    /// The blob gas that the block has used.
    blob_gas_used: u64,
    /// The hash of the newest sealed block, which decides the hashes of its ancestors.
    head: B256,
    /// The milliseconds that the block adds to its timestamp, if the chain's blocks have them.
    millis: Option<u64>,
    /// The fork, the rules of blobs, and whether the block continues the one being built. Where these differ, a run may read anything else.
    rules: (Fork, Option<BlobParams>, bool),
}

/// The difference between two block contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextChange {
    /// Whether the rules differ, so that everything may differ.
    pub everything: bool,
    /// The fields that differ.
    pub fields: BlockReads,
    /// Whether the hashes of earlier blocks differ.
    pub hashes: bool,
    /// The gas that the later block has left.
    pub gas_left: u64,
    /// The two fee recipients, if they differ. A fee recipient is warm (EIP-3651), so a run that accesses either of
    /// them uses different gas.
    pub recipients: Option<[Address; 2]>,
}

impl BlockContext {
    /// Returns the context of simulations on `snapshot`.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] if no block can follow the snapshot.
    pub fn of(spec: &ChainSpec, snapshot: &Snapshot, rules: &SimulationRules) -> Result<Self, SimulationError> {
        let simulation = Simulation { blocks: vec![SimBlock::default()], ..Simulation::default() };
        let planned = plan(spec, snapshot, &simulation, rules)?;
        let [first]: [PlannedBlock<'_>; 1] =
            planned.try_into().map_err(|_| SimulationError::Refused("no block can follow".to_owned()))?;
        let header = first.header(&snapshot.head.header);
        let blobs = spec.blob_params(header.timestamp);
        let used = first.continues.map_or_else(BlockGas::default, |open| open.gas);
        Ok(Self {
            blob_base_fee: blobs.and_then(|params| header.blob_fee(params)),
            gas_left: GasLeft::of(spec, &header, used),
            blob_gas_used: first.continues.map_or(0, |open| open.blob_gas_used),
            head: snapshot.head_hash(),
            rules: (spec.fork(&header), blobs, first.continues.is_some()),
            millis: first.millis,
            header,
        })
    }

    /// Returns the difference from this context to a later one.
    pub fn change_to(&self, later: &Self) -> ContextChange {
        let (one, other) = (&self.header, &later.header);
        let mut fields = BlockReads::empty();
        for (field, differs) in [
            (BlockReads::NUMBER, one.number != other.number),
            (BlockReads::TIMESTAMP, one.timestamp != other.timestamp || self.millis != later.millis),
            (BlockReads::FEE_RECIPIENT, one.beneficiary != other.beneficiary),
            (BlockReads::PREV_RANDAO, one.mix_hash != other.mix_hash || one.difficulty != other.difficulty),
            (BlockReads::GAS_LIMIT, one.gas_limit != other.gas_limit),
            (BlockReads::BASE_FEE, one.base_fee_per_gas != other.base_fee_per_gas),
            (BlockReads::BLOB_BASE_FEE, self.blob_base_fee != later.blob_base_fee),
            (BlockReads::SLOT_NUMBER, one.slot_number != other.slot_number),
            (BlockReads::GAS_LEFT, self.gas_left != later.gas_left),
            (BlockReads::HEADER, one != other || self.head != later.head || self.blob_gas_used != later.blob_gas_used),
        ] {
            fields.set(field, differs);
        }
        ContextChange {
            everything: self.rules != later.rules,
            fields,
            hashes: self.head != later.head,
            gas_left: later.gas_left.most(),
            recipients: fields.contains(BlockReads::FEE_RECIPIENT).then_some([one.beneficiary, other.beneficiary]),
        }
    }
}
