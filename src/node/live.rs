//! The start on a live chain: the upstream's newest block, and the parts that follow it.

use std::{sync::Arc, time::Duration};

use alloy_eips::BlockNumberOrTag;
use alloy_primitives::B256;
use eyre::{WrapErr, bail, eyre};
use tokio::time::Instant;

use super::{
    start::{Beginning, Start, read_genesis},
    state_cache::StateCache,
};
use crate::{
    chain::{ChainSpec, Family, L1_BLOCK, set_forks},
    config::{Config, Endpoint},
    ledger::{FeedProblem, FeedState, Record, SnapshotId, Snapshots, Tags, Verified},
    objects,
    rpc::StartupReason,
    source::live::{
        FlashblockSource, LiveLimits, LiveSource, canonical_snapshot,
        flashblocks::{self, FlashblockSequence},
    },
    state::{RemoteImage, RemoteSettings, RemoteState},
    telemetry::Metrics,
    upstream::{
        AnnouncedReceipts, BlockName, Fetcher, FetcherConfig, Heads, Upstream, UpstreamBlock, UpstreamConfig,
        UpstreamState, link::LinkSettings,
    },
};

/// The time limit for the upstream's data without which nothing can be answered.
pub const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The step of the start before the upstream's first answer.
pub const FIRST_ANSWER: &str = "it waits for the upstream's first answer";
/// The time-out of a wave that a request began.
pub const WAVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Values that may be fetched at once.
const MAX_IN_FLIGHT: usize = 1 << 18;
/// Maximum bytes of sub-blocks that wait for their parent, and of sub-blocks that wait to be applied.
const MAX_HELD_BYTES: usize = 64 << 20;
/// The maximum gap to catch up with block by block after an interruption: as many blocks as this time has, but at least
/// the given number.
const MAX_GAP: (Duration, usize) = (Duration::from_secs(64), 64);
/// The time between the sub-blocks of a Flashblocks stream.
const SUB_BLOCK: Duration = Duration::from_millis(200);

/// An upstream's chain with which a node begins.
pub struct LiveStart {
    pub spec: ChainSpec,
    /// The cell into which the upstream's chain is read.
    pub snapshots: Arc<Snapshots>,
    pub source: LiveSource,
}

impl From<LiveStart> for Start {
    fn from(start: LiveStart) -> Self {
        let remote = start.source.fetcher.clone();
        Self { remote: Some(remote), ..Self::of_foreign(start.spec, start.snapshots, Box::new(start.source)) }
    }
}

/// Asks the upstream for its forks at these intervals, because it may be upgraded, until it has one that presim does not know. An answer
/// may take `timeout`.
async fn watch_forks(upstream: Arc<Upstream>, spec: ChainSpec, every: Duration, timeout: Duration) {
    let mut ask = tokio::time::interval_at(Instant::now() + every, every);
    while upstream.newer_fork().is_none() {
        ask.tick().await;
        check_for_newer_forks(&upstream, &spec, Instant::now() + timeout).await;
    }
}

/// Shows at intervals the size of the cache of an upstream's state that the newest of `snapshots` reads.
pub fn show_remote(metrics: &Metrics, snapshots: Arc<Snapshots>) -> impl Future<Output = ()> + use<> {
    let reads = |found| {
        let help = "Reads of the upstream's state, by whether it was known.";
        metrics.counter_with("presim_upstream_reads_total", help, &[("found", found)])
    };
    let entries = metrics.gauge("presim_upstream_cache_entries", "Cached accounts and slots of the upstream.");
    let bytes = metrics.gauge("presim_upstream_cache_bytes", "Memory of the cached accounts and slots, in bytes.");
    let (hits, misses) = (reads("yes"), reads("no"));
    let help = "Cache evictions of accounts and slots.";
    let evicted = metrics.counter("presim_upstream_cache_evicted_total", help);
    async move {
        let mut shown = tokio::time::interval(Metrics::SIZE_INTERVAL);
        loop {
            shown.tick().await;
            if let Some(view) = snapshots.newest().world.remote() {
                let stats = view.state().stats();
                entries.set(stats.entries as f64);
                bytes.set(stats.bytes as f64);
                hits.absolute(stats.hits);
                misses.absolute(stats.misses);
                evicted.absolute(stats.evicted);
            }
        }
    }
}

/// Connects to the upstream at `endpoint`, and begins with its newest block, in this epoch of snapshot ids.
pub async fn begin(
    endpoint: &Endpoint,
    beginning: Beginning<'_>,
    epoch: u64,
) -> eyre::Result<(LiveStart, Option<StateCache>)> {
    let Beginning { config, codes, store, metrics, reason, .. } = beginning;
    let dir = store.directory();
    let deadline = Instant::now() + START_TIMEOUT;
    let failed = || format!("--upstream {endpoint}");
    let live = &config.live;
    // For data that is not essential.
    let soon = || Instant::now() + 2 * live.timeout();
    tracing::info!("asking the upstream {endpoint} for its newest block");
    reason.set(FIRST_ANSWER);
    let upstream = connect(endpoint, config, metrics)?;
    let asked = report_while_waiting(&upstream, reason, upstream.chain_id(deadline)).await;
    let chain_id = asked.wrap_err_with(|| format!("--upstream {endpoint} (check the URL and its key)"))?;
    let spec = chain(config, &upstream, chain_id, soon()).await?.with_natives(&live.native);
    if live.flashblocks.is_some() && spec.family() != Family::OpStack {
        return Err(eyre!(
            "--flashblocks: chain {chain_id} does not belong to the OP stack, which has Flashblocks: leave the flag out"
        ));
    }
    check_for_newer_forks(&upstream, &spec, soon()).await;
    reason.set("it waits for the upstream's newest block");
    let json = upstream.block(BlockNumberOrTag::Latest, deadline).await.wrap_err_with(failed)?;
    let json = json.ok_or_else(|| eyre!("{}: the upstream has no newest block", failed()))?;
    let head = UpstreamBlock::read(json.get(), spec.family(), |_, _| None).await.wrap_err_with(failed)?;
    if live.verify_proofs {
        head.check(spec.family()).wrap_err_with(failed)?;
        check_proofs(&upstream, head.hash(), soon()).await?;
    }
    let between = match config.block_time {
        Some(set) => set,
        None => match spec.prescribed_block_time(head.header.timestamp) {
            Some(prescribed) => prescribed,
            None => block_time(&upstream, &head, &spec, soon()).await,
        },
    };
    let spec = spec.with_block_time(between);
    let newest = head.hash();
    let most = (live.cache_mb as usize) << 20;
    let image = dir.and_then(|dir| StateCache::followed(dir, most));
    // The stored state can be advanced to the newest block by executing the blocks between, if they are not too many.
    let (head, image) = match image {
        Some(image) => match resume(&upstream, &image, &head, &spec, deadline).await {
            Some(block) => (block, Some(image)),
            None => (head, None),
        },
        None => (head, None),
    };
    let receipts = AnnouncedReceipts::ask(&upstream, &head, soon()).await;
    let (number, hash) = (head.number(), head.hash());
    let settings = RemoteSettings { bytes: most, blocks: config.keep_blocks as usize, is_of_fleet: false };
    let view = RemoteState::begin(settings, number, hash);
    if let Some(image) = image {
        view.import(image, codes);
        tracing::info!(
            number,
            values = view.state().stats().entries,
            "the stored cache of the upstream's state was restored"
        );
    }
    let feed = match live.flashblocks {
        Some(_) => FeedState::Degraded(FeedProblem::Connecting),
        None if hash != newest => FeedState::Degraded(FeedProblem::Connecting),
        None => FeedState::live(spec.block_time()),
    };
    // Nothing of the first block was executed here.
    let mut first = canonical_snapshot(view, head, receipts).with_verified(Verified::None);
    first.id = SnapshotId::begin(epoch);
    let snapshots = Arc::new(Snapshots::new(first, feed, config.retention()));
    snapshots.apply(Record::Tags(Tags::default()))?;
    let fetcher = Arc::new(Fetcher::new(upstream.clone(), codes.clone(), fetching(config), metrics));
    let heads = Heads::follow(upstream.clone(), newest, Duration::from_millis(live.upstream_poll_ms));
    let flashblocks = live.flashblocks.clone().map(|url| FlashblockSource {
        events: flashblocks::open({
            let usual = flashblocks::Settings::new(url);
            let idle_timeout = Duration::from_millis(live.flashblocks_idle_ms);
            let max_message = live.flashblocks_max_bytes as usize;
            let silent_after = Duration::from_millis(live.flashblocks_silent_ms);
            flashblocks::Settings {
                // The timeout covers at least two pings.
                link: LinkSettings { ping_every: idle_timeout / 3, idle_timeout, max_message, ..usual.link },
                silent_after,
                ..usual
            }
        }),
        rules: FlashblockSequence::new(live.ahead(between).min(config.keep_blocks - 1) as usize, MAX_HELD_BYTES),
    });
    let limits = LiveLimits {
        wait: 2 * live.timeout(),
        execute: Duration::from_millis(live.upstream_execute_ms),
        sub_block: SUB_BLOCK,
        silent: Duration::from_millis(live.flashblocks_silent_ms),
        max_lag: (live.max_lag_ms > 0).then(|| Duration::from_millis(live.max_lag_ms)),
        held: MAX_HELD_BYTES,
        verify: live.verify_proofs,
        lookahead: live.upstream_lookahead as usize,
        gap: gap(between),
        late: live.late().wait,
    };
    let forks_every = Duration::from_secs(live.upstream_forks_s.into());
    tokio::spawn(watch_forks(upstream.clone(), spec.clone(), forks_every, 2 * live.timeout()));
    let cache = dir.map(|dir| StateCache::new(snapshots.clone(), dir.clone(), None));
    let source = LiveSource { spec: spec.clone(), upstream, fetcher, heads, flashblocks, limits };
    Ok((LiveStart { spec, snapshots, source }, cache))
}

/// Checks that the upstream proves its state, because without proofs all its values would be rejected. Any error except
/// that it cannot prove is ignored: the upstream may be busy or late.
pub async fn check_proofs(upstream: &Upstream, hash: B256, deadline: Instant) -> eyre::Result<()> {
    match upstream.has_proofs(hash, deadline).await {
        Ok(true) => {}
        Ok(false) => bail!(
            "--verify-proofs: the upstream has no eth_getProof, so that no state of it can be checked: give an --upstream that has it, or leave the flag out"
        ),
        Err(error) => tracing::warn!(%error, "--verify-proofs: the upstream has not proven its state yet"),
    }
    Ok(())
}

/// Returns the number of blocks to catch up with block by block on a chain with this time between blocks.
fn gap(block_time: Duration) -> usize {
    let (time, least) = MAX_GAP;
    usize::try_from(time.as_millis() / block_time.as_millis().max(1)).unwrap_or(usize::MAX).clamp(least, 1024)
}

/// Connects to the upstream at `endpoint`.
pub fn connect(endpoint: &Endpoint, config: &Config, metrics: &Metrics) -> eyre::Result<Arc<Upstream>> {
    Ok(Arc::new(Upstream::connect(client_config(endpoint, config), metrics)?))
}

/// Returns the settings of the client of the upstream at `endpoint`.
pub fn client_config(endpoint: &Endpoint, config: &Config) -> UpstreamConfig {
    let live = &config.live;
    UpstreamConfig {
        url: endpoint.url(),
        timeout: live.timeout(),
        concurrency: live.upstream_concurrency as usize,
        batch: live.upstream_batch as usize,
        max_response: (live.upstream_answers_mb as usize) << 20,
        jitter_seed: None,
    }
}

/// Returns the settings with which state is fetched.
pub const fn fetching(config: &Config) -> FetcherConfig {
    FetcherConfig { wave_timeout: WAVE_TIMEOUT, verify_proofs: config.live.verify_proofs, max_in_flight: MAX_IN_FLIGHT }
}

/// Returns the hash of the upstream's first block; zero if the upstream does not have the block.
pub async fn genesis(upstream: &Upstream, config: &Config) -> B256 {
    let json = upstream.block(0, Instant::now() + 2 * config.live.timeout()).await.ok().flatten();
    let first = json.and_then(|json| objects::from_str::<BlockName>(json.get()).ok());
    first.map_or(B256::ZERO, |first| first.hash)
}

/// Warns if the upstream has a fork that presim does not know, so that blocks after it cannot be executed here.
async fn check_for_newer_forks(upstream: &Upstream, spec: &ChainSpec, deadline: Instant) {
    // Most nodes of the OP stack have no `eth_config`.
    let Ok(forks) = upstream.forks(deadline).await else { return };
    if let Some(time) = forks.times().find(|time| !spec.executes_fork_at(*time)) {
        tracing::warn!(
            time,
            "the upstream has a fork at this time that presim does not know: blocks after it may not be executed here: upgrade presim, or give --fork"
        );
        upstream.note_newer_fork(time);
    }
}

/// Reports at intervals why the upstream has not answered yet, in the log and as the `reason` why the node has not
/// started.
pub async fn report_while_waiting<T>(
    upstream: &Upstream,
    reason: &StartupReason,
    answer: impl Future<Output = T>,
) -> T {
    let mut answer = std::pin::pin!(answer);
    loop {
        match tokio::time::timeout(START_TIMEOUT / 15, &mut answer).await {
            Ok(answer) => return answer,
            Err(_) => match upstream.state() {
                UpstreamState::Ok => tracing::info!("the upstream has not answered yet"),
                UpstreamState::Degraded(problem) => {
                    tracing::warn!(%problem, "the upstream has not answered yet");
                    reason.set(format!("{FIRST_ANSWER}: {problem}"));
                }
            },
        }
    }
}

/// Returns the block of an image, if the upstream's chain still has it, not long before `head`.
async fn resume(
    upstream: &Upstream,
    image: &RemoteImage,
    head: &UpstreamBlock,
    spec: &ChainSpec,
    deadline: Instant,
) -> Option<UpstreamBlock> {
    let family = spec.family();
    let behind = head.number().checked_sub(image.number)?;
    if behind > gap(spec.block_time()) as u64 {
        tracing::info!(behind, "the stored cache of the upstream's state is too old");
        return None;
    }
    let json = upstream.block(image.number, deadline).await.ok()??;
    UpstreamBlock::read(json.get(), family, |_, _| None).await.ok().filter(|block| block.hash() == image.hash)
}

/// Returns the rules of the upstream's chain: from its genesis if one is given, otherwise from the network that has
/// this id, otherwise detected ([`unknown_chain`]).
pub async fn chain(config: &Config, upstream: &Upstream, chain_id: u64, deadline: Instant) -> eyre::Result<ChainSpec> {
    let block_time = config.block_time.unwrap_or(Duration::from_secs(1));
    let Some(path) = &config.genesis else {
        return match ChainSpec::known_with(chain_id, &config.fork) {
            Some(known) => known.wrap_err("--fork"),
            None => unknown_chain(config, block_time, upstream, chain_id, deadline).await,
        };
    };
    let (mut genesis, _) = read_genesis(path)?;
    set_forks(&mut genesis.config, &config.fork).wrap_err("--fork")?;
    let spec = ChainSpec::new(genesis.config, block_time).wrap_err_with(|| format!("--genesis {}", path.display()))?;
    if spec.chain_id() != chain_id {
        return Err(eyre!(
            "--genesis {}: config.chainId is {}, but the upstream's chain is {chain_id}: give the genesis of that chain",
            path.display(),
            spec.chain_id()
        ));
    }
    Ok(spec)
}

/// Returns the rules of a chain whose id presim does not know: the forks that the upstream announces, or else
/// Ethereum's forks up to a given one.
async fn unknown_chain(
    config: &Config,
    block_time: Duration,
    upstream: &Upstream,
    chain_id: u64,
    deadline: Instant,
) -> eyre::Result<ChainSpec> {
    const GENESIS: &str = "--genesis, a genesis file in geth's format whose `config` has the chain's forks";
    let (forks, is_fork) = (&config.fork, config.test_chain.fork_url.is_some());
    let flag = if is_fork { "--fork-url" } else { "--upstream" };
    if upstream.has_code(L1_BLOCK, deadline).await.wrap_err(flag)? {
        return Err(eyre!("{flag}: chain {chain_id} is not a known network of the OP stack: give {GENESIS}"));
    }
    let why = match upstream.forks(deadline).await {
        Ok(announced) => match ChainSpec::announced(chain_id, &announced, forks, block_time) {
            Some(spec) => {
                tracing::info!(
                    "chain {chain_id} is not a known network: its forks are those of the upstream's eth_config"
                );
                return spec.wrap_err("the forks of the upstream's eth_config, and --fork");
            }
            None => "presim does not know the active fork of its eth_config".to_owned(),
        },
        Err(error) => error.to_string(),
    };
    if let Some(spec) = ChainSpec::of_forks(chain_id, forks, block_time) {
        tracing::info!("chain {chain_id} is not a known network: its rules are Ethereum's up to the forks of --fork");
        return spec.wrap_err("--fork");
    }
    let cure = match is_fork {
        true => format!("--hardfork NAME with the fork whose rules the block has ({})", Config::hardforks()),
        false => "--fork NAME=0 for Ethereum's rules up to that fork (--fork prague=0)".to_owned(),
    };
    Err(eyre!(
        "{flag}: chain {chain_id} is not a known network, and the upstream does not tell its forks ({why}): give {cure}, or {GENESIS}"
    ))
}

/// Returns the time between the two newest blocks.
async fn block_time(upstream: &Upstream, head: &UpstreamBlock, spec: &ChainSpec, deadline: Instant) -> Duration {
    // A chain of one block has no time between blocks.
    let usual = spec.block_time();
    if head.number() == 0 {
        return usual;
    }
    let json = upstream.block(head.header.parent_hash, deadline).await.ok().flatten();
    let Some(json) = json else { return usual };
    let Ok(parent) = UpstreamBlock::read(json.get(), spec.family(), |_, _| None).await else { return usual };
    head.time_after(&parent).unwrap_or(usual)
}
