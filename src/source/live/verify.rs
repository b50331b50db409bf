//! The comparison of a sub-block, and of its block so far, with its builder's word.

use alloy_consensus::{Header, TxReceipt, transaction::Recovered};
use alloy_primitives::U256;
use op_alloy::{consensus::OpReceipt, rpc_types_engine::OpFlashblockPayloadBase};

use super::error::LiveError;
use super::flashblocks::Flashblock;
use crate::{
    chain::{ChainReceipt, ChainSpec, ChainTx},
    ledger::{Chain, OpenBlock, Verified},
    state::{Lookup, World},
};

/// Checks the time and the base fee of a block on `parent`, as its first sub-block has them. The other fields do not
/// follow from the parent.
///
/// The base fee is checked only if the newest canonical block's also follows from its parent: a chain may have base fee
/// rules that presim does not know, and the parent of the first block that presim sees is unknown.
///
/// # Errors
///
/// Returns [`LiveError::Mismatch`] if the value contradicts the chain's rules.
pub(super) fn verify_base(
    spec: &ChainSpec,
    published: &Chain,
    parent: &Header,
    base: &OpFlashblockPayloadBase,
) -> Result<(), LiveError> {
    let (time, before) = (base.timestamp, parent.timestamp);
    if time < before || time == before && !spec.timestamps_repeat(time) {
        let (computed, announced) = (format!("more than the parent's {before}"), time.to_string());
        return Err(LiveError::Mismatch { what: "timestamp", computed, announced, transaction: None });
    }
    let head = &published.head().header;
    let before_head = head.number.checked_sub(1).and_then(|number| published.sealed_block(number));
    let Some(before_head) = before_head.filter(|block| block.hash() == head.parent_hash) else { return Ok(()) };
    if spec.next_base_fee(&before_head.header, head.number, head.timestamp) != head.base_fee_per_gas {
        return Ok(());
    }
    let Some(fee) = spec.next_base_fee(parent, base.block_number, time) else { return Ok(()) };
    LiveError::unless_equal("base_fee_per_gas", U256::from(fee), base.base_fee_per_gas)
}

/// Compares a sub-block, and its block so far, with the builder's values.
///
/// # Errors
///
/// Returns [`LiveError::Mismatch`] with the first value that differs.
pub(super) fn verify(
    flashblock: &Flashblock,
    open: &OpenBlock,
    transactions: &[Recovered<ChainTx>],
    world: &World,
) -> Result<Verified, LiveError> {
    let diff = &flashblock.diff;
    let compared = check_receipts(flashblock, open, transactions)? + check_balances(flashblock, world)?;
    // A builder that leaves a value out sends zero.
    let (has_root, has_bloom) = (!diff.receipts_root.is_zero(), !diff.logs_bloom.is_zero());
    let has_gas = diff.gas_used > 0 || open.header.gas_used == 0;
    if diff.gas_used > 0 {
        LiveError::unless_equal("gas_used", open.header.gas_used, diff.gas_used)?;
    }
    if has_root || has_bloom {
        let (mut root, bloom) = open.receipts_root_and_bloom();
        if has_root {
            // Whether it covers the receipt of a post-execution transaction is not specified.
            if root != diff.receipts_root {
                let canonical = open.canonical_receipts_root();
                root = if canonical == diff.receipts_root { canonical } else { root };
            }
            LiveError::unless_equal("receipts_root", root, diff.receipts_root)?;
        }
        if has_bloom {
            LiveError::unless_equal("logs_bloom", bloom, diff.logs_bloom)?;
        }
    }
    let has_some = diff.gas_used > 0 || has_root || has_bloom || compared > 0;
    Ok(match (has_gas && has_root, has_some) {
        (true, _) => Verified::Full,
        (false, true) => Verified::Partial,
        (false, false) => Verified::None,
    })
}

/// Checks the receipts of a sub-block's transactions against the builder's. Returns the number of receipts compared.
fn check_receipts(
    flashblock: &Flashblock,
    open: &OpenBlock,
    transactions: &[Recovered<ChainTx>],
) -> Result<usize, LiveError> {
    let Some(announced) = &flashblock.metadata.receipts else { return Ok(0) };
    let mut compared = 0;
    for tx in transactions {
        let Some(announced) = announced.get(tx.tx_hash()) else { continue };
        let Some(own) = open.positions.get(tx.tx_hash()).and_then(|index| open.receipts.get(*index)) else { continue };
        check_receipt(own, announced).map_err(|error| error.of_transaction(*tx.tx_hash()))?;
        compared += 1;
    }
    Ok(compared)
}

fn check_receipt(own: &ChainReceipt, announced: &OpReceipt) -> Result<(), LiveError> {
    let receipt = announced.as_receipt();
    LiveError::unless_equal("receipt: status", own.status(), receipt.status.coerce_status())?;
    LiveError::unless_equal("receipt: cumulative gas", own.cumulative_gas_used(), receipt.cumulative_gas_used)?;
    LiveError::unless_equal("receipt: logs", own.logs().len(), receipt.logs.len())?;
    let same_logs = own.logs() == receipt.logs.as_slice();
    LiveError::unless_equal("receipt: the same logs", same_logs, true)?;
    if let (Some(own), OpReceipt::Deposit(announced)) = (own.as_deposit(), announced) {
        let nonce = |nonce: Option<u64>| nonce.map_or_else(|| "none".to_owned(), |nonce| nonce.to_string());
        LiveError::unless_equal("receipt: deposit nonce", nonce(own.deposit_nonce), nonce(announced.deposit_nonce))?;
    }
    Ok(())
}

/// Checks known balances against the builder's. Returns the number of balances compared.
fn check_balances(flashblock: &Flashblock, world: &World) -> Result<usize, LiveError> {
    let mut compared = 0;
    for (address, announced) in flashblock.metadata.new_account_balances.iter().flatten() {
        if let Lookup::Known(info) = world.look_up(address) {
            let own = info.map_or(U256::ZERO, |info| info.balance);
            let what = |balance: &U256| format!("{balance} of {address}");
            LiveError::unless_equal("balance", what(&own), what(announced))?;
            compared += 1;
        }
    }
    Ok(compared)
}
