//! Compares the project's own rules of Lagoon's blocks with the outcome of a block case.

use std::fmt::Write;

use alloy_consensus::{Header, TxReceipt, proofs::calculate_receipt_root, transaction::Recovered};
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{Bloom, keccak256};
use presim::testing::{
    chain::{BlockHashes, ChainReceipt, ChainTx, GasRefunds, InvalidPostExec},
    engine::ChainExecutor,
    state::Overlay,
};

use super::{
    block_case::{BlockCase, BlockFork, BlockOutcome, BlockRule, ValidBlock},
    case::Status,
    changes, spec_of, world_of,
};

/// The result of a block by the project's rules.
struct Executed {
    receipts: Vec<ChainReceipt>,
    refunds: GasRefunds,
    gas_used: u64,
    blob_gas_used: u64,
    overlay: Overlay,
}

/// Compares a case. Returns the differences as text.
pub fn compare_block(case: &BlockCase) -> Result<(), String> {
    let Some(outcome) = &case.outcome else { return Err(format!("{}: no outcome", case.name)) };
    let problem = match (outcome, execute(case)) {
        (BlockOutcome::Valid(expected), Ok(found)) => differences(case, expected, found),
        (BlockOutcome::Valid(_), Err((rules, error))) => format!("  invalid by one of {rules:?}: {error}\n"),
        (BlockOutcome::Invalid(expected), Ok(_)) => format!("  valid, but violates {:?}\n", expected.rules),
        (BlockOutcome::Invalid(expected), Err((rules, error))) => {
            match rules.iter().any(|rule| expected.rules.contains(rule)) {
                true => String::new(),
                false => format!("  {rules:?}: {error}\n  violates {:?}\n", expected.rules),
            }
        }
    };
    if problem.is_empty() { Ok(()) } else { Err(format!("{}:\n{problem}", case.name)) }
}

/// Executes a block. An error has the rules that the block may violate by it.
fn execute(case: &BlockCase) -> Result<Executed, (Vec<BlockRule>, String)> {
    use BlockRule::{DebitBelowZero, ExtraFields, InvalidTransaction, Malformed, RefundAboveGas, UnknownVersion};
    let (spec, header) = (spec_of(fork(case)), header(case));
    let mut transactions = Vec::new();
    for transaction in &case.transactions {
        let tx = ChainTx::decode_2718_exact(&transaction.tx)
            .map_err(|error| (vec![Malformed, ExtraFields, UnknownVersion, InvalidTransaction], error.to_string()))?;
        transactions.push(Recovered::new_unchecked(tx, transaction.sender));
    }
    let refunds = GasRefunds::of_block(spec.has_post_exec(header.timestamp), header.number, &transactions)
        .map_err(|(_, broken)| (rules(broken).to_vec(), broken.to_string()))?;
    let mut hashes = BlockHashes::default();
    for ancestor in 0..case.block.number {
        hashes.push(ancestor, keccak256(ancestor.to_string()));
    }
    let mut overlay = Overlay::new(world_of(&case.pre), hashes);
    let mut executor = ChainExecutor::new(spec, &mut overlay, &header, None, &[]);
    executor.refund(refunds.clone());
    for tx in &transactions {
        executor
            .execute(tx)
            .map_err(|error| (vec![RefundAboveGas, DebitBelowZero, InvalidTransaction], format!("{error:?}")))?;
    }
    let progress = executor.progress();
    let receipts = std::mem::take(executor.receipts_mut());
    let (gas_used, blob_gas_used) = (progress.cumulative_gas, progress.blob_gas);
    drop(executor);
    Ok(Executed { receipts, refunds, gas_used, blob_gas_used, overlay })
}

const fn fork(case: &BlockCase) -> &'static str {
    match case.fork {
        BlockFork::Karst => "karst",
        BlockFork::Lagoon => "lagoon",
    }
}

fn header(case: &BlockCase) -> Header {
    let block = &case.block;
    Header {
        number: block.number,
        timestamp: block.timestamp,
        gas_limit: block.gas_limit,
        beneficiary: block.beneficiary,
        mix_hash: block.prev_randao,
        base_fee_per_gas: Some(block.base_fee),
        blob_gas_used: Some(0),
        excess_blob_gas: Some(block.excess_blob_gas),
        extra_data: case.extra_data.clone(),
        ..Header::default()
    }
}

/// Returns the names that the oracle has for a rule.
const fn rules(broken: InvalidPostExec) -> &'static [BlockRule] {
    match broken {
        InvalidPostExec::BeforeLagoon => &[BlockRule::BeforeLagoon],
        InvalidPostExec::NotLast => &[BlockRule::NotLast, BlockRule::MoreThanOne],
        InvalidPostExec::OtherBlock { .. } => &[BlockRule::WrongBlockNumber],
        InvalidPostExec::Empty => &[BlockRule::NoEntries],
        InvalidPostExec::Order { .. } => &[BlockRule::UnorderedIndices],
        InvalidPostExec::Zero { .. } => &[BlockRule::ZeroRefund],
        InvalidPostExec::NotSigned { .. } => {
            &[BlockRule::IndexOfDeposit, BlockRule::IndexOfPostExec, BlockRule::IndexOutOfRange]
        }
    }
}

fn differences(case: &BlockCase, expected: &ValidBlock, found: Executed) -> String {
    let spec = spec_of(fork(case));
    let mut text = String::new();
    let mut check = |what: &str, expected: String, found: String| {
        if expected != found {
            writeln!(text, "  {what}: expected {expected}\n  found {found}").expect("a text");
        }
    };
    let Executed { receipts, refunds, gas_used, blob_gas_used, overlay } = found;
    check("gas used", expected.gas_used.to_string(), gas_used.to_string());
    check("blob gas used", expected.blob_gas_used.to_string(), blob_gas_used.to_string());
    check("receipts root", expected.receipts_root.to_string(), calculate_receipt_root(&receipts).to_string());
    let bloom = receipts.iter().fold(Bloom::ZERO, |all, receipt| all | receipt.bloom());
    check("bloom", expected.logs_bloom.to_string(), bloom.to_string());
    let sealed = Header { gas_used, blob_gas_used: Some(blob_gas_used), ..header(case) };
    let next = spec.next_base_fee(&sealed, sealed.number + 1, sealed.timestamp + 2);
    check("next base fee", format!("{:?}", Some(expected.next_base_fee)), format!("{next:?}"));
    check("receipts", expected.transactions.len().to_string(), receipts.len().to_string());
    for (index, (expected, receipt)) in expected.transactions.iter().zip(&receipts).enumerate() {
        let refund = Some(refunds.of(index)).filter(|refund| *refund > 0);
        let wanted = (
            expected.status == Status::Success,
            expected.cumulative_gas_used,
            expected.op_gas_refund,
            &expected.logs[..],
        );
        let had = (receipt.status(), receipt.cumulative_gas_used(), refund, receipt.logs());
        check(&format!("transaction {index}"), format!("{wanted:?}"), format!("{had:?}"));
    }
    check("state", format!("{:?}", expected.post), format!("{:?}", case.diff(changes(&overlay))));
    text
}
