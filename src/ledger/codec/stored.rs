//! The encoded form of blocks, sub-blocks and state changes, in the journal and in the stream of a fleet. Like the data
//! of the chain itself, it is RLP.

use alloy_consensus::{Eip658Value, Header, Receipt, ReceiptEnvelope, ReceiptWithBloom, TxReceipt, TxType, Typed2718};
use alloy_eips::{
    eip2718::{Decodable2718, Encodable2718},
    eip4895::{Withdrawal, Withdrawals},
    eip7928::BlockAccessList,
};
use alloy_primitives::{Address, B256, Bytes, Log, U256};
use alloy_rlp::{BufMut, Decodable, Encodable, RlpDecodable, RlpEncodable};
use op_alloy::consensus::{
    DEPOSIT_TX_TYPE_ID, OpDepositReceipt,
    post_exec::{POST_EXEC_TX_TYPE_ID, TxPostExec},
};
use revm::state::AccountInfo;

use crate::{
    chain::{BlockBody, ChainReceipt, GasRefunds, SealedBlock, merged_access_list},
    ledger::OpenBlock,
    state::{AccountChange, Code, StoredSlot},
    store::{StoredTx, corrupted},
};

/// A value that may be missing: a list of one, or none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Maybe<T>(pub Option<T>);

impl<T: Encodable> Encodable for Maybe<T> {
    fn encode(&self, out: &mut dyn BufMut) {
        alloy_rlp::encode_list(self.0.as_slice(), out);
    }

    fn length(&self) -> usize {
        alloy_rlp::list_length(self.0.as_slice())
    }
}

impl<T: Decodable> Decodable for Maybe<T> {
    fn decode(bytes: &mut &[u8]) -> alloy_rlp::Result<Self> {
        let mut list = alloy_rlp::Header::decode_bytes(bytes, true)?;
        let value = (!list.is_empty()).then(|| T::decode(&mut list)).transpose()?;
        match list {
            [] => Ok(Self(value)),
            _ => Err(alloy_rlp::Error::Custom("a list of at most one value has more")),
        }
    }
}

/// A receipt without its bloom, which follows from the logs.
#[derive(RlpEncodable, RlpDecodable)]
#[rlp(trailing)]
pub struct StoredReceipt {
    kind: u8,
    status: Eip658Value,
    cumulative_gas_used: u64,
    logs: Vec<Log>,
    /// The nonce and the version of a deposit's receipt.
    deposit_nonce: Option<u64>,
    deposit_version: Option<u64>,
    /// 1 if the nonce is 0. RLP encodes 0 and an absent value in the same way, so a nonce of 0 would read as none.
    has_nonce_zero: Option<u64>,
}

impl From<&ChainReceipt> for StoredReceipt {
    fn from(receipt: &ChainReceipt) -> Self {
        let deposit = receipt.as_deposit();
        Self {
            kind: receipt.ty(),
            status: receipt.status_or_post_state(),
            cumulative_gas_used: receipt.cumulative_gas_used(),
            logs: receipt.logs().to_vec(),
            deposit_nonce: deposit.and_then(|deposit| deposit.deposit_nonce),
            deposit_version: deposit.and_then(|deposit| deposit.deposit_receipt_version),
            has_nonce_zero: deposit.filter(|deposit| deposit.deposit_nonce == Some(0)).map(|_| 1),
        }
    }
}

impl StoredReceipt {
    pub fn read(self) -> Result<ChainReceipt, redb::Error> {
        let receipt = Receipt { status: self.status, cumulative_gas_used: self.cumulative_gas_used, logs: self.logs };
        if self.kind == DEPOSIT_TX_TYPE_ID {
            let deposit_nonce = self.deposit_nonce.or(self.has_nonce_zero.map(|_| 0));
            let deposit_receipt_version = self.deposit_version;
            return Ok(OpDepositReceipt { inner: receipt, deposit_nonce, deposit_receipt_version }.into());
        }
        if self.kind == POST_EXEC_TX_TYPE_ID {
            return Ok(ChainReceipt::PostExec { cumulative_gas_used: receipt.cumulative_gas_used });
        }
        let kind = TxType::try_from(self.kind).map_err(|error| corrupted(format!("unknown receipt type: {error}")))?;
        Ok(ReceiptEnvelope::from_typed(kind, ReceiptWithBloom::from(receipt)).into())
    }
}

/// A header and the hashes of its block's transactions: the part of a block that is read at startup.
#[derive(RlpEncodable, RlpDecodable)]
pub struct StoredHeader {
    pub header: Header,
    /// Empty if the block was pruned.
    pub hashes: Vec<B256>,
}

impl From<&SealedBlock> for StoredHeader {
    fn from(block: &SealedBlock) -> Self {
        Self { header: block.header.inner().clone(), hashes: block.transaction_hashes().unwrap_or_default() }
    }
}

/// The body of a sealed block with its receipts.
#[derive(RlpEncodable, RlpDecodable)]
#[rlp(trailing)]
pub struct StoredBody {
    pub transactions: Vec<StoredTx>,
    pub receipts: Vec<StoredReceipt>,
    pub ommers: Vec<Header>,
    pub withdrawals: Option<Vec<Withdrawal>>,
    pub access_list: Option<BlockAccessList>,
}

impl StoredBody {
    /// Returns the body without its first `known` transactions and their receipts.
    pub fn after(body: &BlockBody, known: usize) -> Self {
        Self {
            transactions: body.transactions.iter().skip(known).map(StoredTx::from).collect(),
            receipts: body.receipts.iter().skip(known).map(StoredReceipt::from).collect(),
            ommers: body.ommers.clone(),
            withdrawals: body.withdrawals.as_ref().map(|list| list.to_vec()),
            access_list: body.access_list.clone(),
        }
    }

    pub fn read(self) -> Result<BlockBody, redb::Error> {
        if self.transactions.len() != self.receipts.len() {
            return Err(corrupted("a block has another number of receipts than of transactions"));
        }
        Ok(BlockBody {
            transactions: self.transactions.into_iter().map(StoredTx::read).collect::<Result<_, _>>()?,
            receipts: self.receipts.into_iter().map(StoredReceipt::read).collect::<Result<_, _>>()?,
            ommers: self.ommers,
            withdrawals: self.withdrawals.map(Withdrawals::new),
            access_list: self.access_list,
        })
    }
}

/// An account without its storage.
#[derive(RlpEncodable, RlpDecodable)]
pub struct StoredAccount {
    pub balance: U256,
    pub nonce: u64,
    pub code_hash: B256,
}

impl From<&AccountInfo> for StoredAccount {
    fn from(info: &AccountInfo) -> Self {
        Self { balance: info.balance, nonce: info.nonce, code_hash: info.code_hash }
    }
}

/// The changes to one account. Its code is in a table of its own, under its hash.
#[derive(RlpEncodable, RlpDecodable)]
pub struct StoredChange {
    pub address: Address,
    /// The account after the change; none if it was deleted.
    pub account: Maybe<StoredAccount>,
    pub storage_cleared: bool,
    pub slots: Vec<StoredSlot>,
}

impl From<&AccountChange> for StoredChange {
    fn from(change: &AccountChange) -> Self {
        Self {
            address: change.address,
            account: Maybe(change.info.as_ref().map(Into::into)),
            storage_cleared: change.storage_cleared,
            slots: StoredSlot::sorted(change.slots.iter()),
        }
    }
}

impl StoredChange {
    /// Returns the change of an account that has this code after it.
    pub fn read(self, code: Code) -> AccountChange {
        AccountChange {
            address: self.address,
            info: self.account.0.map(|account| code.into_info(account.balance, account.nonce)),
            storage_cleared: self.storage_cleared,
            slots: self.slots.into_iter().map(|slot| (slot.key, slot.value)).collect(),
        }
    }
}

#[derive(Default, RlpEncodable, RlpDecodable)]
#[rlp(trailing)]
pub struct StoredSubBlock {
    pub index: u32,
    /// Regular gas and blob gas that the block has used so far.
    pub regular_gas_used: u64,
    pub blob_gas_used: u64,
    pub transactions: Vec<StoredTx>,
    pub receipts: Vec<StoredReceipt>,
    pub changes: Vec<StoredChange>,
    /// The post-execution transaction that lists the refunds of the transactions so far, in EIP-2718 bytes, if any.
    pub refunds: Maybe<Bytes>,
    /// State gas that the block has used so far, unless it is zero.
    pub state_gas_used: Option<u64>,
    /// The accesses of the sub-block. `None` before Amsterdam, and on the chain of an upstream.
    pub access_list: Option<BlockAccessList>,
}

impl StoredSubBlock {
    /// Creates the content of a block being built without its first `known` transactions and its first `known_lists` access
    /// lists.
    pub fn of(open: &OpenBlock, known: usize, known_lists: usize, changes: Vec<StoredChange>) -> Self {
        let new = known..open.transactions.len();
        Self {
            index: open.index,
            regular_gas_used: open.gas.regular,
            blob_gas_used: open.blob_gas_used,
            // By index, because iterating to the first new transaction would cost as much as the block has
            // transactions.
            transactions: new.clone().map(|at| (&open.transactions[at]).into()).collect(),
            receipts: new.map(|at| (&open.receipts[at]).into()).collect(),
            changes,
            refunds: StoredSubBlock::refunds_of(&open.refunds),
            state_gas_used: Some(open.gas.state).filter(|gas| *gas > 0),
            access_list: merged_access_list(&open.access_lists, known_lists),
        }
    }

    /// Returns the stored form of refunds.
    pub fn refunds_of(refunds: &GasRefunds) -> Maybe<Bytes> {
        Maybe(refunds.transaction().map(|tx| tx.encoded_2718().into()))
    }

    /// Reads the refunds.
    pub fn read_refunds(refunds: Maybe<Bytes>) -> Result<GasRefunds, redb::Error> {
        let Some(bytes) = refunds.0 else { return Ok(GasRefunds::default()) };
        let read = TxPostExec::decode_2718_exact(&bytes).map(GasRefunds::of_checked);
        read.map_err(|error| corrupted(format!("a post-execution transaction cannot be read: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::decode;

    #[test]
    fn the_receipt_of_a_deposit_comes_back_with_its_nonce_and_its_version() {
        for deposit_nonce in [None, Some(0), Some(7)] {
            for deposit_receipt_version in [None, Some(1)] {
                let inner = Receipt { status: Eip658Value::from(true), cumulative_gas_used: 9, logs: Vec::new() };
                let receipt = ChainReceipt::from(OpDepositReceipt { inner, deposit_nonce, deposit_receipt_version });
                let stored = alloy_rlp::encode(StoredReceipt::from(&receipt));
                let read = decode::<StoredReceipt>(&stored).and_then(StoredReceipt::read).expect("it is whole");
                assert_eq!(read, receipt);
            }
        }
    }
}
