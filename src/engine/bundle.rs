//! `eth_callBundle`: signed transactions in the block that they are meant for, and the producer's revenue.

use std::{borrow::Cow, time::Duration};

use alloy_consensus::{Header, Transaction};
use alloy_primitives::{Address, B256, I256, Keccak256, U256};

use super::{
    Engine,
    call::overridden,
    error::{RunError, SimulationError},
    request::{Outputs, SimBlock, SimCall, Simulation, SimulationRules},
    simulate::{BlocksToRun, CallResult, CallRules, PlannedBlock, PlannedHeader},
};
use crate::{
    chain::{Attributes, ChainSpec, block_instant},
    ledger::Snapshot,
};

/// The result of a bundle.
#[derive(Debug)]
pub struct BundleResult {
    /// The keccak hash of the concatenated hashes of the transactions.
    pub hash: B256,
    /// The number of the block whose state the bundle ran on.
    pub state_block_number: u64,
    /// The results of the transactions, in order.
    pub transactions: Vec<BundleTx>,
}

/// The result of a transaction of a bundle.
#[derive(Debug)]
pub struct BundleTx {
    /// The transaction's hash.
    pub hash: B256,
    /// The sender.
    pub from: Address,
    /// The callee. `None` if the transaction creates a contract.
    pub to: Option<Address>,
    /// The result, with output and logs.
    pub result: CallResult,
    /// Change of the producer's balance, wei: fees and direct payments. Negative if the producer itself pays.
    pub coinbase_diff: I256,
    /// Fees for gas that the producer gets, wei. They exclude the base fee, which is burnt.
    pub gas_fees: U256,
}

impl Engine<'_> {
    /// Runs `bundle`, whose calls are signed transactions, on `snapshot`. A bundle for the block being built runs after
    /// that block's transactions, with the gas and the blobs that the block has left. Any other bundle begins a block.
    ///
    /// # Errors
    ///
    /// Returns a [`RunError`] if the block or a transaction is invalid, or if the meter stopped the run. A bundle is
    /// refused as a whole, because no part of it can land.
    pub fn call_bundle(&mut self, snapshot: &Snapshot, bundle: &SimBlock) -> Result<BundleResult, RunError> {
        let planned = planned(self.spec, snapshot, bundle, self.rules)?;
        if let (PlannedHeader::Given(header), None) = (&planned.header, planned.continues) {
            self.overlay.push_hash(snapshot.header().number, header.parent_hash);
        }
        let simulation = Simulation { outputs: Outputs::COINBASE, ..Simulation::default() };
        let mut hash = Keccak256::new();
        let mut transactions = Vec::with_capacity(bundle.calls.len());
        let plan = vec![planned];
        let run = BlocksToRun { plan, simulation: &simulation, tracers: &[], from: None, until: None };
        for block in self.run_blocks(snapshot, run)?.end(self.rules, &simulation).blocks {
            for (call, result) in bundle.calls.iter().zip(block.calls) {
                let SimCall::Signed(tx) = call else { continue };
                hash.update(tx.tx_hash());
                // No price is below the base fee here, because the EVM has refused such transactions.
                let price = tx.effective_tip_per_gas(block.base_fee).unwrap_or_default();
                transactions.push(BundleTx {
                    hash: *tx.tx_hash(),
                    from: tx.signer(),
                    to: tx.to(),
                    coinbase_diff: result.income.unwrap_or_default(),
                    gas_fees: U256::from(price) * U256::from(result.gas_used),
                    result,
                });
            }
        }
        Ok(BundleResult { hash: hash.finalize(), state_block_number: snapshot.header().number, transactions })
    }
}

/// Returns the block of `bundle` on `snapshot`.
fn planned<'a>(
    spec: &'a ChainSpec,
    snapshot: &'a Snapshot,
    bundle: &'a SimBlock,
    rules: &SimulationRules,
) -> Result<PlannedBlock<'a>, SimulationError> {
    let newest = snapshot.header();
    let number = bundle.block.number.unwrap_or_else(|| newest.number.saturating_add(1));
    let continues = snapshot.open.as_ref().filter(|open| open.header.number == number);
    let (own, before, millis) = match continues {
        Some(open) => (open.header.clone(), snapshot.head.header.timestamp, 0),
        None if number <= newest.number => {
            return Err(SimulationError::BlockNumber { number, previous: newest.number });
        }
        None => {
            let usual = next_instant(spec, snapshot, number, rules);
            let given = bundle.block.time.filter(|given| *given != usual.as_secs());
            let time = given.map_or(usual, Duration::from_secs);
            (next_header(spec, snapshot, number, time.as_secs()), newest.timestamp, time.subsec_millis())
        }
    };
    let mut header = overridden(spec, &own, &bundle.block);
    if own.base_fee_per_gas.is_none() {
        header.base_fee_per_gas = None;
    }
    let (time, repeats) = (header.timestamp, rules.step(spec, snapshot).as_secs() == 0);
    if time < before || time == before && !repeats {
        return Err(SimulationError::BlockTime { time, previous: before });
    }
    Ok(PlannedBlock {
        block: Cow::Borrowed(bundle),
        number,
        time,
        millis: spec.has_base_time(time).then_some(millis.into()),
        asked: Some(0),
        continues,
        header: PlannedHeader::Given(header.into()),
        spec,
        rules: CallRules::Bundle,
    })
}

/// Returns the time of block `number` on the newest block of `snapshot`, if all blocks are on time.
fn next_instant(spec: &ChainSpec, snapshot: &Snapshot, number: u64, rules: &SimulationRules) -> Duration {
    let before = match &snapshot.open {
        Some(open) => block_instant(open.header.timestamp, open.millis()),
        None => spec.instant_of(&snapshot.head),
    };
    let steps = u32::try_from(number - snapshot.header().number).unwrap_or(u32::MAX);
    before.saturating_add(rules.step(spec, snapshot).saturating_mul(steps))
}

/// Returns the header of block `number` on the newest block of `snapshot`, with the defaults of simulations. A parent
/// that is being built has the hash that it would have if nothing were added.
fn next_header(spec: &ChainSpec, snapshot: &Snapshot, number: u64, timestamp: u64) -> Header {
    let parent = snapshot.open_block().map_or(&snapshot.head.header, |(_, header)| header);
    let attributes = Attributes {
        timestamp,
        fee_recipient: parent.beneficiary,
        prev_randao: B256::ZERO,
        beacon_root: B256::ZERO,
        gas_limit: parent.gas_limit,
    };
    let difficulty = if spec.is_post_merge(number) { U256::ZERO } else { parent.difficulty };
    Header { difficulty, ..spec.next_header(parent, number, attributes) }
}
