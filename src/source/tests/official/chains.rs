//! Blockchain tests: blocks in RLP, imported one after another.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    chain::{BlockBody, BlockHashes, ChainTx, SealedBlock},
    ledger::Snapshot,
    source::chain_file::import_bytes,
    state::{CodeCache, LocalWorld, listed_changes},
};
use alloy_consensus::{Block as RlpBlock, Header};
use alloy_eips::eip7928::{BlockAccessList, compute_block_access_list_hash};
use alloy_primitives::{Address, B256, Bytes};
use alloy_rlp::Decodable;
use serde::Deserialize;

use super::{
    AMSTERDAM, ARCHIVE, CaseOutcome, Reason, assert_none_failed,
    cases::{PreAccount, TestConfig},
    run_all, spec,
    state::world,
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChainTest {
    pub network: String,
    pre: BTreeMap<Address, PreAccount>,
    #[serde(rename = "genesisRLP")]
    genesis: Bytes,
    pub blocks: Vec<TestBlock>,
    #[serde(rename = "lastblockhash")]
    last: B256,
    pub config: Option<TestConfig>,
    #[serde(rename = "_info")]
    info: Option<Info>,
}

/// The origin of a test.
#[derive(Deserialize)]
struct Info {
    /// The reasons why the test's own expectation does not hold at the final prices.
    port_mismatch: Option<Vec<String>>,
}

impl ChainTest {
    /// Returns the state of genesis.
    pub fn first(&self) -> Result<Snapshot, String> {
        let header = RlpBlock::<ChainTx>::decode(&mut self.genesis.as_ref()).unwrap().header;
        genesis(self, header)
    }

    /// Returns whether the test fails to corrupt the access list that it wants to corrupt.
    fn corrupts_nothing(&self, exception: &str) -> bool {
        let mismatch = self.info.as_ref().is_some_and(|info| info.port_mismatch.is_some());
        mismatch && exception == "BlockException.INVALID_BLOCK_ACCESS_LIST"
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TestBlock {
    pub rlp: Bytes,
    block_access_list: Option<BlockAccessList>,
    expect_exception: Option<String>,
}

impl TestBlock {
    fn has_uncles(&self) -> bool {
        RlpBlock::<ChainTx>::decode(&mut self.rlp.as_ref()).is_ok_and(|block| !block.body.ommers.is_empty())
    }
}

fn run_test(test: &ChainTest) -> CaseOutcome {
    if test.network.contains("AtDiff") {
        return CaseOutcome::Skipped(Reason::MergeAtDifficulty);
    }
    let Some(spec) = spec(&test.network, test.config.as_ref()) else {
        return CaseOutcome::Failed(format!("an unknown network: {}", test.network));
    };
    let mut head = match test.first() {
        Ok(head) => head,
        Err(problem) => return CaseOutcome::Failed(problem),
    };
    let (first, mut valid, codes) = (head.copy(), Vec::new(), CodeCache::new(1 << 20));
    for (at, block) in test.blocks.iter().enumerate() {
        // Uncles are checked against the blocks of the same import.
        let imported = if block.has_uncles() {
            import_bytes(&spec, first.copy(), &[valid.as_slice(), &block.rlp].concat(), |_, _| {})
        } else {
            import_bytes(&spec, head.copy(), &block.rlp, |_, _| {})
        };
        if imported.is_ok() {
            valid.extend_from_slice(&block.rlp);
        }
        match (imported, &block.expect_exception) {
            (Ok(_), Some(exception)) if test.corrupts_nothing(exception) => {
                return CaseOutcome::Skipped(Reason::NothingCorrupted);
            }
            (Ok(_), Some(exception)) => return CaseOutcome::Failed(format!("block {at} accepted: {exception}")),
            (Ok(next), None) => {
                let body = next.head.find_body();
                if let Some(list) = body.as_ref().and_then(|body| body.access_list.as_ref()) {
                    // Applied without executing, the block leads to the same state.
                    let mut world = head.world.clone();
                    world.apply_many(&listed_changes(list, &head.world, &codes));
                    if world.local().map(LocalWorld::state_root) != Some(next.head.header.state_root) {
                        return CaseOutcome::Failed(format!("block {at}: its access list leads to another state"));
                    }
                }
                head = next;
                let list = block.block_access_list.as_deref().map(compute_block_access_list_hash);
                if head.head.header.block_access_list_hash != list {
                    return CaseOutcome::Failed(format!("block {at}: its access list hashes to {list:?}"));
                }
            }
            (Err(_), Some(_)) => {}
            (Err(error), None) => {
                let parent = RlpBlock::<ChainTx>::decode(&mut block.rlp.as_ref()).map(|block| block.header.parent_hash);
                if parent.is_ok_and(|parent| parent != head.head_hash()) {
                    return CaseOutcome::Skipped(Reason::AnotherBranch);
                }
                let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                return CaseOutcome::Failed(format!("block {at}: {error}: {source}"));
            }
        }
    }
    if head.head_hash() == test.last {
        CaseOutcome::Passed
    } else {
        CaseOutcome::Failed(format!("the head is {}, expected {}", head.head_hash(), test.last))
    }
}

fn genesis(test: &ChainTest, header: Header) -> Result<Snapshot, String> {
    let world = world(test.pre.iter());
    if world.state_root() != header.state_root {
        return Err("the state of genesis has another root".to_owned());
    }
    let number = header.number;
    let block = SealedBlock::new(header, BlockBody::default());
    let mut hashes = BlockHashes::default();
    hashes.push(number, block.hash());
    Ok(Snapshot::at_head(world, Arc::new(block), hashes))
}

#[test]
fn chains_pass() {
    for folder in ["eest/blockchain_tests/", "tests/BlockchainTests/"] {
        if let Some(tally) = run_all(ARCHIVE, folder, run_file) {
            assert_none_failed(&tally);
        }
    }
}

#[test]
fn amsterdams_chains_pass() {
    if let Some(tally) = run_all(AMSTERDAM, "blockchain_tests/", run_file) {
        assert_none_failed(&tally);
        // The transaction of one test runs out of gas before it transfers the value that the test wants to corrupt.
        assert_eq!(tally.skipped, BTreeMap::from([(Reason::NothingCorrupted, 1)]));
    }
}

fn run_file(_: &str, content: &[u8], report: &mut dyn FnMut(&str, &str, CaseOutcome)) {
    let tests: BTreeMap<String, ChainTest> = match serde_json::from_slice(content) {
        Ok(tests) => tests,
        Err(error) => return report("", "", CaseOutcome::Failed(error.to_string())),
    };
    for (name, test) in &tests {
        report(&test.network, name, run_test(test));
    }
}
