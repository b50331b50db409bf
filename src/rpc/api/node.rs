//! Methods about the node and its chain.

use std::{collections::BTreeMap, time::UNIX_EPOCH};

use alloy_primitives::{B256, Bytes, keccak256};
use schemars::JsonSchema;

use crate::{
    chain::SealedBlock,
    engine::precompiles_of,
    ledger::{Chain, Divergence, FeedProblem, RetainedBlocks, Selector},
    rpc::{
        json::{
            Json, OrNull,
            hex::{Data, Fixed, Quantity},
            shapes,
        },
        protocol::error::RpcError,
        run::Backend,
    },
};

/// The name and the version of the program, as clients see them.
pub const CLIENT_VERSION: &str = concat!("presim/v", env!("CARGO_PKG_VERSION"));
/// The same with `--testing`, where hardhat's helpers ask whether the node is one that they know.
pub const TESTING_VERSION: &str = concat!("anvil/presim-v", env!("CARGO_PKG_VERSION"));

without_params! {
    /// The number of the newest sealed block.
    BlockNumber -> Quantity<u64> = r#""0x10""#, |_, run| run.published.head().number();

    /// The EIP-155 chain id.
    ChainId -> Quantity<u64> = r#""0x7a69""#, |backend, _| backend.spec.chain_id();

    /// The network id: the chain id in decimal.
    NetVersion -> String = r#""31337""#, |backend, _| backend.spec.chain_id().to_string();

    /// Always true.
    Listening -> bool = "true", |_, _| true;

    /// Always zero: presim follows a feed, and no peers.
    PeerCount -> Quantity<u64> = r#""0x0""#, |_, _| 0_u64;

    /// Always false: the published state is complete.
    Syncing -> bool = "false", |_, _| false;

    /// The receiver of the fees of the block being built, or of the newest block where none is built.
    Coinbase -> Fixed<20> = r#""0x0000000000000000000000000000000000000000""#,
        |_, run| run.published.newest.header().beneficiary;

    /// Always empty: presim publishes no block that breaks the rules.
    GetBadBlocks -> Vec<BadBlock> = "[]", |_, _| std::iter::empty::<(B256, Bytes)>();

    /// Name and version of this software. With --testing, anvil's name precedes it, because test libraries look for
    /// it.
    ClientVersion -> String = r#""presim/v0.1.0""#, |backend, _| backend.client_version;

    /// The forks: current, next and last (EIP-7910).
    GetConfig -> Forks = r#"{"current": {"activationTime": 0, "blobSchedule": {"baseFeeUpdateFraction": 5007716, "max": 9, "target": 6}, "chainId": "0x7a69", "forkId": "0x0929e24e", "precompiles": {"ECREC": "0x0000000000000000000000000000000000000001"}, "systemContracts": {"BEACON_ROOTS_ADDRESS": "0x000f3df6d732807ef1319fb7b8bb8522d0beac02"}}, "next": null, "last": null}"#, |backend, run| {
        let genesis = run.published.find(Selector::Earliest)?;
        let config = genesis.and_then(|genesis| {
            let (header, hash) = (genesis.header().inner(), genesis.header().hash());
            backend.spec.fork_config(header, hash, &run.published.head().header, precompiles_of)
        });
        let config = config.map(Json);
        config.ok_or_else(|| RpcError::new(-32000, "eth_config is defined only for Ethereum chains from Cancun on"))?
    };

    /// The head, and the blocks that the node retains: their states and proofs, and their transactions, receipts and logs.
    /// Of an upstream's chain, the upstream may answer about older blocks.
    GetCapabilities -> Capabilities = r#"{"head": {"number": "0x10", "hash": "0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"}, "state": {"disabled": false, "oldestBlock": "0x0", "deleteStrategy": {"type": "window", "retentionBlocks": "0x80"}}, "tx": {"disabled": false, "oldestBlock": "0x0"}, "logs": {"disabled": false, "oldestBlock": "0x0"}, "receipts": {"disabled": false, "oldestBlock": "0x0"}, "blocks": {"disabled": false, "oldestBlock": "0x0"}, "stateproofs": {"disabled": false, "oldestBlock": "0x0"}}"#,
        |_, run| (&**run.published.head(), run.published.retained_states(), run.published.retained_bodies());

    /// The newest snapshot: id, block being built, index of its newest sub-block, age in milliseconds, canonical head, state of
    /// the feed.
    GetSnapshot -> NewestSnapshot = r#"{"id": "0x1f", "blockNumber": "0x11", "index": "0x2", "ageMs": 40, "head": {"number": "0x10", "hash": "0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"}, "feed": "live", "verified": "full", "fork": "osaka"}"#,
        |backend, run| (backend, run.published);

    /// The last hundred differences between pre-confirmed results and the producer's figures or the canonical block,
    /// newest first.
    GetDivergences -> Vec<ShownDivergence> = "[]", |backend, _| backend.divergences.newest_first();
}

queries! {
    /// The Keccak-256 hash of some bytes.
    Sha3 = "1 parameter: bytes in hex", { data: Data },
        r#"["0x"]"# => Fixed<32> = r#""0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470""#,
        |asked, _, _| keccak256(asked.data.0);
}

/// The configurations of forks.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "alloy's type writes it")]
pub struct Forks {
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

shapes! {
    /// A block that breaks the rules of the chain, as geth lists them.
    pub BadBlock: (B256, Bytes) => |(hash, rlp)| {
        hash: Fixed<32> = hash,
        rlp: Data = rlp,
    }

    /// The number and the hash of a block.
    BlockId: &SealedBlock => |block| {
        number: Quantity<u64> = block.number(),
        hash: Fixed<32> = block.hash(),
    }

    /// The blocks that the node retains, by the kind of their data.
    pub Capabilities: (&SealedBlock, RetainedBlocks, RetainedBlocks) => |(head, states, bodies)| {
        head: BlockId = head,
        state: Retained = states,
        tx: Retained = bodies,
        logs: Retained = bodies,
        receipts: Retained = bodies,
        blocks: Retained = bodies,
        stateproofs: Retained = states,
    }

    /// The blocks that are retained with a kind of data.
    Retained: RetainedBlocks => |blocks| {
        disabled: bool = false,
        oldestBlock: Quantity<u64> = blocks.oldest,
        deleteStrategy: Option<DeleteStrategy> = blocks.window,
    }

    /// The reason for which older blocks are not retained: there are too many newer ones.
    DeleteStrategy: u64 => |blocks| {
        #[schemars(extend("const" = "window"))]
        r#type: String = "window",
        retentionBlocks: Quantity<u64> = blocks,
    }

    /// The newest snapshot, and the state of its feed.
    pub NewestSnapshot: (&Backend, &Chain) => |(backend, published)| let {
        let (newest, feed) = (&published.newest, published.feed());
    } {
        id: Quantity<u64> = newest.id.0,
        blockNumber: Quantity<u64> = newest.header().number,
        index: Quantity<u64> = u64::from(newest.index()),
        ageMs: u128 = newest.published.elapsed().as_millis(),
        head: BlockId = &**published.head(),
        #[schemars(extend("enum" = ["live", "lagging", "static", "degraded"]))]
        feed: String = feed.as_str(),
        /// The reason why the feed lags or is degraded, while it does or is.
        #[schemars(extend("enum" = FeedProblem::ALL.iter().map(|problem| problem.as_str()).collect::<Vec<_>>()))]
        reason: Option<String> = feed.cause().map(|cause| cause.as_str()),
        /// The age in milliseconds of the oldest sub-block that waits, while the feed lags.
        lagMs: Option<u128> = feed.lag().map(|lag| lag.ms()),
        /// The number of sub-blocks that wait, while the feed lags.
        lagSubBlocks: Option<u32> = feed.lag().map(|lag| lag.waiting),
        /// The part of the block so far that was compared with its producer's figures.
        #[schemars(extend("enum" = ["full", "list", "partial", "none"]))]
        verified: String = newest.verified.as_str(),
        /// The name of the fork whose rules apply to the block.
        fork: String = backend.spec.fork_name(newest.header()),
    }

    /// A difference between pre-confirmed results and the producer's figures or the canonical block.
    pub ShownDivergence: Divergence => |divergence| {
        /// Milliseconds since 1970.
        // A clock before 1970 is shown as 1970.
        time: u128 = divergence.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis(),
        block: Quantity<u64> = divergence.block,
        /// The index of the sub-block; null if the canonical block differs.
        index: Option<Quantity<u64>> = Some(OrNull(divergence.index)),
        /// The hash of the transaction, if the difference is one transaction's.
        transaction: Option<Fixed<32>> = Some(OrNull(divergence.transaction)),
        field: String = divergence.field,
        /// The value that was computed or pre-confirmed here.
        computed: String = divergence.computed,
        /// The value that the producer sent, or that the canonical block has.
        announced: String = divergence.announced,
    }
}
