//! A chain from files: what a node imports, and the errors for invalid blocks.

use std::{
    fs,
    path::{Path, PathBuf},
};

use alloy_consensus::{Block, Header, TxEnvelope};
use alloy_primitives::{B64, B256, Bloom, U256};
use alloy_rlp::{Decodable, Encodable};
use serde_json::{Value, json};

use crate::support::{TestNode, number, shared};

type ChainBlock = Block<TxEnvelope>;

/// The official chain: the folder of its files, and its blocks.
struct OfficialChain {
    folder: PathBuf,
    bytes: Vec<u8>,
    blocks: Vec<ChainBlock>,
}

impl OfficialChain {
    fn load() -> Option<Self> {
        let folder = shared("vectors/execution-apis")?;
        let bytes = fs::read(folder.join("chain.rlp")).unwrap();
        let mut rest = bytes.as_slice();
        let mut blocks = Vec::new();
        while !rest.is_empty() {
            blocks.push(ChainBlock::decode(&mut rest).expect("the official chain decodes"));
        }
        Some(Self { folder, bytes, blocks })
    }

    fn genesis(&self) -> String {
        self.folder.join("genesis.json").to_str().unwrap().to_owned()
    }

    /// Returns the error of a node that imports these bytes, which it must refuse.
    fn refusal(&self, bytes: &[u8]) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), bytes).unwrap();
        TestNode::refusal(&["--genesis", &self.genesis(), "--chain", text(file.path())])
    }

    /// Returns the chain with the header of its block `number` changed.
    fn with(&self, number: u64, change: impl FnOnce(&mut Header)) -> Vec<u8> {
        let mut blocks = self.blocks.clone();
        let block = blocks.iter_mut().find(|block| block.header.number == number).expect("the chain has the block");
        change(&mut block.header);
        let mut bytes = Vec::new();
        blocks.iter().for_each(|block| block.encode(&mut bytes));
        bytes
    }

    /// Returns the number of the first block whose header satisfies a condition.
    fn first(&self, what: &str, is: impl Fn(&Header) -> bool) -> u64 {
        let found = self.blocks.iter().find(|block| is(&block.header));
        found.unwrap_or_else(|| panic!("the chain has no block with {what}")).header.number
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the path is UTF-8")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_imported_chain_ends_at_its_head_and_stands_still() {
    let Some(chain) = OfficialChain::load() else { return };
    let told: Value = serde_json::from_slice(&fs::read(chain.folder.join("headfcu.json")).unwrap()).unwrap();
    let file = chain.folder.join("chain.rlp");
    let node = TestNode::start(&["--genesis", &chain.genesis(), "--chain", text(&file)]);
    let snapshot = node.result("/", "presim_snapshot", json!([])).await;
    assert_eq!(snapshot["head"]["hash"], told["params"][0]["headBlockHash"]);
    assert_eq!(number(&snapshot["head"]["number"]), chain.blocks.last().unwrap().header.number);
    assert_eq!(snapshot["feed"], "static");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_imported_block_answers_by_its_number_and_by_its_hash() {
    let Some(chain) = OfficialChain::load() else { return };
    let file = chain.folder.join("chain.rlp");
    let node = TestNode::start(&["--genesis", &chain.genesis(), "--chain", text(&file)]);
    for block in &chain.blocks {
        let hash = block.header.hash_slow();
        for selector in [json!(format!("{:#x}", block.header.number)), json!({"blockHash": hash})] {
            let simulation = json!([{"blockStateCalls": [{}]}, selector]);
            let simulated = node.result("/standard", "eth_simulateV1", simulation).await;
            assert_eq!(simulated[0]["parentHash"], json!(hash), "at {selector}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_devnet_builds_on_an_imported_chain() {
    let Some(chain) = OfficialChain::load() else { return };
    let (file, head) = (chain.folder.join("chain.rlp"), &chain.blocks.last().unwrap().header);
    let genesis = chain.genesis();
    let files = ["--genesis", &genesis, "--chain", text(&file)];
    let quick = ["--feed", "devnet", "--sub-block-ms", "10", "--sub-blocks", "2"];
    let node = TestNode::start(&[&files[..], &quick].concat());
    node.sealed(head.number + 3).await;
    assert_eq!(node.result("/", "presim_snapshot", json!([])).await["feed"], "live");
    let on_import = json!([{"blockStateCalls": [{}]}, {"blockNumber": format!("{:#x}", head.number)}]);
    let simulated = node.result("/standard", "eth_simulateV1", on_import).await;
    assert_eq!(simulated[0]["parentHash"], json!(head.hash_slow()));
}

#[test]
fn a_block_that_does_not_agree_stops_the_import_and_is_named_with_field_and_both_values() {
    let Some(chain) = OfficialChain::load() else { return };
    const WRONG: B256 = B256::repeat_byte(0x5a);
    fn shown<T: ToString>(field: Option<T>) -> String {
        field.expect("the block has it").to_string()
    }
    let london = chain.first("a base fee", |header| header.base_fee_per_gas.is_some());
    let shanghai = chain.first("withdrawals", |header| header.withdrawals_root.is_some());
    let cancun = chain.first("blob gas", |header| header.excess_blob_gas.is_some());
    let prague = chain.first("requests", |header| header.requests_hash.is_some());
    let last = chain.blocks.last().unwrap().header.number;
    let at = |number: u64| &chain.blocks.iter().find(|block| block.header.number == number).unwrap().header;

    // The block, the field, a change of it, and what the error shows of the header before and after it.
    type Row = (u64, &'static str, fn(&mut Header), fn(&Header) -> String);
    // The block, the field, a change of it, and what the error shows.
    type Told = (u64, &'static str, fn(&mut Header), String, String);
    let rows: [Row; 16] = [
        (2, "stateRoot", |h| h.state_root = WRONG, |h| h.state_root.to_string()),
        (last, "stateRoot", |h| h.state_root = WRONG, |h| h.state_root.to_string()),
        (2, "receiptsRoot", |h| h.receipts_root = WRONG, |h| h.receipts_root.to_string()),
        (last, "receiptsRoot", |h| h.receipts_root = WRONG, |h| h.receipts_root.to_string()),
        (london, "transactionsRoot", |h| h.transactions_root = WRONG, |h| h.transactions_root.to_string()),
        (london, "parentHash", |h| h.parent_hash = WRONG, |h| h.parent_hash.to_string()),
        (london, "sha3Uncles", |h| h.ommers_hash = WRONG, |h| h.ommers_hash.to_string()),
        (shanghai, "withdrawalsRoot", |h| h.withdrawals_root = Some(WRONG), |h| shown(h.withdrawals_root)),
        (prague, "requestsHash", |h| h.requests_hash = Some(WRONG), |h| shown(h.requests_hash)),
        (london, "gasUsed", |h| h.gas_used += 1, |h| h.gas_used.to_string()),
        (london, "logsBloom", |h| h.logs_bloom = Bloom::repeat_byte(0xff), |h| h.logs_bloom.to_string()),
        (london, "baseFeePerGas", |h| h.base_fee_per_gas = Some(7), |h| shown(h.base_fee_per_gas)),
        (cancun, "excessBlobGas", |h| h.excess_blob_gas = Some(131_072), |h| shown(h.excess_blob_gas)),
        (cancun, "blobGasUsed", |h| h.blob_gas_used = Some(12_345), |h| shown(h.blob_gas_used)),
        (
            cancun,
            "parentBeaconBlockRoot",
            |h| h.parent_beacon_block_root = None,
            |h| h.parent_beacon_block_root.map_or("absent", |_| "present").to_owned(),
        ),
        (london, "number", |h| h.number = 999, |h| h.number.to_string()),
    ];
    let rows = rows.map(|(block, field, change, show)| {
        let mut changed = at(block).clone();
        change(&mut changed);
        (block, field, change, show(at(block)), show(&changed))
    });
    let limit = at(london).gas_limit;
    let bounds: [Told; 2] = [
        (london, "gasUsed", |h| h.gas_used = h.gas_limit + 1, limit.to_string(), (limit + 1).to_string()),
        (london, "timestamp", |h| h.timestamp = 1, at(london - 1).timestamp.to_string(), "got 1".to_owned()),
    ];
    for (block, field, change, right, wrong) in rows.into_iter().chain(bounds) {
        let told = chain.refusal(&chain.with(block, change));
        let named = if field == "number" { 999 } else { block };
        assert!(told.contains(&format!("block {named}: {field}: expected ")), "{field} of block {block}: {told}");
        assert!(told.contains(", got "), "{field} of block {block}: {told}");
        assert!(told.contains(&right) && told.contains(&wrong), "{field} of block {block}: {right}, {wrong}: {told}");
    }
}

#[test]
fn a_change_that_execution_cannot_see_is_found_at_the_next_block() {
    let Some(chain) = OfficialChain::load() else { return };
    let told = chain.refusal(&chain.with(10, |header| header.mix_hash = B256::repeat_byte(1)));
    assert!(told.contains("block 11: parentHash: expected "), "{told}");
}

/// A change of a header.
type Change = fn(&mut Header);

/// The last block is changed, so that no later block reveals the error.
#[test]
fn a_header_that_breaks_a_rule_of_the_protocol_is_refused() {
    let Some(chain) = OfficialChain::load() else { return };
    let last = chain.blocks.last().unwrap().header.number;
    let cases: [(&str, Change); 4] = [
        // Yellow Paper, 4.4.5: the limit differs from the parent's by less than 1/1024.
        ("gasLimit", |header| header.gas_limit *= 2),
        ("extraData", |header| header.extra_data = vec![0; 33].into()),
        // EIP-3675, from the merge on.
        ("difficulty", |header| header.difficulty = U256::from(1)),
        ("nonce", |header| header.nonce = B64::repeat_byte(1)),
    ];
    for (field, change) in cases {
        let told = chain.refusal(&chain.with(last, change));
        assert!(told.contains(&format!("block {last}: {field}: expected ")), "{field}: {told}");
    }
}

#[test]
fn blocks_in_the_wrong_order_are_refused() {
    let Some(chain) = OfficialChain::load() else { return };
    let mut bytes = Vec::new();
    chain.blocks.iter().skip(1).for_each(|block| block.encode(&mut bytes));
    let told = chain.refusal(&bytes);
    assert!(told.contains("block 2: number: expected 1, got 2"), "{told}");
}

#[test]
fn a_truncated_file_names_the_last_good_block() {
    let Some(chain) = OfficialChain::load() else { return };
    let last = chain.blocks.last().unwrap();
    let told = chain.refusal(&chain.bytes[..chain.bytes.len() - 7]);
    let offset = chain.bytes.len() - last.length();
    let expected = format!("block after {}, at byte {offset}: ", last.header.number - 1);
    assert!(told.contains(&expected), "{told}");
}

#[test]
fn garbage_is_no_chain() {
    let Some(chain) = OfficialChain::load() else { return };
    for garbage in [&b"this is no RLP"[..], &[0xff; 64], &[0; 64], &[0xc0]] {
        let told = chain.refusal(garbage);
        assert!(told.contains("block after 0, at byte 0: "), "{garbage:02x?}: {told}");
    }
    let told = chain.refusal(b"this is no RLP");
    assert_eq!(told.matches("unexpected string").count(), 1, "the reason is given once: {told}");
}

#[test]
fn garbage_after_good_blocks_says_where_it_begins() {
    let Some(chain) = OfficialChain::load() else { return };
    let last = chain.blocks.last().unwrap().header.number;
    let told = chain.refusal(&[&chain.bytes[..], b"more"].concat());
    assert!(told.contains(&format!("block after {last}, at byte {}: ", chain.bytes.len())), "{told}");
}

/// As in geth, the gas limit and the state are required.
#[test]
fn a_file_that_is_no_genesis_is_refused() {
    let package = r#"{"name": "a package", "version": "1.0.0"}"#;
    for content in ["[1, 2]", "no JSON", r#"{"config": {"chainId": "many"}}"#, "{}", package] {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), content).unwrap();
        let told = TestNode::refusal(&["--genesis", text(file.path())]);
        assert!(told.contains("expected a geth-format genesis"), "{content}: {told}");
        assert!(told.contains(text(file.path())), "{content}: {told}");
    }
}
