//! The results of `eth_simulateV1` and `presim_simulate`.

use std::{cell::OnceCell, collections::BTreeMap};

use alloy_consensus::{EthereumTypedTransaction, Transaction as _, TxEip4844};
use alloy_eips::Typed2718;
use alloy_primitives::{U256, map::AddressMap};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    engine::{
        self, Asset, BlockListing, CallIndex, CallOutcome, CallResult, HaltText, NetChange, Outputs, Simulated,
        SimulatedTx, TokenInfo, Trace, revert_reason,
    },
    rpc::{
        json::{
            AccessListItem, AccountChanges, AccountDifference, BlockTransaction, CallError, Header, Json, Log, LogView,
            Seal, Shape, Signed, TxPosition, TxView, Withdrawal, check_length,
            hex::{Data, Fixed, Quantity, Word},
            schema::CallFrame,
            shapes, trace, try_list,
        },
        params::CustomErrors,
        protocol::{
            dialect::{Dialect, ErrorForm},
            error::{Result, RpcError},
        },
    },
    state::{self, AccountRead, AccountReads, BlockReads},
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
    /// The errors used to decode the data of reverts.
    pub errors: Option<&'a CustomErrors>,
    /// The values that the run read ([`Outputs::READ_SET`]).
    pub reads: Option<&'a state::ReadSet>,
    /// Maximum bytes of the response.
    pub limit: usize,
}

/// The blocks of a simulation, or the call that has not ended as it had to.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "one of the two is written")]
pub enum SimulatedBlocks {
    Blocks(Vec<SimulatedBlock>),
    Dropped(DroppedBundle),
}

/// A block of a simulation, the form in which it is shown, the run's reads if they are shown with the block, and the
/// error that ends the result.
#[derive(Clone, Copy)]
struct BlockView<'a> {
    block: &'a engine::SimulatedBlock,
    tokens: &'a AddressMap<TokenInfo>,
    view: &'a SimulationView<'a>,
    reads: Option<&'a state::ReadSet>,
    error: &'a OnceCell<RpcError>,
}

shapes! {
    #[schemars(inline)]
    pub DroppedBundle: (CallIndex, Option<&state::ReadSet>) => |(dropped, reads)| {
        dropped: DroppedCall = dropped,
        readSet: Option<ReadSet> = reads,
    }

    /// A call by the index of its block and its own in that.
    pub DroppedCall: CallIndex => |index| {
        block: u64 = index.block,
        call: u64 = index.call,
    }

    /// A simulated block. Without the output `header` it has no fields of one.
    pub SimulatedBlock: BlockView<'_> => |shown| let {
        let BlockView { block, tokens, view, reads, .. } = shown;
        let listing = block.listing.as_ref();
        // Without a listing, logs have no position.
        let mut logs = 0;
        let calls = block.calls.iter().enumerate().map(|(index, call)| {
            let first_log = logs;
            logs += call.logs.len() as u64;
            (shown, call, listing.map(|listing| position(listing, index)), first_log)
        });
        let assets = block.assets.as_ref().map(|assets| {
            let change = |(asset, change)| (asset, change, tokens);
            assets.iter().map(move |(account, changes)| (account, changes.iter().map(change)))
        });
    } {
        [flatten] listed: Option<ListedBlock> = listing.map(|listing| (listing, view)),
        /// The name of the fork whose rules apply to the block. Not in `eth_simulateV1`.
        fork: Option<String> = view.names_fork.then_some(block.fork),
        calls: Vec<SimulatedCallResult> = calls,
        blockAccessList: Option<Vec<AccountChanges>> = block.access_list.as_ref(),
        stateDiff: Option<BTreeMap<String, AccountDifference>> = block.diff.as_ref(),
        /// The net changes of assets, by account.
        assets: Option<BTreeMap<String, Vec<AssetChange>>> = assets,
        coinbase: Option<CoinbaseIncome> = block.coinbase.as_ref(),
        readSet: Option<ReadSet> = reads,
    }

    /// The header and the content of a simulated block.
    ListedBlock: (&BlockListing, &SimulationView<'_>) => |(listing, view)| let {
        let shows_withdrawals = listing.withdrawals.is_some() || view.dialect.shows_early_fields;
        let transactions = listing.transactions.iter().enumerate().map(|(index, tx)| {
            (tx.hash, view.full_transactions.then(|| full_transaction(tx, position(listing, index))))
        });
    } {
        [flatten] header: Header = (&listing.header, listing.header.hash(), listing.timestamp_ms, view.dialect),
        size: Quantity<u64> = listing.size as u64,
        transactions: Vec<BlockTransaction> = transactions,
        uncles: Vec<Fixed<32>> = [[0; 32]; 0],
        withdrawals: Option<Vec<Withdrawal>> = shows_withdrawals.then(|| Json(listing.withdrawals.as_deref().map(Vec::as_slice).unwrap_or_default())),
    }

    /// The result of a call, with the requested outputs.
    SimulatedCallResult: (BlockView<'_>, &CallResult, Option<TxPosition<'_>>, u64) => |(shown, call, position, logs)| let {
        let BlockView { view: &SimulationView { dialect, outputs, errors, .. }, .. } = shown;
        let has = |output| outputs.contains(output);
        let is_success = call.outcome == CallOutcome::Success;
        let data: &[u8] = if is_success || dialect.shows_revert_data { &call.return_data } else { &[] };
        let logs = call.logs.iter().zip(logs..).map(|(log, counted)| LogView {
            log: &log.log,
            position,
            index: if dialect.counts_reverted_logs { log.number } else { counted },
            removed: position.is_some().then_some(false),
        });
        let error = has(Outputs::ERROR).then(|| call_error(call, errors, dialect.call_error)).flatten();
    } {
        returnData: Option<Data> = has(Outputs::RETURN_DATA).then_some(data),
        logs: Option<Vec<Log>> = has(Outputs::LOGS).then_some(logs),
        /// The gas that the call pays for.
        gasUsed: Option<Quantity<u64>> = has(Outputs::GAS_USED).then_some(call.gas_used),
        /// The gas that the call needs while it runs, before refunds.
        maxUsedGas: Option<Quantity<u64>> = has(Outputs::GAS_USED).then_some(call.max_used_gas),
        /// 1 if the call has succeeded.
        status: Option<Quantity<u64>> = has(Outputs::STATUS).then_some(u64::from(is_success)),
        error: Option<CallError> = error.map(|error| (error, dialect.call_error)),
        transfers: Option<Vec<Transfer>> = has(Outputs::TRANSFERS).then_some(&call.transfers),
        accessList: Option<Vec<AccessListItem>> = call.access_list.as_ref().map(|list| &list.0),
        trace: Option<CallFrame> = call.trace.as_ref().map(|trace| (&**trace, shown)),
    }

    /// A transfer of ether.
    Transfer: &engine::Transfer => |transfer| {
        from: Fixed<20> = transfer.from,
        to: Fixed<20> = transfer.to,
        value: Quantity<U256> = transfer.value,
    }

    /// The net change of an asset that an account has.
    AssetChange: (&Asset, &NetChange, &AddressMap<TokenInfo>) => |(asset, change, tokens)| let {
        let (kind, token, id) = match asset {
            Asset::Ether => (AssetKind::Ether, None, None),
            Asset::Erc20(token) => (AssetKind::Erc20, Some(token), None),
            Asset::Erc721(token, id) => (AssetKind::Erc721, Some(token), Some(*id)),
            Asset::Erc1155(token, id) => (AssetKind::Erc1155, Some(token), Some(*id)),
        };
        let info = token.and_then(|token| tokens.get(token));
    } {
        r#type: AssetKind = Json(kind),
        token: Option<Fixed<20>> = token,
        id: Option<Quantity<U256>> = id,
        /// A decimal number, which may be negative.
        change: String = Signed(change.net()),
        symbol: Option<String> = info.and_then(|info| info.symbol.as_ref()),
        decimals: Option<Quantity<u64>> = info.and_then(|info| info.decimals).map(u64::from),
    }

    /// The gain of the fee recipient.
    CoinbaseIncome: &engine::CoinbaseIncome => |income| {
        fees: Quantity<U256> = income.fees,
        /// A decimal number, which may be negative.
        transfers: String = Signed(income.transfers()),
    }

    /// The values that a run has read.
    pub ReadSet: &state::ReadSet => |reads| let {
        let listed = (!reads.everything).then_some(reads);
        let accounts = listed.map(|reads| reads.accounts.iter().map(|read| (read.address, read)));
        let fields = |reads: &state::ReadSet| {
            let read = reads.block;
            FIELDS.iter().filter(move |(field, _)| read.contains(*field)).map(|(_, name)| name)
        };
    } {
        /// Whether too much was read to list it.
        everything: bool = reads.everything,
        accounts: Option<BTreeMap<String, ReadAccount>> = accounts,
        /// Names of fields of the block.
        block: Option<Vec<String>> = listed.map(fields),
        blockHashes: Option<Vec<Quantity<u64>>> = listed.map(|reads| reads.hashes.iter().copied()),
        gas: Option<Quantity<u64>> = listed.map(|reads| reads.gas),
    }

    /// The parts of an account that a run has read.
    ReadAccount: &AccountRead => |read| {
        parts: Vec<String> = PARTS.iter().filter(|(part, _)| read.parts.contains(*part)).map(|(_, name)| name),
        slots: Vec<Word> = read.slots.iter().copied(),
    }
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum AssetKind {
    Ether,
    Erc20,
    Erc721,
    Erc1155,
}

impl Shape<(&Trace, BlockView<'_>)> for CallFrame {
    fn write(out: &mut Vec<u8>, (frames, shown): (&Trace, BlockView<'_>)) {
        if let Err(error) = trace(out, frames, shown.view.limit) {
            // The first error ends the result after the block.
            _ = shown.error.set(error);
        }
    }
}

/// The names of the parts of an account.
const PARTS: [(AccountReads, &str); 5] = [
    (AccountReads::BALANCE, "balance"),
    (AccountReads::NONCE, "nonce"),
    (AccountReads::CODE, "code"),
    (AccountReads::EXISTENCE, "existence"),
    (AccountReads::STORAGE, "storage"),
];

/// The names of the fields of a block.
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

/// Writes the result of a simulation: its blocks, or the call that broke the bundle.
///
/// # Errors
///
/// Returns -32005 if the response becomes longer than the limit.
pub fn write_simulation(out: &mut Vec<u8>, simulated: &Simulated, view: &SimulationView<'_>) -> Result<()> {
    if let Some(index) = simulated.dropped {
        DroppedBundle::write(out, (index, view.reads));
        return Ok(());
    }
    // Reserves the expected length, because a long response that grows by doubling is moved several times.
    out.reserve(simulated.blocks.iter().map(length).sum::<usize>().min(view.limit));
    let last = simulated.blocks.len().saturating_sub(1);
    let shown = simulated.blocks.iter().enumerate().filter(|(_, block)| !block.filler || view.dialect.shows_fillers);
    let mut error = OnceCell::new();
    try_list(out, shown, |out, (index, block)| {
        let reads = view.reads.filter(|_| index == last);
        SimulatedBlock::write(out, BlockView { block, tokens: &simulated.tokens, view, reads, error: &error });
        error.take().map_or_else(|| check_length(out, view.limit), Err)
    })
}

/// Returns about how many bytes a block takes. Full transactions are not counted.
fn length(block: &engine::SimulatedBlock) -> usize {
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

/// Returns a simulated transaction. As in geth, the signature of an unsigned call is zeros.
fn full_transaction<'a>(
    tx: &'a SimulatedTx,
    position: TxPosition<'a>,
) -> TxView<'a, EthereumTypedTransaction<TxEip4844>> {
    let inner = &tx.tx.tx;
    TxView {
        position: Some(TxPosition { time: None, ..position }),
        tx: inner,
        hash: tx.hash,
        from: tx.from,
        price: inner.effective_gas_price(position.header.base_fee_per_gas),
        seal: Some(Seal::of(tx.tx.signed.as_deref(), inner.ty())),
        deposit: None,
    }
}

/// Returns the error of a failed call. If `errors` of the request explain the data of a revert, their text is the reason.
fn call_error(call: &CallResult, errors: Option<&CustomErrors>, form: ErrorForm) -> Option<RpcError> {
    let custom = || errors.and_then(|errors| errors.explain(&call.return_data));
    let reason = || custom().or_else(|| revert_reason(&call.return_data));
    Some(match (&call.outcome, form) {
        (CallOutcome::Success, _) => return None,
        (CallOutcome::Revert, ErrorForm::Text) => {
            RpcError::new(VM_ERROR, reason().unwrap_or_else(|| "execution reverted".to_owned()))
        }
        (CallOutcome::Revert, ErrorForm::Object) => RpcError::reverted(reason(), call.return_data.clone()),
        (CallOutcome::Halt(reason), _) => RpcError::new(VM_ERROR, HaltText(reason.clone()).to_string()),
    })
}

/// The code of execution-apis for a call that the EVM halted.
const VM_ERROR: i32 = -32015;
