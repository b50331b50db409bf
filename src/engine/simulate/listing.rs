//! A simulated block in a chain's form: its header with roots and hash, and its transactions.

use alloy_consensus::{Header, TxType};
use alloy_eips::eip7685::{EMPTY_REQUESTS_HASH, Requests};
use alloy_evm::Evm;
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{B256, Sealed, keccak256};
use alloy_rlp::Encodable;
use op_alloy::consensus::L2_TO_L1_MESSAGE_PASSER_ADDRESS;

use super::{
    calls::{BlockRun, TransactionList},
    plan::PlannedBlock,
    results::{BlockListing, SimulatedTx},
    simulator::Simulator,
};
use crate::{
    chain::{BlockGas, BlockTotals, OpFork, block_size, ordered_roots, timestamp_ms},
    engine::evm::FamilyEvm,
    ledger::OpenBlock,
};

/// More than the bytes of a header's RLP, unless its extra data is long.
const HEADER_BYTES: usize = 1 << 10;

impl<F: FamilyEvm> Simulator<'_, F> {
    /// Completes the header of a block that ran, except for the access list's hash, and returns the block in a chain's
    /// form. The next block builds on it.
    pub(super) fn listed(
        &mut self,
        planned: &PlannedBlock<'_>,
        header: &mut Header,
        ran: &BlockRun,
        list: TransactionList,
    ) -> BlockListing {
        header.requests_hash = list.requests.as_ref().map(requests_hash);
        let transactions: Vec<&[u8]> = list.transactions.iter().map(|(_, tx)| tx.encoded.as_slice()).collect();
        let receipts: Vec<&[u8]> = list.receipts.iter().map(Vec::as_slice).collect();
        let ([transactions_root, receipts_root], hashes) = ordered_roots([&transactions, &receipts], &transactions);
        BlockTotals {
            gas_used: ran.block_gas.used(),
            blob_gas_used: ran.blob_gas_used,
            transactions_root,
            receipts_root,
            logs_bloom: list.bloom,
        }
        .close(header);

        let withdrawals = planned
            .spec
            .is_shanghai_active_at_timestamp(planned.time)
            .then(|| planned.block.block.withdrawals.clone().unwrap_or_default());
        header.withdrawals_root =
            withdrawals.as_ref().map(|list| alloy_consensus::proofs::calculate_withdrawals_root(list));
        // Since Isthmus, this proves withdrawals to L1 (<https://specs.optimism.io/protocol/isthmus/exec-engine.html>).
        let proves_messages = planned.spec.has_op_fork(OpFork::Isthmus, planned.time);
        if proves_messages {
            // If no root is computed, the parent's stays.
            header.withdrawals_root = self.parent().withdrawals_root.or(header.withdrawals_root);
        }
        if let Some(roots) = &mut self.roots {
            header.state_root = roots.after(self.evm.db_mut().changes());
            if proves_messages {
                header.withdrawals_root = Some(roots.storage_root_of(L2_TO_L1_MESSAGE_PASSER_ADDRESS));
            }
            // From here on, the overlay reports only the next block's changes.
            self.evm.db_mut().restart_changes();
        }
        let sizes = list.transactions.iter().map(|(_, tx)| (tx.encoded.len(), tx.tx.tx_type() == TxType::Legacy));
        let size = block_size(header, sizes, &[], withdrawals.as_ref().map(|list| list.as_slice()));
        let header = sealed(header.clone());
        let whole =
            planned.continues.map_or_else(|| header.inner().clone(), |open| with_gas_of(open, &header, ran.block_gas));
        self.state.parent = Some(Sealed::new_unchecked(whole, header.hash()));
        let transactions = list.transactions.into_iter().zip(hashes);
        BlockListing {
            timestamp_ms: planned.millis.map(|millis| timestamp_ms(planned.time, millis)),
            header,
            transactions: transactions.map(|((from, tx), hash)| SimulatedTx { from, tx, hash }).collect(),
            withdrawals,
            size,
        }
    }
}

/// Returns the header of a block including the gas that `open`, which the block continues, has used before. The fees
/// of the next block follow from the total.
fn with_gas_of(open: &OpenBlock, header: &Header, gas: BlockGas) -> Header {
    let used = open.gas.plus(gas).used();
    Header {
        // Where an override sets a lower limit than the block has used, the block counts as full.
        gas_used: if used <= header.gas_limit { used } else { header.gas_limit / 2 * 2 },
        blob_gas_used: header.blob_gas_used.map(|used| used.saturating_add(open.blob_gas_used)),
        ..header.clone()
    }
}

/// Returns the hash of a block's requests (EIP-7685), which is known if there are none.
fn requests_hash(requests: &Requests) -> B256 {
    if requests.is_empty() { EMPTY_REQUESTS_HASH } else { requests.requests_hash() }
}

/// Returns the header with its hash.
fn sealed(header: Header) -> Sealed<Header> {
    // `seal_slow` encodes into a buffer that grows from nothing.
    let mut rlp = Vec::with_capacity(HEADER_BYTES);
    header.encode(&mut rlp);
    Sealed::new_unchecked(header, keccak256(rlp))
}
