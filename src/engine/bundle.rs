//! `eth_callBundle`: signed transactions in the block that they are meant for, and what its producer gets for them.

use alloy_consensus::{Header, Transaction, TxEnvelope, transaction::Recovered};
use alloy_evm::{Evm, FromRecoveredTx, block::SystemCaller};
use alloy_primitives::{Address, B256, I256, Keccak256, U256};
use revm::context::result::{EVMError, ExecutionResult};

use super::{
    Engine,
    error::SimulationError,
    evm::{Ethereum, FamilyEvm, OpStack, RunEvm},
    precompiles::RunPrecompiles,
    request::{SignedBundle, SimulationRules},
};
use crate::{
    chain::{Attributes, ChainSpec, Family},
    state::{Overlay, Snapshot},
};

/// A bundle that was run.
#[derive(Debug)]
pub struct BundleResult {
    /// The keccak hash of its transactions' hashes, one after the other.
    pub hash: B256,
    /// The number of the block whose state it ran on.
    pub state_block_number: u64,
    /// What its transactions did, in order.
    pub transactions: Vec<BundleTx>,
}

/// What a transaction of a bundle did.
#[derive(Debug)]
pub struct BundleTx {
    /// Its hash.
    pub hash: B256,
    /// Its sender.
    pub from: Address,
    /// Its callee; none where it creates a contract.
    pub to: Option<Address>,
    /// How it ended.
    pub result: ExecutionResult,
    /// What the block's producer has more after it than before, wei: fees and what it was sent. Negative where it pays itself.
    pub coinbase_diff: I256,
    /// What the producer gets for its gas, wei: the base fee is burnt, and not in it.
    pub gas_fees: U256,
}

/// Why a bundle cannot be run. All of it is refused then: no part of it can land.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// Its block cannot be.
    #[error(transparent)]
    Block(#[from] SimulationError),
    /// One of its transactions cannot be in that block.
    #[error("transaction {index} ({hash}): {error}")]
    Transaction {
        #[doc = "Which, from 0."]
        index: usize,
        #[doc = "Its hash."]
        hash: B256,
        #[doc = "Why."]
        error: Box<SimulationError>,
    },
}

impl Engine<'_> {
    /// Runs `bundle` on `snapshot`. A bundle for the block being built continues it (`design.md`, decision 4): after its transactions, with the
    /// gas and the blobs that it has left. Any other begins a block.
    ///
    /// # Errors
    /// That its block cannot be, or one of its transactions not in it.
    pub fn call_bundle(&mut self, snapshot: &Snapshot, bundle: &SignedBundle) -> Result<BundleResult, BundleError> {
        match self.spec.family() {
            Family::Ethereum => self.call_bundle_on::<Ethereum>(snapshot, bundle),
            Family::OpStack => self.call_bundle_on::<OpStack>(snapshot, bundle),
        }
    }

    fn call_bundle_on<F: FamilyEvm>(
        &mut self,
        snapshot: &Snapshot,
        bundle: &SignedBundle,
    ) -> Result<BundleResult, BundleError> {
        let Self { spec, rules, ref mut overlay, .. } = *self;
        let place = BundleBlock::of(spec, snapshot, bundle, rules)?;
        let env = F::env(spec, &place.header);
        let precompiles = RunPrecompiles::of(env.cfg_env.spec);
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
            if let Err(error) = called {
                // Whatever the EVM says of a run that was stopped: that it was is the reason.
                let stopped = evm.db_mut().meter.stopped().map(SimulationError::from);
                return Err(stopped
                    .unwrap_or_else(|| SimulationError::Refused(format!("system call: {error}")))
                    .into());
            }
        }
        let mut room = BundleGas { spec, place: &place, gas_cap: rules.gas_cap, gas: 0, blob_gas: 0 };
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

/// The block that a bundle runs in.
struct BundleBlock {
    header: Header,
    /// Whether the bundle is the first in it.
    begins: bool,
    /// Gas, and blob gas, that the block has used before the bundle.
    gas_used: u64,
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
                gas_used: open.header.gas_used,
                blob_gas_used: open.blob_gas_used,
            },
            _ if number <= parent.number => {
                return Err(SimulationError::BlockNumber { number, previous: parent.number });
            }
            _ => Self {
                header: next_header(spec, snapshot, number, bundle, rules),
                begins: true,
                gas_used: 0,
                blob_gas_used: 0,
            },
        };
        let header = &mut place.header;
        let before = if place.begins { parent.timestamp } else { snapshot.head.header.timestamp };
        header.timestamp = bundle.timestamp.unwrap_or(header.timestamp);
        if header.timestamp <= before {
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

/// The header of a block on what `snapshot` holds, as simulations have it. Where that is a block being built, it has the hash that it would
/// have if nothing more came.
fn next_header(
    spec: &ChainSpec,
    snapshot: &Snapshot,
    number: u64,
    bundle: &SignedBundle,
    rules: &SimulationRules,
) -> Header {
    let parent = snapshot.open_block().map_or(&snapshot.head.header, |(_, header)| header);
    let steps = rules.block_time.saturating_mul(number - parent.number);
    let timestamp = bundle.timestamp.unwrap_or_else(|| parent.timestamp.saturating_add(steps));
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

/// What of the block the bundle has used, and may.
struct BundleGas<'a> {
    spec: &'a ChainSpec,
    place: &'a BundleBlock,
    gas_cap: u64,
    gas: u64,
    blob_gas: u64,
}

impl BundleGas<'_> {
    /// Refuses a transaction that the block, or the node, has no room for.
    fn admit(&self, tx: &TxEnvelope) -> Result<(), SimulationError> {
        let chain = self.spec.chain_id();
        if let Some(have) = tx.chain_id().filter(|have| *have != chain) {
            return Err(SimulationError::Refused(format!("invalid chain id for signer: have {have} want {chain}")));
        }
        let header = &self.place.header;
        let used = self.place.gas_used.saturating_add(self.gas);
        if tx.gas_limit() > header.gas_limit.saturating_sub(used) {
            return Err(SimulationError::BlockGasLimit { used, limit: header.gas_limit, asked: tx.gas_limit() });
        }
        if tx.gas_limit() > self.gas_cap.saturating_sub(self.gas) {
            return Err(SimulationError::Refused(format!(
                "the node's gas cap: the bundle has used {} of {}, the transaction's gas limit is {}",
                self.gas,
                self.gas_cap,
                tx.gas_limit()
            )));
        }
        let blob_gas = tx.blob_gas_used().unwrap_or_default();
        if tx.is_eip4844() && self.spec.family() == Family::OpStack {
            return Err(SimulationError::Refused(
                "a chain of the OP stack has no blob transactions: expected another type than 0x3".into(),
            ));
        }
        let most = self.spec.blob_params(header.timestamp).map_or(0, |params| params.max_blob_gas_per_block());
        let used = self.place.blob_gas_used.saturating_add(self.blob_gas);
        if blob_gas > 0 && blob_gas > most.saturating_sub(used) {
            return Err(SimulationError::Refused(format!(
                "blob gas limit reached: {used} used of {most}, the transaction needs {blob_gas}"
            )));
        }
        Ok(())
    }
}

/// Runs a transaction, and keeps what it changes.
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
        Err(error) => return Err(explain(error, tx, header, evm.db_mut())),
    };
    let after = evm.db_mut().balance_and_nonce(coinbase).0;
    let gas_used = done.tx_gas_used();
    room.gas = room.gas.saturating_add(gas_used);
    room.blob_gas = room.blob_gas.saturating_add(tx.blob_gas_used().unwrap_or_default());
    // No price is below the base fee here: the EVM has refused those.
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

/// What an error of the EVM means to the one who sent `tx`.
fn explain<E: std::fmt::Display>(
    error: EVMError<E>,
    tx: &Recovered<TxEnvelope>,
    header: &Header,
    overlay: &mut Overlay,
) -> SimulationError {
    if let Some(stopped) = overlay.meter.stopped() {
        return stopped.into();
    }
    let EVMError::Transaction(invalid) = error else { return SimulationError::Internal(error.to_string()) };
    SimulationError::invalid(
        invalid,
        tx.signer(),
        tx.max_fee_per_gas(),
        header.base_fee_per_gas.unwrap_or_default(),
        tx.input().len(),
        overlay.balance_and_nonce(tx.signer()).0,
    )
}
