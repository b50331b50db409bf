//! Blocks, transactions, receipts and logs, as execution-apis defines them.

use std::borrow::Borrow;

use alloy_consensus::{self as consensus, Transaction as _, TxEnvelope, TxReceipt, transaction::Recovered};
use alloy_eips::{
    Encodable2718, Typed2718, eip2930, eip4844::DATA_GAS_PER_BLOB, eip7685::EMPTY_REQUESTS_HASH, eip7702,
};
use alloy_primitives::{self as primitives, Address, B256, TxKind, U256, keccak256};
use alloy_trie::EMPTY_ROOT_HASH;
use op_alloy::consensus::{OpDepositReceipt, TxDeposit};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    Fields, Json, Object, OrNull, Shape,
    hex::{Data, Fixed, Quantity},
    shapes,
};
use crate::{
    chain::{ChainSpec, ChainTx, Fork, L1BlockInfo, SealedBlock},
    ledger::{self, Included, SnapshotId},
    rpc::protocol::dialect::Dialect,
};

shapes! {
    /// The fields of a header. Fields of later forks are left out, or have their empty values.
    // The fields are in geth's order.
    pub Header: (&consensus::Header, B256, Option<u64>, &Dialect) => |(header, hash, time, dialect)| let {
        let early = dialect.shows_early_fields;
        let or_early = |value: Option<u64>| value.or_else(|| early.then_some(0));
        let root_or_early = |value: Option<B256>, empty: B256| value.or_else(|| early.then_some(empty));
    } {
        baseFeePerGas: Option<Quantity<u64>> = or_early(header.base_fee_per_gas),
        blobGasUsed: Option<Quantity<u64>> = or_early(header.blob_gas_used),
        // Unlike the fields of earlier forks, this one and the slot are never written as empty values.
        blockAccessListHash: Option<Fixed<32>> = header.block_access_list_hash,
        difficulty: Quantity<U256> = header.difficulty,
        excessBlobGas: Option<Quantity<u64>> = or_early(header.excess_blob_gas),
        extraData: Data = &header.extra_data,
        gasLimit: Quantity<u64> = header.gas_limit,
        gasUsed: Quantity<u64> = header.gas_used,
        hash: Fixed<32> = hash,
        logsBloom: Data = &header.logs_bloom,
        miner: Fixed<20> = header.beneficiary,
        mixHash: Fixed<32> = header.mix_hash,
        nonce: Data = header.nonce,
        number: Quantity<u64> = header.number,
        parentBeaconBlockRoot: Option<Fixed<32>> = root_or_early(header.parent_beacon_block_root, B256::ZERO),
        parentHash: Fixed<32> = header.parent_hash,
        receiptsRoot: Fixed<32> = header.receipts_root,
        requestsHash: Option<Fixed<32>> = root_or_early(header.requests_hash, EMPTY_REQUESTS_HASH),
        sha3Uncles: Fixed<32> = header.ommers_hash,
        slotNumber: Option<Quantity<u64>> = header.slot_number,
        stateRoot: Fixed<32> = header.state_root,
        timestamp: Quantity<u64> = header.timestamp,
        transactionsRoot: Fixed<32> = header.transactions_root,
        withdrawalsRoot: Option<Fixed<32>> = root_or_early(header.withdrawals_root, EMPTY_ROOT_HASH),
        /// The time in milliseconds, if the block has it.
        // The Base chains have it from Denim on
        // (<https://docs.base.org/base-chain/specs/upgrades/denim/200ms-blocks>).
        timestampMs: Option<Quantity<u64>> = time,
    }

    /// A block: its header, and its content.
    pub Block[B: Borrow<ledger::Block>]: (B, bool, &Dialect) => |(block, full, dialect)| let {
        let block: &ledger::Block = block.borrow();
        let shows_withdrawals = block.withdrawals().is_some() || dialect.shows_early_fields;
        let transactions = block.transactions();
        let transactions = transactions.map(|one| (*one.tx.tx_hash(), full.then(|| TxView::of(block, &one))));
    } {
        [flatten] header: Header = (block.header(), block.header().hash(), block.timestamp_ms(), dialect),
        size: Quantity<u64> = block.size() as u64,
        transactions: Vec<BlockTransaction> = transactions,
        uncles: Vec<Fixed<32>> = block.ommers().iter().map(consensus::Header::hash_slow),
        withdrawals: Option<Vec<Withdrawal>> = shows_withdrawals.then(|| Json(block.withdrawals().unwrap_or_default())),
    }

    /// The receipt of a transaction. Fields of the L1 cost are present on an OP-stack chain.
    pub Receipt: (&ledger::Block, &Included<'_>, &ChainSpec) => |(block, included, spec)| let {
        let (header, tx, deposit) = (block.header(), included.tx, included.receipt.as_deposit());
        let blobs = tx.blob_versioned_hashes();
        let fee = blobs.and_then(|_| header.blob_fee(spec.blob_params(header.timestamp)?));
        let is_post_exec = tx.as_post_exec().is_some();
        let cost = match spec.fork(header) {
            Fork::OpStack(fork) if deposit.is_none() && !is_post_exec => {
                let first = block.transaction(0);
                let info = first.and_then(|first| L1BlockInfo::of_call(first.tx.input(), fork));
                info.map(|info| info.cost(&tx.encoded_2718()))
            }
            _ => None,
        };
        let cost = cost.as_ref();
        let (scalar, constant) = cost.and_then(|cost| cost.operator_fee).unzip();
        let (footprint_scalar, footprint) = cost.and_then(|cost| cost.da_footprint).unzip();
        let blob_gas = blobs.map(|hashes| DATA_GAS_PER_BLOB * hashes.len() as u64);
    } {
        // The post-execution transaction has no DA footprint.
        blobGasUsed: Option<Quantity<u64>> = blob_gas.or(footprint).or(is_post_exec.then_some(0)),
        blobGasPrice: Option<Quantity<u128>> = fee,
        blockHash: Fixed<32> = header.hash(),
        blockNumber: Quantity<u64> = header.number,
        [flatten] outcome: Outcome = (block, included),
        effectiveGasPrice: Quantity<u128> = tx.effective_gas_price(header.base_fee_per_gas),
        from: Fixed<20> = tx.signer(),
        to: Option<Fixed<20>> = (!is_post_exec).then(|| OrNull(tx.to())),
        transactionHash: Fixed<32> = tx.tx_hash(),
        transactionIndex: Quantity<u64> = included.index as u64,
        r#type: Quantity<u64> = u64::from(tx.ty()),
        depositNonce: Option<Quantity<u64>> = deposit.and_then(|deposit| deposit.deposit_nonce),
        depositReceiptVersion: Option<Quantity<u64>> = deposit.and_then(|deposit| deposit.deposit_receipt_version),
        // The fields of the L1 cost have op-geth's names.
        l1GasPrice: Option<Quantity<U256>> = cost.map(|cost| cost.gas_price),
        l1GasUsed: Option<Quantity<U256>> = cost.map(|cost| cost.gas_used),
        l1Fee: Option<Quantity<U256>> = cost.map(|cost| cost.fee),
        /// A decimal number.
        l1FeeScalar: Option<String> = cost.and_then(|cost| cost.fee_scalar).map(|scalar| scalar.to_string()),
        l1BaseFeeScalar: Option<Quantity<u64>> = cost.and_then(|cost| cost.base_fee_scalar),
        l1BlobBaseFee: Option<Quantity<U256>> = cost.and_then(|cost| cost.blob_base_fee),
        l1BlobBaseFeeScalar: Option<Quantity<u64>> = cost.and_then(|cost| cost.blob_base_fee_scalar),
        operatorFeeScalar: Option<Quantity<u64>> = scalar,
        operatorFeeConstant: Option<Quantity<u64>> = constant,
        daFootprintGasScalar: Option<Quantity<u64>> = footprint_scalar.map(u64::from),
        /// The gas that the sequencer has refunded to the transaction, if any. `gasUsed` is less by it.
        opGasRefund: Option<Quantity<u64>> = Some(included.refund).filter(|refund| *refund > 0),
    }

    /// The fields of a receipt that the transaction itself does not have.
    Outcome: (&ledger::Block, &Included<'_>) => |(block, included)| let {
        let (tx, receipt) = (included.tx, included.receipt);
        let nonce = receipt.as_deposit().map_or(tx.nonce(), |deposit| deposit.deposit_nonce.unwrap_or_default());
        let created = matches!(tx.kind(), TxKind::Create).then(|| tx.signer().create(nonce));
        let position = Some(TxPosition::of(block, included));
        let logs = receipt.logs().iter().zip(included.first_log..);
        // Before Byzantium, a receipt has the state root after the transaction instead of a status (EIP-658).
        let status = receipt.status_or_post_state();
    } {
        contractAddress: Option<Fixed<20>> = tx.as_post_exec().is_none().then_some(OrNull(created)),
        cumulativeGasUsed: Quantity<u64> = receipt.cumulative_gas_used(),
        gasUsed: Quantity<u64> = included.gas_used,
        logs: Vec<Log> = logs.map(|(log, index)| LogView { log, position, index, removed: Some(false) }),
        logsBloom: Data = receipt.bloom(),
        /// The state root after the transaction, before Byzantium.
        root: Option<Fixed<32>> = status.as_post_state(),
        /// 1 if the transaction has succeeded.
        status: Option<Quantity<u64>> = status.as_eip658().map(u64::from),
    }

    /// A transaction with its position, which is null if it is in no block. Some fields belong to an OP-stack deposit.
    /// A post-execution transaction of the OP stack (type 0x7d) has only its position, from, gas, hash, input, type
    /// and value.
    // <https://github.com/ethereum-optimism/specs/blob/main/specs/protocol/lagoon/post-exec.md#generic-transaction-interface-representation>
    pub Transaction[T: consensus::Transaction + Typed2718]: TxView<'_, T> => |view| let {
        let TxView { position, tx, hash, from, price, seal, deposit } = view;
        let is_post_exec = seal.is_none();
        let (deposit, receipt) = deposit.unzip();
        let receipt = receipt.flatten();
        // A deposit carries no nonce: its receipt records the nonce that it was given.
        let nonce = match deposit {
            Some(_) => receipt.and_then(|receipt| receipt.deposit_nonce).unwrap_or_default(),
            None => tx.nonce(),
        };
        let is_dynamic = tx.is_dynamic_fee();
    } {
        blockHash: Option<Fixed<32>> = Some(OrNull(position.map(|position| position.block_hash))),
        blockNumber: Option<Quantity<u64>> = Some(OrNull(position.map(|position| position.header.number))),
        blockTimestamp: Option<Quantity<u64>> = Some(OrNull(position.map(|position| position.header.timestamp))),
        transactionIndex: Option<Quantity<u64>> = Some(OrNull(position.map(|position| position.tx_index))),
        blockTimestampMs: Option<Quantity<u64>> = position.and_then(|position| position.time),
        from: Fixed<20> = from,
        gas: Quantity<u64> = tx.gas_limit(),
        gasPrice: Option<Quantity<u128>> = (!is_post_exec).then_some(price),
        maxFeePerGas: Option<Quantity<u128>> = is_dynamic.then(|| tx.max_fee_per_gas()),
        maxPriorityFeePerGas: Option<Quantity<u128>> = tx.max_priority_fee_per_gas().filter(|_| is_dynamic),
        maxFeePerBlobGas: Option<Quantity<u128>> = tx.max_fee_per_blob_gas(),
        hash: Fixed<32> = hash,
        input: Data = tx.input(),
        nonce: Option<Quantity<u64>> = (!is_post_exec).then_some(nonce),
        to: Option<Fixed<20>> = (!is_post_exec).then(|| OrNull(tx.to())),
        value: Quantity<U256> = tx.value(),
        r#type: Quantity<u64> = u64::from(tx.ty()),
        accessList: Option<Vec<AccessListItem>> = tx.access_list().map(|list| &list.0),
        chainId: Option<Quantity<u64>> = tx.chain_id().filter(|id| *id != 0 || tx.access_list().is_some()),
        blobVersionedHashes: Option<Vec<Fixed<32>>> = tx.blob_versioned_hashes(),
        authorizationList: Option<Vec<Authorization>> = tx.authorization_list(),
        v: Option<Quantity<u64>> = seal.map(|seal| seal.v),
        r: Option<Quantity<U256>> = seal.map(|seal| seal.r),
        s: Option<Quantity<U256>> = seal.map(|seal| seal.s),
        yParity: Option<Quantity<u64>> = seal.and_then(|seal| seal.y_parity),
        sourceHash: Option<Fixed<32>> = deposit.map(|deposit| deposit.source_hash),
        mint: Option<Quantity<u128>> = deposit.map(|deposit| deposit.mint).filter(|mint| *mint != 0),
        isSystemTx: Option<bool> = deposit.map(|deposit| deposit.is_system_transaction).filter(|is_system| *is_system),
        depositReceiptVersion: Option<Quantity<u64>> = receipt.and_then(|receipt| receipt.deposit_receipt_version),
    }

    /// A transaction that is filled in or signed: its encoding (EIP-2718), and its fields.
    // As in geth.
    pub PreparedTransaction[T: consensus::Transaction + Typed2718]: (&[u8], &T, Option<&TxEnvelope>, &Dialect) => |given| {
        raw: Data = given.0,
        tx: TransactionFields = given,
    }

    /// The fields of a transaction that is not sent. The price that its type does not have is null. The signature is zeros if it is not
    /// signed.
    TransactionFields[T: consensus::Transaction + Typed2718]: (&[u8], &T, Option<&TxEnvelope>, &Dialect) => |(raw, tx, signed, dialect)| let {
        let seal = Seal::of(signed, tx.ty());
        let price = tx.gas_price().or_else(|| dialect.for_tests.then(|| tx.max_fee_per_gas()));
    } {
        r#type: Quantity<u64> = u64::from(tx.ty()),
        chainId: Option<Quantity<u64>> = tx.chain_id().filter(|id| *id != 0),
        nonce: Quantity<u64> = tx.nonce(),
        to: Option<Fixed<20>> = Some(OrNull(tx.to())),
        gas: Quantity<u64> = tx.gas_limit(),
        gasPrice: Option<Quantity<u128>> = Some(OrNull(price)),
        maxPriorityFeePerGas: Option<Quantity<u128>> = Some(OrNull(tx.max_priority_fee_per_gas())),
        maxFeePerGas: Option<Quantity<u128>> = Some(OrNull(tx.is_dynamic_fee().then(|| tx.max_fee_per_gas()))),
        value: Quantity<U256> = tx.value(),
        input: Data = tx.input(),
        accessList: Option<Vec<AccessListItem>> = tx.access_list().map(|list| &list.0),
        authorizationList: Option<Vec<Authorization>> = tx.authorization_list(),
        v: Quantity<u64> = seal.v,
        r: Quantity<U256> = seal.r,
        s: Quantity<U256> = seal.s,
        yParity: Option<Quantity<u64>> = seal.y_parity,
        hash: Fixed<32> = keccak256(raw),
    }

    /// An address that a transaction accesses, and its slots (EIP-2930).
    pub AccessListItem: &eip2930::AccessListItem => |item| {
        address: Fixed<20> = item.address,
        storageKeys: Vec<Fixed<32>> = &item.storage_keys,
    }

    /// A signed permission to set an account's code (EIP-7702).
    pub Authorization: &eip7702::SignedAuthorization => |signed| {
        chainId: Quantity<U256> = signed.chain_id,
        address: Fixed<20> = signed.address,
        nonce: Quantity<u64> = signed.nonce,
        yParity: Quantity<u64> = u64::from(signed.y_parity()),
        r: Quantity<U256> = signed.r(),
        s: Quantity<U256> = signed.s(),
    }

    /// A log with its position, where it has one.
    pub Log: LogView<'_> => |LogView { log, position, index, removed }| {
        address: Fixed<20> = log.address,
        topics: Vec<Fixed<32>> = log.topics(),
        data: Data = &log.data.data,
        blockNumber: Option<Quantity<u64>> = position.map(|position| position.header.number),
        transactionHash: Option<Fixed<32>> = position.map(|position| position.tx_hash),
        transactionIndex: Option<Quantity<u64>> = position.map(|position| position.tx_index),
        blockHash: Option<Fixed<32>> = position.map(|position| position.block_hash),
        blockTimestamp: Option<Quantity<u64>> = position.map(|position| position.header.timestamp),
        blockTimestampMs: Option<Quantity<u64>> = position.and_then(|position| position.time),
        logIndex: Quantity<u64> = index,
        /// Whether the log's block was replaced.
        removed: Option<bool> = removed,
    }
}

/// A transaction's hash, or the transaction in full.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "the transaction is written, if there is one, else the hash")]
pub enum BlockTransaction {
    Hash(Fixed<32>),
    Full(Box<Transaction>),
}

impl<V> Shape<(B256, Option<V>)> for BlockTransaction
where
    Transaction: Shape<V>,
{
    fn write(out: &mut Vec<u8>, (hash, transaction): (B256, Option<V>)) {
        match transaction {
            Some(transaction) => Transaction::write(out, transaction),
            None => Fixed::<32>::write(out, hash),
        }
    }
}

/// A withdrawal from the beacon chain (EIP-4895). The amount is in gwei.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Withdrawal {
    pub index: Quantity<u64>,
    pub validator_index: Quantity<u64>,
    pub address: Fixed<20>,
    pub amount: Quantity<u64>,
}

/// Writes a block in full with the id of the snapshot after its last transaction.
pub fn flashblock(out: &mut Vec<u8>, block: &ledger::Block, id: SnapshotId, dialect: &Dialect) {
    let mut object = Object::new(out);
    Block::write_fields(&mut object, (block, true, dialect));
    object.quantity("snapshotId", id.0);
    object.end();
}

/// Writes a transaction and its outcome in one object, as the Flashblocks networks send pre-confirmations.
pub fn transaction_with_receipt(out: &mut Vec<u8>, block: &ledger::Block, included: &Included<'_>) {
    let mut object = Object::new(out);
    Transaction::write_fields(&mut object, TxView::of(block, included));
    Outcome::write_fields(&mut object, (block, included));
    object.end();
}

/// Writes a transaction that is not in a block yet, or whose block is not shown yet.
pub fn pooled_transaction(out: &mut Vec<u8>, tx: &Recovered<TxEnvelope>) {
    let (hash, seal) = (*tx.tx_hash(), Some(Seal::of(Some(tx), tx.ty())));
    // The price that it will pay is not known yet: like geth, this shows the maximum.
    let (from, price) = (tx.signer(), tx.max_fee_per_gas());
    Transaction::write(out, TxView { position: None, tx: tx.inner(), hash, from, price, seal, deposit: None });
}

/// A log, and the values shown with it.
#[derive(Clone, Copy, Debug)]
pub struct LogView<'a> {
    pub log: &'a primitives::Log,
    pub position: Option<TxPosition<'a>>,
    /// The index of the log in the block.
    pub index: u64,
    pub removed: Option<bool>,
}

/// A transaction, and the values shown with it.
#[derive(Clone, Copy, Debug)]
pub struct TxView<'a, T> {
    pub position: Option<TxPosition<'a>>,
    pub tx: &'a T,
    pub hash: B256,
    pub from: Address,
    /// The price that is paid, in wei per gas.
    pub price: u128,
    /// The signature. `None` of a post-execution transaction.
    pub seal: Option<Seal>,
    /// A deposit, and its receipt.
    pub deposit: Option<(&'a TxDeposit, Option<&'a OpDepositReceipt>)>,
}

impl<'a> TxView<'a, ChainTx> {
    /// Returns a transaction with its position in `block`.
    pub fn of(block: &'a ledger::Block, included: &Included<'a>) -> Self {
        let tx = included.tx.inner();
        let (seal, deposit) = match tx {
            ChainTx::Signed(signed) => (Some(Seal::of(Some(signed), tx.ty())), None),
            ChainTx::Deposit(deposit) => {
                (Some(Seal::default()), Some((deposit.inner(), included.receipt.as_deposit())))
            }
            ChainTx::PostExec(_) => (None, None),
        };
        Self {
            position: Some(TxPosition::of(block, included)),
            tx,
            hash: *included.tx.tx_hash(),
            from: included.tx.signer(),
            price: tx.effective_gas_price(block.header().base_fee_per_gas),
            seal,
            deposit,
        }
    }
}

/// The signature of a transaction, in the form of its JSON.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seal {
    v: u64,
    r: U256,
    s: U256,
    y_parity: Option<u64>,
}

impl Seal {
    /// Returns the signature of a transaction: zeros if it is not signed, as in geth.
    pub fn of(signed: Option<&TxEnvelope>, tx_type: u8) -> Self {
        let Some(signed) = signed else { return Self { y_parity: (tx_type != 0).then_some(0), ..Self::default() } };
        let signature = signed.signature();
        let parity = u64::from(signature.v());
        let (v, y_parity) = match signed {
            // `v` follows EIP-155 if the transaction names its chain, else it is 27 or 28.
            TxEnvelope::Legacy(tx) => {
                let base = tx.tx().chain_id.map_or(27, |id| id.saturating_mul(2).saturating_add(35));
                (base.saturating_add(parity), None)
            }
            _ => (parity, Some(parity)),
        };
        Self { v, r: signature.r(), s: signature.s(), y_parity }
    }
}

/// The position of a transaction in the chain, and of its logs.
#[derive(Clone, Copy, Debug)]
pub struct TxPosition<'a> {
    /// The header of the block.
    pub header: &'a consensus::Header,
    /// The hash of the block.
    pub block_hash: B256,
    /// The hash of the transaction.
    pub tx_hash: B256,
    /// The index of the transaction in the block.
    pub tx_index: u64,
    /// The time of the block in milliseconds, if the block has it.
    pub time: Option<u64>,
}

impl<'a> TxPosition<'a> {
    /// Returns the position of a transaction of `block`.
    pub fn of(block: &'a ledger::Block, included: &Included<'_>) -> Self {
        let header = block.header();
        Self {
            header,
            block_hash: header.hash(),
            tx_hash: *included.tx.tx_hash(),
            tx_index: included.index as u64,
            time: block.timestamp_ms(),
        }
    }

    /// Returns the logs of a block whose transactions are not known, each with its position and its index in the block.
    pub fn of_logs_alone(block: &'a SealedBlock) -> impl Iterator<Item = (Self, u64, &'a primitives::Log)> {
        let header = block.header.inner();
        let transactions = block.logs_alone().unwrap_or_default().iter().enumerate();
        let positioned = transactions.flat_map(move |(tx_index, transaction)| {
            let position = move || Self {
                header,
                block_hash: block.hash(),
                tx_hash: transaction.hash,
                tx_index: tx_index as u64,
                time: None,
            };
            transaction.logs.iter().map(move |log| (position(), log))
        });
        positioned.enumerate().map(|(index, (position, log))| (position, index as u64, log))
    }
}
