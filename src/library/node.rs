//! The embedded node.

use std::{io, sync::Arc, thread, time::Instant};

use alloy_primitives::{Address, B256, U256};
use bytestring::ByteString;
use revm::{Database, context::result::ExecutionResult};
use tokio::sync::{mpsc, oneshot};

use super::{
    config::Config,
    feeder::{Feeder, WAITING},
    requests::{Account, CallOutput, Search, Snapshot},
    run::{Error, Run},
    watch::Watch,
};
use crate::{
    config::{Config as Settings, FeedName},
    engine::{CallOutcome, CallRequest, Engine, Simulated, Simulation, SimulationError},
    ledger::{Snapshot as LedgerSnapshot, Snapshots},
    node::{self, NodeInfo, StartError},
    rpc::{Backend, dialect::PRESIM},
    scheduler::{ClientShare, LaneName, RunTarget, TaskName},
    search::{BegunSearch, RunRate, SearchOutcome, Searcher},
    source::given::GivenSubBlock,
};

/// A running node inside of this program.
///
/// It starts its own threads: for the feed, for simulations, and to follow another node if it does. Several nodes may
/// run in one process. They share the allocator, the cache of Keccak hashes, the settings of KZG
/// proofs, and the cryptography of TLS. Its metrics are its own; its logs go to the program's subscriber of `tracing`.
///
/// Dropping a node stops it in the background; [`stop`](Self::stop) waits until it has stopped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use alloy_primitives::{U256, address};
/// use presim::{Config, Node, simulation::{Call, CallOutcome, SimBlock, Simulation}};
///
/// let node = Node::start(Config::default()).await?;
/// // The first account of the published test mnemonic, which the devnet funds.
/// let from = address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266");
/// let call = Call::to(from.create(0)).with_from(from).with_value(U256::from(1));
/// let simulated = node.simulate(&Simulation::of([SimBlock::of([call])])).await?;
/// assert_eq!(simulated.blocks[0].calls[0].outcome, CallOutcome::Success);
/// node.stop().await;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Node {
    /// Present until the node stops.
    inner: Option<node::Node>,
    /// The program as the scheduler sees it: one client among the clients of the network.
    share: Arc<ClientShare>,
    /// The maximum number of variants of a search.
    max_search_runs: usize,
}

/// The target of a short run: the calling thread for some hundreds of microseconds, then a worker.
const LOOK_UP: RunTarget = RunTarget::InlineThen(LaneName::Short);
/// The target of a bundle, so that several bundles of one thread run in parallel.
const ON_WORKER: RunTarget = RunTarget::On(LaneName::Bundle);

impl Node {
    /// Starts a node. The work is done on other threads, so the caller may be inside of any runtime.
    ///
    /// # Errors
    ///
    /// Returns a [`StartError`] if a setting is invalid, an address is taken, the data directory cannot be used, or the chain
    /// cannot begin.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        on_thread(move || Self::start_blocking(config)).await
    }

    /// Starts a node whose chain grows by the sub-blocks that the program gives, from the state that the settings name: the
    /// devnet's, or a genesis.
    ///
    /// # Errors
    ///
    /// Returns a [`StartError`] as [`start`](Self::start) does, and if the settings name another source of blocks.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (node, mut feeder) = presim::Node::start_fed(presim::Config::default()).await?;
    /// let before = node.snapshot();
    /// feeder.push([], true).await?;
    /// assert_eq!(node.snapshot().sealed().0, before.sealed().0 + 1);
    /// # Ok(node.stop().await) }
    /// ```
    pub async fn start_fed(config: Config) -> Result<(Self, Feeder), StartError> {
        on_thread(move || {
            let settings = config.with("traffic", 0).settings()?;
            let other = [
                ("upstream", settings.live.upstream.is_some()),
                ("follow", settings.fleet.follow.is_some()),
                ("testing", settings.testing),
                ("feed", settings.feed() == FeedName::Static),
            ];
            if let Some((flag, _)) = other.iter().find(|(_, is_set)| *is_set) {
                let text = format!("--{flag}: the sub-blocks of this node are given: leave it out");
                return Err(StartError::Setting(text));
            }
            let (sender, given) = mpsc::channel(WAITING);
            Ok((Self::begin(settings, Some(given))?, Feeder(sender)))
        })
        .await
    }

    /// Starts a node on the calling thread, which must not be one of an asynchronous runtime.
    ///
    /// # Errors
    ///
    /// Returns a [`StartError`] as [`start`](Self::start) does.
    ///
    /// ```
    /// let node = presim::Node::start_blocking(presim::Config::default())?;
    /// println!("chain {}", node.chain_id());
    /// # Ok::<_, presim::StartError>(())
    /// ```
    pub fn start_blocking(config: Config) -> Result<Self, StartError> {
        Self::begin(config.settings()?, None)
    }

    fn begin(settings: Settings, given: Option<mpsc::Receiver<GivenSubBlock>>) -> Result<Self, StartError> {
        let max_search_runs = settings.max_search_runs;
        let inner = node::Node::start_given(settings, given)?;
        Ok(Self { inner: Some(inner), share: ClientShare::new(), max_search_runs })
    }

    /// Stops the node: lets requests under way end (for at most 5 s), commits everything that was acknowledged, and returns when all its
    /// threads have ended.
    pub async fn stop(mut self) {
        let Some(inner) = self.inner.take() else { return };
        let (tell, stopped) = oneshot::channel();
        let stop = move || {
            inner.stop();
            let _ = tell.send(());
        };
        // Without a thread, the node is dropped here, which stops it as well.
        if spawn(stop).is_ok() {
            let _ = stopped.await;
        }
    }

    pub(crate) fn snapshots(&self) -> &Arc<Snapshots> {
        self.inner().snapshots()
    }

    fn inner(&self) -> &node::Node {
        // Only `stop` and `drop`, which consume the node, take it.
        self.inner.as_ref().unwrap_or_else(|| unreachable!("the node runs until it is consumed"))
    }

    fn info(&self) -> &NodeInfo {
        self.inner().info()
    }

    /// Returns the id of the chain (EIP-155).
    #[must_use]
    pub fn chain_id(&self) -> u64 {
        self.info().chain_id
    }

    /// Returns the address on which it listens, if it does.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = presim::Config::default().listen(([127, 0, 0, 1], 0).into());
    /// let node = presim::Node::start(config).await?;
    /// // With port 0, the system has chosen a port.
    /// println!("http://{}", node.listens_on().ok_or("it listens")?);
    /// # Ok(node.stop().await) }
    /// ```
    #[must_use]
    pub fn listens_on(&self) -> Option<std::net::SocketAddr> {
        self.info().listen
    }

    /// Returns the contracts of the devnet's trading world with their names: `WETH`, `ALPHA`, `BETA`, `factory`, `router` and
    /// the pairs. Empty on another chain.
    #[must_use]
    pub fn contracts(&self) -> Vec<(&'static str, Address)> {
        self.info().contracts()
    }

    /// Returns its metrics in Prometheus' text format.
    ///
    /// ```
    /// let node = presim::Node::start_blocking(presim::Config::default())?;
    /// assert!(node.metrics().contains("# TYPE presim_"));
    /// # Ok::<_, presim::StartError>(())
    /// ```
    #[must_use]
    pub fn metrics(&self) -> String {
        self.inner().metrics().render()
    }

    /// Returns the newest snapshot, by one atomic load.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.snapshots().settled())
    }

    /// Returns a stream of the snapshots from now on.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch::new(self.snapshots())
    }

    /// Runs a call on the newest snapshot, as `eth_call` does, and discards its changes.
    ///
    /// # Errors
    ///
    /// Returns an [`Error`] if the call is refused or did not run. A call that reverts has a result.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use presim::simulation::{Call, CallRequest};
    ///
    /// let node = presim::Node::start(presim::Config::default()).await?;
    /// let (_, weth) = node.contracts()[0];
    /// let symbol = Call::to(weth).with_data([0x95, 0xd8, 0x9b, 0x41]);
    /// let output: presim::CallOutput = node.call(&CallRequest { call: symbol, ..CallRequest::default() }).await?;
    /// assert!(output.data.windows(4).any(|bytes| bytes == b"WETH"));
    /// # Ok(node.stop().await) }
    /// ```
    pub async fn call(&self, request: &CallRequest) -> Result<CallOutput, Error> {
        self.call_from(None, request).await
    }

    /// Runs a call on a snapshot of this node.
    ///
    /// # Errors
    ///
    /// Returns an [`Error`] as [`call`](Self::call) does.
    pub async fn call_on(&self, snapshot: &Snapshot, request: &CallRequest) -> Result<CallOutput, Error> {
        self.call_from(Some(snapshot), request).await
    }

    async fn call_from(&self, snapshot: Option<&Snapshot>, request: &CallRequest) -> Result<CallOutput, Error> {
        let request = request.clone();
        let work = move |_: &Backend, engine: &mut Engine<'_>, snapshot: &Arc<LedgerSnapshot>| {
            engine.call(snapshot.header(), &request)
        };
        let ran = self.run(snapshot, &"a call", LOOK_UP, work).await?;
        Ok(CallOutput {
            outcome: match &ran {
                ExecutionResult::Success { .. } => CallOutcome::Success,
                ExecutionResult::Revert { .. } => CallOutcome::Revert,
                ExecutionResult::Halt { reason, .. } => CallOutcome::Halt(reason.clone()),
            },
            gas_used: ran.tx_gas_used(),
            data: ran.output().cloned().unwrap_or_default(),
            logs: ran.into_logs(),
        })
    }

    /// Simulates a bundle on the newest snapshot, where it would be included, as `presim_simulate` does at `pending`.
    ///
    /// # Errors
    ///
    /// Returns an [`Error`] if a call is refused, or if the simulation did not run. A call that reverts has a result.
    pub async fn simulate(&self, simulation: &Simulation) -> Result<Simulated, Error> {
        self.simulate_from(None, simulation).await
    }

    /// Simulates a bundle on a snapshot of this node.
    ///
    /// # Errors
    ///
    /// Returns an [`Error`] as [`simulate`](Self::simulate) does.
    pub async fn simulate_on(&self, snapshot: &Snapshot, simulation: &Simulation) -> Result<Simulated, Error> {
        self.simulate_from(Some(snapshot), simulation).await
    }

    async fn simulate_from(&self, snapshot: Option<&Snapshot>, simulation: &Simulation) -> Result<Simulated, Error> {
        let simulation = Arc::new(simulation.clone());
        let work = move |backend: &Backend, engine: &mut Engine<'_>, snapshot: &Arc<LedgerSnapshot>| {
            let simulated = backend.beginnings.simulate(engine, None, snapshot, &simulation)?;
            backend.gas.increment(simulated.gas_used);
            Ok(simulated)
        };
        self.run(snapshot, &"a simulation", ON_WORKER, work).await
    }

    /// Searches for the values of a bundle that optimise an objective, on the newest snapshot. At the deadline, the outcome
    /// has the best variants so far.
    ///
    /// # Errors
    ///
    /// Returns an [`Error`] if the search varies something that its bundle does not have, if its values are not in order or
    /// more than the setting `max-search-runs`, if what all variants begin with is refused, or if it did not run.
    pub async fn search(&self, search: &Search) -> Result<SearchOutcome, Error> {
        self.search_from(None, search).await
    }

    /// Searches on a snapshot of this node.
    ///
    /// # Errors
    ///
    /// Returns an [`Error`] as [`search`](Self::search) does.
    pub async fn search_on(&self, snapshot: &Snapshot, search: &Search) -> Result<SearchOutcome, Error> {
        self.search_from(Some(snapshot), search).await
    }

    async fn search_from(&self, snapshot: Option<&Snapshot>, search: &Search) -> Result<SearchOutcome, Error> {
        search.check(self.max_search_runs)?;
        let search = Arc::new(search.0.clone());
        let work = move |_: &Backend, engine: &mut Engine<'_>, snapshot: &Arc<LedgerSnapshot>| {
            BegunSearch::begin(engine, snapshot, &search).map(Arc::new)
        };
        let runner = self.inner().runner();
        let (arrived, ticket) = (Instant::now(), runner.host.executor.ticket(&self.share));
        let begun = self.run(snapshot, &"a search", ON_WORKER, work).await?;
        // As for a client's search, a fifth of the time is left for the outputs.
        let stops = arrived + ticket.deadline().saturating_duration_since(arrived).mul_f64(0.8);
        let searcher = Searcher {
            host: runner.host.clone(),
            rules: runner.backend.rules(&PRESIM),
            ticket,
            stops,
            params: ByteString::new(),
            lane: LaneName::Bundle,
        };
        let outcome = searcher.finish(&begun, &Unbounded, Ok::<_, crate::search::SearchError>).await?;
        runner.backend.gas.increment(outcome.gas_used);
        Ok(outcome)
    }

    /// Returns an account on the newest snapshot. One that does not exist is empty.
    ///
    /// # Errors
    ///
    /// Returns an [`Error`] if the account could not be fetched from the upstream.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use alloy_primitives::{U256, address};
    /// use presim::{Account, Config, Node};
    ///
    /// let node = Node::start(Config::default()).await?;
    /// let alice = address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266");
    /// let Account { balance, nonce, code } = node.account(alice).await?;
    /// println!("{balance} wei, nonce {nonce}, {} bytes of code", code.len());
    /// let slot = node.storage(alice, U256::ZERO).await?;
    /// assert!(code.is_empty() && slot.is_zero());
    /// # Ok(node.stop().await) }
    /// ```
    pub async fn account(&self, address: Address) -> Result<Account, Error> {
        self.account_from(None, address).await
    }

    /// Returns an account on a snapshot of this node.
    ///
    /// # Errors
    ///
    /// Returns an [`Error`] as [`account`](Self::account) does.
    pub async fn account_on(&self, snapshot: &Snapshot, address: Address) -> Result<Account, Error> {
        self.account_from(Some(snapshot), address).await
    }

    async fn account_from(&self, snapshot: Option<&Snapshot>, address: Address) -> Result<Account, Error> {
        let work = move |_: &Backend, engine: &mut Engine<'_>, _: &Arc<LedgerSnapshot>| {
            let Ok(info) = engine.overlay.basic(address);
            let info = info.unwrap_or_default();
            let code = info.code.map(|code| code.original_bytes()).unwrap_or_default();
            Ok(Account { balance: info.balance, nonce: info.nonce, code })
        };
        self.run(snapshot, &"an account", LOOK_UP, work).await
    }

    /// Returns the value of a storage slot on the newest snapshot.
    ///
    /// # Errors
    ///
    /// Returns an [`Error`] if the slot could not be fetched from the upstream.
    pub async fn storage(&self, address: Address, slot: U256) -> Result<B256, Error> {
        self.storage_from(None, address, slot).await
    }

    /// Returns the value of a storage slot on a snapshot of this node.
    ///
    /// # Errors
    ///
    /// Returns an [`Error`] as [`storage`](Self::storage) does.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use alloy_primitives::U256;
    /// use presim::{Config, Node, simulation::CallRequest};
    ///
    /// let node = Node::start(Config::default()).await?;
    /// let (_, weth) = node.contracts()[0];
    /// let snapshot = node.snapshot();
    /// // All three are of one state, even if the chain has grown in between.
    /// let balance = node.account_on(&snapshot, weth).await?.balance;
    /// let slot = node.storage_on(&snapshot, weth, U256::ZERO).await?;
    /// let output = node.call_on(&snapshot, &CallRequest::default()).await?;
    /// println!("block {}: {balance} {slot} {:?}", snapshot.header().number, output.outcome);
    /// # Ok(node.stop().await) }
    /// ```
    pub async fn storage_on(&self, snapshot: &Snapshot, address: Address, slot: U256) -> Result<B256, Error> {
        self.storage_from(Some(snapshot), address, slot).await
    }

    async fn storage_from(&self, snapshot: Option<&Snapshot>, address: Address, slot: U256) -> Result<B256, Error> {
        let work = move |_: &Backend, engine: &mut Engine<'_>, _: &Arc<LedgerSnapshot>| {
            let Ok(value) = engine.overlay.storage(address, slot);
            Ok(value.into())
        };
        self.run(snapshot, &"a slot", LOOK_UP, work).await
    }

    async fn run<T: Send + 'static>(
        &self,
        snapshot: Option<&Snapshot>,
        name: TaskName,
        target: RunTarget,
        work: impl Fn(&Backend, &mut Engine<'_>, &Arc<LedgerSnapshot>) -> Result<T, SimulationError>
        + Clone
        + Send
        + Sync
        + 'static,
    ) -> Result<T, Error> {
        let runner = self.inner().runner();
        let (host, backend) = (runner.host.clone(), runner.backend.clone());
        let run = Run {
            rules: backend.rules(&PRESIM),
            snapshot: snapshot.map_or_else(|| host.snapshots.settled(), |snapshot| snapshot.0.clone()),
            follows: snapshot.is_none(),
            host,
            backend,
            name,
            target,
            work,
        };
        let (executor, source) = (&runner.host.executor, &runner.host.source);
        Ok(executor.submit(run, executor.ticket(&self.share), source.as_ref()).await??)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            // Without a thread, the node stops here.
            let _ = spawn(move || inner.stop());
        }
    }
}

/// The rate of a search inside of the process, which has none.
#[derive(Clone)]
struct Unbounded;

impl RunRate for Unbounded {
    fn try_draw(&self) -> bool {
        true
    }

    async fn draw(&self, _: usize, _: Instant) -> bool {
        true
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("presim-node".to_owned()).spawn(work).map(drop)
}

/// Runs a start on a new thread. If the caller does not wait any more, the node is dropped, and so stops.
async fn on_thread<T: Send + 'static>(
    start: impl FnOnce() -> Result<T, StartError> + Send + 'static,
) -> Result<T, StartError> {
    let (tell, started) = oneshot::channel();
    spawn(move || drop(tell.send(start())))
        .map_err(|error| StartError::Chain(format!("the system gives no thread: {error}")))?;
    started.await.map_err(|_| StartError::Chain("the thread that starts the node has panicked".to_owned()))?
}
