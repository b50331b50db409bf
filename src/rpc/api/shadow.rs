//! `presim_shadow`: a block as it is, and as it would be under another fork. Only nodes started by commands have it,
//! so that a serving node keeps its processors for itself.

use revm::primitives::hardfork::SpecId;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    Example, Method,
    trace::{before, find_block},
};
use crate::{
    engine::{
        self, Difference, DifferentParts, DivergentStep, ShadowedTx, SimulationError, StepKind, StepPlace, op_name,
    },
    ledger::{Block, Included},
    rpc::{
        json::{
            OrNull, Shape,
            hex::{Fixed, Quantity},
            shapes,
        },
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

shapes! {
    /// A block that has run twice.
    pub ShadowedBlock: (&Block, [&str; 2], &[(usize, ShadowedTx)], bool) => |(block, [fork, under], ran, with_gas)| let {
        let ran = || ran.iter().filter_map(|(index, tx)| Some((block.transaction(*index)?, tx)));
        let gas_used = ran().map(|(included, _)| included.evm_gas_used()).sum::<u64>();
        let differences = ran().filter_map(|(included, tx)| Some((included, tx.gas_under, tx.difference.as_deref()?)));
    } {
        number: Quantity<u64> = block.number(),
        hash: Fixed<32> = block.header().hash(),
        /// The name of the block's own fork.
        fork: String = fork,
        /// The name of the other fork.
        under: String = under,
        /// The number of transactions that have run.
        transactions: usize = ran().count(),
        gasUsed: Quantity<u64> = gas_used,
        /// The sum over the transactions that are valid under the other fork.
        gasUsedUnder: Quantity<u64> = ran().filter_map(|(_, tx)| tx.gas_under).sum::<u64>(),
        /// The transactions that differ.
        differences: Vec<ShadowDifference> = differences,
        /// The gas of every transaction, if requested.
        gas: Option<Vec<ShadowedGas>> = with_gas.then(|| ran().map(|(included, tx)| (included, tx.gas_under))),
    }

    /// The gas of a transaction.
    ShadowedGas: (Included<'_>, Option<u64>) => |(included, gas_under)| {
        index: usize = included.index,
        hash: Fixed<32> = included.tx.tx_hash(),
        gasUsed: Quantity<u64> = included.evm_gas_used(),
        /// Null if the transaction is invalid under the other fork.
        gasUsedUnder: Option<Quantity<u64>> = Some(OrNull(gas_under)),
    }

    /// A transaction that differs.
    ShadowDifference: (Included<'_>, Option<u64>, &Difference) => |(included, gas_under, difference)| let {
        let Difference { parts, success_under, invalid, at, cause, contracts, succeeds_with } = difference;
        let status_under = invalid.is_none().then(|| u64::from(*success_under));
        let differs = PARTS.iter().filter(|(part, _)| parts.contains(*part)).map(|(_, name)| name);
    } {
        index: usize = included.index,
        hash: Fixed<32> = included.tx.tx_hash(),
        from: Fixed<20> = included.tx.signer(),
        to: Option<Fixed<20>> = Some(OrNull(included.tx.to())),
        gasLimit: Quantity<u64> = included.tx.gas_limit(),
        gasUsed: Quantity<u64> = included.evm_gas_used(),
        gasUsedUnder: Option<Quantity<u64>> = Some(OrNull(gas_under)),
        status: Quantity<u64> = u64::from(included.receipt.status()),
        /// Null if the transaction is invalid under the other fork.
        statusUnder: Option<Quantity<u64>> = Some(OrNull(status_under)),
        /// The reason why the transaction is invalid under the other fork.
        invalid: Option<String> = invalid.as_ref(),
        /// The parts that differ: status, returnData, logs, created, code, nonce, storage, balance.
        differs: Vec<String> = differs,
        cause: String = cause.to_string(),
        /// The step at which the runs diverge.
        at: Option<ShadowStep> = at.as_ref(),
        /// The contracts concerned, the innermost that ran there first.
        contracts: Vec<Fixed<20>> = contracts,
        /// Whether it would succeed under the other fork with more gas.
        succeedsWith: MoreGas = *succeeds_with,
    }

    /// Whether a transaction would succeed under the other fork with a multiple of its gas limit, ignoring the cap on a
    /// transaction's gas and its sender's funds.
    MoreGas: [bool; 2] => |[half_more, twice]| {
        /// With 1.5 times its gas limit.
        halfMore: bool = half_more,
        /// With 2 times its gas limit.
        twice: bool = twice,
    }

    /// The step at which two runs diverge.
    ShadowStep: &DivergentStep => |at| let {
        let kind = match at.kind {
            StepKind::Pc => "pc",
            StepKind::Operands => "operands",
            StepKind::OutOfGas => "outOfGas",
        };
    } {
        /// The difference: the program counters; the operands of a write, a log, a call or a return; or the gas.
        #[schemars(extend("enum" = ["pc", "operands", "outOfGas"]))]
        kind: String = kind,
        /// For `pc` the last step of both, else the step itself.
        [flatten] step: ShadowPlace = &at.step,
        /// For `pc` the next step by the block's own rules, if there is one.
        own: Option<ShadowPlace> = at.own.as_ref(),
        /// For `pc` the next step under the other fork, if there is one.
        under: Option<ShadowPlace> = at.under.as_ref(),
    }

    /// The place of a step.
    ShadowPlace: &StepPlace => |place| {
        contract: Fixed<20> = place.contract,
        /// The account whose code runs.
        code: Fixed<20> = place.code,
        pc: usize = place.pc,
        op: String = op_name(place.op),
        depth: usize = place.depth,
    }
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

impl Method for Shadow {
    type Answer = ShadowedBlock;
    const EXAMPLE: Example = Example {
        params: r#"["0x10", {"under": "amsterdam"}]"#,
        answer: r#"{"number": "0x10", "hash": "0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470", "fork": "osaka", "under": "amsterdam", "transactions": 1, "gasUsed": "0x5208", "gasUsedUnder": "0x5208", "differences": []}"#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
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
        let mut ran = Vec::new();
        let take = |included: &Included<'_>, tx: ShadowedTx| {
            backend.gas.increment(included.gas_used);
            ran.push((included.index, tx));
            Ok::<_, SimulationError>(())
        };
        engine::shadow_block(&backend.spec, rules, &block, backend.limits.max_trace, run.overlay, take)?;
        // For the next run of the same request.
        run.meter = std::mem::take(&mut run.overlay.meter);
        let forks = [&*backend.spec, rules].map(|spec| spec.fork_name(block.context()));
        ShadowedBlock::write(&mut run.out, (&block, forks, &*ran, self.options.gas));
        Ok(())
    }
}
