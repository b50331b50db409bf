//! Receipts, as the receipts root commits to them.

use alloy_consensus::proofs::ordered_trie_root_encoded;
use alloy_primitives::{B256, Bloom, logs_bloom};
use alloy_rlp::{Encodable, Header};

use crate::{
    block_case::{BlockTransaction, ExecutedTransaction},
    case::Status,
};

/// Encodes a receipt by EIP-2718: its status, the cumulative gas, the bloom and the logs, and the two further fields of a
/// deposit's ([deposits](https://specs.optimism.io/protocol/deposits.html#deposit-receipt)).
fn encode(transaction: &BlockTransaction, executed: &ExecutedTransaction) -> Vec<u8> {
    let mut fields = Vec::new();
    (executed.status == Status::Success).encode(&mut fields);
    executed.cumulative_gas_used.encode(&mut fields);
    logs_bloom(&executed.logs).encode(&mut fields);
    executed.logs.encode(&mut fields);
    for field in [executed.deposit_nonce, executed.deposit_receipt_version].into_iter().flatten() {
        field.encode(&mut fields);
    }
    // A legacy transaction is a list, whose first byte is above all types.
    let mut receipt: Vec<u8> = transaction.tx.first().copied().filter(|first| *first < 0x80).into_iter().collect();
    Header { list: true, payload_length: fields.len() }.encode(&mut receipt);
    receipt.extend(fields);
    receipt
}

/// Returns the receipts root and the bloom of a block.
pub fn root_and_bloom(transactions: &[BlockTransaction], executed: &[ExecutedTransaction]) -> (B256, Bloom) {
    let receipts: Vec<Vec<u8>> =
        transactions.iter().zip(executed).map(|(transaction, executed)| encode(transaction, executed)).collect();
    (ordered_trie_root_encoded(&receipts), logs_bloom(executed.iter().flat_map(|executed| &executed.logs)))
}

#[cfg(test)]
mod tests {
    use alloy_consensus::{Receipt, ReceiptEnvelope};
    use alloy_eips::eip2718::Encodable2718;
    use alloy_primitives::{Address, Bytes, Log};

    use super::*;

    fn executed() -> ExecutedTransaction {
        let log = Log::new_unchecked(Address::repeat_byte(1), vec![B256::repeat_byte(2)], Bytes::from_static(b"data"));
        ExecutedTransaction {
            status: Status::Revert,
            reason: None,
            evm_gas: 30_000,
            op_gas_refund: Some(10_000),
            gas_used: 20_000,
            cumulative_gas_used: 70_000,
            da_footprint: 400,
            output: Bytes::new(),
            created: None,
            logs: vec![log],
            deposit_nonce: None,
            deposit_receipt_version: None,
        }
    }

    /// Returns the receipt of a transaction with this first byte.
    fn receipt(first: u8, executed: &ExecutedTransaction) -> Vec<u8> {
        encode(&BlockTransaction { sender: Address::ZERO, tx: vec![first].into() }, executed)
    }

    #[test]
    fn receipts_of_signed_transactions_are_those_of_ethereum() {
        let executed = executed();
        let receipt_of = Receipt { status: false.into(), cumulative_gas_used: 70_000, logs: executed.logs.clone() };
        let expected = receipt_of.with_bloom();
        assert_eq!(receipt(0xf8, &executed), ReceiptEnvelope::Legacy(expected.clone()).encoded_2718());
        assert_eq!(receipt(1, &executed), ReceiptEnvelope::Eip2930(expected.clone()).encoded_2718());
        assert_eq!(receipt(2, &executed), ReceiptEnvelope::Eip1559(expected.clone()).encoded_2718());
        assert_eq!(receipt(4, &executed), ReceiptEnvelope::Eip7702(expected).encoded_2718());
    }

    #[test]
    fn a_post_execution_receipt_has_the_fields_of_type_2_and_a_deposit_has_two_more() {
        let executed = executed();
        let plain = receipt(2, &executed);
        assert_eq!(receipt(0x7d, &executed)[1..], plain[1..]);
        let deposit = ExecutedTransaction { deposit_nonce: Some(7), deposit_receipt_version: Some(1), ..executed };
        let deposit = receipt(0x7e, &deposit);
        // The type, and the first of the three bytes of the list's header.
        assert_eq!(deposit[..2], [0x7e, plain[1]]);
        assert_eq!(deposit[4..], [&plain[4..], &[7, 1]].concat());
    }
}
