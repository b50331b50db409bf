//! Transactions of both families: signed transactions, and deposits and post-execution transactions on an OP-stack chain.

use alloy_consensus::{
    Sealable, Transaction, TransactionEnvelope, TxEnvelope,
    crypto::RecoveryError,
    transaction::{Recovered, SignerRecoverable},
};
use alloy_evm::{FromRecoveredTx, FromTxWithEncoded};
use alloy_primitives::{Address, B256, Bytes, Sealed, TxKind, U256};
use op_alloy::consensus::{
    DEPOSIT_TX_TYPE_ID, OpTxEnvelope, TxDeposit,
    post_exec::{POST_EXEC_TX_TYPE_ID, TxPostExec},
};
use revm::{
    context::TxEnv,
    context_interface::cfg::{
        gas::{InitialAndFloorGas, calculate_initial_tx_gas},
        gas_params::Eip2780TxInfo,
    },
    primitives::hardfork::SpecId,
};

/// A transaction in a block.
#[derive(Clone, Debug, TransactionEnvelope)]
#[envelope(tx_type_name = ChainTxType, serde_cfg(any()))]
pub enum ChainTx {
    /// A transaction that its sender has signed.
    #[envelope(flatten)]
    Signed(TxEnvelope),
    /// A transaction that an OP-stack chain derives from L1, without a signature
    /// (<https://specs.optimism.io/protocol/deposits.html>).
    #[envelope(ty = 126)]
    Deposit(Sealed<TxDeposit>),
    /// The last transaction of a block, in which the sequencer of an OP-stack chain refunds gas, from Lagoon on
    /// (<https://github.com/ethereum-optimism/specs/blob/main/specs/protocol/lagoon/post-exec.md>). It has no sender, and runs no
    /// code.
    #[envelope(ty = 125)]
    PostExec(Sealed<TxPostExec>),
}

impl ChainTx {
    /// Returns the transaction's hash.
    pub fn tx_hash(&self) -> &B256 {
        match self {
            Self::Signed(tx) => tx.tx_hash(),
            Self::Deposit(tx) => tx.hash_ref(),
            Self::PostExec(tx) => tx.hash_ref(),
        }
    }

    /// Returns the deposit, or `None` for another transaction.
    pub const fn as_deposit(&self) -> Option<&Sealed<TxDeposit>> {
        match self {
            Self::Deposit(tx) => Some(tx),
            Self::Signed(_) | Self::PostExec(_) => None,
        }
    }

    /// Returns the post-execution transaction, or `None` for another transaction.
    pub const fn as_post_exec(&self) -> Option<&Sealed<TxPostExec>> {
        match self {
            Self::PostExec(tx) => Some(tx),
            Self::Signed(_) | Self::Deposit(_) => None,
        }
    }

    /// Returns the transaction with its sender, which is recovered from the signature or named by the deposit. The
    /// sender of a post-execution transaction is the zero address.
    ///
    /// # Errors
    ///
    /// Returns [`RecoveryError`] if the signature is invalid.
    pub fn recovered(self) -> Result<Recovered<Self>, RecoveryError> {
        let sender = self.recover_signer()?;
        Ok(Recovered::new_unchecked(self, sender))
    }
}

impl From<TxEnvelope> for ChainTx {
    fn from(tx: TxEnvelope) -> Self {
        Self::Signed(tx)
    }
}

impl From<TxDeposit> for ChainTx {
    fn from(tx: TxDeposit) -> Self {
        Self::Deposit(tx.seal_slow())
    }
}

impl From<TxPostExec> for ChainTx {
    fn from(tx: TxPostExec) -> Self {
        Self::PostExec(tx.seal_slow())
    }
}

impl SignerRecoverable for ChainTx {
    fn recover_signer(&self) -> Result<Address, RecoveryError> {
        match self {
            Self::Signed(tx) => tx.recover_signer(),
            Self::Deposit(tx) => Ok(tx.from),
            Self::PostExec(tx) => Ok(tx.signer_address()),
        }
    }

    fn recover_signer_unchecked(&self) -> Result<Address, RecoveryError> {
        match self {
            Self::Signed(tx) => tx.recover_signer_unchecked(),
            Self::Deposit(tx) => Ok(tx.from),
            Self::PostExec(tx) => Ok(tx.signer_address()),
        }
    }
}

/// Returns the part of a deposit that Ethereum's transactions have, too. A deposit has no nonce, and its gas is paid on L1.
pub(super) fn deposit_env(tx: &TxDeposit, sender: Address) -> TxEnv {
    TxEnv {
        tx_type: DEPOSIT_TX_TYPE_ID,
        caller: sender,
        gas_limit: tx.gas_limit,
        kind: tx.to,
        value: tx.value,
        data: tx.input.clone(),
        gas_price: 0,
        chain_id: None,
        ..TxEnv::default()
    }
}

/// Returns the environment of a post-execution transaction. No executor runs it: it has too little gas to be valid.
pub(super) fn post_exec_env() -> TxEnv {
    TxEnv { tx_type: POST_EXEC_TX_TYPE_ID, gas_limit: 0, ..TxEnv::default() }
}

/// Ethereum has signed transactions alone: its executor rejects others before this conversion.
impl FromRecoveredTx<ChainTx> for TxEnv {
    fn from_recovered_tx(tx: &ChainTx, sender: Address) -> Self {
        match tx {
            ChainTx::Signed(tx) => Self::from_recovered_tx(tx, sender),
            ChainTx::Deposit(tx) => deposit_env(tx.inner(), sender),
            ChainTx::PostExec(_) => post_exec_env(),
        }
    }
}

impl FromTxWithEncoded<ChainTx> for TxEnv {
    fn from_encoded_tx(tx: &ChainTx, sender: Address, _: Bytes) -> Self {
        Self::from_recovered_tx(tx, sender)
    }
}

/// Returns the gas that a transaction owes before it runs, and the floor of its gas, by the rules of `fork`.
pub fn initial_gas(fork: SpecId, sender: Address, tx: &(impl Transaction + ?Sized)) -> InitialAndFloorGas {
    let accesses = tx.access_list();
    let terms = initial_gas_terms(fork, sender, tx.kind(), tx.value());
    calculate_initial_tx_gas(
        fork,
        tx.input(),
        tx.is_create(),
        accesses.map_or(0, |list| list.len() as u64),
        accesses.map_or(0, |list| list.storage_keys_count() as u64),
        tx.authorization_count().unwrap_or_default(),
        terms,
    )
}

/// Returns the terms on which the gas of a transfer depends from Amsterdam on
/// ([EIP-2780](https://eips.ethereum.org/EIPS/eip-2780)).
pub fn initial_gas_terms(fork: SpecId, sender: Address, kind: TxKind, value: U256) -> Option<Eip2780TxInfo> {
    let is_self_transfer = kind == TxKind::Call(sender);
    fork.is_enabled_in(SpecId::AMSTERDAM).then_some(Eip2780TxInfo { value, is_self_transfer })
}

impl From<OpTxEnvelope> for ChainTx {
    fn from(tx: OpTxEnvelope) -> Self {
        match tx {
            OpTxEnvelope::Legacy(tx) => Self::Signed(tx.into()),
            OpTxEnvelope::Eip2930(tx) => Self::Signed(tx.into()),
            OpTxEnvelope::Eip1559(tx) => Self::Signed(tx.into()),
            OpTxEnvelope::Eip7702(tx) => Self::Signed(tx.into()),
            OpTxEnvelope::Deposit(tx) => Self::Deposit(tx),
            OpTxEnvelope::PostExec(tx) => Self::PostExec(tx),
        }
    }
}
