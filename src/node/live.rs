//! The beginning of a chain that lives elsewhere: the upstream's newest block, and what follows it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_eips::BlockNumberOrTag;
use eyre::{WrapErr, eyre};
use tokio::runtime::Runtime;

use super::start::{Start, read_genesis};
use crate::{
    chain::{BlockHashes, ChainSpec},
    config::{Config, Endpoint},
    feed::{
        Source,
        flashblocks::{self, Rules},
        live::{FlashblockSource, LiveLimits, LiveSource, canonical_snapshot, told_receipts},
        upstream::{Fetcher, FetcherConfig, Heads, Upstream, UpstreamBlock, UpstreamConfig},
    },
    state::{CodeCache, FeedProblem, FeedState, RemoteState, Snapshots, Tags},
    telemetry::Metrics,
};

/// How long the upstream may take for what has to be known before anything can be answered.
const START: Duration = Duration::from_secs(30);
/// How long the wave that a request began is tried for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Values that may be on their way at once.
const IN_FLIGHT: usize = 1 << 18;
/// Bytes of one answer of the upstream.
const ANSWER: usize = 256 << 20;
/// The bytes of sub-blocks that wait for their parent, at most.
const HELD: usize = 64 << 20;
/// Blocks that are caught up with one by one.
const GAP: usize = 64;
/// Between the sub-blocks of a stream of Flashblocks.
const SUB_BLOCK: Duration = Duration::from_millis(200);

/// The threads on which the upstream is talked to: what executes blocks and calls does not hold them up.
pub fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().thread_name("presim-upstream").build()
}

/// Connects to the upstream at `endpoint`, and begins with its newest block.
pub async fn begin(
    endpoint: &Endpoint,
    config: &Config,
    codes: &Arc<CodeCache>,
    metrics: &Metrics,
) -> eyre::Result<(Start, Arc<Fetcher>)> {
    let deadline = Instant::now() + START;
    let failed = || format!("--upstream {endpoint}");
    let live = &config.live;
    tracing::info!("asking the upstream {endpoint} for its newest block");
    let upstream = Upstream::connect(
        UpstreamConfig {
            url: endpoint.url(),
            timeout: live.timeout(),
            concurrency: live.upstream_concurrency as usize,
            batch: live.upstream_batch as usize,
            max_response: ANSWER,
        },
        metrics,
    )
    .await?;
    let upstream = Arc::new(upstream);
    let chain_id = upstream.chain_id(deadline).await.wrap_err_with(failed)?;
    let spec = chain(config, chain_id)?;
    let json = upstream.block(BlockNumberOrTag::Latest, deadline).await.wrap_err_with(failed)?;
    let json = json.ok_or_else(|| eyre!("{}: it has no newest block", failed()))?;
    let head = UpstreamBlock::read(json.get(), spec.family()).wrap_err_with(failed)?;
    if live.verify_proofs {
        head.check(spec.family()).wrap_err_with(failed)?;
    }
    let receipts = told_receipts(&upstream, &head, deadline).await;
    let between = match config.block_time {
        Some(set) => set,
        None => block_time(&upstream, &head, &spec, deadline).await.wrap_err_with(failed)?,
    };
    let spec = spec.with_block_time(between);
    let (number, hash) = (head.number(), head.hash());
    let remote = RemoteState::new((live.cache_mb as usize) << 20, number, hash);
    let view = remote.newest().ok_or_else(|| eyre!("a cache without its first block"))?;
    let mut hashes = BlockHashes::default();
    if let Some(parent) = number.checked_sub(1) {
        hashes.push(parent, head.header.parent_hash);
    }
    hashes.push(number, hash);
    let feed = match live.flashblocks {
        Some(_) => FeedState::Degraded(FeedProblem::Connecting),
        None => FeedState::Live { every_ms: spec.block_time().saturating_mul(1000) },
    };
    let snapshots = Snapshots::new(
        canonical_snapshot(view, head, receipts, hashes),
        feed,
        config.keep_blocks as usize,
        config.keep_snapshots as usize,
    );
    snapshots.set_tags(Tags::default());
    let fetcher = FetcherConfig { patience: PATIENCE, verify_proofs: live.verify_proofs, max_in_flight: IN_FLIGHT };
    let fetcher = Arc::new(Fetcher::new(upstream.clone(), codes.clone(), fetcher, metrics));
    let heads = Heads::follow(upstream, hash, live.poll());
    let flashblocks = live.flashblocks.clone().map(|url| FlashblockSource {
        events: flashblocks::open(flashblocks::Settings {
            idle_timeout: Duration::from_millis(live.flashblocks_idle_ms),
            max_message: live.flashblocks_max_bytes as usize,
            max_decoded: live.flashblocks_max_bytes as usize,
            ..flashblocks::Settings::new(url)
        }),
        rules: Rules::new(live.flashblocks_ahead as usize, HELD),
    });
    let limits = LiveLimits {
        wait: PATIENCE,
        execute: live.execute(),
        apply: Duration::from_millis(live.flashblocks_apply_ms),
        sub_block: SUB_BLOCK,
        verify: live.verify_proofs,
        gap: GAP,
    };
    let source = LiveSource { spec: spec.clone(), fetcher: fetcher.clone(), remote, heads, flashblocks, limits };
    let start = Start {
        spec,
        snapshots,
        source: Source::Live(Box::new(source)),
        journal: None,
        accounts: Vec::new(),
        builtin: false,
        trading: None,
    };
    Ok((start, fetcher))
}

/// The rules of the upstream's chain: those of its genesis where one is given, else of the network that has this id.
fn chain(config: &Config, chain_id: u64) -> eyre::Result<ChainSpec> {
    let block_time = config.block_time.unwrap_or(1);
    let Some(path) = &config.genesis else {
        return ChainSpec::known(chain_id).ok_or_else(|| {
            eyre!("--upstream: chain {chain_id} is none that presim knows by name: give --genesis, the geth-format genesis file whose `config` has its forks")
        });
    };
    let (genesis, _) = read_genesis(path)?;
    let spec = ChainSpec::new(genesis.config, block_time).wrap_err_with(|| format!("--genesis {}", path.display()))?;
    if spec.chain_id() != chain_id {
        return Err(eyre!(
            "--genesis {}: config.chainId is {}, and the upstream's chain is {chain_id}: give the genesis of that",
            path.display(),
            spec.chain_id()
        ));
    }
    Ok(spec)
}

/// Seconds between the two newest blocks.
async fn block_time(
    upstream: &Upstream,
    head: &UpstreamBlock,
    spec: &ChainSpec,
    deadline: Instant,
) -> eyre::Result<u64> {
    // Nobody knows of a chain of one block.
    let usual = spec.block_time();
    let Some(json) = upstream.block_by_hash(head.header.parent_hash, deadline).await? else { return Ok(usual) };
    let parent = UpstreamBlock::read(json.get(), spec.family())?;
    Ok(head.header.timestamp.saturating_sub(parent.header.timestamp).clamp(1, 3600))
}
