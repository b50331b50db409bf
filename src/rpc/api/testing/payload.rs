//! A built block as the engine API's `getPayload` has it.

use alloy_eips::{Encodable2718, eip7594::BlobTransactionSidecarVariant};
use alloy_primitives::Bytes;

use super::BuiltBlock;
use crate::chain::SealedBlock;
use crate::rpc::json::{Object, data, list, quantity_u256, value};

/// Writes a built block: execution payload, blobs and requests
/// (<https://github.com/ethereum/execution-apis/blob/main/src/engine/osaka.md>, and `amsterdam.md` beside it).
pub fn built_block(out: &mut Vec<u8>, built: &BuiltBlock) {
    let BuiltBlock { block, requests, value: tips, sidecars } = built;
    let mut object = Object::new(out);
    payload(object.key("executionPayload"), block);
    quantity_u256(object.key("blockValue"), *tips);
    let mut bundle = Object::new(object.key("blobsBundle"));
    list(bundle.key("commitments"), sidecars.iter().flat_map(|one| one.commitments()), |out, one| {
        data(out, one.as_slice());
    });
    list(bundle.key("proofs"), sidecars.iter().flat_map(proofs), data);
    list(bundle.key("blobs"), sidecars.iter().flat_map(|one| one.blobs()), |out, one| data(out, one.as_slice()));
    bundle.end();
    // Only requests of a kind that the block has are listed.
    list(object.key("executionRequests"), requests.iter().filter(|one| one.len() > 1), |out, one: &Bytes| {
        data(out, one);
    });
    object.key("shouldOverrideBuilder").extend_from_slice(b"false");
    object.end();
}

fn payload(out: &mut Vec<u8>, block: &SealedBlock) {
    let (header, body) = (&block.header, block.body());
    let mut object = Object::new(out);
    object
        .data("parentHash", header.parent_hash.as_slice())
        .data("feeRecipient", header.beneficiary.as_slice())
        .data("stateRoot", header.state_root.as_slice())
        .data("receiptsRoot", header.receipts_root.as_slice())
        .data("logsBloom", header.logs_bloom.as_slice())
        .data("prevRandao", header.mix_hash.as_slice())
        .quantity("blockNumber", header.number)
        .quantity("gasLimit", header.gas_limit)
        .quantity("gasUsed", header.gas_used)
        .quantity("timestamp", header.timestamp)
        .data("extraData", &header.extra_data)
        .quantity("baseFeePerGas", header.base_fee_per_gas.unwrap_or_default())
        .data("blockHash", header.hash().as_slice());
    list(object.key("transactions"), &body.transactions, |out, tx| data(out, &tx.encoded_2718()));
    if let Some(withdrawals) = &body.withdrawals {
        value(object.key("withdrawals"), withdrawals);
    }
    object.optional_quantity("blobGasUsed", header.blob_gas_used);
    object.optional_quantity("excessBlobGas", header.excess_blob_gas);
    if let Some(list) = &body.access_list {
        object.data("blockAccessList", &alloy_rlp::encode(list));
    }
    object.optional_quantity("slotNumber", header.slot_number);
    object.end();
}

fn proofs(sidecar: &BlobTransactionSidecarVariant) -> impl Iterator<Item = &[u8]> {
    let proofs = match sidecar {
        BlobTransactionSidecarVariant::Eip4844(plain) => &plain.proofs,
        BlobTransactionSidecarVariant::Eip7594(cells) => &cells.cell_proofs,
    };
    proofs.iter().map(|proof| proof.as_slice())
}
