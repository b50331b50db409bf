//! A devnet of presim as an upstream of the OP stack, with a Flashblocks server that streams its sub-blocks.

use std::{collections::BTreeMap, sync::Arc};

use alloy_consensus::{Header, transaction::Recovered};
use alloy_eips::Encodable2718;
use alloy_primitives::{Address, B64, B256, Bloom, keccak256};
use op_alloy::rpc_types_engine::{OpFlashblockPayload, OpFlashblockPayloadDelta, OpFlashblockPayloadMetadata};
use presim::testing::{
    chain::ChainTx,
    ledger::{SnapshotId, Snapshots},
    source::devnet::world::{dev_signers, traffic_signers},
};
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::task::AbortHandle;

use super::{FlashblocksServer, cut::base_of};
use crate::TestNode;

/// A contract that returns its slot 0, and stores its first word of input there if there is one.
pub const KEEPER: Address = Address::repeat_byte(0xc0);
const KEEPER_CODE: &str = "0x3615600a575f355f55005b5f545f5260205ff3";

/// A devnet, and the stream of its sub-blocks.
pub struct StreamedDevnet {
    pub devnet: TestNode,
    pub stream: FlashblocksServer,
    genesis: NamedTempFile,
    streaming: AbortHandle,
}

impl StreamedDevnet {
    /// Starts a devnet with these flags, in addition to those of its chain.
    pub async fn start(flags: &[&str]) -> Self {
        let genesis = NamedTempFile::new().expect("a file");
        std::fs::write(genesis.path(), genesis_of_chain().to_string()).expect("it is written");
        let path = genesis.path().to_str().expect("UTF-8").to_owned();
        let all = [&["--genesis", &path, "--feed", "devnet"], flags].concat();
        let devnet = tokio::task::block_in_place(|| TestNode::start(&all));
        let stream = FlashblocksServer::start().await;
        let sending = send(devnet.node.snapshots().clone(), stream.sender());
        let streaming = tokio::spawn(sending).abort_handle();
        Self { devnet, stream, genesis, streaming }
    }

    /// Returns the flags with which a node follows the chain.
    pub fn flags(&self) -> Vec<String> {
        let genesis = self.genesis.path().display().to_string();
        let upstream = format!("ws://{}", self.devnet.at());
        ["--upstream", &upstream, "--flashblocks", &self.stream.url(), "--genesis", &genesis].map(Into::into).into()
    }
}

impl Drop for StreamedDevnet {
    fn drop(&mut self) {
        self.streaming.abort();
    }
}

/// Returns the genesis: the accounts of the test mnemonic have ether.
fn genesis_of_chain() -> Value {
    let mut config = json!({
        "chainId": 31_337, "homesteadBlock": 0, "eip150Block": 0, "eip155Block": 0, "eip158Block": 0, "byzantiumBlock": 0,
        "constantinopleBlock": 0, "petersburgBlock": 0, "istanbulBlock": 0, "berlinBlock": 0, "londonBlock": 0,
        "bedrockBlock": 0, "terminalTotalDifficulty": 0, "terminalTotalDifficultyPassed": true,
        "optimism": {"eip1559Elasticity": 6, "eip1559Denominator": 50, "eip1559DenominatorCanyon": 250},
    });
    let forks = [
        "shanghai", "cancun", "prague", "regolith", "canyon", "ecotone", "fjord", "granite", "holocene", "isthmus",
        "jovian",
    ];
    for fork in forks {
        config[format!("{fork}Time")] = json!(0);
    }
    let signers = [dev_signers(), traffic_signers()].map(|signers| signers.expect("the mnemonic is valid")).concat();
    let rich = |address: Address| (address.to_string(), json!({"balance": "0x56bc75e2d63100000"}));
    let mut alloc: BTreeMap<String, Value> = signers.iter().map(|signer| rich(signer.address())).collect();
    let kept =
        json!({"balance": "0x0", "code": KEEPER_CODE, "storage": {B256::ZERO.to_string(): B256::repeat_byte(7)}});
    alloc.insert(KEEPER.to_string(), kept);
    json!({
        "config": config, "alloc": alloc, "difficulty": "0x0", "gasLimit": "0x1c9c380", "nonce": "0x0",
        "timestamp": "0x65000000", "extraData": "0x01000000fa0000000600000000000f4240", "baseFeePerGas": "0x3b9aca00",
        "mixHash": B256::ZERO, "coinbase": Address::ZERO,
    })
}

/// Sends each sub-block as soon as it is published. The last of a block is published with its seal and the next block.
async fn send(snapshots: Arc<Snapshots>, send: impl Fn(&OpFlashblockPayload)) {
    let (mut changes, mut seen) = (snapshots.changes(), snapshots.newest().id);
    // The parent of the block that is being built, its sub-blocks, and its transactions that were sent.
    let (mut parent, mut index, mut sent) = (B256::ZERO, 0, 0);
    loop {
        for snapshot in snapshots.load().snapshots_after(seen).cloned().collect::<Vec<_>>() {
            seen = SnapshotId::max(seen, snapshot.id);
            let Some(open) = &snapshot.open else { continue };
            if parent != snapshot.head_hash() {
                let header = &snapshot.head.header;
                if header.parent_hash == parent {
                    let body = snapshot.head.find_body().expect("it is kept");
                    let roots = (header.receipts_root, header.logs_bloom);
                    send(&payload(header, index, header.gas_used, roots, body.transactions.iter().skip(sent)));
                }
                (parent, index, sent) = (snapshot.head_hash(), 0, 0);
            }
            let roots = open.receipts_root_and_bloom();
            send(&payload(&open.header, index, open.cumulative_gas(), roots, open.transactions.iter().skip(sent)));
            (index, sent) = (index + 1, open.transactions.len());
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Returns a sub-block, after which its block has this gas, root of receipts and bloom.
fn payload<'a>(
    header: &Header,
    index: u64,
    gas_used: u64,
    (receipts_root, logs_bloom): (B256, Bloom),
    transactions: impl Iterator<Item = &'a Recovered<ChainTx>>,
) -> OpFlashblockPayload {
    let mut payload = OpFlashblockPayload {
        index,
        base: (index == 0).then(|| base_of(header)),
        diff: OpFlashblockPayloadDelta {
            receipts_root,
            logs_bloom,
            gas_used,
            transactions: transactions.map(|tx| tx.inner().encoded_2718().into()).collect(),
            blob_gas_used: header.blob_gas_used,
            ..OpFlashblockPayloadDelta::default()
        },
        metadata: OpFlashblockPayloadMetadata {
            block_number: header.number,
            new_account_balances: BTreeMap::new(),
            receipts: BTreeMap::new(),
        },
        ..OpFlashblockPayload::default()
    };
    payload.payload_id.0 = B64::from_slice(&keccak256(header.parent_hash)[..8]);
    payload
}
