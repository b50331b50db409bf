//! Receipts of both families: of signed transactions, and of deposits and post-execution transactions on an OP-stack chain.

use alloy_consensus::{Eip658Value, Receipt, ReceiptEnvelope, ReceiptWithBloom, TxReceipt};
use alloy_eips::eip2718::{Encodable2718, IsTyped2718, Typed2718};
use alloy_evm::{
    Evm,
    eth::receipt_builder::{ReceiptBuilder, ReceiptBuilderCtx},
};
use alloy_primitives::{Bloom, Log};
use alloy_rlp::{BufMut, Encodable};
use op_alloy::consensus::{
    DEPOSIT_TX_TYPE_ID, OpDepositReceipt, OpDepositReceiptWithBloom, post_exec::POST_EXEC_TX_TYPE_ID,
};
use revm::context::result::ExecutionResult;

use super::tx::{ChainTx, ChainTxType};

/// The receipt of a transaction in a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainReceipt {
    /// The receipt of a signed transaction.
    Signed(ReceiptEnvelope),
    /// The receipt of a deposit, with the sender's nonce from Regolith on and a version from Canyon on
    /// (<https://specs.optimism.io/protocol/deposits.html#deposit-receipt>).
    Deposit(OpDepositReceiptWithBloom),
    /// The receipt of a post-execution transaction, which succeeds, has no logs, and uses no gas
    /// (<https://github.com/ethereum-optimism/specs/blob/main/specs/protocol/lagoon/post-exec.md#receipt>).
    PostExec {
        /// The gas of the transactions before it, by their receipts.
        cumulative_gas_used: u64,
    },
}

/// The fields that only the receipt of a deposit has
/// (<https://specs.optimism.io/protocol/deposits.html#deposit-receipt>).
#[derive(Clone, Copy, Debug, Default)]
pub struct DepositReceiptFields {
    /// The sender's nonce before the deposit. `None` before Regolith.
    pub nonce: Option<u64>,
    /// The version, 1. `None` before Canyon.
    pub version: Option<u64>,
}

impl ChainReceipt {
    /// Returns the receipt of a deposit, or `None` for another transaction.
    pub const fn as_deposit(&self) -> Option<&OpDepositReceipt> {
        match self {
            Self::Deposit(receipt) => Some(&receipt.receipt),
            Self::Signed(_) | Self::PostExec { .. } => None,
        }
    }

    /// Returns the receipt of a transaction that ended with `result`. The transactions of its block have used
    /// `cumulative_gas_used` after it. Only a deposit's receipt has the fields of `deposit`.
    pub fn of<H>(
        kind: ChainTxType,
        result: ExecutionResult<H>,
        cumulative_gas_used: u64,
        deposit: DepositReceiptFields,
    ) -> Self {
        let status = Eip658Value::Eip658(result.is_success());
        let inner = Receipt { status, cumulative_gas_used, logs: result.into_logs() };
        match kind {
            ChainTxType::Signed(kind) => ReceiptEnvelope::from_typed(kind, ReceiptWithBloom::from(inner)).into(),
            ChainTxType::Deposit => {
                OpDepositReceipt { inner, deposit_nonce: deposit.nonce, deposit_receipt_version: deposit.version }
                    .into()
            }
            ChainTxType::PostExec => Self::PostExec { cumulative_gas_used },
        }
    }

    /// Returns the receipt of a post-execution transaction in the encoded form that it shares with other types.
    fn of_post_exec(cumulative_gas_used: u64) -> ReceiptWithBloom<Receipt> {
        Receipt { status: Eip658Value::Eip658(true), cumulative_gas_used, logs: Vec::new() }.into()
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
            Self::PostExec { .. } => Eip658Value::Eip658(true),
        }
    }

    fn status(&self) -> bool {
        self.status_or_post_state().coerce_status()
    }

    fn bloom(&self) -> Bloom {
        match self {
            Self::Signed(receipt) => receipt.bloom(),
            Self::Deposit(receipt) => receipt.logs_bloom,
            Self::PostExec { .. } => Bloom::ZERO,
        }
    }

    fn cumulative_gas_used(&self) -> u64 {
        match self {
            Self::Signed(receipt) => receipt.cumulative_gas_used(),
            Self::Deposit(receipt) => receipt.receipt.inner.cumulative_gas_used,
            Self::PostExec { cumulative_gas_used } => *cumulative_gas_used,
        }
    }

    fn logs(&self) -> &[Log] {
        match self {
            Self::Signed(receipt) => receipt.logs(),
            Self::Deposit(receipt) => &receipt.receipt.inner.logs,
            Self::PostExec { .. } => &[],
        }
    }
}

impl Typed2718 for ChainReceipt {
    fn ty(&self) -> u8 {
        match self {
            Self::Signed(receipt) => receipt.ty(),
            Self::Deposit(_) => DEPOSIT_TX_TYPE_ID,
            Self::PostExec { .. } => POST_EXEC_TX_TYPE_ID,
        }
    }
}

impl IsTyped2718 for ChainReceipt {
    fn is_type(ty: u8) -> bool {
        ty == DEPOSIT_TX_TYPE_ID || ty == POST_EXEC_TX_TYPE_ID || <ReceiptEnvelope as IsTyped2718>::is_type(ty)
    }
}

impl Encodable2718 for ChainReceipt {
    fn encode_2718_len(&self) -> usize {
        match self {
            Self::Signed(receipt) => receipt.encode_2718_len(),
            Self::Deposit(receipt) => 1 + receipt.length(),
            Self::PostExec { cumulative_gas_used } => 1 + Self::of_post_exec(*cumulative_gas_used).length(),
        }
    }

    fn encode_2718(&self, out: &mut dyn BufMut) {
        match self {
            Self::Signed(receipt) => receipt.encode_2718(out),
            Self::Deposit(receipt) => {
                out.put_u8(DEPOSIT_TX_TYPE_ID);
                receipt.encode(out);
            }
            Self::PostExec { cumulative_gas_used } => {
                out.put_u8(POST_EXEC_TX_TYPE_ID);
                Self::of_post_exec(*cumulative_gas_used).encode(out);
            }
        }
    }
}

/// Builds receipts for the executor of Ethereum's blocks, whose transactions are signed.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChainReceiptBuilder;

impl ReceiptBuilder for ChainReceiptBuilder {
    type Transaction = ChainTx;
    type Receipt = ChainReceipt;

    fn build_receipt<E: Evm>(&self, ctx: ReceiptBuilderCtx<'_, ChainTxType, E>) -> ChainReceipt {
        ChainReceipt::of(ctx.tx_type, ctx.result, ctx.cumulative_gas_used, DepositReceiptFields::default())
    }
}
