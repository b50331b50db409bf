//! Receipts of both families: of signed transactions, and of deposits on an OP-stack chain.

use alloy_consensus::{Eip658Value, Receipt, ReceiptEnvelope, ReceiptWithBloom, TxReceipt, TxType};
use alloy_eips::eip2718::{Encodable2718, IsTyped2718, Typed2718};
use alloy_evm::{
    Evm,
    eth::receipt_builder::{ReceiptBuilder, ReceiptBuilderCtx},
};
use alloy_op_evm::block::receipt_builder::OpReceiptBuilder;
use alloy_primitives::{Bloom, Log};
use alloy_rlp::{BufMut, Encodable};
use op_alloy::consensus::{DEPOSIT_TX_TYPE_ID, OpDepositReceipt, OpDepositReceiptWithBloom};

use super::tx::{ChainTx, ChainTxType};

/// The receipt of a transaction in a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainReceipt {
    /// The receipt of a signed transaction.
    Signed(ReceiptEnvelope),
    /// The receipt of a deposit, with the sender's nonce from Regolith on and a version from Canyon on
    /// (<https://specs.optimism.io/protocol/deposits.html#deposit-receipt>).
    Deposit(OpDepositReceiptWithBloom),
}

impl ChainReceipt {
    /// Returns the receipt of a deposit, or `None` for a signed transaction.
    pub const fn as_deposit(&self) -> Option<&OpDepositReceipt> {
        match self {
            Self::Signed(_) => None,
            Self::Deposit(receipt) => Some(&receipt.receipt),
        }
    }
}

impl From<ReceiptEnvelope> for ChainReceipt {
    fn from(receipt: ReceiptEnvelope) -> Self {
        Self::Signed(receipt)
    }
}

impl From<OpDepositReceipt> for ChainReceipt {
    fn from(receipt: OpDepositReceipt) -> Self {
        Self::Deposit(receipt.with_bloom())
    }
}

impl TxReceipt for ChainReceipt {
    type Log = Log;

    fn status_or_post_state(&self) -> Eip658Value {
        match self {
            Self::Signed(receipt) => receipt.status_or_post_state(),
            Self::Deposit(receipt) => receipt.status_or_post_state(),
        }
    }

    fn status(&self) -> bool {
        self.status_or_post_state().coerce_status()
    }

    fn bloom(&self) -> Bloom {
        match self {
            Self::Signed(receipt) => receipt.bloom(),
            Self::Deposit(receipt) => receipt.logs_bloom,
        }
    }

    fn cumulative_gas_used(&self) -> u64 {
        match self {
            Self::Signed(receipt) => receipt.cumulative_gas_used(),
            Self::Deposit(receipt) => receipt.receipt.inner.cumulative_gas_used,
        }
    }

    fn logs(&self) -> &[Log] {
        match self {
            Self::Signed(receipt) => receipt.logs(),
            Self::Deposit(receipt) => &receipt.receipt.inner.logs,
        }
    }
}

impl Typed2718 for ChainReceipt {
    fn ty(&self) -> u8 {
        match self {
            Self::Signed(receipt) => receipt.ty(),
            Self::Deposit(_) => DEPOSIT_TX_TYPE_ID,
        }
    }
}

impl IsTyped2718 for ChainReceipt {
    fn is_type(ty: u8) -> bool {
        ty == DEPOSIT_TX_TYPE_ID || <ReceiptEnvelope as IsTyped2718>::is_type(ty)
    }
}

impl Encodable2718 for ChainReceipt {
    fn encode_2718_len(&self) -> usize {
        match self {
            Self::Signed(receipt) => receipt.encode_2718_len(),
            Self::Deposit(receipt) => 1 + receipt.length(),
        }
    }

    fn encode_2718(&self, out: &mut dyn BufMut) {
        match self {
            Self::Signed(receipt) => receipt.encode_2718(out),
            Self::Deposit(receipt) => {
                out.put_u8(DEPOSIT_TX_TYPE_ID);
                receipt.encode(out);
            }
        }
    }
}

/// Builds receipts for the block executors of both families.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChainReceiptBuilder;

impl ChainReceiptBuilder {
    fn signed<E: Evm>(kind: TxType, ctx: ReceiptBuilderCtx<'_, ChainTxType, E>) -> ChainReceipt {
        let receipt = Receipt {
            status: Eip658Value::Eip658(ctx.result.is_success()),
            cumulative_gas_used: ctx.cumulative_gas_used,
            logs: ctx.result.into_logs(),
        };
        ReceiptEnvelope::from_typed(kind, ReceiptWithBloom::from(receipt)).into()
    }
}

impl ReceiptBuilder for ChainReceiptBuilder {
    type Transaction = ChainTx;
    type Receipt = ChainReceipt;

    /// Builds the receipt of a signed transaction. Ethereum's executor receives no deposits.
    fn build_receipt<E: Evm>(&self, ctx: ReceiptBuilderCtx<'_, ChainTxType, E>) -> ChainReceipt {
        match ctx.tx_type {
            ChainTxType::Signed(kind) => Self::signed(kind, ctx),
            ChainTxType::Deposit => Self::signed(TxType::Legacy, ctx),
        }
    }
}

impl OpReceiptBuilder for ChainReceiptBuilder {
    type Transaction = ChainTx;
    type Receipt = ChainReceipt;

    fn build_receipt<'a, E: Evm>(
        &self,
        ctx: ReceiptBuilderCtx<'a, ChainTxType, E>,
    ) -> Result<ChainReceipt, ReceiptBuilderCtx<'a, ChainTxType, E>> {
        match ctx.tx_type {
            ChainTxType::Signed(kind) => Ok(Self::signed(kind, ctx)),
            ChainTxType::Deposit => Err(ctx),
        }
    }

    fn build_deposit_receipt(&self, inner: OpDepositReceipt) -> ChainReceipt {
        inner.into()
    }
}
