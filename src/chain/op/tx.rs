//! Transactions of the OP stack, as the EVM runs them.

use alloy_consensus::TxEnvelope;
use alloy_eips::Encodable2718;
use alloy_evm::{FromRecoveredTx, FromTxWithEncoded, IntoTxEnv};
use alloy_primitives::{Address, B256, Bytes, TxKind, U256};
use revm::{
    context::{Transaction, TxEnv},
    context_interface::either::Either,
    context_interface::transaction::{AccessListItem, RecoveredAuthorization, SignedAuthorization},
    handler::SystemCallTx,
};

use crate::chain::{
    ChainTx,
    tx::{deposit_env, post_exec_env},
};

/// A transaction of the OP stack, with the data on which its fees depend.
#[derive(Clone, Debug, Default)]
pub struct OpTx {
    /// The transaction itself.
    pub base: TxEnv,
    /// The EIP-2718 encoding, for which the L1 fee is charged. Empty for unsigned calls and deposits, which pay none.
    pub encoded: Bytes,
    /// The terms of a deposit. `None` for any other transaction.
    pub deposit: Option<DepositTerms>,
    /// The gas that the block's sequencer refunds, since Lagoon. Zero for most transactions, and for all outside of a
    /// block.
    pub refund: u64,
    /// Whether the transaction is gasless: its sender pays no fee, and no account receives one.
    pub gasless: bool,
}

/// The fields that only a deposit has (<https://specs.optimism.io/protocol/deposits.html#the-deposited-transaction-type>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DepositTerms {
    /// The ether that the sender gets, in wei, even if the deposit fails.
    pub mint: u128,
    /// Whether the deposit used no gas of its block, before Regolith.
    pub is_system: bool,
}

impl From<TxEnv> for OpTx {
    /// Returns an unsigned call. It has no encoding, so no L1 fee is due.
    fn from(call: TxEnv) -> Self {
        Self { base: call, encoded: Bytes::new(), deposit: None, refund: 0, gasless: false }
    }
}

impl FromRecoveredTx<ChainTx> for OpTx {
    fn from_recovered_tx(tx: &ChainTx, sender: Address) -> Self {
        let is_signed = matches!(tx, ChainTx::Signed(_));
        let encoded = if is_signed { tx.encoded_2718().into() } else { Bytes::new() };
        Self::from_encoded_tx(tx, sender, encoded)
    }
}

impl FromTxWithEncoded<ChainTx> for OpTx {
    fn from_encoded_tx(tx: &ChainTx, sender: Address, encoded: Bytes) -> Self {
        match tx {
            ChainTx::Signed(tx) => {
                let base = <TxEnv as FromRecoveredTx<TxEnvelope>>::from_recovered_tx(tx, sender);
                Self { encoded, ..base.into() }
            }
            ChainTx::Deposit(tx) => Self {
                deposit: Some(DepositTerms { mint: tx.mint, is_system: tx.is_system_transaction }),
                ..deposit_env(tx.inner(), sender).into()
            },
            ChainTx::PostExec(_) => post_exec_env().into(),
        }
    }
}

impl IntoTxEnv<Self> for OpTx {
    fn into_tx_env(self) -> Self {
        self
    }
}

impl SystemCallTx for OpTx {
    fn new_system_tx_with_caller(caller: Address, contract: Address, data: Bytes) -> Self {
        TxEnv::new_system_tx_with_caller(caller, contract, data).into()
    }
}

impl Transaction for OpTx {
    type AccessListItem<'a> = &'a AccessListItem;
    type Authorization<'a> = &'a Either<SignedAuthorization, RecoveredAuthorization>;

    fn tx_type(&self) -> u8 {
        self.base.tx_type
    }

    fn caller(&self) -> Address {
        self.base.caller
    }

    fn gas_limit(&self) -> u64 {
        self.base.gas_limit
    }

    fn value(&self) -> U256 {
        self.base.value
    }

    fn input(&self) -> &Bytes {
        &self.base.data
    }

    fn nonce(&self) -> u64 {
        self.base.nonce
    }

    fn kind(&self) -> TxKind {
        self.base.kind
    }

    fn chain_id(&self) -> Option<u64> {
        self.base.chain_id
    }

    fn gas_price(&self) -> u128 {
        self.base.gas_price
    }

    fn access_list(&self) -> Option<impl Iterator<Item = &AccessListItem>> {
        self.base.access_list()
    }

    fn blob_versioned_hashes(&self) -> &[B256] {
        &self.base.blob_hashes
    }

    fn max_fee_per_blob_gas(&self) -> u128 {
        self.base.max_fee_per_blob_gas
    }

    fn authorization_list_len(&self) -> usize {
        self.base.authorization_list.len()
    }

    fn authorization_list(&self) -> impl Iterator<Item = Self::Authorization<'_>> {
        self.base.authorization_list.iter()
    }

    fn max_priority_fee_per_gas(&self) -> Option<u128> {
        self.base.gas_priority_fee
    }
}
