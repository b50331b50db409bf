//! A running node: builds its state, starts its actors in order, and stops them in the opposite order.

mod banner;
mod fleet;
mod fork;
mod live;
mod memory;
mod parts;
mod ports;
mod start;
mod state_cache;
mod supervisor;
#[cfg(test)]
mod tests;
mod vitals;

pub use self::{
    banner::Banner,
    memory::configure_memory,
    supervisor::{Watchdog, notify_ready, notify_stopping},
    vitals::Vitals,
};
#[cfg(test)]
pub use self::{
    parts::{pool, wallet},
    start::OwnChain,
};

use std::{
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use actix::{Actor, Addr, Arbiter, System};
use alloy_primitives::Address;
use alloy_signer_local::PrivateKeySigner;
use eyre::{WrapErr, eyre};
use futures::future::join_all;
use tokio::{
    runtime::Runtime,
    sync::{Semaphore, broadcast, mpsc, oneshot},
    task::{JoinHandle, JoinSet},
};

use self::{
    ports::Ports,
    start::{Beginning, Start, begin},
    state_cache::StateCache,
};
use crate::{
    chain::TradingWorld,
    clock::{Clock, SystemClock},
    config::{ApprovalPolicy, Config, StandardReceipts},
    engine::{Beginnings, ConsoleOutput, install_kzg_verifier, load_kzg_settings},
    ledger::{Snapshots, epoch},
    page,
    pool::{DroppedTransaction, PoolDrops},
    rpc::{
        Access, Backend, CLIENT_VERSION, Dispatcher, Filters, FleetAnswers, ForwardedMethods, FrontActor, HttpService,
        IoMemory, IoThreads, Leader, PastStates, RequestLimits, RequestRunner, ServedFiles, ServerConfig, ShapeLimits,
        StartupServer, Stop, Subscriptions, SyncTimeouts, TESTING_VERSION, UpstreamGateway, Waiters, Watches, announce,
        serve_metrics,
    },
    scheduler::{Drain, Executor, ExecutorConfig, WorkerActor},
    source::{
        Feed, StateFeed, StopFeed,
        devnet::world::{Market, TradingPair},
        given::GivenSubBlock,
    },
    state::CodeCache,
    store::{DataDir, Store, StoreError, stored_bytes},
    telemetry::Metrics,
    unix_socket::{self, BoundSocket},
    wallet::{Accounts, ApprovalSocket, Approvals, Impersonated, Sending, Wallet, WalletSender, keys},
    watch::WatchLimits,
};

/// The flag that chooses the path of the Unix socket.
const IPC: &str = "--ipc";
/// The time that requests under way may take to end when the node stops.
const GRACE: Duration = Duration::from_secs(5);

/// A running node. Dropping it stops it.
#[derive(Debug)]
pub struct Node {
    info: NodeInfo,
    snapshots: Arc<Snapshots>,
    metrics: Metrics,
    access: Arc<Access>,
    vitals: Vitals,
    runner: Arc<RequestRunner>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
    /// The threads that talk to an upstream, or to the servers of a fleet.
    beside: Option<Runtime>,
}

/// The reason why a node does not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A setting is unknown or invalid, or conflicts with another. The text names it.
    #[error("{0}")]
    Setting(String),
    /// The address of a port is taken, or not allowed for this process.
    #[error("{0}")]
    Address(String),
    /// The data directory cannot be opened, is used by another node, or holds another chain.
    #[error("{0}")]
    Store(String),
    /// The chain cannot begin: a file cannot be read or is invalid, a block is invalid, the upstream does not answer or is
    /// on another chain, or the system gives no threads.
    #[error("{0}")]
    Chain(String),
}

impl StartError {
    fn of(error: eyre::Report) -> Self {
        let text = format!("{error:#}");
        if error.is::<StoreError>() { Self::Store(text) } else { Self::Chain(text) }
    }
}

impl From<StoreError> for StartError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.to_string())
    }
}

/// The facts about a node that its banner shows.
#[derive(Clone, Debug)]
pub struct NodeInfo {
    /// The address on which it listens, if it does.
    pub listen: Option<SocketAddr>,
    /// The address of its metrics.
    pub metrics: Option<SocketAddr>,
    /// The path of its Unix socket.
    pub ipc: Option<PathBuf>,
    /// The chain id (EIP-155).
    pub chain_id: u64,
    /// The number of the block that it began with.
    pub head: u64,
    /// The funded accounts of the test mnemonic.
    pub accounts: Vec<PrivateKeySigner>,
    /// The contracts of the trading world.
    pub trading: Option<TradingWorld>,
    /// The pairs of the trading world.
    pub pairs: Vec<TradingPair>,
    /// The data directory; `None` if the state ends with the process.
    pub data_dir: Option<PathBuf>,
}

impl NodeInfo {
    /// Returns the address on which it listens, as text.
    pub fn listens_on(&self) -> String {
        self.listen.map_or_else(|| "nowhere".to_owned(), |listen| listen.to_string())
    }

    /// Returns the contracts of the trading world with their names. Empty on a chain without it.
    pub fn contracts(&self) -> Vec<(&'static str, Address)> {
        let Some(world) = self.trading else { return Vec::new() };
        let tokens = [
            ("WETH", world.weth),
            ("ALPHA", world.alpha),
            ("BETA", world.beta),
            ("factory", world.factory),
            ("router", world.router),
        ];
        let pairs = self.pairs.iter().map(|pair| (pair.name, pair.address));
        let load = world.load.map(|load| ("load", load));
        tokens.into_iter().chain(pairs).chain(load).collect()
    }
}

impl Node {
    /// Builds or restores the state for `config`, and starts the node. Returns when it answers requests; until then
    /// `/health` names the current step.
    ///
    /// # Errors
    ///
    /// Returns an error that names the flag if a file cannot be read or is invalid, a block is invalid, or a port is
    /// taken.
    pub fn start(config: Config) -> Result<Self, StartError> {
        Self::start_given(config, None)
    }

    /// Starts the node as [`start`](Self::start) does, on its own chain, which grows by the given sub-blocks if there are any.
    ///
    /// # Errors
    ///
    /// Returns an error as [`start`](Self::start) does.
    pub fn start_given(config: Config, given: Option<mpsc::Receiver<GivenSubBlock>>) -> Result<Self, StartError> {
        let ports = Ports::take(&config).map_err(|error| StartError::Address(format!("{error:#}")))?;
        let metrics = Metrics::default();
        ports.reason().set("it opens its store, and checks it");
        // A fork stores fetched state, but not its own blocks.
        let store = match config.data_dir.as_ref().filter(|_| config.test_chain.fork_url.is_none()) {
            Some(dir) => DataDir::open(dir, config.data_dir_shared).and_then(|dir| Store::open(&dir, &metrics)),
            None => Store::in_memory(&metrics),
        };
        Self::start_with(ports, store?, config, metrics, given).map_err(StartError::of)
    }

    /// Starts the node on an open store.
    ///
    /// # Errors
    ///
    /// Returns an error as [`start`](Self::start) does.
    pub fn start_on(store: Store, config: Config, metrics: Metrics) -> eyre::Result<Self> {
        Self::start_with(Ports::take(&config)?, store, config, metrics, None)
    }

    fn start_with(
        ports: Ports,
        store: Store,
        config: Config,
        metrics: Metrics,
        given: Option<mpsc::Receiver<GivenSubBlock>>,
    ) -> eyre::Result<Self> {
        if let Some(path) = config.ipc() {
            // The socket is made when the node answers, and a problem is reported before the long work.
            unix_socket::check(&path, IPC)?;
        }
        load_kzg_settings_beside();
        let access = Arc::new(Access::new(config.token_file.clone(), config.wallet_token_file.clone())?);
        let reason = &ports.reason();
        reason.set("it reads the keys of its wallet");
        let keyed = keys::load(&config.wallet_key_file, &config.wallet_password_file)?;
        let codes = Arc::new(CodeCache::new(config.code_cache));
        let console = ConsoleOutput::default();
        let beginning =
            Beginning { config: &config, codes: &codes, store: &store, metrics: &metrics, reason, console: &console };
        let mut talking = None;
        let mut cache = None;
        let start = if let Some(servers) = &config.fleet.follow {
            let runtime = talking.insert(talking_threads("presim-fleet")?);
            fleet::follow(beginning, servers, runtime)?
        } else if let Some(endpoint) = &config.live.upstream {
            start::check_foreign(&store)?;
            let runtime = talking.insert(talking_threads("presim-upstream")?);
            let epoch = epoch::take(&store, 0, SystemClock::default().unix())?;
            let (start, stored) = runtime.block_on(live::begin(endpoint, beginning, epoch))?;
            cache = stored;
            match &config.fleet.publish {
                None => start.into(),
                Some(servers) => runtime
                    .block_on(async {
                        let genesis = live::genesis(&start.source.upstream, &config).await;
                        fleet::publish(beginning, servers, start, genesis).await
                    })
                    .wrap_err_with(|| format!("--publish {servers}"))?,
            }
        } else if let Some(endpoint) = &config.test_chain.fork_url {
            let runtime = talking.insert(talking_threads("presim-upstream")?);
            let epoch = epoch::take(&store, 0, SystemClock::default().unix())?;
            let (start, stored) = runtime.block_on(fork::begin(endpoint, beginning, epoch))?;
            cache = stored;
            start
        } else {
            begin(beginning, given)?
        };
        reason.set("it starts its threads");
        let snapshots = start.snapshots.clone();
        let info = NodeInfo {
            listen: ports.front.as_ref().map(StartupServer::address),
            metrics: ports.metrics.as_ref().map(TcpListener::local_addr).transpose()?,
            ipc: config.ipc(),
            chain_id: start.spec.chain_id(),
            head: snapshots.newest().head.number(),
            accounts: if start.builtin { start.accounts.clone() } else { Vec::new() },
            trading: start.trading,
            pairs: start.trading.map_or_else(Vec::new, |world| Market::of(world, &snapshots.newest().world).pairs),
            data_dir: config.data_dir.clone(),
        };
        let contracts = info.contracts();
        let cache = cache.map(Arc::new);
        let parts = Parts { ports, console, config, codes, start, cache, store, keyed, access, metrics, contracts };
        let mut node = Self::spawn(parts, info)?;
        node.beside = talking;
        Ok(node)
    }

    /// Returns the facts for the banner.
    pub const fn info(&self) -> &NodeInfo {
        &self.info
    }

    /// Returns the published snapshots.
    pub const fn snapshots(&self) -> &Arc<Snapshots> {
        &self.snapshots
    }

    /// Returns the metrics.
    pub const fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns the parts that must work, to be checked.
    pub fn vitals(&self) -> Vitals {
        self.vitals.clone()
    }

    /// Returns what its requests run with.
    pub const fn runner(&self) -> &Arc<RequestRunner> {
        &self.runner
    }

    /// Returns the tokens that may use the node, whose files can be read again.
    pub const fn access(&self) -> &Arc<Access> {
        &self.access
    }

    /// Stops accepting, lets requests under way end (for at most 5 s), and returns when everything has stopped.
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
        if let Some(beside) = self.beside.take() {
            beside.shutdown_background();
        }
    }

    fn spawn(parts: Parts, info: NodeInfo) -> eyre::Result<Self> {
        let (snapshots, metrics, access) = (parts.start.snapshots.clone(), parts.metrics.clone(), parts.access.clone());
        let (stop, stopped) = oneshot::channel();
        let (started, ready) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("presim-actors".to_owned()).spawn(move || {
            let system = System::with_tokio_rt(|| {
                // Building a runtime fails only if the system cannot create threads, and there is no way to recover
                // from that.
                tokio::runtime::Builder::new_multi_thread()
                    .enable_all()
                    .thread_name("presim-tasks")
                    .build()
                    .unwrap_or_else(|error| panic!("cannot start the actors' threads: {error}"))
            });
            system.block_on(async move {
                match Actors::start(parts).await {
                    Ok(actors) => {
                        let _ = started.send(Ok((actors.vitals.clone(), actors.runner.clone())));
                        let _ = stopped.await;
                        actors.stop().await;
                    }
                    Err(error) => {
                        let _ = started.send(Err(error));
                    }
                }
            });
        })?;
        let (vitals, runner) =
            ready.recv().map_err(|_| eyre!("the node's threads ended before the start was complete"))??;
        let (stop, thread) = (Some(stop), Some(thread));
        Ok(Self { info, snapshots, metrics, access, vitals, runner, stop, thread, beside: None })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// Returns the threads that communicate with an upstream or the servers of a fleet. They are separate, so that the
/// execution of blocks and calls does not delay them.
fn talking_threads(name: &str) -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().thread_name(name).build()
}

/// Loads the KZG settings on a separate thread. Otherwise the first use of a blob or of the point evaluation precompile
/// would load them within a request, which takes a second.
fn load_kzg_settings_beside() {
    install_kzg_verifier();
    if let Err(error) = std::thread::Builder::new().name("presim-kzg".to_owned()).spawn(load_kzg_settings) {
        tracing::warn!(%error, "the KZG settings are loaded on their first use");
    }
}

/// The parts from which the actors are made.
struct Parts {
    ports: Ports,
    /// The place where the lines of contracts under test go.
    console: ConsoleOutput,
    config: Config,
    codes: Arc<CodeCache>,
    start: Start,
    cache: Option<Arc<StateCache>>,
    store: Store,
    /// The accounts of key files.
    keyed: Vec<PrivateKeySigner>,
    access: Arc<Access>,
    metrics: Metrics,
    /// The contracts of the trading world, by name.
    contracts: Vec<(&'static str, Address)>,
}

/// The running actors.
struct Actors {
    front: Option<Addr<FrontActor>>,
    runner: Arc<RequestRunner>,
    executor: Executor,
    workers: Vec<Addr<WorkerActor>>,
    feed: Addr<StateFeed>,
    feed_thread: Arbiter,
    cache: Option<Arc<StateCache>>,
    approvals: Arc<Approvals>,
    vitals: Vitals,
    socket: Option<ApprovalSocket>,
    /// The task that sends the wallet's transactions to the upstream.
    sender: Option<JoinHandle<()>>,
    /// The answering of requests of the fleet.
    _served: Option<JoinSet<()>>,
}

impl Actors {
    async fn start(parts: Parts) -> eyre::Result<Self> {
        let Parts { ports, console, config, codes, start, cache, store, keyed, access, metrics, contracts } = parts;
        let Start { spec, snapshots, source, sink, testing, accounts, fleet: membership, remote, .. } = start;
        let (executor, workers) = Executor::prepare(
            ExecutorConfig {
                workers: config.workers(),
                queue_short: config.queue_short as usize,
                queue_bundle: config.queue_bundle as usize,
                queue_wait: Duration::from_millis(config.queue_wait_ms),
                overload_wait: config.overload_wait,
                deadline: Duration::from_millis(config.deadline_ms),
            },
            &metrics,
        )?;
        let stall_after = Duration::from_millis(config.worker_stall_ms);
        let workers = workers
            .into_iter()
            .map(|worker| WorkerActor::spawn(worker, executor.clone(), stall_after, &metrics))
            .collect::<Result<Vec<_>, _>>()?;
        let measured = executor.clone();
        tokio::spawn(async move { measured.measure_lanes().await });
        let approvals = Approvals::new(
            config.wallet_max_waiting as usize,
            Duration::from_millis(config.wallet_approval_timeout_ms),
            &metrics,
        );
        let approvals = Arc::new(approvals.with_withdrawn(config.wallet_max_withdrawn as usize, access.token_count()));
        let Ports { front: startup, metrics: metrics_port } = ports;
        let metrics_address = metrics_port.as_ref().map(TcpListener::local_addr).transpose()?;
        let server = ServerConfig { metrics: metrics_address, ..config.server() };
        if let Some(port) = metrics_port {
            let address = port.local_addr()?;
            let (origins, tokens) = (server.origins(address), (!address.ip().is_loopback()).then(|| access.clone()));
            let port = tokio::net::TcpListener::from_std(port)?;
            tokio::spawn(serve_metrics(port, metrics.clone(), origins, tokens));
        }

        if let Some(at) = spec.unexecuted_fork() {
            tracing::warn!("presim does not execute {at}, which the chain has: upgrade presim");
        }
        let lacks_rules = !spec.natives().is_empty();
        let pool = parts::pool(&config, &spec, &snapshots, &store)?;
        tokio::spawn(count_drops(pool.dropped(), PoolDrops::new(&metrics)));
        // The feed executes blocks, so it has a dedicated thread.
        let feed_thread = Arbiter::new();
        let feed = {
            let feed = StateFeed::new(source, Feed::new(snapshots.clone(), sink, pool.clone(), &metrics));
            StateFeed::start_in_arbiter(&feed_thread.handle(), move |_| feed)
        };
        let transports = if config.ipc.is_some() { 3 } else { 2 };
        let connections = transports * config.max_connections as usize;
        let memory = Arc::new(IoMemory::new(config.max_memory_io as usize, connections));
        tokio::spawn(show_sizes(&metrics, config.data_dir.clone(), codes.clone(), memory.clone()));
        let subscriptions = Arc::new(Subscriptions::new(config.max_subscriptions as usize, memory.clone(), &metrics));
        tokio::spawn(announce(subscriptions.clone(), snapshots.clone(), pool.clone(), config.live.late()));
        let signers = Accounts::new(accounts, keyed);
        let sends = !config.wallet_key_file.is_empty();
        // A replica does not send.
        let fetcher =
            remote.as_ref().filter(|_| sends && config.live.upstream.is_some() && config.fleet.follow.is_none());
        let sending = fetcher.and_then(|fetcher| {
            let (upstream, family) = (fetcher.upstream()?, spec.family());
            Some(Arc::new(Sending::new(upstream, fetcher.clone(), config.sending(), family, &metrics)))
        });
        let wallet = parts::wallet(&config, &spec, &codes, &pool, signers, approvals.clone(), store);
        let wallet = Arc::new(Wallet { sending, ..wallet });
        let socket = match &config.data_dir {
            Some(dir) if config.wallet_approval == ApprovalPolicy::Ask || wallet.sending.is_some() => {
                Some(ApprovalSocket::serve(dir, wallet.clone())?)
            }
            _ => None,
        };
        let sender = WalletSender::new(wallet.clone()).map(|sender| tokio::spawn(sender.run()));
        let backend = Arc::new(Backend {
            client_version: if config.testing { TESTING_VERSION } else { CLIENT_VERSION },
            beginnings: Beginnings::new(config.prefix_cache_mb << 20, &metrics),
            spec: Arc::new(spec),
            codes,
            pool,
            impersonated: Impersonated::new(config.testing_limit as usize, config.test_chain.auto_impersonate),
            console: Some(console).filter(|_| config.testing),
            filters: Filters::new(config.max_filters as usize),
            divergences: snapshots.divergences.clone(),
            wallet,
            limits: RequestLimits {
                shape: ShapeLimits {
                    max_blocks: usize::try_from(config.max_blocks).unwrap_or(usize::MAX),
                    max_block_calls: config.max_block_calls,
                    max_search_runs: config.max_search_runs,
                    max_calls: config.max_calls,
                },
                gas_cap: config.gas_cap,
                max_log_blocks: config.max_log_blocks,
                max_logs: config.max_logs as usize,
                late: config.live.late(),
                max_trace: config.max_trace_bytes,
                sync: SyncTimeouts {
                    usual: Duration::from_millis(config.sync_timeout_ms),
                    most: Duration::from_millis(config.max_sync_timeout_ms),
                },
                max_response: config.max_response as usize,
                max_batch: config.max_batch as usize,
            },
            strict_pending: config.strict_pending,
            receipts_wait: config.standard_receipts == StandardReceipts::Latest,
            gas: metrics.counter("presim_gas_simulated_total", "Gas used by simulated calls."),
        });
        let waiters = Waiters::new(config.max_sync_waiters as usize);
        let limits = WatchLimits {
            bundles: config.max_watched,
            bytes: config.watch_mb << 20,
            share: config.watch_share,
            retention: Duration::from_secs(config.watch_keep_s),
        };
        let watches = Watches::new(limits, &executor, subscriptions.clone(), &metrics);
        if let Some(cache) = &cache {
            tokio::spawn(cache.clone().store_regularly());
        }
        let remote = remote.map(|fetcher| {
            tokio::spawn(live::show_remote(&metrics, snapshots.clone()));
            Arc::new(UpstreamGateway {
                fetcher,
                rounds: config.live.upstream_rounds as usize,
                lacks_rules,
                forwarded: ForwardedMethods(config.live.forward.clone()),
                past: PastStates::new((config.live.archive_cache_mb as usize) << 20),
                permits: Semaphore::new((config.live.upstream_concurrency as usize / 2).max(1)),
                executed: metrics.counter(
                    "presim_executed_by_upstream_total",
                    "Requests that the upstream executed, because presim cannot.",
                ),
            })
        });
        let leader = membership.as_ref().map(|membership| Leader::new(membership, sends));
        let runner = RequestRunner::new(backend, executor.clone(), snapshots, waiters, remote, leader);
        let testing = if config.is_of_command { crate::rpc::Testing::Command } else { testing };
        let front = Arc::new(Dispatcher::new(runner, watches, testing, contracts, &metrics));
        let runner = front.services.runner.clone();
        let served = match &membership {
            None => None,
            Some(membership) => {
                let (front, access, memory) = (front.clone(), access.clone(), memory.clone());
                let answers = FleetAnswers::new(front, access, memory, server.clone());
                Some(membership.serve(Arc::new(answers)).await?)
            }
        };
        let files = if config.no_page { ServedFiles::default() } else { page::files(access.needs_token()) };
        let service = HttpService { front, access, config: server, subscriptions, files };
        let front = match startup {
            None => None,
            Some(startup) => {
                let io = IoThreads::start(config.io_threads())?;
                io.run_on_each(|| {
                    let executor = executor.clone();
                    async move { executor.watch_thread().await }
                });
                let port = tokio::task::spawn_blocking(|| startup.hand_over()).await??;
                let port = tokio::net::TcpListener::from_std(port)?;
                let ipc = config.ipc().map(|path| BoundSocket::bind(&path, IPC)?.listen()).transpose()?;
                Some(FrontActor::serve(port, ipc, service, io, memory, &metrics).start())
            }
        };
        let vitals = Vitals { front: front.clone(), workers: workers.clone(), feed: feed.clone() };
        Ok(Self {
            front,
            runner,
            executor,
            workers,
            feed,
            feed_thread,
            cache,
            approvals,
            vitals,
            socket,
            sender,
            _served: served,
        })
    }

    /// Stops the front first, so that no requests arrive, then the lanes and the workers, and then the feed. No request
    /// waits for an approver meanwhile.
    async fn stop(self) {
        self.approvals.stop();
        if let Some(front) = &self.front {
            let _ = front.send(Stop(GRACE)).await;
        }
        let drained = async {
            self.executor.drain().await;
            join_all(self.workers.iter().map(|worker| worker.send(Drain))).await
        };
        if tokio::time::timeout(GRACE, drained).await.is_err() {
            tracing::warn!("stopping although some requests have not ended");
        }
        drop(self.socket);
        if let Some(sender) = self.sender {
            // The task can be aborted at any point, because the waiting transactions are on disk and are sent after the
            // next start.
            sender.abort();
            let _ = sender.await;
        }
        let _ = self.feed.send(StopFeed).await;
        self.feed_thread.stop();
        // The feed's thread holds the store until it has ended.
        let _ = tokio::task::spawn_blocking(|| self.feed_thread.join()).await;
        if let Some(cache) = &self.cache {
            cache.store().await;
        }
    }
}

/// Updates at intervals the metrics of the bytes of the bytecode cache, of connections, and of the files in the data
/// directory.
fn show_sizes(
    metrics: &Metrics,
    data_dir: Option<PathBuf>,
    codes: Arc<CodeCache>,
    memory: Arc<IoMemory>,
) -> impl Future<Output = ()> + use<> {
    let gauge = |kind| metrics.gauge_with("presim_code_cache_bytes", "Bytes of analysed bytecode.", &[("kind", kind)]);
    let (chain, overrides) = (gauge("chain"), gauge("override"));
    let io = metrics.gauge("presim_io_memory_bytes", "Bytes of bodies, answers and unsent notifications.");
    let stored = data_dir.map(|dir| {
        let help = "Bytes of the files in the data directory.";
        let gauges =
            stored_bytes(&dir).map(|(file, _)| metrics.gauge_with("presim_store_bytes", help, &[("file", file)]));
        (dir, gauges)
    });
    async move {
        let mut ticks = tokio::time::interval(Metrics::SIZE_INTERVAL);
        loop {
            ticks.tick().await;
            let [chain_bytes, override_bytes] = codes.bytes();
            chain.set(chain_bytes as f64);
            overrides.set(override_bytes as f64);
            io.set(memory.held() as f64);
            if let Some((dir, gauges)) = &stored {
                for ((_, bytes), gauge) in stored_bytes(dir).into_iter().zip(gauges) {
                    gauge.set(bytes as f64);
                }
            }
        }
    }
}

/// Counts the acknowledged transactions that leave the pool without being mined.
async fn count_drops(mut dropped: broadcast::Receiver<DroppedTransaction>, drops: PoolDrops) {
    loop {
        match dropped.recv().await {
            Ok(DroppedTransaction { hash, reason }) => drops.count(hash, reason),
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}
