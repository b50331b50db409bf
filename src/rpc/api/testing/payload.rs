//! A built block in the format of the engine API's `getPayload`.

use alloy_eips::{Encodable2718, eip7594::BlobTransactionSidecarVariant, eip7685::Requests};
use alloy_primitives::U256;

use crate::{
    chain::SealedBlock,
    rpc::json::{
        Json, Withdrawal,
        hex::{Data, Fixed, Quantity},
        shapes,
    },
};

shapes! {
    /// A block that was built on request and is in no chain: execution payload, blobs and requests
    /// (<https://github.com/ethereum/execution-apis/blob/main/src/engine/osaka.md>, and `amsterdam.md` in the same
    /// folder).
    pub BuiltBlock: (&SealedBlock, &Requests, U256, &[BlobTransactionSidecarVariant]) => |(block, requests, tips, sidecars)| {
        executionPayload: Payload = block,
        /// The tips that the fee recipient earns, in wei.
        blockValue: Quantity<U256> = tips,
        blobsBundle: BlobsBundle = sidecars,
        /// The requests of the block's contracts (EIP-7685), of each kind that it has.
        executionRequests: Vec<Data> = requests.iter().filter(|one| one.len() > 1),
        shouldOverrideBuilder: bool = false,
    }

    /// The blobs of the transactions that were passed in network form.
    BlobsBundle: &[BlobTransactionSidecarVariant] => |sidecars| let {
        let proofs = sidecars.iter().flat_map(|one| match one {
            BlobTransactionSidecarVariant::Eip4844(plain) => &plain.proofs,
            BlobTransactionSidecarVariant::Eip7594(cells) => &cells.cell_proofs,
        });
    } {
        commitments: Vec<Data> = sidecars.iter().flat_map(|one| one.commitments()),
        proofs: Vec<Data> = proofs,
        blobs: Vec<Data> = sidecars.iter().flat_map(|one| one.blobs()),
    }

    /// The execution payload. A field that its fork has not begun is left out.
    Payload: &SealedBlock => |block| let {
        let (header, body) = (&block.header, block.body());
    } {
        parentHash: Fixed<32> = header.parent_hash,
        feeRecipient: Fixed<20> = header.beneficiary,
        stateRoot: Fixed<32> = header.state_root,
        receiptsRoot: Fixed<32> = header.receipts_root,
        logsBloom: Data = header.logs_bloom,
        prevRandao: Fixed<32> = header.mix_hash,
        blockNumber: Quantity<u64> = header.number,
        gasLimit: Quantity<u64> = header.gas_limit,
        gasUsed: Quantity<u64> = header.gas_used,
        timestamp: Quantity<u64> = header.timestamp,
        extraData: Data = &header.extra_data,
        baseFeePerGas: Quantity<u64> = header.base_fee_per_gas.unwrap_or_default(),
        blockHash: Fixed<32> = header.hash(),
        transactions: Vec<Data> = body.transactions.iter().map(|tx| tx.encoded_2718()),
        withdrawals: Option<Vec<Withdrawal>> = body.withdrawals.as_ref().map(Json),
        blobGasUsed: Option<Quantity<u64>> = header.blob_gas_used,
        excessBlobGas: Option<Quantity<u64>> = header.excess_blob_gas,
        /// The RLP of the block's access list (EIP-7928).
        blockAccessList: Option<Data> = body.access_list.as_ref().map(alloy_rlp::encode),
        slotNumber: Option<Quantity<u64>> = header.slot_number,
    }
}
