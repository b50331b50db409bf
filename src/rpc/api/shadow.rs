//! `presim_shadow`: a block as it is, and as it would be under another fork. Only nodes started by commands have it,
//! so that a serving node keeps its processors for itself.

use alloy_primitives::Address;
use revm::primitives::hardfork::SpecId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Example, Query,
    trace::{before, find_block},
};
use crate::{
    chain::ChainTx,
    engine::{
        self, Difference, DifferentParts, DivergentStep, ShadowedTx, SimulationError, StepKind, StepPlace, op_name,
    },
    ledger::Included,
    rpc::{
        json::hex::{Fixed, Quantity},
        params::{SelectorParam, select},
        protocol::error::{Result, RpcError},
        run::{Attempt, Backend},
    },
};
use alloy_consensus::{Transaction, TxReceipt};

/// Runs each transaction of a block by the rules of its block and by another fork's rules, on the same state, and
/// returns the transactions that differ.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "2 parameters: block, options")]
pub struct Shadow {
    block: SelectorParam,
    options: ShadowOptions,
}

/// The other fork, and the parts of the answer.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ShadowOptions {
    /// The name of the other fork.
    under: String,
    /// Whether to report the gas of every transaction.
    #[serde(default)]
    gas: bool,
}

/// A block that has run twice.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ShadowedBlock {
    number: Quantity<u64>,
    hash: Fixed<32>,
    /// The name of the block's own fork.
    fork: &'static str,
    /// The name of the other fork.
    under: &'static str,
    /// The number of transactions that have run.
    transactions: usize,
    gas_used: Quantity<u64>,
    /// The sum over the transactions that are valid under the other fork.
    gas_used_under: Quantity<u64>,
    /// The transactions that differ.
    differences: Vec<ShadowDifference>,
    /// The gas of every transaction, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    gas: Option<Vec<ShadowedGas>>,
}

/// The gas of a transaction.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ShadowedGas {
    index: usize,
    hash: Fixed<32>,
    gas_used: Quantity<u64>,
    /// Null if the transaction is invalid under the other fork.
    gas_used_under: Option<Quantity<u64>>,
}

/// A transaction that differs.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ShadowDifference {
    index: usize,
    hash: Fixed<32>,
    from: Fixed<20>,
    to: Option<Fixed<20>>,
    gas_limit: Quantity<u64>,
    gas_used: Quantity<u64>,
    gas_used_under: Option<Quantity<u64>>,
    status: Quantity<u64>,
    /// Null if the transaction is invalid under the other fork.
    status_under: Option<Quantity<u64>>,
    /// The reason why the transaction is invalid under the other fork.
    #[serde(skip_serializing_if = "Option::is_none")]
    invalid: Option<String>,
    /// The parts that differ: status, returnData, logs, created, code, nonce, storage, balance.
    differs: Vec<&'static str>,
    cause: String,
    /// The step at which the runs diverge.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<ShadowStep>,
    /// The contracts concerned, the innermost that ran there first.
    contracts: Vec<Fixed<20>>,
    /// Whether it would succeed under the other fork with more gas.
    succeeds_with: MoreGas,
}

/// Whether a transaction would succeed under the other fork with a multiple of its gas limit, ignoring the cap on a
/// transaction's gas and its sender's funds.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct MoreGas {
    /// With 1.5 times its gas limit.
    half_more: bool,
    /// With 2 times its gas limit.
    twice: bool,
}

/// The step at which two runs diverge.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ShadowStep {
    /// The difference.
    kind: ShadowKind,
    /// For `pc` the last step of both, else the step itself.
    #[serde(flatten)]
    step: ShadowPlace,
    /// For `pc` the next step by the block's own rules, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    own: Option<ShadowPlace>,
    /// For `pc` the next step under the other fork, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    under: Option<ShadowPlace>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum ShadowKind {
    /// The program counters.
    Pc,
    /// The operands of a write, a log, a call or a return.
    Operands,
    /// The gas.
    OutOfGas,
}

/// The place of a step.
#[derive(Debug, Serialize, JsonSchema)]
struct ShadowPlace {
    contract: Fixed<20>,
    /// The account whose code runs.
    code: Fixed<20>,
    pc: usize,
    op: String,
    depth: usize,
}

/// The names of the parts.
const PARTS: [(DifferentParts, &str); 8] = [
    (DifferentParts::STATUS, "status"),
    (DifferentParts::RETURN_DATA, "returnData"),
    (DifferentParts::LOGS, "logs"),
    (DifferentParts::CREATED, "created"),
    (DifferentParts::CODE, "code"),
    (DifferentParts::NONCE, "nonce"),
    (DifferentParts::STORAGE, "storage"),
    (DifferentParts::BALANCE, "balance"),
];

impl Query for Shadow {
    type Answer = ShadowedBlock;
    const EXAMPLE: Example = Example {
        params: r#"["0x10", {"under": "amsterdam"}]"#,
        answer: r#"{"number": "0x10", "hash": "0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470", "fork": "osaka", "under": "amsterdam", "transactions": 1, "gasUsed": "0x5208", "gasUsedUnder": "0x5208", "differences": []}"#,
    };

    fn answer(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<ShadowedBlock> {
        let rules = backend.spec.under(&self.options.under);
        let rules = rules.map_err(|error| RpcError::params(format!("params[1].under: {error}")))?;
        let block = find_block(backend, run.published, select(Some(self.block)))?;
        let own_fork: SpecId = backend.spec.evm_fork(block.context());
        if !own_fork.is_enabled_in(SpecId::MERGE) {
            let text = format!("block {} is from before the merge: expected one of paris or later", block.number());
            return Err(RpcError::new(-32000, text));
        }
        let before = before(run.published, &block)?;
        run.reset_to(&before);
        let mut shadowed = ShadowedBlock {
            number: Quantity(block.number()),
            hash: Fixed(block.header().hash().0),
            fork: backend.spec.fork_name(block.context()),
            under: rules.fork_name(block.context()),
            transactions: 0,
            gas_used: Quantity(0),
            gas_used_under: Quantity(0),
            differences: Vec::new(),
            gas: self.options.gas.then(Vec::new),
        };
        let take = |included: &Included<'_>, tx: ShadowedTx| {
            backend.gas.increment(included.gas_used);
            shadowed.add(included, tx);
            Ok::<_, SimulationError>(())
        };
        engine::shadow_block(&backend.spec, rules, &block, backend.limits.max_trace, run.overlay, take)?;
        // For the next run of the same request.
        run.meter = std::mem::take(&mut run.overlay.meter);
        Ok(shadowed)
    }
}

impl ShadowedBlock {
    fn add(&mut self, included: &Included<'_>, ShadowedTx { gas_under, difference }: ShadowedTx) {
        let own = included.evm_gas_used();
        self.transactions += 1;
        self.gas_used.0 += own;
        self.gas_used_under.0 += gas_under.unwrap_or_default();
        let (index, hash) = (included.index, Fixed(included.tx.tx_hash().0));
        if let Some(gas) = &mut self.gas {
            gas.push(ShadowedGas { index, hash, gas_used: Quantity(own), gas_used_under: gas_under.map(Quantity) });
        }
        if let Some(difference) = difference {
            self.differences.push(ShadowDifference::of(included, gas_under, *difference));
        }
    }
}

impl ShadowDifference {
    fn of(included: &Included<'_>, gas_under: Option<u64>, difference: Difference) -> Self {
        let fixed = |address: Address| Fixed(address.0.0);
        let tx: &ChainTx = included.tx.inner();
        let Difference { parts, success_under, invalid, at, cause, contracts, succeeds_with } = difference;
        let [half_more, twice] = succeeds_with;
        Self {
            index: included.index,
            hash: Fixed(included.tx.tx_hash().0),
            from: fixed(included.tx.signer()),
            to: tx.to().map(fixed),
            gas_limit: Quantity(tx.gas_limit()),
            gas_used: Quantity(included.evm_gas_used()),
            gas_used_under: gas_under.map(Quantity),
            status: Quantity(included.receipt.status().into()),
            status_under: invalid.is_none().then(|| Quantity(success_under.into())),
            invalid,
            differs: PARTS.iter().filter(|(part, _)| parts.contains(*part)).map(|(_, name)| *name).collect(),
            cause: cause.to_string(),
            at: at.map(ShadowStep::from),
            contracts: contracts.into_iter().map(fixed).collect(),
            succeeds_with: MoreGas { half_more, twice },
        }
    }
}

impl From<DivergentStep> for ShadowStep {
    fn from(DivergentStep { kind, step, own, under }: DivergentStep) -> Self {
        let kind = match kind {
            StepKind::Pc => ShadowKind::Pc,
            StepKind::Operands => ShadowKind::Operands,
            StepKind::OutOfGas => ShadowKind::OutOfGas,
        };
        Self { kind, step: step.into(), own: own.map(ShadowPlace::from), under: under.map(ShadowPlace::from) }
    }
}

impl From<StepPlace> for ShadowPlace {
    fn from(StepPlace { contract, code, pc, op, depth }: StepPlace) -> Self {
        Self { contract: Fixed(contract.0.0), code: Fixed(code.0.0), pc, op: op_name(op), depth }
    }
}
