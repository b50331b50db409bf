//! The results of `eth_simulateV1` and `presim_simulate`.

use std::collections::BTreeMap;

use alloy_consensus::{Transaction, Typed2718};
use alloy_primitives::{Address, map::AddressMap};

use crate::{
    engine::{
        Asset, BlockListing, CallOutcome, CallResult, CoinbaseIncome, HaltText, NetChange, NumberedLog, Outputs,
        Simulated, SimulatedBlock, SimulatedTx, TokenInfo, revert_reason,
    },
    rpc::{
        json::{
            Object, TxPosition, access_list, check_length, data, header_fields, list, log, log_data, quantity,
            seal_fields, signed, state_diff, string, trace, transaction_fields, try_list, value,
        },
        params::CustomErrors,
        protocol::{
            dialect::{Dialect, ErrorForm},
            error::{Result, RpcError},
        },
    },
    state::{AccountRead, AccountReads, BlockReads, ReadSet},
};

/// The form in which the results of a simulation are shown.
#[derive(Clone, Copy, Debug)]
pub struct SimulationView<'a> {
    /// The client's dialect.
    pub dialect: &'a Dialect,
    /// Whether the fork of each block is named.
    pub names_fork: bool,
    /// The outputs that are shown.
    pub outputs: Outputs,
    /// Whether transactions are shown in full.
    pub full_transactions: bool,
    /// The errors by which the data of reverts is explained.
    pub errors: Option<&'a CustomErrors>,
    /// The values that the run read ([`Outputs::READ_SET`]).
    pub reads: Option<&'a ReadSet>,
    /// Maximum bytes of the response.
    pub limit: usize,
}

/// Writes the result of a simulation: its blocks, or the call that broke the bundle.
///
/// # Errors
///
/// Returns -32005 if the response becomes longer than the limit.
pub fn write_simulation(out: &mut Vec<u8>, simulated: &Simulated, view: &SimulationView<'_>) -> Result<()> {
    if let Some(index) = simulated.dropped {
        let mut object = Object::new(out);
        let mut dropped = Object::new(object.key("dropped"));
        dropped.number("block", index.block).number("call", index.call);
        dropped.end();
        if let Some(reads) = view.reads {
            read_set(object.key("readSet"), reads);
        }
        object.end();
        return Ok(());
    }
    // Reserves the expected length, because a long response that grows by doubling is moved several times.
    out.reserve(simulated.blocks.iter().map(length).sum::<usize>().min(view.limit));
    let last = simulated.blocks.len().saturating_sub(1);
    let shown = simulated.blocks.iter().enumerate().filter(|(_, block)| !block.filler || view.dialect.shows_fillers);
    try_list(out, shown, |out, (index, block)| {
        simulated_block(out, block, &simulated.tokens, view, view.reads.filter(|_| index == last))?;
        check_length(out, view.limit)
    })
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
    let header = if block.listing.is_some() { HEADER } else { 64 };
    header + block.calls.iter().map(call).sum::<usize>()
}

fn simulated_block(
    out: &mut Vec<u8>,
    block: &SimulatedBlock,
    tokens: &AddressMap<TokenInfo>,
    view: &SimulationView<'_>,
    reads: Option<&ReadSet>,
) -> Result<()> {
    let mut object = Object::new(out);
    if let Some(listing) = &block.listing {
        listed_block(&mut object, listing, view);
    }
    if view.names_fork {
        string(object.key("fork"), block.fork);
    }
    let mut log_index = 0;
    try_list(object.key("calls"), block.calls.iter().enumerate(), |out, (index, call)| {
        let position = block.listing.as_ref().map(|listing| position(listing, index));
        call_result(out, call, position.as_ref(), &mut log_index, view)
    })?;
    if let Some(accounts) = &block.access_list {
        access_list(object.key("blockAccessList"), accounts);
    }
    if let Some(diff) = &block.diff {
        state_diff(object.key("stateDiff"), diff);
    }
    if let Some(assets) = &block.assets {
        asset_changes(object.key("assets"), assets, tokens);
    }
    if let Some(income) = &block.coinbase {
        coinbase(object.key("coinbase"), income);
    }
    if let Some(reads) = reads {
        read_set(object.key("readSet"), reads);
    }
    object.end();
    Ok(())
}

fn listed_block(object: &mut Object<'_>, listing: &BlockListing, view: &SimulationView<'_>) {
    header_fields(object, &listing.header, listing.header.hash(), view.dialect.shows_early_fields);
    object.optional_quantity("timestampMs", listing.timestamp_ms).quantity("size", listing.size as u64);
    list(object.key("transactions"), listing.transactions.iter().enumerate(), |out, (index, tx)| {
        if view.full_transactions {
            transaction(out, tx, &TxPosition { time: None, ..position(listing, index) });
        } else {
            data(out, tx.hash.as_slice());
        }
    });
    object.key("uncles").extend_from_slice(b"[]");
    if listing.withdrawals.is_some() || view.dialect.shows_early_fields {
        list(object.key("withdrawals"), listing.withdrawals.iter().flat_map(|list| list.iter()), |out, withdrawal| {
            value(out, withdrawal);
        });
    }
}

/// Returns the position of a simulated transaction.
fn position(listing: &BlockListing, index: usize) -> TxPosition<'_> {
    TxPosition {
        header: &listing.header,
        block_hash: listing.header.hash(),
        tx_hash: listing.transactions[index].hash,
        tx_index: index as u64,
        time: listing.timestamp_ms,
    }
}

fn call_result(
    out: &mut Vec<u8>,
    call: &CallResult,
    position: Option<&TxPosition<'_>>,
    log_index: &mut u64,
    view: &SimulationView<'_>,
) -> Result<()> {
    let (dialect, outputs) = (view.dialect, view.outputs);
    let mut object = Object::new(out);
    if outputs.contains(Outputs::RETURN_DATA) {
        let shows_data = call.outcome == CallOutcome::Success || dialect.shows_revert_data;
        object.data("returnData", if shows_data { &call.return_data } else { &[] });
    }
    if outputs.contains(Outputs::LOGS) {
        list(object.key("logs"), &call.logs, |out, one| {
            let index = if dialect.counts_reverted_logs { one.number } else { *log_index };
            match position {
                Some(position) => log(out, &one.log, position, index, false),
                None => short_log(out, one, index),
            }
            *log_index += 1;
        });
    }
    if outputs.contains(Outputs::GAS_USED) {
        object.quantity("gasUsed", call.gas_used).quantity("maxUsedGas", call.max_used_gas);
    }
    if outputs.contains(Outputs::STATUS) {
        object.quantity("status", u64::from(call.outcome == CallOutcome::Success));
    }
    if outputs.contains(Outputs::ERROR) && call.outcome != CallOutcome::Success {
        let custom = view.errors.filter(|_| call.outcome == CallOutcome::Revert);
        let custom = custom.and_then(|errors| errors.explain(&call.return_data));
        call_error(object.key("error"), call, custom, dialect.call_error);
    }
    if outputs.contains(Outputs::TRANSFERS) {
        list(object.key("transfers"), &call.transfers, |out, transfer| {
            let mut object = Object::new(out);
            object.data("from", transfer.from.as_slice()).data("to", transfer.to.as_slice());
            object.u256("value", transfer.value);
            object.end();
        });
    }
    if let Some(accessed) = &call.access_list {
        value(object.key("accessList"), accessed);
    }
    if let Some(frames) = &call.trace {
        trace(object.key("trace"), frames, view.limit)?;
    }
    object.end();
    Ok(())
}

/// Writes a log without the block that contains it.
fn short_log(out: &mut Vec<u8>, one: &NumberedLog, index: u64) {
    let mut object = Object::new(out);
    log_data(&mut object, &one.log);
    object.quantity("logIndex", index);
    object.end();
}

/// Writes a simulated transaction in full. As in geth, the signature of an unsigned call is zeros.
fn transaction(out: &mut Vec<u8>, tx: &SimulatedTx, position: &TxPosition<'_>) {
    let inner = &tx.tx.tx;
    let mut object = Object::new(out);
    position.write(&mut object);
    let price = inner.effective_gas_price(position.header.base_fee_per_gas);
    transaction_fields(&mut object, inner, inner.nonce(), tx.hash, tx.from, price);
    match &tx.tx.signed {
        Some(signed) => seal_fields(&mut object, signed),
        None => {
            object.quantity("v", 0).quantity("r", 0).quantity("s", 0);
            if !inner.is_legacy() {
                object.quantity("yParity", 0);
            }
        }
    }
    object.end();
}

/// Writes the net changes of assets, by account.
fn asset_changes(
    out: &mut Vec<u8>,
    assets: &BTreeMap<Address, BTreeMap<Asset, NetChange>>,
    tokens: &AddressMap<TokenInfo>,
) {
    let mut accounts = Object::new(out);
    for (account, changes) in assets {
        list(accounts.hex_key(account.as_slice()), changes, |out, (asset, change)| {
            let mut object = Object::new(out);
            let (kind, token, id) = match asset {
                Asset::Ether => ("ether", None, None),
                Asset::Erc20(token) => ("erc20", Some(token), None),
                Asset::Erc721(token, id) => ("erc721", Some(token), Some(id)),
                Asset::Erc1155(token, id) => ("erc1155", Some(token), Some(id)),
            };
            string(object.key("type"), kind);
            if let Some(token) = token {
                object.data("token", token.as_slice());
            }
            object.optional_u256("id", id.copied());
            let (lost, amount) = change.net();
            signed(object.key("change"), lost, amount);
            let info = token.and_then(|token| tokens.get(token));
            if let Some(symbol) = info.and_then(|info| info.symbol.as_ref()) {
                string(object.key("symbol"), symbol);
            }
            object.optional_quantity("decimals", info.and_then(|info| info.decimals).map(u64::from));
            object.end();
        });
    }
    accounts.end();
}

fn coinbase(out: &mut Vec<u8>, income: &CoinbaseIncome) {
    let mut object = Object::new(out);
    object.u256("fees", income.fees);
    let (lost, amount) = income.transfers();
    signed(object.key("transfers"), lost, amount);
    object.end();
}

/// Writes what a run read.
fn read_set(out: &mut Vec<u8>, reads: &ReadSet) {
    const PARTS: [(AccountReads, &str); 5] = [
        (AccountReads::BALANCE, "balance"),
        (AccountReads::NONCE, "nonce"),
        (AccountReads::CODE, "code"),
        (AccountReads::EXISTENCE, "existence"),
        (AccountReads::STORAGE, "storage"),
    ];
    const FIELDS: [(BlockReads, &str); 10] = [
        (BlockReads::NUMBER, "number"),
        (BlockReads::TIMESTAMP, "timestamp"),
        (BlockReads::FEE_RECIPIENT, "feeRecipient"),
        (BlockReads::PREV_RANDAO, "prevRandao"),
        (BlockReads::GAS_LIMIT, "gasLimit"),
        (BlockReads::BASE_FEE, "baseFeePerGas"),
        (BlockReads::BLOB_BASE_FEE, "blobBaseFee"),
        (BlockReads::SLOT_NUMBER, "slotNumber"),
        (BlockReads::GAS_LEFT, "gasLeft"),
        (BlockReads::HEADER, "header"),
    ];
    let mut object = Object::new(out);
    object.key("everything").extend_from_slice(if reads.everything { b"true" } else { b"false" });
    if !reads.everything {
        let mut accounts = Object::new(object.key("accounts"));
        for AccountRead { address, parts, slots } in &reads.accounts {
            let mut account = Object::new(accounts.hex_key(address.as_slice()));
            let read = PARTS.iter().filter(|(part, _)| parts.contains(*part));
            list(account.key("parts"), read, |out, (_, name)| string(out, name));
            list(account.key("slots"), slots, |out, slot| data(out, &slot.to_be_bytes::<32>()));
            account.end();
        }
        accounts.end();
        let read = FIELDS.iter().filter(|(field, _)| reads.block.contains(*field));
        list(object.key("block"), read, |out, (_, name)| string(out, name));
        list(object.key("blockHashes"), &reads.hashes, |out, number| quantity(out, *number));
        object.quantity("gas", reads.gas);
    }
    object.end();
}

/// Writes the error of a failed call. `custom` explains the data of a revert, if the request's own errors do.
fn call_error(out: &mut Vec<u8>, call: &CallResult, custom: Option<String>, form: ErrorForm) {
    let reason = || custom.or_else(|| revert_reason(&call.return_data));
    match (&call.outcome, form) {
        (CallOutcome::Success, _) => {}
        (CallOutcome::Revert, ErrorForm::Text) => {
            string(out, reason().as_deref().unwrap_or("execution reverted"));
        }
        (CallOutcome::Revert, ErrorForm::Object) => {
            value(out, &RpcError::reverted(reason(), call.return_data.clone()).into_object());
        }
        (CallOutcome::Halt(reason), form) => {
            let text = HaltText(reason.clone()).to_string();
            match form {
                ErrorForm::Text => string(out, &text),
                ErrorForm::Object => value(out, &RpcError::new(VM_ERROR, text).into_object()),
            }
        }
    }
}

/// The code of execution-apis for a call that the EVM halted.
const VM_ERROR: i32 = -32015;
