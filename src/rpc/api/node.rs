//! Methods about the node and its chain.

use std::{collections::BTreeMap, time::UNIX_EPOCH};

use alloy_eips::eip7910::EthConfig;
use alloy_primitives::keccak256;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    chain::SealedBlock,
    engine::precompiles_of,
    ledger::{Divergence, FeedProblem, RetainedBlocks, Selector},
    rpc::{
        json::hex::{Data, Fixed, Quantity},
        protocol::error::RpcError,
    },
};

/// The name and the version of the program, as clients see them.
pub const CLIENT_VERSION: &str = concat!("presim/v", env!("CARGO_PKG_VERSION"));
/// The same with `--testing`, where hardhat's helpers ask whether the node is one that they know.
pub const TESTING_VERSION: &str = concat!("anvil/presim-v", env!("CARGO_PKG_VERSION"));

without_params! {
    /// The number of the newest sealed block.
    BlockNumber -> Quantity<u64> = r#""0x10""#, |_, run| Quantity(run.published.head().number());

    /// The EIP-155 chain id.
    ChainId -> Quantity<u64> = r#""0x7a69""#, |backend, _| Quantity(backend.spec.chain_id());

    /// The network id: the chain id in decimal.
    NetVersion -> String = r#""31337""#, |backend, _| backend.spec.chain_id().to_string();

    /// Always true.
    Listening -> bool = "true", |_, _| true;

    /// Always zero: presim follows a feed, and no peers.
    PeerCount -> Quantity<u64> = r#""0x0""#, |_, _| Quantity(0);

    /// Always false: the published state is complete.
    Syncing -> bool = "false", |_, _| false;

    /// The receiver of the fees of the block being built, or of the newest block where none is built.
    Coinbase -> Fixed<20> = r#""0x0000000000000000000000000000000000000000""#, |_, run| {
        Fixed(run.published.newest.header().beneficiary.0.0)
    };

    /// Always empty: presim publishes no block that breaks the rules.
    GetBadBlocks -> Vec<BadBlock> = "[]", |_, _| Vec::new();

    /// Name and version of this software. With --testing, anvil's name precedes it, because test libraries look for
    /// it.
    ClientVersion -> &'static str = r#""presim/v0.1.0""#, |backend, _| backend.client_version;

    /// The forks: current, next and last (EIP-7910).
    GetConfig -> ForkConfigs = r#"{"current": {"activationTime": 0, "blobSchedule": {"baseFeeUpdateFraction": 5007716, "max": 9, "target": 6}, "chainId": "0x7a69", "forkId": "0x0929e24e", "precompiles": {"ECREC": "0x0000000000000000000000000000000000000001"}, "systemContracts": {"BEACON_ROOTS_ADDRESS": "0x000f3df6d732807ef1319fb7b8bb8522d0beac02"}}, "next": null, "last": null}"#, |backend, run| {
        let genesis = run.published.find(Selector::Earliest)?;
        let config = genesis.and_then(|genesis| {
            let (header, hash) = (genesis.header().inner(), genesis.header().hash());
            backend.spec.fork_config(header, hash, &run.published.head().header, precompiles_of)
        });
        ForkConfigs(config.ok_or_else(|| {
            RpcError::new(-32000, "eth_config is defined only for Ethereum chains from Cancun on")
        })?)
    };

    /// The head, and the blocks that the node retains: their states and proofs, and their transactions, receipts and logs.
    /// Of an upstream's chain, the upstream may answer about older blocks.
    GetCapabilities -> Capabilities = r#"{"head": {"number": "0x10", "hash": "0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"}, "state": {"disabled": false, "oldestBlock": "0x0", "deleteStrategy": {"type": "window", "retentionBlocks": "0x80"}}, "tx": {"disabled": false, "oldestBlock": "0x0"}, "logs": {"disabled": false, "oldestBlock": "0x0"}, "receipts": {"disabled": false, "oldestBlock": "0x0"}, "blocks": {"disabled": false, "oldestBlock": "0x0"}, "stateproofs": {"disabled": false, "oldestBlock": "0x0"}}"#, |_, run| {
        let [state, tx, logs, receipts, blocks, stateproofs] = {
            let (states, bodies) = (run.published.retained_states(), run.published.retained_bodies());
            [states, bodies, bodies, bodies, bodies, states].map(Retained::from)
        };
        Capabilities { head: run.published.head().as_ref().into(), state, tx, logs, receipts, blocks, stateproofs }
    };

    /// The newest snapshot: id, block being built, index of its newest sub-block, age in milliseconds, canonical head, state of
    /// the feed.
    GetSnapshot -> NewestSnapshot = r#"{"id": "0x1f", "blockNumber": "0x11", "index": "0x2", "ageMs": 40, "head": {"number": "0x10", "hash": "0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"}, "feed": "live", "verified": "full", "fork": "osaka"}"#, |backend, run| {
        let (newest, feed) = (&run.published.newest, run.published.feed());
        NewestSnapshot {
            id: Quantity(newest.id.0),
            block_number: Quantity(newest.header().number),
            index: Quantity(newest.index().into()),
            age_ms: newest.published.elapsed().as_millis(),
            head: run.published.head().as_ref().into(),
            feed: feed.as_str(),
            reason: feed.cause().map(|cause| cause.as_str()),
            lag_ms: feed.lag().map(|lag| lag.ms()),
            lag_sub_blocks: feed.lag().map(|lag| lag.waiting),
            verified: newest.verified.as_str(),
            fork: backend.spec.fork_name(newest.header()),
        }
    };

    /// The last hundred differences between pre-confirmed results and the producer's figures or the canonical block,
    /// newest first.
    GetDivergences -> Vec<ShownDivergence> = "[]", |backend, _| {
        backend.divergences.newest_first().into_iter().map(ShownDivergence::from).collect()
    };
}

queries! {
    /// The Keccak-256 hash of some bytes.
    Sha3 = "1 parameter: bytes in hex", { data: Data },
        r#"["0x"]"# => Fixed<32> = r#""0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470""#,
        |asked, _, _| Fixed(keccak256(asked.data.0).0);
}

/// A block that breaks the rules of the chain, as geth lists them.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BadBlock {
    hash: Fixed<32>,
    rlp: Data,
}

/// The number and the hash of a block.
#[derive(Debug, Serialize, JsonSchema)]
struct BlockId {
    number: Quantity<u64>,
    hash: Fixed<32>,
}

impl From<&SealedBlock> for BlockId {
    fn from(block: &SealedBlock) -> Self {
        Self { number: Quantity(block.number()), hash: Fixed(block.hash().0) }
    }
}

/// The configurations of forks.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct ForkConfigs(#[schemars(with = "Forks")] EthConfig);

#[derive(JsonSchema)]
#[expect(dead_code, reason = "alloy's type writes it")]
struct Forks {
    current: Fork,
    next: Option<Fork>,
    last: Option<Fork>,
}

/// The configuration of a fork.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "alloy's type writes it")]
struct Fork {
    /// Unix time in seconds; 0 if the fork is active at genesis.
    activation_time: u64,
    blob_schedule: BlobSchedule,
    chain_id: Quantity<u64>,
    /// The hash of EIP-6122.
    fork_id: Data,
    precompiles: BTreeMap<String, Fixed<20>>,
    system_contracts: BTreeMap<String, Fixed<20>>,
}

#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "alloy's type writes it")]
struct BlobSchedule {
    base_fee_update_fraction: u128,
    max: u64,
    target: u64,
}

/// The blocks that the node retains, by the kind of their data.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Capabilities {
    head: BlockId,
    state: Retained,
    tx: Retained,
    logs: Retained,
    receipts: Retained,
    blocks: Retained,
    stateproofs: Retained,
}

/// The blocks that are retained with a kind of data.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Retained {
    disabled: bool,
    oldest_block: Quantity<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delete_strategy: Option<DeleteStrategy>,
}

/// The reason for which older blocks are not retained: there are too many newer ones.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
enum DeleteStrategy {
    Window { retention_blocks: Quantity<u64> },
}

impl From<RetainedBlocks> for Retained {
    fn from(blocks: RetainedBlocks) -> Self {
        let window = |blocks| DeleteStrategy::Window { retention_blocks: Quantity(blocks) };
        Self { disabled: false, oldest_block: Quantity(blocks.oldest), delete_strategy: blocks.window.map(window) }
    }
}

/// The newest snapshot, and the state of its feed.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewestSnapshot {
    id: Quantity<u64>,
    block_number: Quantity<u64>,
    index: Quantity<u64>,
    age_ms: u128,
    head: BlockId,
    #[schemars(extend("enum" = ["live", "lagging", "static", "degraded"]))]
    feed: &'static str,
    /// The reason why the feed lags or is degraded, while it does or is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = FeedProblem::ALL.iter().map(|problem| problem.as_str()).collect::<Vec<_>>()))]
    reason: Option<&'static str>,
    /// The age in milliseconds of the oldest sub-block that waits, while the feed lags.
    #[serde(skip_serializing_if = "Option::is_none")]
    lag_ms: Option<u128>,
    /// The number of sub-blocks that wait, while the feed lags.
    #[serde(skip_serializing_if = "Option::is_none")]
    lag_sub_blocks: Option<u32>,
    /// The part of the block so far that was compared with its producer's figures.
    #[schemars(extend("enum" = ["full", "list", "partial", "none"]))]
    verified: &'static str,
    /// The name of the fork whose rules apply to the block.
    fork: &'static str,
}

/// A difference between pre-confirmed results and the producer's figures or the canonical block.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ShownDivergence {
    /// Milliseconds since 1970.
    time: u128,
    block: Quantity<u64>,
    /// The index of the sub-block; null if the canonical block differs.
    index: Option<Quantity<u64>>,
    /// The hash of the transaction, if the difference is one transaction's.
    transaction: Option<Fixed<32>>,
    field: String,
    /// The value that was computed or pre-confirmed here.
    computed: String,
    /// The value that the producer sent, or that the canonical block has.
    announced: String,
}

impl From<Divergence> for ShownDivergence {
    fn from(Divergence { at, block, index, transaction, field, computed, announced }: Divergence) -> Self {
        // A clock before 1970 is shown as 1970.
        let time = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        Self {
            time,
            block: Quantity(block),
            index: index.map(Quantity),
            transaction: transaction.map(|hash| Fixed(hash.0)),
            field,
            computed,
            announced,
        }
    }
}
