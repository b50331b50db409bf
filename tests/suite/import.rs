//! A chain from files: what a node imports, and the errors for invalid blocks.

use std::{
    fs,
    path::{Path, PathBuf},
};

use alloy_consensus::{Block, Header, TxEnvelope};
use alloy_primitives::{B64, B256, Bloom, U256};
use alloy_rlp::{Decodable, Encodable};
use serde_json::{Value, json};

use crate::support::{BOUND, TestNode, number, shared};

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
        refusal(&["--genesis", &self.genesis(), "--chain", text(file.path())])
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

fn refusal(flags: &[&str]) -> String {
    match TestNode::try_start(flags) {
        Ok(_) => panic!("the node started with {flags:?}"),
        Err(error) => format!("{error:#}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_imported_chain_ends_at_its_head() {
    let Some(chain) = OfficialChain::load() else { return };
    let told: Value = serde_json::from_slice(&fs::read(chain.folder.join("headfcu.json")).unwrap()).unwrap();
    let file = chain.folder.join("chain.rlp");
    let node = TestNode::start(&["--genesis", &chain.genesis(), "--chain", text(&file), "--feed", "static"]);
    let snapshot = node.result("/", "presim_snapshot", json!([])).await;
    assert_eq!(snapshot["head"]["hash"], told["params"][0]["headBlockHash"]);
    assert_eq!(number(&snapshot["head"]["number"]), chain.blocks.last().unwrap().header.number);
    assert_eq!(snapshot["feed"], "static");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_imported_chain_stands_still_unless_told_otherwise() {
    let Some(chain) = OfficialChain::load() else { return };
    let file = chain.folder.join("chain.rlp");
    let node = TestNode::start(&["--genesis", &chain.genesis(), "--chain", text(&file)]);
    assert_eq!(node.result("/", "presim_snapshot", json!([])).await["feed"], "static");
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
    let node = TestNode::start(&[
        "--genesis",
        &chain.genesis(),
        "--chain",
        text(&file),
        "--feed",
        "devnet",
        "--sub-block-ms",
        "10",
        "--sub-blocks",
        "2",
    ]);
    let rises = async {
        loop {
            let snapshot = node.result("/", "presim_snapshot", json!([])).await;
            if number(&snapshot["head"]["number"]) >= head.number + 3 {
                return snapshot;
            }
        }
    };
    let snapshot = tokio::time::timeout(BOUND, rises).await.expect("the head rises past the import");
    assert_eq!(snapshot["feed"], "live");
    let on_import = json!([{"blockStateCalls": [{}]}, {"blockNumber": format!("{:#x}", head.number)}]);
    let simulated = node.result("/standard", "eth_simulateV1", on_import).await;
    assert_eq!(simulated[0]["parentHash"], json!(head.hash_slow()));
}

#[test]
fn a_block_that_does_not_agree_stops_the_import_and_is_named_with_field_and_both_values() {
    let Some(chain) = OfficialChain::load() else { return };
    let wrong = B256::repeat_byte(0x5a);
    let (legacy, london) = (2, chain.first("a base fee", |header| header.base_fee_per_gas.is_some()));
    let shanghai = chain.first("withdrawals", |header| header.withdrawals_root.is_some());
    let cancun = chain.first("blob gas", |header| header.excess_blob_gas.is_some());
    let prague = chain.first("requests", |header| header.requests_hash.is_some());
    let last = chain.blocks.last().unwrap().header.number;
    let at = |number: u64| &chain.blocks.iter().find(|block| block.header.number == number).unwrap().header;

    type Change = Box<dyn Fn(&mut Header)>;
    let change = |change: fn(&mut Header, B256)| -> Change { Box::new(move |header| change(header, wrong)) };
    let shown = wrong.to_string();
    let cases: Vec<(u64, &str, Change, String, String)> = vec![
        (legacy, "stateRoot", change(|h, w| h.state_root = w), at(legacy).state_root.to_string(), shown.clone()),
        (last, "stateRoot", change(|h, w| h.state_root = w), at(last).state_root.to_string(), shown.clone()),
        (
            legacy,
            "receiptsRoot",
            change(|h, w| h.receipts_root = w),
            at(legacy).receipts_root.to_string(),
            shown.clone(),
        ),
        (last, "receiptsRoot", change(|h, w| h.receipts_root = w), at(last).receipts_root.to_string(), shown.clone()),
        (
            london,
            "transactionsRoot",
            change(|h, w| h.transactions_root = w),
            at(london).transactions_root.to_string(),
            shown.clone(),
        ),
        (london, "parentHash", change(|h, w| h.parent_hash = w), at(london).parent_hash.to_string(), shown.clone()),
        (london, "sha3Uncles", change(|h, w| h.ommers_hash = w), at(london).ommers_hash.to_string(), shown.clone()),
        (
            shanghai,
            "withdrawalsRoot",
            change(|h, w| h.withdrawals_root = Some(w)),
            at(shanghai).withdrawals_root.unwrap().to_string(),
            shown.clone(),
        ),
        (
            prague,
            "requestsHash",
            change(|h, w| h.requests_hash = Some(w)),
            at(prague).requests_hash.unwrap().to_string(),
            shown,
        ),
        (
            london,
            "gasUsed",
            change(|h, _| h.gas_used += 1),
            at(london).gas_used.to_string(),
            (at(london).gas_used + 1).to_string(),
        ),
        (
            london,
            "gasUsed",
            change(|h, _| h.gas_used = h.gas_limit + 1),
            at(london).gas_limit.to_string(),
            (at(london).gas_limit + 1).to_string(),
        ),
        (
            london,
            "logsBloom",
            change(|h, _| h.logs_bloom = Bloom::repeat_byte(0xff)),
            at(london).logs_bloom.to_string(),
            Bloom::repeat_byte(0xff).to_string(),
        ),
        (
            london,
            "baseFeePerGas",
            change(|h, _| h.base_fee_per_gas = Some(7)),
            at(london).base_fee_per_gas.unwrap().to_string(),
            "7".to_owned(),
        ),
        (
            cancun,
            "excessBlobGas",
            change(|h, _| h.excess_blob_gas = Some(131_072)),
            at(cancun).excess_blob_gas.unwrap().to_string(),
            "131072".to_owned(),
        ),
        (
            cancun,
            "blobGasUsed",
            change(|h, _| h.blob_gas_used = Some(12_345)),
            at(cancun).blob_gas_used.unwrap().to_string(),
            "12345".to_owned(),
        ),
        (
            cancun,
            "parentBeaconBlockRoot",
            change(|h, _| h.parent_beacon_block_root = None),
            "present".to_owned(),
            "absent".to_owned(),
        ),
        (london, "number", change(|h, _| h.number = 999), london.to_string(), "999".to_owned()),
        (london, "timestamp", change(|h, _| h.timestamp = 1), at(london - 1).timestamp.to_string(), "got 1".to_owned()),
    ];
    for (block, field, change, right, wrong) in cases {
        let told = chain.refusal(&chain.with(block, change));
        let named = if field == "number" { 999 } else { block };
        assert!(told.contains(&format!("block {named}: {field}: expected ")), "{field} of block {block}: {told}");
        assert!(told.contains(", got "), "{field} of block {block}: {told}");
        assert!(told.contains(&right), "{field} of block {block}: {right} is not in: {told}");
        assert!(told.contains(&wrong), "{field} of block {block}: {wrong} is not in: {told}");
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
    let mut taken = Vec::new();
    for (field, change) in cases {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), chain.with(last, change)).unwrap();
        match TestNode::try_start(&["--genesis", &chain.genesis(), "--chain", text(file.path())]) {
            Ok(_) => taken.push(field),
            Err(error) => {
                let told = format!("{error:#}");
                assert!(told.contains(&format!("block {last}: {field}: expected ")), "{field}: {told}");
            }
        }
    }
    assert!(taken.is_empty(), "block {last} was taken with a wrong {taken:?}");
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
}

#[test]
fn garbage_after_good_blocks_says_where_it_begins() {
    let Some(chain) = OfficialChain::load() else { return };
    let last = chain.blocks.last().unwrap().header.number;
    let told = chain.refusal(&[&chain.bytes[..], b"more"].concat());
    assert!(told.contains(&format!("block after {last}, at byte {}: ", chain.bytes.len())), "{told}");
}

#[test]
fn files_that_are_not_there_are_named() {
    let Some(chain) = OfficialChain::load() else { return };
    let told = refusal(&["--genesis", &chain.genesis(), "--chain", "/nowhere/chain.rlp"]);
    assert!(told.contains("--chain /nowhere/chain.rlp") && told.contains("No such file"), "{told}");
    let told = refusal(&["--genesis", "/nowhere/genesis.json"]);
    assert!(told.contains("--genesis /nowhere/genesis.json") && told.contains("No such file"), "{told}");
}

#[test]
fn a_refusal_says_its_reason_once() {
    let Some(chain) = OfficialChain::load() else { return };
    let told = refusal(&["--genesis", &chain.genesis(), "--chain", "/nowhere/chain.rlp"]);
    assert_eq!(told.matches("No such file").count(), 1, "{told}");
    let told = chain.refusal(b"this is no RLP");
    assert_eq!(told.matches("unexpected string").count(), 1, "{told}");
}

/// As in geth, the gas limit and the state are required.
#[test]
fn a_genesis_without_its_required_fields_is_refused() {
    for content in ["{}", r#"{"name": "a package", "version": "1.0.0"}"#] {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), content).unwrap();
        match TestNode::try_start(&["--genesis", text(file.path())]) {
            Ok(_) => panic!("the node started on {content}"),
            Err(error) => {
                let told = format!("{error:#}");
                assert!(told.contains("expected a geth-format genesis"), "{content}: {told}");
            }
        }
    }
}

#[test]
fn a_file_that_is_no_genesis_is_refused() {
    for content in ["[1, 2]", "no JSON", r#"{"config": {"chainId": "many"}}"#] {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), content).unwrap();
        let told = refusal(&["--genesis", text(file.path())]);
        assert!(told.contains("expected a geth-format genesis"), "{content}: {told}");
        assert!(told.contains(text(file.path())), "{content}: {told}");
    }
}

#[test]
fn a_chain_needs_its_genesis() {
    let told = refusal(&["--chain", "chain.rlp"]);
    assert!(told.contains("--genesis"), "{told}");
}
