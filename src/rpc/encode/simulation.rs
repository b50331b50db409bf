//! The result of `eth_simulateV1`.

use alloy_consensus::{Header, Transaction, Typed2718};
use alloy_primitives::B256;

use super::{
    Object,
    block::{LogPlace, header_fields, log, transaction_fields},
    data, list, too_long, value,
};
use crate::{
    engine::{CallOutcome, CallResult, SimulatedBlock, SimulatedTx},
    rpc::{dialect::Dialect, error::RpcError},
};

/// Writes the result of `eth_simulateV1`.
///
/// # Errors
///
/// Returns -32005 if the response becomes longer than `limit` bytes.
pub fn simulation(
    out: &mut Vec<u8>,
    blocks: &[SimulatedBlock],
    dialect: &Dialect,
    full_transactions: bool,
    limit: usize,
) -> Result<(), RpcError> {
    // Reserves the expected length, because a long response that grows by doubling is moved several times.
    out.reserve(blocks.iter().map(length).sum::<usize>().min(limit));
    out.push(b'[');
    let mut first = true;
    for block in blocks.iter().filter(|block| dialect.shows_fillers || !block.filler) {
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        simulated_block(out, block, dialect, full_transactions);
        if out.len() > limit {
            return Err(too_long(limit));
        }
    }
    out.push(b']');
    Ok(())
}

/// Returns about how many bytes a block takes. Full transactions are not counted.
fn length(block: &SimulatedBlock) -> usize {
    const HEADER: usize = 2048;
    const CALL: usize = 256;
    const LOG: usize = 896;
    let call = |call: &CallResult| {
        let logs: usize = call.logs.iter().map(|log| LOG + 2 * log.log.data.data.len()).sum();
        CALL + 2 * call.return_data.len() + logs
    };
    HEADER + block.calls.iter().map(call).sum::<usize>()
}

fn simulated_block(out: &mut Vec<u8>, block: &SimulatedBlock, dialect: &Dialect, full_transactions: bool) {
    let header = block.header.inner();
    let hash = block.header.hash();
    let mut object = Object::new(out);
    header_fields(&mut object, header, hash, dialect.shows_early_fields);
    object.quantity("size", block.size as u64);
    list(object.key("transactions"), block.transactions.iter().enumerate(), |out, (index, tx)| {
        if full_transactions {
            transaction(out, tx, index as u64, header, hash);
        } else {
            data(out, tx.hash.as_slice());
        }
    });
    object.key("uncles").extend_from_slice(b"[]");
    if block.withdrawals.is_some() || dialect.shows_early_fields {
        list(object.key("withdrawals"), block.withdrawals.iter().flat_map(|list| list.iter()), |out, withdrawal| {
            value(out, withdrawal);
        });
    }
    let mut log_index = 0;
    list(object.key("calls"), block.calls.iter().enumerate(), |out, (index, call)| {
        let place =
            LogPlace { header, block_hash: hash, tx_hash: block.transactions[index].hash, tx_index: index as u64 };
        call_result(out, call, &place, &mut log_index, dialect);
    });
    object.end();
}

fn call_result(out: &mut Vec<u8>, call: &CallResult, place: &LogPlace<'_>, log_index: &mut u64, dialect: &Dialect) {
    let mut object = Object::new(out);
    let shows_data = call.outcome == CallOutcome::Success || dialect.shows_revert_data;
    object.data("returnData", if shows_data { &call.return_data } else { &[] });
    list(object.key("logs"), &call.logs, |out, one| {
        let index = if dialect.counts_reverted_logs { one.number } else { *log_index };
        log(out, &one.log, place, index, false);
        *log_index += 1;
    });
    object
        .quantity("gasUsed", call.gas_used)
        .quantity("maxUsedGas", call.max_used_gas)
        .quantity("status", u64::from(call.outcome == CallOutcome::Success));
    if call.outcome != CallOutcome::Success {
        (dialect.call_error)(object.key("error"), &call.outcome, &call.return_data);
    }
    object.end();
}

/// Writes a simulated transaction in full. As in geth, its signature is zeros.
fn transaction(out: &mut Vec<u8>, tx: &SimulatedTx, index: u64, header: &Header, block_hash: B256) {
    let inner = &tx.tx.tx;
    let mut object = Object::new(out);
    object
        .data("blockHash", block_hash.as_slice())
        .quantity("blockNumber", header.number)
        .quantity("blockTimestamp", header.timestamp)
        .quantity("transactionIndex", index);
    let price = inner.effective_gas_price(header.base_fee_per_gas);
    transaction_fields(&mut object, inner, inner.nonce(), tx.hash, tx.from, price);
    object.quantity("v", 0).quantity("r", 0).quantity("s", 0);
    if !inner.is_legacy() {
        object.quantity("yParity", 0);
    }
    object.end();
}
