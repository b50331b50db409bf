//! A running node: its state built, its actors started in order, and stopped in the opposite one.

use std::{net::SocketAddr, sync::Arc, thread::JoinHandle, time::Duration};

use actix::{Actor, Addr, Arbiter, System};
use alloy_genesis::Genesis;
use alloy_signer_local::PrivateKeySigner;
use eyre::{WrapErr, eyre};
use metrics::Gauge;
use serde::de::IgnoredAny;
use tokio::sync::oneshot;

use crate::{
    chain::{BlockHashes, ChainSpec, genesis_block, genesis_world},
    config::{Config, FeedName},
    executor::{Drain, Executor, ExecutorConfig, LaneActor, LaneName},
    feed::{
        StateFeed, StopFeed,
        apply::stand_on,
        chain_file,
        devnet::Devnet,
        pool::{Pool, PoolLimits},
        world::{self, TradingWorld, Traffic},
    },
    rpc::{
        Access, AccessConfig, Backend, Filters, Front, FrontActor, GasCounter, RequestLimits, Serve, ServerConfig,
        ShapeLimits, Signers, Stop, Subscriptions, SyncTimeouts, Waiters, announce,
    },
    state::{CodeCache, FeedState, Snapshot, Snapshots},
    telemetry::Metrics,
};

/// How long requests that are under way may take to end when the node stops.
const GRACE: Duration = Duration::from_secs(5);

/// A node that runs. Dropping it stops it.
#[derive(Debug)]
pub struct Node {
    info: NodeInfo,
    snapshots: Arc<Snapshots>,
    metrics: Metrics,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What a banner tells of a node.
#[derive(Clone, Debug)]
pub struct NodeInfo {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Where its metrics are served.
    pub metrics: Option<SocketAddr>,
    /// EIP-155 chain id.
    pub chain_id: u64,
    /// The number of the block it began on.
    pub head: u64,
    /// Accounts of the test mnemonic that it gave ether to.
    pub accounts: Vec<PrivateKeySigner>,
    /// The contracts to trade with.
    pub trading: Option<TradingWorld>,
}

/// The chain that a node begins with.
struct Start {
    spec: ChainSpec,
    snapshots: Snapshots,
    source: Option<Devnet>,
    /// The accounts that the node signs for.
    accounts: Vec<PrivateKeySigner>,
    /// Whether the chain is the built-in devnet.
    builtin: bool,
    trading: Option<TradingWorld>,
}

impl Node {
    /// Builds the state that `config` asks for, and starts the node. Returns when it answers.
    ///
    /// # Errors
    /// A file that cannot be read or is not right, a block that does not check, a port that is taken.
    pub fn start(config: Config) -> eyre::Result<Self> {
        let metrics = Metrics::default();
        let codes = Arc::new(CodeCache::new(config.code_cache));
        let start = begin(&config, &codes)?;
        let access = Access::new(&AccessConfig {
            token_file: config.token_file.as_deref(),
            wallet_token_file: config.wallet_token_file.as_deref(),
            queue_short: config.queue_short as usize,
            queue_bundle: config.queue_bundle as usize,
        })?;
        let snapshots = Arc::new(start.snapshots);
        let info = NodeInfo {
            listen: config.listen,
            metrics: config.metrics,
            chain_id: start.spec.chain_id(),
            head: snapshots.newest().head.number(),
            accounts: if start.builtin { start.accounts.clone() } else { Vec::new() },
            trading: start.trading,
        };
        let Start { spec, source, accounts, .. } = start;
        let parts = Parts { config, codes, spec, source, accounts, snapshots, access, metrics };
        Self::spawn(parts, info)
    }

    /// What a banner tells.
    pub const fn info(&self) -> &NodeInfo {
        &self.info
    }

    /// What it publishes.
    pub const fn snapshots(&self) -> &Arc<Snapshots> {
        &self.snapshots
    }

    /// Its metrics.
    pub const fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Stops accepting, lets what is under way end (5 s at most), and returns when all is down.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    fn spawn(parts: Parts, mut info: NodeInfo) -> eyre::Result<Self> {
        let (snapshots, metrics) = (parts.snapshots.clone(), parts.metrics.clone());
        let (stop, stopped) = oneshot::channel();
        let (started, ready) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("presim-actors".to_owned()).spawn(move || {
            let system = System::with_tokio_rt(|| {
                // Building a runtime fails only where the system gives no threads: nothing could be done then.
                tokio::runtime::Builder::new_multi_thread()
                    .enable_all()
                    .thread_name("presim-io")
                    .build()
                    .unwrap_or_else(|error| panic!("cannot start the I/O threads: {error}"))
            });
            system.block_on(async move {
                match Actors::start(parts).await {
                    Ok((actors, listening)) => {
                        let _ = started.send(Ok(listening));
                        let _ = stopped.await;
                        actors.stop().await;
                    }
                    Err(error) => {
                        let _ = started.send(Err(error));
                    }
                }
            });
        })?;
        let listening = ready.recv().map_err(|_| eyre!("the node's threads ended before it had started"))??;
        (info.listen, info.metrics) = (listening.front, listening.metrics);
        Ok(Self { info, snapshots, metrics, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// What the actors are made of.
struct Parts {
    config: Config,
    codes: Arc<CodeCache>,
    spec: ChainSpec,
    source: Option<Devnet>,
    accounts: Vec<PrivateKeySigner>,
    snapshots: Arc<Snapshots>,
    access: Access,
    metrics: Metrics,
}

/// The addresses that a node has taken.
struct Listening {
    front: SocketAddr,
    metrics: Option<SocketAddr>,
}

/// The running actors.
struct Actors {
    front: Addr<FrontActor>,
    lanes: [Addr<LaneActor>; 2],
    feed: Addr<StateFeed>,
    feed_thread: Arbiter,
}

impl Actors {
    async fn start(parts: Parts) -> eyre::Result<(Self, Listening)> {
        let Parts { config, codes, spec, source, accounts, snapshots, access, metrics } = parts;
        let workers = config.workers.map_or_else(available_cores, usize::from);
        let executor = Executor::start(
            ExecutorConfig {
                workers,
                queue_short: config.queue_short as usize,
                queue_bundle: config.queue_bundle as usize,
                deadline: Duration::from_millis(config.deadline_ms),
            },
            &metrics,
        )?;
        let server = ServerConfig::new(&config);
        let listener = server.bind().await.wrap_err_with(|| {
            format!("cannot listen on {}: is another node running there? --listen takes another address", config.listen)
        })?;
        let listen = listener.local_addr()?;
        let mut listening = Listening { front: listen, metrics: None };
        if let Some(address) = config.metrics {
            let listener = tokio::net::TcpListener::bind(address)
                .await
                .wrap_err_with(|| format!("cannot serve metrics on {address}: --metrics takes another address"))?;
            listening.metrics = Some(listener.local_addr()?);
            tokio::spawn(crate::rpc::serve_metrics(listener, metrics.clone()));
        }
        tokio::spawn(keep_up(metrics.clone(), CodeGauges::new(&metrics), codes.clone()));

        let limits = PoolLimits {
            transactions: config.pool_transactions as usize,
            per_account: config.pool_account_transactions as usize,
            bytes: config.pool_bytes,
            price_bump: config.pool_price_bump,
            min_tip: u128::from(config.pool_min_tip),
        };
        let pool = Arc::new(Pool::new(spec.clone(), limits, snapshots.clone()));
        // The feed executes blocks: a thread of its own, so that nothing else waits for it.
        let feed_thread = Arbiter::new();
        let feed = {
            let feed = StateFeed::new(source, config.sub_block(), snapshots.clone(), pool.clone(), &metrics);
            StateFeed::start_in_arbiter(&feed_thread.handle(), move |_| feed)
        };
        let lanes =
            [LaneName::Short, LaneName::Bundle].map(|lane| LaneActor::new(lane, executor.clone(), &metrics).start());
        let subscriptions = Arc::new(Subscriptions::new(config.max_subscriptions as usize, &metrics));
        tokio::spawn(announce(subscriptions.clone(), snapshots.clone(), pool.clone()));
        let backend = Arc::new(Backend {
            spec,
            codes,
            pool,
            filters: Filters::new(config.max_filters as usize),
            signers: Signers::new(accounts),
            limits: RequestLimits {
                shape: ShapeLimits {
                    max_blocks: usize::try_from(config.max_blocks).unwrap_or(usize::MAX),
                    max_block_calls: config.max_block_calls,
                    max_calls: config.max_calls,
                },
                gas_cap: config.gas_cap,
                max_log_blocks: config.max_log_blocks,
                max_logs: config.max_logs as usize,
                max_trace: config.max_trace_bytes,
                sync: SyncTimeouts {
                    usual: Duration::from_millis(config.sync_timeout_ms),
                    most: Duration::from_millis(config.max_sync_timeout_ms),
                },
                max_response: config.max_response as usize,
            },
            strict_pending: config.strict_pending,
            gas: GasCounter(metrics.counter("presim_gas_simulated_total", "Gas used by simulated calls.", &[])),
        });
        let waiters = Waiters::new(config.max_sync_waiters as usize);
        let front = Arc::new(Front::new(backend, snapshots, executor, waiters, &metrics));
        let front = FrontActor::new(server, front, subscriptions, access).start();
        front.send(Serve(listener)).await?;
        Ok((Self { front, lanes, feed, feed_thread }, listening))
    }

    /// The front first, so that nothing new comes; then the lanes; then the feed.
    async fn stop(self) {
        let _ = self.front.send(Stop(GRACE)).await;
        for lane in &self.lanes {
            let _ = tokio::time::timeout(GRACE, lane.send(Drain)).await;
        }
        let _ = self.feed.send(StopFeed).await;
        self.feed_thread.stop();
    }
}

fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Gauges of the bytecode cache.
struct CodeGauges {
    chain: Gauge,
    overrides: Gauge,
}

impl CodeGauges {
    fn new(metrics: &Metrics) -> Self {
        let gauge = |kind| metrics.gauge("presim_code_cache_bytes", "Bytes of analysed bytecode.", &[("kind", kind)]);
        Self { chain: gauge("chain"), overrides: gauge("override") }
    }
}

async fn keep_up(metrics: Metrics, gauges: CodeGauges, codes: Arc<CodeCache>) {
    let mut ticks = tokio::time::interval(Metrics::UPKEEP);
    loop {
        ticks.tick().await;
        metrics.upkeep();
        let stats = codes.stats();
        gauges.chain.set(stats.chain_bytes as f64);
        gauges.overrides.set(stats.override_bytes as f64);
    }
}

/// The chain that `config` asks for, as far as it goes before the first sub-block.
fn begin(config: &Config, codes: &CodeCache) -> eyre::Result<Start> {
    let accounts = DevAccounts { users: world::dev_signers()?, traffic: world::traffic_signers()? };
    let builtin = config.genesis.is_none();
    let genesis = match &config.genesis {
        Some(path) => {
            let text = std::fs::read(path).wrap_err_with(|| format!("--genesis {}", path.display()))?;
            parse_genesis(&text)
                .wrap_err_with(|| format!("--genesis {}: expected a geth-format genesis", path.display()))?
        }
        None => world::dev_genesis(&accounts.all(), now()),
    };
    let spec = ChainSpec::new(genesis.config.clone(), config.block_time());
    let (state, trading) = if builtin {
        let (state, trading) = world::build(&genesis, &spec, &accounts.all(), codes)?;
        (state, Some(trading))
    } else {
        (genesis_world(&genesis, codes), None)
    };
    let block = genesis_block(&genesis, &spec, state.state_root());
    let mut hashes = BlockHashes::default();
    hashes.push(block.number(), block.hash());
    let first = stand_on(state, Arc::new(block), hashes);

    let feed = config.feed();
    let state = match feed {
        FeedName::Devnet => FeedState::Live { every_ms: config.sub_block_ms },
        FeedName::Static => FeedState::Static,
    };
    let base = stand_on(first.world.clone(), first.head.clone(), first.hashes.clone());
    let snapshots = Snapshots::new(first, state, config.keep_blocks as usize, config.keep_snapshots as usize);
    let mut head = base;
    if let Some(file) = &config.chain {
        head = chain_file::import(&spec, head, file, |snapshot| {
            let copy = stand_on(snapshot.world.clone(), snapshot.head.clone(), snapshot.hashes.clone());
            snapshots.publish_sealed(copy, None);
        })
        .wrap_err_with(|| format!("--chain {}", file.display()))?;
        tracing::info!(head = head.head.number(), hash = %head.head_hash(), "imported");
    }
    let source = match feed {
        FeedName::Devnet => Some(devnet(config, &spec, &head, &accounts, trading)),
        FeedName::Static => None,
    };
    if let Some(source) = &source {
        snapshots.publish(source.open(&head).wrap_err("the first block cannot be opened")?);
    }
    // On a chain that stands still nothing is mined, so no account of the node's is offered to send from.
    let accounts = if source.is_some() { funded(&accounts.users, &head) } else { Vec::new() };
    Ok(Start { spec, snapshots, source, accounts, builtin, trading })
}

/// Accounts of the test mnemonic.
struct DevAccounts {
    /// The first ten.
    users: Vec<PrivateKeySigner>,
    /// The ten after them.
    traffic: Vec<PrivateKeySigner>,
}

impl DevAccounts {
    fn all(&self) -> Vec<PrivateKeySigner> {
        self.users.iter().chain(&self.traffic).cloned().collect()
    }
}

/// Those of `signers` that have ether.
fn funded(signers: &[PrivateKeySigner], at: &Snapshot) -> Vec<PrivateKeySigner> {
    let has = |signer: &&PrivateKeySigner| {
        at.world.account(&signer.address()).is_some_and(|account| !account.balance.is_zero())
    };
    signers.iter().filter(has).cloned().collect()
}

/// A geth-format genesis. It must have what geth asks for; alloy fills in the rest.
fn parse_genesis(text: &[u8]) -> serde_json::Result<Genesis> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Required {
        #[serde(rename = "config")]
        _config: IgnoredAny,
        #[serde(rename = "alloc")]
        _alloc: IgnoredAny,
        #[serde(rename = "gasLimit")]
        _gas_limit: IgnoredAny,
        #[serde(rename = "difficulty")]
        _difficulty: IgnoredAny,
    }
    serde_json::from_slice::<Required>(text)?;
    serde_json::from_slice(text)
}

fn devnet(
    config: &Config,
    spec: &ChainSpec,
    head: &Snapshot,
    accounts: &DevAccounts,
    trading: Option<TradingWorld>,
) -> Devnet {
    // Rather from accounts that nobody counts on the nonces of.
    let mut signers = funded(&accounts.traffic, head);
    if signers.is_empty() {
        signers = funded(&accounts.users, head);
    }
    let traffic = if config.traffic == 0 {
        None
    } else if spec.next_base_fee(head.head.header.inner(), head.head.number() + 1).is_none() {
        tracing::info!("no background traffic: it pays by EIP-1559, and this chain has not come to London");
        None
    } else if signers.is_empty() {
        tracing::info!("no background traffic: none of the test mnemonic's accounts has funds on this genesis");
        None
    } else {
        Some(Traffic::new(config.traffic, config.traffic_seed, spec.chain_id(), signers, trading))
    };
    Devnet::new(spec.clone(), config.sub_blocks, config.sub_block(), config.fee_recipient, traffic)
}

fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
