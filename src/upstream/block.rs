//! Reads and checks the blocks of an upstream.

use std::time::Duration;

use alloy_consensus::{
    Eip658Value, Header, Receipt, ReceiptEnvelope, ReceiptWithBloom, TxReceipt, TxType, transaction::Recovered,
};
use alloy_eips::eip4895::Withdrawals;
use alloy_primitives::{Address, B256, Bloom, Sealed, U8, U64};
use alloy_rpc_types_eth::Log;
use op_alloy::consensus::{DEPOSIT_TX_TYPE_ID, OpDepositReceipt, post_exec::POST_EXEC_TX_TYPE_ID};
use rayon::prelude::*;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{
    ask::UpstreamError,
    block_error::BlockError,
    client::{NullableAnswer, Upstream},
    transaction::{self, ForeignTransactions},
};
use crate::chain::{
    BlockBody, ChainReceipt, ChainTx, Family, GasRefunds, SealedBlock, TransactionLogs, agrees_with_receipts,
    block_instant, millis_part, receipts_root_and_bloom, transactions_root,
};

/// The number of transactions that are read, or whose senders are recovered, in one go: less than a millisecond's work.
const SLICE: usize = 32;

/// A block as an upstream returns it.
#[derive(Clone, Debug)]
pub struct UpstreamBlock {
    /// The header and its hash.
    pub header: Sealed<Header>,
    /// The transactions with their senders, in order.
    pub transactions: Vec<Recovered<ChainTx>>,
    /// The withdrawals (EIP-4895); `None` before Shanghai.
    pub withdrawals: Option<Withdrawals>,
    /// Whether the block has uncles. Their headers are not part of the answer.
    pub has_ommers: bool,
    /// The root of the transactions.
    root: B256,
    /// The transactions as the upstream names them, if presim does not know the type or the payload of one. Then
    /// `transactions` is empty, and the block cannot be executed here.
    pub foreign: Option<ForeignTransactions>,
}

impl UpstreamBlock {
    /// Reads the answer of `eth_getBlockBy…` with whole transactions, and recovers their senders, unless `sender` knows the
    /// sender of each by its index and its contents. Yields between slices of them, so that a large block holds up no
    /// other work of its task.
    ///
    /// # Errors
    ///
    /// Returns [`BlockError::Field`], [`BlockError::Hashes`] or [`BlockError::Signature`] if that part of the answer is
    /// unusable.
    pub async fn read(
        text: &str,
        family: Family,
        sender: impl Fn(usize, &ChainTx) -> Option<Address>,
    ) -> Result<Self, BlockError> {
        let WireBlock { hash, transactions: wire, uncles, withdrawals } = transaction::parse(text, "")?;
        let header = Sealed::new_unchecked(transaction::parse::<Header>(text, "")?, hash);
        let has_ommers = !uncles.is_empty();
        let mut read = Vec::with_capacity(wire.len());
        for (index, json) in wire.iter().enumerate() {
            match transaction::read(json, index, family) {
                Ok(tx) => read.push(tx),
                Err(error) => {
                    let foreign = Some(transaction::foreign(&wire, family).ok_or(error)?);
                    let (transactions, root) = (Vec::new(), header.transactions_root);
                    return Ok(Self { header, transactions, withdrawals, has_ommers, root, foreign });
                }
            }
            if read.len() % SLICE == 0 {
                tokio::task::yield_now().await;
            }
        }
        let known: Option<Vec<Address>> = read.iter().enumerate().map(|(index, tx)| sender(index, tx)).collect();
        let transactions = match known {
            Some(known) => read.into_iter().zip(known).map(|(tx, by)| Recovered::new_unchecked(tx, by)).collect(),
            None => {
                let (mut recovered, mut rest) = (Vec::with_capacity(read.len()), read.into_iter());
                while rest.len() > 0 {
                    let (first, slice) = (recovered.len(), rest.by_ref().take(SLICE).collect());
                    recovered.extend(recover(slice).map_err(|index| BlockError::Signature(first + index))?);
                    tokio::task::yield_now().await;
                }
                recovered
            }
        };
        let root = transactions_root(&transactions);
        Ok(Self { header, transactions, withdrawals, has_ommers, root, foreign: None })
    }

    /// Returns the block's time since 1970, with the milliseconds that some chains have in a deposit.
    fn time(&self) -> Duration {
        block_instant(self.header.timestamp, self.transactions.get(1).and_then(millis_part))
    }

    /// Returns the time from `parent` to this block, of at most an hour. `None` if it is not known to be later.
    pub fn time_after(&self, parent: &Self) -> Option<Duration> {
        let time = self.time().checked_sub(parent.time())?.min(Duration::from_secs(3600));
        (!time.is_zero()).then_some(time)
    }

    /// Returns the hashes of the transactions, in order.
    pub fn transaction_hashes(&self) -> Vec<B256> {
        match &self.foreign {
            Some(foreign) => foreign.hashes.clone(),
            None => self.transactions.iter().map(|tx| *tx.tx_hash()).collect(),
        }
    }

    /// Returns the refunds of gas that the last transaction lists, if any.
    pub fn refunds(&self) -> GasRefunds {
        self.transactions.last().map(|last| GasRefunds::of_last(last)).unwrap_or_default()
    }

    /// Checks that the header has the block's hash, and that the transactions and withdrawals have the roots in the
    /// header. If a chain's headers have fields of its own, the check fails for all its blocks.
    ///
    /// # Errors
    ///
    /// Returns [`BlockError::Hash`], [`BlockError::Transactions`] or [`BlockError::Withdrawals`] if that part differs.
    pub fn check(&self, family: Family) -> Result<(), BlockError> {
        let (number, header) = (self.number(), self.header.inner());
        let computed = header.hash_slow();
        if computed != self.hash() {
            return Err(BlockError::Hash { number, computed, announced: self.hash() });
        }
        self.check_transactions()?;
        if self.foreign.is_some() {
            return Ok(());
        }
        // On the OP stack, `withdrawals_root` is a contract's storage root from Isthmus on, and the list is empty.
        let root = self.withdrawals.as_ref().map(|list| alloy_consensus::proofs::calculate_withdrawals_root(list));
        if family == Family::Ethereum && root != header.withdrawals_root {
            return Err(BlockError::Withdrawals { number });
        }
        Ok(())
    }

    /// Checks that the transactions have the root in the header, unless one has a type that presim does not know.
    ///
    /// # Errors
    ///
    /// Returns [`BlockError::Transactions`] if they do not.
    pub fn check_transactions(&self) -> Result<(), BlockError> {
        let (computed, announced) = (self.root, self.header.transactions_root);
        match computed == announced {
            true => Ok(()),
            false => Err(BlockError::Transactions { number: self.number(), computed, announced }),
        }
    }

    /// Returns the receipts if they match the gas, the root and the bloom in the block's header.
    fn check_receipts(&self, receipts: Vec<ChainReceipt>) -> Result<Vec<ChainReceipt>, String> {
        let (root, bloom) = receipts_root_and_bloom(&receipts);
        let gas = receipts.last().map_or(0, TxReceipt::cumulative_gas_used);
        let Header { receipts_root, logs_bloom, .. } = *self.header.inner();
        let is_own = agrees_with_receipts(&self.header, gas) && (root, bloom) == (receipts_root, logs_bloom);
        is_own.then_some(receipts).ok_or_else(|| "their gas, root or bloom is not that of the header".to_owned())
    }

    /// Returns the logs if they are of the block's transactions, and have the bloom in its header.
    fn check_logs(&self, logs: Vec<TransactionLogs>) -> Result<Vec<TransactionLogs>, String> {
        let hashes = self.transaction_hashes();
        let is_own = logs.len() == hashes.len() && logs.iter().zip(&hashes).all(|(one, hash)| one.hash == *hash);
        let bloom: Bloom = logs.iter().flat_map(|one| &one.logs).collect();
        let has_bloom = bloom == self.header.logs_bloom;
        (is_own && has_bloom).then_some(logs).ok_or_else(|| "their logs do not have the bloom of the header".to_owned())
    }

    /// Groups a list of the block's logs by transaction. Returns them if they are complete, as far as their indices and
    /// the bloom in the header show.
    fn logs_by_transaction(&self, listed: Vec<Log>) -> Result<Vec<TransactionLogs>, String> {
        let empty = |hash| TransactionLogs { hash, logs: Vec::new() };
        let mut logs: Vec<_> = self.transaction_hashes().into_iter().map(empty).collect();
        for (at, log) in (0..).zip(listed) {
            if log.log_index != Some(at) || log.block_hash != Some(self.hash()) {
                return Err(format!("log {at} is not the one with this index in the block"));
            }
            let index = log.transaction_index.and_then(|index| usize::try_from(index).ok());
            let transaction = index.and_then(|index| logs.get_mut(index));
            let transaction = transaction.filter(|one| Some(one.hash) == log.transaction_hash);
            transaction.ok_or_else(|| format!("log {at} is of another block's transaction"))?.logs.push(log.inner);
        }
        self.check_logs(logs)
    }

    /// Returns the block's number.
    pub fn number(&self) -> u64 {
        self.header.number
    }

    /// Returns the block as far as it is known: with its body, with its logs, or as a header alone.
    pub fn into_sealed(self, receipts: AnnouncedReceipts) -> SealedBlock {
        let Self { header, transactions, withdrawals, foreign, .. } = self;
        match receipts {
            // A block has no body here unless all its transactions are known.
            AnnouncedReceipts::Whole(receipts) if foreign.is_none() => {
                SealedBlock::named(header, BlockBody { transactions, receipts, withdrawals, ..BlockBody::default() })
            }
            AnnouncedReceipts::Logs(logs) => SealedBlock::bare(header).with_logs(logs),
            _ => SealedBlock::bare(header),
        }
    }

    /// Returns the hash that the upstream gives for the block.
    pub fn hash(&self) -> B256 {
        self.header.hash()
    }
}

/// The fields of a block, without the header's, which are read separately.
#[derive(Deserialize)]
struct WireBlock<'a> {
    hash: B256,
    #[serde(borrow)]
    transactions: Vec<&'a RawValue>,
    #[serde(default)]
    uncles: Vec<B256>,
    withdrawals: Option<Withdrawals>,
}

/// Recovers the senders of the transactions in parallel.
///
/// # Errors
///
/// Returns the index of a transaction whose signature is invalid.
pub fn recover(transactions: Vec<ChainTx>) -> Result<Vec<Recovered<ChainTx>>, usize> {
    transactions
        .into_par_iter()
        .enumerate()
        .with_min_len(4)
        .map(|(index, tx)| tx.recovered().map_err(|_| index))
        .collect()
}

/// The fields of a receipt that the receipt root of its block covers.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireReceipt {
    #[serde(default, rename = "type")]
    kind: U8,
    status: Option<U8>,
    root: Option<B256>,
    cumulative_gas_used: U64,
    logs: Vec<Log>,
    deposit_nonce: Option<U64>,
    deposit_receipt_version: Option<U64>,
}

impl TryFrom<WireReceipt> for ChainReceipt {
    type Error = String;

    fn try_from(wire: WireReceipt) -> Result<Self, String> {
        let status = match (wire.root, wire.status) {
            (Some(root), None) => Eip658Value::PostState(root),
            (_, status) => Eip658Value::Eip658(status.ok_or("status: missing")? == U8::ONE),
        };
        let inner = Receipt {
            status,
            cumulative_gas_used: wire.cumulative_gas_used.to(),
            logs: wire.logs.into_iter().map(|log| log.inner).collect(),
        };
        let kind: u8 = wire.kind.to();
        if kind == DEPOSIT_TX_TYPE_ID {
            let deposit_nonce = wire.deposit_nonce.map(|nonce| nonce.to());
            let deposit_receipt_version = wire.deposit_receipt_version.map(|version| version.to());
            return Ok(OpDepositReceipt { inner, deposit_nonce, deposit_receipt_version }.into());
        }
        if kind == POST_EXEC_TX_TYPE_ID {
            return Ok(Self::PostExec { cumulative_gas_used: inner.cumulative_gas_used });
        }
        let kind = TxType::try_from(kind).map_err(|error| error.to_string())?;
        Ok(ReceiptEnvelope::from_typed(kind, ReceiptWithBloom::from(inner)).into())
    }
}

/// The upstream's word about the transactions of a block that is not executed here.
#[derive(Clone, Debug)]
pub enum AnnouncedReceipts {
    /// The receipts. The block's header commits to them.
    Whole(Vec<ChainReceipt>),
    /// The logs. The bloom in the block's header covers them. Nothing else is known of the transactions here.
    Logs(Vec<TransactionLogs>),
    /// The upstream does not have them yet, or did not answer in time.
    NotYet,
    /// The upstream gives neither the receipts nor the logs.
    Never,
}

/// The logs of a receipt. Its other fields are ignored.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireLogs {
    transaction_hash: B256,
    logs: Vec<alloy_primitives::Log>,
}

impl AnnouncedReceipts {
    /// Maximum transactions of a block whose receipts are requested individually.
    const MAX_SINGLE: usize = 2_000;

    /// Returns whether the upstream did not give them for another reason than that it does not have them yet.
    pub const fn is_refused(&self) -> bool {
        matches!(self, Self::Never)
    }

    /// Asks the upstream for the receipts of `block`, or else for its logs.
    pub async fn ask(upstream: &Upstream, block: &UpstreamBlock, deadline: Instant) -> Self {
        let answer = upstream.receipts(block.hash(), deadline).await;
        Self::of(upstream, block, answer, deadline).await
    }

    /// Asks the upstream for the block with this hash and for its receipts, in one batch. Returns the block, too, if the
    /// upstream has both. With `verify`, its header must have this hash.
    pub async fn ask_with_block(
        upstream: &Upstream,
        hash: B256,
        family: Family,
        verify: bool,
        deadline: Instant,
    ) -> (Option<UpstreamBlock>, Self) {
        let (json, receipts) = upstream.block_and_receipts(hash, deadline).await;
        let block = match json {
            Ok(Some(json)) => UpstreamBlock::read(json.get(), family, |_, _| None).await.ok(),
            Ok(None) | Err(_) => None,
        };
        let is_right = |block: &UpstreamBlock| {
            block.hash() == hash && block.check_transactions().is_ok() && (!verify || block.check(family).is_ok())
        };
        match block.filter(is_right) {
            Some(block) => {
                let receipts = Self::of(upstream, &block, receipts, deadline).await;
                (Some(block), receipts)
            }
            None => (None, Self::NotYet),
        }
    }

    /// Reads the answer of `eth_getBlockReceipts`. If the upstream does not give the list, asks for the logs of the block, and
    /// then for one receipt after another.
    async fn of(upstream: &Upstream, block: &UpstreamBlock, answer: NullableAnswer, deadline: Instant) -> Self {
        let answer = match answer {
            // A node that does not have the block yet may give an empty list for it.
            Ok(Some(json)) if json.get() == "[]" && block.header.gas_used > 0 => Self::NotYet,
            Ok(Some(json)) => Self::read(block, json.get()),
            Ok(None) => Self::NotYet,
            Err(error) => Self::without(block, &error),
        };
        if !answer.is_refused() {
            return answer;
        }
        let problem = match upstream.logs(block.hash(), deadline).await {
            Ok(logs) => match block.logs_by_transaction(logs) {
                Ok(logs) => return Self::Logs(logs),
                Err(problem) => problem,
            },
            Err(error @ UpstreamError::Refused { .. }) => error.to_string(),
            Err(error) => return Self::without(block, &error),
        };
        tracing::debug!(number = block.number(), problem, "the upstream does not list the logs of a block");
        let transactions = block.transaction_hashes();
        if transactions.len() > Self::MAX_SINGLE {
            return Self::Never;
        }
        match upstream.receipts_of(&transactions, deadline).await {
            Ok(Some(receipts)) => Self::read(block, &list(&receipts)),
            Ok(None) => Self::NotYet,
            Err(error) => Self::without(block, &error),
        }
    }

    /// Interprets an error of the upstream that was returned instead of the block's receipts or logs.
    fn without(block: &UpstreamBlock, error: &UpstreamError) -> Self {
        tracing::debug!(number = block.number(), %error, "the receipts of a block are not there yet");
        if matches!(error, UpstreamError::Refused { .. }) { Self::Never } else { Self::NotYet }
    }

    /// Reads a list of the receipts of a block.
    fn read(block: &UpstreamBlock, json: &str) -> Self {
        let problem = match read_receipts(json).and_then(|receipts| block.check_receipts(receipts)) {
            Ok(receipts) if block.foreign.is_none() && block.check_transactions().is_ok() => {
                return Self::Whole(receipts);
            }
            Ok(_) => String::new(),
            Err(problem) => problem,
        };
        match read_logs(json).and_then(|logs| block.check_logs(logs)) {
            Ok(logs) => Self::Logs(logs),
            Err(more) => {
                let number = block.number();
                tracing::debug!(number, problem, more, "the upstream's receipts of a block are not the block's");
                Self::Never
            }
        }
    }
}

/// Returns a list of JSON values.
fn list(values: &[Box<RawValue>]) -> String {
    let values: Vec<&str> = values.iter().map(|value| value.get()).collect();
    format!("[{}]", values.join(","))
}

fn read_receipts(json: &str) -> Result<Vec<ChainReceipt>, String> {
    let receipts: Vec<WireReceipt> = serde_json::from_str(json).map_err(|error| error.to_string())?;
    receipts.into_iter().map(TryInto::try_into).collect()
}

fn read_logs(json: &str) -> Result<Vec<TransactionLogs>, String> {
    let receipts: Vec<WireLogs> = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let logs = |receipt: WireLogs| TransactionLogs { hash: receipt.transaction_hash, logs: receipt.logs };
    Ok(receipts.into_iter().map(logs).collect())
}
