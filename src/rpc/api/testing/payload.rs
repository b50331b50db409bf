//! A built block as the engine API's `getPayload` has it.

use alloy_eips::{Encodable2718, eip4895::Withdrawals, eip7594::BlobTransactionSidecarVariant, eip7685::Requests};
use alloy_primitives::{Bytes, U256};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    chain::SealedBlock,
    rpc::json::{
        Withdrawal,
        hex::{Data, Fixed, Quantity},
    },
};

/// A block that was built on request and is in no chain: execution payload, blobs and requests
/// (<https://github.com/ethereum/execution-apis/blob/main/src/engine/osaka.md>, and `amsterdam.md` beside it).
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BuiltBlock {
    execution_payload: Payload,
    /// The tips that the fee recipient earns, in wei.
    block_value: Quantity<U256>,
    blobs_bundle: BlobsBundle,
    /// The requests of the block's contracts (EIP-7685), of each kind that it has.
    execution_requests: Vec<Data>,
    should_override_builder: bool,
}

/// The blobs of the transactions that were given in network form.
#[derive(Debug, Serialize, JsonSchema)]
struct BlobsBundle {
    commitments: Vec<Data>,
    proofs: Vec<Data>,
    blobs: Vec<Data>,
}

/// The execution payload. A field that its fork has not begun is left out.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Payload {
    parent_hash: Fixed<32>,
    fee_recipient: Fixed<20>,
    state_root: Fixed<32>,
    receipts_root: Fixed<32>,
    logs_bloom: Data,
    prev_randao: Fixed<32>,
    block_number: Quantity<u64>,
    gas_limit: Quantity<u64>,
    gas_used: Quantity<u64>,
    timestamp: Quantity<u64>,
    extra_data: Data,
    base_fee_per_gas: Quantity<u64>,
    block_hash: Fixed<32>,
    transactions: Vec<Data>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<Withdrawal>>")]
    withdrawals: Option<Withdrawals>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blob_gas_used: Option<Quantity<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    excess_blob_gas: Option<Quantity<u64>>,
    /// The RLP of the block's access list (EIP-7928).
    #[serde(skip_serializing_if = "Option::is_none")]
    block_access_list: Option<Data>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot_number: Option<Quantity<u64>>,
}

impl BuiltBlock {
    /// Creates the result from a block, its requests, its tips in wei, and the blobs of its transactions.
    pub fn new(
        block: &SealedBlock,
        requests: &Requests,
        value: U256,
        sidecars: &[BlobTransactionSidecarVariant],
    ) -> Self {
        let all = |parts: fn(&BlobTransactionSidecarVariant) -> Vec<Data>| sidecars.iter().flat_map(parts).collect();
        Self {
            execution_payload: Payload::new(block),
            block_value: Quantity(value),
            blobs_bundle: BlobsBundle {
                commitments: all(|one| one.commitments().iter().map(data).collect()),
                proofs: all(|one| match one {
                    BlobTransactionSidecarVariant::Eip4844(plain) => plain.proofs.iter().map(data).collect(),
                    BlobTransactionSidecarVariant::Eip7594(cells) => cells.cell_proofs.iter().map(data).collect(),
                }),
                blobs: all(|one| one.blobs().iter().map(data).collect()),
            },
            execution_requests: requests.iter().filter(|one| one.len() > 1).cloned().map(Data).collect(),
            should_override_builder: false,
        }
    }
}

impl Payload {
    fn new(block: &SealedBlock) -> Self {
        let (header, body) = (&block.header, block.body());
        Self {
            parent_hash: Fixed(header.parent_hash.0),
            fee_recipient: Fixed(header.beneficiary.into_array()),
            state_root: Fixed(header.state_root.0),
            receipts_root: Fixed(header.receipts_root.0),
            logs_bloom: data(&header.logs_bloom),
            prev_randao: Fixed(header.mix_hash.0),
            block_number: Quantity(header.number),
            gas_limit: Quantity(header.gas_limit),
            gas_used: Quantity(header.gas_used),
            timestamp: Quantity(header.timestamp),
            extra_data: Data(header.extra_data.clone()),
            base_fee_per_gas: Quantity(header.base_fee_per_gas.unwrap_or_default()),
            block_hash: Fixed(header.hash().0),
            transactions: body.transactions.iter().map(|tx| Data(tx.encoded_2718().into())).collect(),
            withdrawals: body.withdrawals.clone(),
            blob_gas_used: header.blob_gas_used.map(Quantity),
            excess_blob_gas: header.excess_blob_gas.map(Quantity),
            block_access_list: body.access_list.as_ref().map(|list| Data(alloy_rlp::encode(list).into())),
            slot_number: header.slot_number.map(Quantity),
        }
    }
}

fn data(bytes: &impl AsRef<[u8]>) -> Data {
    Data(Bytes::copy_from_slice(bytes.as_ref()))
}
