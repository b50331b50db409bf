//! `eth_callBundle`: signed transactions in the block that they are meant for, and the producer's revenue.

use std::time::Duration;

use alloy_consensus::{Header, Transaction, TxEnvelope, transaction::Recovered};
use alloy_evm::{Evm, FromRecoveredTx, block::SystemCaller};
use alloy_primitives::{Address, B256, I256, Keccak256, U256};
use revm::context::result::ExecutionResult;

use super::{
    Engine,
    error::{SimulationError, explain},
    evm::{FamilyEvm, RunEvm, with_family},
    fees::{check_blob_gas, check_blob_type, check_signer_chain},
    precompiles::RunPrecompiles,
    request::{SignedBundle, SimulationRules},
};
use crate::{
    chain::{Attributes, BASE_TIME, BASE_TIME_SLOT, BlockGas, ChainSpec, GasLeft, block_instant},
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
    /// The EVM's result, with output and logs.
    pub result: ExecutionResult,
    /// Change of the producer's balance, wei: fees and direct payments. Negative if the producer itself pays.
    pub coinbase_diff: I256,
    /// Fees for gas that the producer gets, wei. They exclude the base fee, which is burnt.
    pub gas_fees: U256,
}

/// The reason why a bundle is refused. It is refused as a whole, because no part of it can land.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The block is invalid, the run was stopped, or the node has a fault.
    #[error(transparent)]
    Block(#[from] SimulationError),
    /// A transaction is invalid in the block.
    #[error("transaction {index} ({hash}): {error}")]
    Transaction {
        /// Index of the transaction, from 0.
        index: usize,
        /// Hash of the transaction.
        hash: B256,
        /// The reason.
        error: Box<SimulationError>,
    },
}

impl Engine<'_> {
    /// Runs `bundle` on `snapshot`. A bundle for the block being built runs after that block's transactions, with the
    /// gas and the blobs that the block has left. Any other bundle begins a block.
    ///
    /// # Errors
    ///
    /// Returns [`BundleError::Transaction`] if a transaction is invalid in the block, else [`BundleError::Block`].
    pub fn call_bundle(&mut self, snapshot: &Snapshot, bundle: &SignedBundle) -> Result<BundleResult, BundleError> {
        with_family!(self.spec, |F| self.call_bundle_on::<F>(snapshot, bundle))
    }

    fn call_bundle_on<F: FamilyEvm>(
        &mut self,
        snapshot: &Snapshot,
        bundle: &SignedBundle,
    ) -> Result<BundleResult, BundleError> {
        let Self { spec, rules, ref mut overlay, .. } = *self;
        let place = BundleBlock::of(spec, snapshot, bundle, rules)?;
        let env = F::env(spec, &place.header);
        let precompiles = RunPrecompiles::of(spec, env.cfg_env.spec);
        if place.begins {
            overlay.push_hash(snapshot.header().number, place.header.parent_hash);
        }
        let mut evm = RunEvm::<F>::new(overlay, env, precompiles);
        if place.begins {
            let mut system = SystemCaller::new(spec);
            let header = &place.header;
            let called = system
                .apply_blockhashes_contract_call(header.parent_hash, &mut evm)
                .and_then(|()| system.apply_beacon_root_contract_call(header.parent_beacon_block_root, &mut evm));
            if spec.has_base_time(header.timestamp) {
                evm.db_mut().set_slot(BASE_TIME, BASE_TIME_SLOT, U256::from(place.millis));
            }
            if let Err(error) = called {
                // If the meter stopped the run, that is the reason, whatever the EVM's error says.
                let stopped = evm.db_mut().meter.stopped().map(SimulationError::from);
                return Err(stopped
                    .unwrap_or_else(|| SimulationError::Refused(format!("system call: {error}")))
                    .into());
            }
        }
        let mut room = BundleGas {
            spec,
            place: &place,
            gas_cap: rules.gas_cap,
            gas: 0,
            block_gas: BlockGas::default(),
            blob_gas: 0,
        };
        let mut hash = Keccak256::new();
        let mut transactions = Vec::with_capacity(bundle.transactions.len());
        for (index, tx) in bundle.transactions.iter().enumerate() {
            evm.db_mut().meter.between_calls().map_err(SimulationError::from)?;
            let ran = run(&mut evm, tx, &mut room).map_err(|error| match error {
                error @ (SimulationError::Stopped(_) | SimulationError::Internal(_)) => BundleError::Block(error),
                error => BundleError::Transaction { index, hash: *tx.tx_hash(), error: Box::new(error) },
            })?;
            hash.update(ran.hash);
            transactions.push(ran);
        }
        Ok(BundleResult { hash: hash.finalize(), state_block_number: snapshot.header().number, transactions })
    }
}

struct BundleBlock {
    header: Header,
    /// Whether the bundle begins the block.
    begins: bool,
    /// The milliseconds that a block that the bundle begins adds to its timestamp.
    millis: u32,
    /// Gas, and blob gas, used in the block before the bundle.
    gas: BlockGas,
    blob_gas_used: u64,
}

impl BundleBlock {
    fn of(
        spec: &ChainSpec,
        snapshot: &Snapshot,
        bundle: &SignedBundle,
        rules: &SimulationRules,
    ) -> Result<Self, SimulationError> {
        let number = bundle.number;
        let parent = snapshot.header();
        let mut place = match &snapshot.open {
            Some(open) if open.header.number == number => Self {
                header: open.header.clone(),
                begins: false,
                millis: 0,
                gas: open.gas,
                blob_gas_used: open.blob_gas_used,
            },
            _ if number <= parent.number => {
                return Err(SimulationError::BlockNumber { number, previous: parent.number });
            }
            _ => {
                let usual = next_instant(spec, snapshot, number, rules);
                let given = bundle.timestamp.filter(|given| *given != usual.as_secs());
                let time = given.map_or(usual, Duration::from_secs);
                Self {
                    header: next_header(spec, snapshot, number, time.as_secs()),
                    begins: true,
                    millis: time.subsec_millis(),
                    gas: BlockGas::default(),
                    blob_gas_used: 0,
                }
            }
        };
        let header = &mut place.header;
        let before = if place.begins { parent.timestamp } else { snapshot.head.header.timestamp };
        header.timestamp = bundle.timestamp.unwrap_or(header.timestamp);
        let repeats = rules.step(spec, snapshot).as_secs() == 0;
        if header.timestamp < before || header.timestamp == before && !repeats {
            return Err(SimulationError::BlockTime { time: header.timestamp, previous: before });
        }
        header.beneficiary = bundle.coinbase.unwrap_or(header.beneficiary);
        header.gas_limit = bundle.gas_limit.unwrap_or(header.gas_limit);
        if header.base_fee_per_gas.is_some() {
            header.base_fee_per_gas = bundle.base_fee.or(header.base_fee_per_gas);
        }
        if spec.blob_params(header.timestamp).is_some() {
            header.excess_blob_gas.get_or_insert(0);
        }
        if !spec.is_post_merge(number) {
            header.difficulty = bundle.difficulty.unwrap_or(header.difficulty);
        }
        Ok(place)
    }
}

/// Returns the time of block `number` on the newest block of `snapshot`, if all blocks come in time.
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

/// Gas and blob gas that the bundle has used, and the limits of the block and the node.
struct BundleGas<'a> {
    spec: &'a ChainSpec,
    place: &'a BundleBlock,
    gas_cap: u64,
    /// Gas by receipts.
    gas: u64,
    /// Gas of what the block may use.
    block_gas: BlockGas,
    blob_gas: u64,
}

impl BundleGas<'_> {
    /// Checks that a transaction fits the chain, the block and the node's cap.
    fn admit(&self, tx: &TxEnvelope) -> Result<(), SimulationError> {
        check_signer_chain(tx, self.spec).map_err(SimulationError::Refused)?;
        let header = &self.place.header;
        let whole = GasLeft::of(self.spec, header, BlockGas::default());
        whole
            .check(self.place.gas.plus(self.block_gas), tx.gas_limit())
            .map_err(|(used, limit)| SimulationError::BlockGasLimit { used, limit, asked: tx.gas_limit() })?;
        if tx.gas_limit() > self.gas_cap.saturating_sub(self.gas) {
            return Err(SimulationError::Refused(format!(
                "the node's gas cap (--gas-cap): the bundle has used {} of {}, the transaction's gas limit is {}",
                self.gas,
                self.gas_cap,
                tx.gas_limit()
            )));
        }
        check_blob_type(tx, self.spec).map_err(SimulationError::Refused)?;
        let most = self.spec.blob_params(header.timestamp).map_or(0, |params| params.max_blob_gas_per_block());
        let used = self.place.blob_gas_used.saturating_add(self.blob_gas);
        check_blob_gas(tx, used, most).map_err(SimulationError::Refused)
    }
}

/// Runs a transaction, and keeps its changes.
fn run<F: FamilyEvm>(
    evm: &mut RunEvm<'_, F>,
    tx: &Recovered<TxEnvelope>,
    room: &mut BundleGas<'_>,
) -> Result<BundleTx, SimulationError> {
    room.admit(tx)?;
    let header = &room.place.header;
    let (coinbase, from) = (header.beneficiary, tx.signer());
    let before = evm.db_mut().balance_and_nonce(coinbase).0;
    let done = match evm.commit_signed(F::Tx::from_recovered_tx(&tx.inner().clone().into(), from)) {
        Ok(done) => done,
        Err(error) => return Err(explain(error, tx, header.base_fee_per_gas.unwrap_or_default(), evm.db_mut())),
    };
    let after = evm.db_mut().balance_and_nonce(coinbase).0;
    let gas_used = done.tx_gas_used();
    room.gas = room.gas.saturating_add(gas_used);
    room.block_gas = room.block_gas.plus(BlockGas::of_transaction(room.spec, header, done.gas()));
    room.blob_gas = room.blob_gas.saturating_add(tx.blob_gas_used().unwrap_or_default());
    // No price is below the base fee here, because the EVM has refused such transactions.
    let price = match header.base_fee_per_gas {
        Some(base_fee) => tx.effective_tip_per_gas(base_fee).unwrap_or_default(),
        None => tx.max_fee_per_gas(),
    };
    Ok(BundleTx {
        hash: *tx.tx_hash(),
        from,
        to: tx.to(),
        result: done,
        coinbase_diff: I256::from_raw(after.wrapping_sub(before)),
        gas_fees: U256::from(price) * U256::from(gas_used),
    })
}
