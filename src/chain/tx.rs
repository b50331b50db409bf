//! Transactions of both families: signed transactions, and deposits on an OP-stack chain.

use alloy_consensus::{
    Sealable, TransactionEnvelope, TxEnvelope,
    crypto::RecoveryError,
    transaction::{Recovered, SignerRecoverable},
};
use alloy_eips::Encodable2718;
use alloy_evm::{FromRecoveredTx, FromTxWithEncoded};
use alloy_op_evm::OpTx;
use alloy_primitives::{Address, B256, Bytes, Sealed};
use op_alloy::consensus::{OpTxEnvelope, TxDeposit};
use revm::context::TxEnv;

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
}

impl ChainTx {
    /// Returns the transaction's hash.
    pub fn tx_hash(&self) -> &B256 {
        match self {
            Self::Signed(tx) => tx.tx_hash(),
            Self::Deposit(tx) => tx.hash_ref(),
        }
    }

    /// Returns the deposit, or `None` for a signed transaction.
    pub const fn as_deposit(&self) -> Option<&Sealed<TxDeposit>> {
        match self {
            Self::Signed(_) => None,
            Self::Deposit(tx) => Some(tx),
        }
    }

    /// Returns the transaction with its sender, recovered from the signature or named by the deposit.
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

impl SignerRecoverable for ChainTx {
    fn recover_signer(&self) -> Result<Address, RecoveryError> {
        match self {
            Self::Signed(tx) => tx.recover_signer(),
            Self::Deposit(tx) => Ok(tx.from),
        }
    }

    fn recover_signer_unchecked(&self) -> Result<Address, RecoveryError> {
        match self {
            Self::Signed(tx) => tx.recover_signer_unchecked(),
            Self::Deposit(tx) => Ok(tx.from),
        }
    }
}

/// Ethereum has no deposits: its executor rejects one before this conversion.
impl FromRecoveredTx<ChainTx> for TxEnv {
    fn from_recovered_tx(tx: &ChainTx, sender: Address) -> Self {
        match tx {
            ChainTx::Signed(tx) => Self::from_recovered_tx(tx, sender),
            ChainTx::Deposit(tx) => OpTx::from_recovered_tx(tx.inner(), sender).0.base,
        }
    }
}

impl FromTxWithEncoded<ChainTx> for TxEnv {
    fn from_encoded_tx(tx: &ChainTx, sender: Address, _: Bytes) -> Self {
        Self::from_recovered_tx(tx, sender)
    }
}

impl FromRecoveredTx<ChainTx> for OpTx {
    fn from_recovered_tx(tx: &ChainTx, sender: Address) -> Self {
        Self::from_encoded_tx(tx, sender, tx.encoded_2718().into())
    }
}

impl FromTxWithEncoded<ChainTx> for OpTx {
    fn from_encoded_tx(tx: &ChainTx, sender: Address, encoded: Bytes) -> Self {
        match tx {
            ChainTx::Signed(TxEnvelope::Legacy(tx)) => Self::from_encoded_tx(tx, sender, encoded),
            ChainTx::Signed(TxEnvelope::Eip2930(tx)) => Self::from_encoded_tx(tx, sender, encoded),
            ChainTx::Signed(TxEnvelope::Eip1559(tx)) => Self::from_encoded_tx(tx, sender, encoded),
            ChainTx::Signed(TxEnvelope::Eip4844(tx)) => Self::from_encoded_tx(tx, sender, encoded),
            ChainTx::Signed(TxEnvelope::Eip7702(tx)) => Self::from_encoded_tx(tx, sender, encoded),
            ChainTx::Deposit(tx) => Self::from_encoded_tx(tx.inner(), sender, encoded),
        }
    }
}

/// The error for a transaction type that no block can contain: the synthetic type 0x7d.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("transaction of type {0:#04x}: expected a signed transaction or a deposit (0x7e)")]
pub struct UnknownTxType(pub u8);

impl TryFrom<OpTxEnvelope> for ChainTx {
    type Error = UnknownTxType;

    fn try_from(tx: OpTxEnvelope) -> Result<Self, UnknownTxType> {
        Ok(match tx {
            OpTxEnvelope::Legacy(tx) => Self::Signed(tx.into()),
            OpTxEnvelope::Eip2930(tx) => Self::Signed(tx.into()),
            OpTxEnvelope::Eip1559(tx) => Self::Signed(tx.into()),
            OpTxEnvelope::Eip7702(tx) => Self::Signed(tx.into()),
            OpTxEnvelope::Deposit(tx) => Self::Deposit(tx),
            OpTxEnvelope::PostExec(_) => return Err(UnknownTxType(0x7d)),
        })
    }
}
