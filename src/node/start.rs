//! The chain that a node begins with: new, or restored from the store.

use std::{path::Path, sync::Arc, time::Duration};

use alloy_genesis::Genesis;
use alloy_primitives::{B256, U256, keccak256, utils::Unit};
use alloy_signer_local::PrivateKeySigner;
use eyre::{WrapErr, bail};
use serde::de::IgnoredAny;
use tokio::sync::mpsc;

use crate::{
    chain::{
        BlockHashes, ChainSpec, LiftedRules, TradingWorld, first_changed, genesis_block, set_forks, set_newest_fork,
    },
    clock::{Clock, SystemClock},
    config::{Config, FeedName},
    engine::ConsoleOutput,
    fleet::Membership,
    ledger::{FeedState, Record, Snapshot, SnapshotId, Snapshots, epoch},
    objects::{self, ObjectsOnly},
    publish::{
        Change, Sink,
        journal::{ChainIdentity, Journal},
    },
    rpc::{StartupReason, Testing},
    source::{
        FeedSource, Still, chain_file,
        devnet::{
            Devnet, DevnetSource, Traffic,
            world::{self, Market},
        },
        given::{GivenSource, GivenSubBlock},
        testing::{ChainControl, Mining, TestingSource, state_file::StateFile},
    },
    state::{CodeCache, LocalWorld},
    store::{Store, StoreError},
    telemetry::Metrics,
    upstream::Fetcher,
};

/// The parts of a node that its chain needs to begin.
#[derive(Clone, Copy)]
pub struct Beginning<'a> {
    pub config: &'a Config,
    pub codes: &'a Arc<CodeCache>,
    pub store: &'a Store,
    pub metrics: &'a Metrics,
    /// The step of the start, as `/health` shows it.
    pub reason: &'a StartupReason,
    /// The place where the lines of contracts under test go.
    pub console: &'a ConsoleOutput,
}

/// The chain that a node begins with.
pub struct Start {
    pub spec: ChainSpec,
    pub snapshots: Arc<Snapshots>,
    pub source: Box<dyn FeedSource>,
    /// The sink that takes each change of the source before it is visible.
    pub sink: Option<Box<dyn Sink>>,
    /// The scope of the methods for testing.
    pub testing: Testing,
    /// The accounts that the node signs for.
    pub accounts: Vec<PrivateKeySigner>,
    /// Whether the chain is the built-in devnet.
    pub builtin: bool,
    pub trading: Option<TradingWorld>,
    /// The fleet, if the node is in one.
    pub fleet: Option<Membership>,
    /// The fetcher of the state that the node does not have, on an upstream's chain.
    pub remote: Option<Arc<Fetcher>>,
}

impl Start {
    /// Returns the start on a chain without accounts of the node and without methods for testing, outside of a fleet.
    pub fn of_foreign(spec: ChainSpec, snapshots: impl Into<Arc<Snapshots>>, source: Box<dyn FeedSource>) -> Self {
        Self {
            spec,
            snapshots: snapshots.into(),
            source,
            sink: None,
            testing: Testing::Off,
            accounts: Vec::new(),
            builtin: false,
            trading: None,
            fleet: None,
            remote: None,
        }
    }
}

/// A chain of presim's own, up to its newest sub-block, before anything runs.
pub struct OwnChain {
    /// The rules of the chain.
    pub spec: ChainSpec,
    /// The published snapshots.
    pub snapshots: Snapshots,
    /// The devnet that builds the chain. `None` if the chain is static.
    pub devnet: Option<DevnetSource>,
    /// The journal of the devnet's changes, if the store is durable. Every snapshot is on disk before it is visible.
    pub journal: Option<Journal>,
    /// The accounts that the node signs for.
    pub accounts: Vec<PrivateKeySigner>,
    /// Whether the chain is the built-in devnet.
    pub builtin: bool,
    /// The addresses of the trading world's contracts; `None` on a chain without them.
    pub trading: Option<TradingWorld>,
}

impl OwnChain {
    /// Creates the chain that `config` names, or restores it from `store`. Its blocks have the time of `clock`.
    ///
    /// # Errors
    ///
    /// Returns an error that names the flag if a file cannot be read or is invalid, a block is invalid, or the store
    /// holds another chain.
    pub fn begin(
        config: &Config,
        codes: &Arc<CodeCache>,
        store: &Store,
        reason: &StartupReason,
        clock: Arc<dyn Clock>,
    ) -> eyre::Result<Self> {
        let (identity, snapshots, journal) = origin(config, codes, store, reason, &*clock)?;
        let accounts = DevAccounts::derive(config)?;
        let spec = rules(config, &identity, snapshots.newest().header().timestamp)?;
        let head = snapshots.newest();
        let (builtin, trading) = (identity.builtin, identity.trading);
        // Nothing is mined on a static chain, so no account of the node is offered to send from.
        let (devnet, accounts) = match config.feed() {
            FeedName::Static => (None, Vec::new()),
            FeedName::Devnet => {
                if let Some(at) = spec.unexecuted_fork() {
                    let name = at.fork;
                    bail!(
                        "the chain's rules have {at}, which presim does not execute: give --fork {name}=never, or a newer presim"
                    );
                }
                let mut devnet = devnet(config, &spec, &head, &accounts, identity.trading, clock);
                if let Some(timestamp) = config.test_chain.timestamp {
                    devnet.set_time(timestamp);
                }
                if head.open.is_none() {
                    let first = devnet.first(&head).wrap_err("the first block cannot be opened")?;
                    let first = first.into();
                    if let Some(journal) = &journal {
                        journal.write(Change::of(&snapshots.load(), snapshots.next_id(), &first))?;
                    }
                    snapshots.apply(first)?;
                }
                (Some(DevnetSource::new(devnet, config.sub_block())), funded(&accounts.users, &head))
            }
        };
        let journal = journal.filter(|_| devnet.is_some());
        Ok(Self { spec, snapshots, devnet, journal, accounts, builtin, trading })
    }

    /// Returns the sink that takes each change of the devnet before it is visible.
    pub fn sink(&self) -> Option<Box<dyn Sink>> {
        Some(Box::new(self.journal.clone()?))
    }
}

/// Creates the chain that `config` names, or restores it from `store`. Its next change begins a new epoch.
///
/// # Errors
///
/// Returns an error as [`OwnChain::begin`] does.
fn origin(
    config: &Config,
    codes: &Arc<CodeCache>,
    store: &Store,
    reason: &StartupReason,
    clock: &dyn Clock,
) -> eyre::Result<(ChainIdentity, Snapshots, Option<Journal>)> {
    let accounts = DevAccounts::derive(config)?;
    let journal = store.is_durable().then(|| Journal::new(store.clone(), u64::from(config.keep_blocks)));
    let known = if store.is_durable() { ChainIdentity::read(store)? } else { None };
    reason.set(match (&known, &config.chain) {
        (_, Some(_)) => "it imports the blocks of --chain",
        (Some(_), None) => "it takes up the chain of its store",
        (None, None) => "it builds its first block",
    });
    let (identity, snapshots) = match (known, &journal) {
        (Some(identity), Some(journal)) => {
            let (identity, snapshots) = resume(config, codes, &accounts, store, identity, journal)?;
            let epoch = epoch::take(store, snapshots.load().last.epoch(), clock.unix())?;
            snapshots.update(|chain| chain.begin_epoch(epoch));
            (identity, snapshots)
        }
        (_, journal) => {
            let epoch = epoch::after(0, clock.unix());
            let (identity, snapshots) =
                found(config, codes, &accounts, clock.unix().as_secs(), SnapshotId::begin(epoch))?;
            if let Some(journal) = journal {
                let (published, head) = (snapshots.load(), snapshots.newest());
                let blocks = (0..=head.head.number()).filter_map(|number| published.sealed_block(number));
                journal.found(&identity, blocks.collect(), &head)?;
                snapshots.update(|chain| chain.set_archive(journal.keeper()));
                epoch::record(store, epoch)?;
            }
            (identity, snapshots)
        }
    };
    Ok((identity, snapshots, journal))
}

/// Returns the chain for `config`, up to its newest sub-block. The sub-blocks after it are the given ones, if there are any.
///
/// # Errors
///
/// Returns an error as [`OwnChain::begin`] does.
pub fn begin(beginning: Beginning<'_>, given: Option<mpsc::Receiver<GivenSubBlock>>) -> eyre::Result<Start> {
    let Beginning { config, codes, store, reason, console, .. } = beginning;
    let clock = Arc::new(SystemClock::default());
    let chain = OwnChain::begin(config, codes, store, reason, clock)?;
    let sink = chain.sink();
    let OwnChain { spec, snapshots, devnet, accounts, builtin, trading, .. } = chain;
    let (source, testing): (Box<dyn FeedSource>, _) = match devnet {
        Some(devnet) if let Some(given) = given => (Box::new(GivenSource { devnet, given }), Testing::Off),
        None => (Box::new(Still), if config.testing { Testing::Static } else { Testing::Off }),
        Some(mut source) if config.testing => {
            source.console = Some(console.clone());
            let (source, control) = testing_source(config, source, &snapshots, codes);
            (Box::new(source), Testing::Devnet(control))
        }
        Some(source) => (Box::new(source), Testing::Off),
    };
    Ok(Start { sink, testing, accounts, builtin, trading, ..Start::of_foreign(spec, snapshots, source) })
}

/// Returns the source of a chain under test that `devnet` builds, and its handle.
pub fn testing_source(
    config: &Config,
    devnet: DevnetSource,
    snapshots: &Snapshots,
    codes: &Arc<CodeCache>,
) -> (TestingSource, ChainControl) {
    let mining = match (config.interval(), config.no_mining) {
        (Some(interval), _) => Mining::Interval(interval),
        (None, true) => Mining::OnRequest,
        (None, false) => Mining::OnArrival,
    };
    let sub_block = config.has_sub_blocks().then(|| Duration::from_millis(config.sub_block_ms.unwrap_or(200)));
    TestingSource::new(devnet, snapshots.load(), mining, sub_block, codes.clone(), config.testing_limit)
}

/// Returns the rules that a chain under test lifts.
pub fn lifted(config: &Config) -> LiftedRules {
    let chain = &config.test_chain;
    LiftedRules {
        contracts_may_send: true,
        any_tx_gas: (config.genesis.is_none() || chain.fork_url.is_some()) && !chain.enable_tx_gas_limit,
        code_size: chain.code_size(),
    }
}

/// Reads a state that a chain under test begins with.
///
/// # Errors
///
/// Returns an error that names the file if it cannot be read, or has no state.
pub fn state_file(path: &Path) -> eyre::Result<StateFile> {
    let file = || format!("the state {}", path.display());
    StateFile::read(&std::fs::read(path).wrap_err_with(file)?).wrap_err_with(file)
}

/// Returns the rules of a chain whose newest block has this timestamp.
///
/// # Errors
///
/// Returns an error if the chain's `config` has forks that presim does not know.
pub fn rules(config: &Config, identity: &ChainIdentity, timestamp: u64) -> eyre::Result<ChainSpec> {
    let mut spec = ChainSpec::new(identity.config.clone(), config.block_time())?;
    let prescribed = spec.prescribed_block_time(timestamp);
    if let (FeedName::Static, None, Some(prescribed)) = (config.feed(), config.block_time, prescribed) {
        spec = spec.with_block_time(prescribed);
    }
    if config.testing {
        spec = spec.with_lifted(lifted(config));
    }
    if let Some(world) = &identity.trading {
        spec = spec.with_wrapper(world.weth);
    }
    Ok(spec)
}

/// Refuses a store that holds a chain of presim's own, if an upstream's is to be followed.
pub fn check_foreign(store: &Store) -> eyre::Result<()> {
    if store.is_durable() && ChainIdentity::read(store)?.is_some() {
        let text = "it holds a chain of presim's own, and --upstream follows another: give another --data-dir";
        return Err(store.foreign(text).into());
    }
    Ok(())
}

/// Creates the chain of `config`: its genesis, and the blocks of a file on it.
/// A chain without a genesis file begins at the time `now`, in Unix seconds. Its first snapshot has this id.
fn found(
    config: &Config,
    codes: &CodeCache,
    accounts: &DevAccounts,
    now: u64,
    id: SnapshotId,
) -> eyre::Result<(ChainIdentity, Snapshots)> {
    let given = config.genesis.as_deref().map(read_genesis).transpose()?;
    let builtin = given.is_none();
    let (mut genesis, genesis_file) = match given {
        Some((genesis, hash)) => (genesis, Some(hash)),
        None => (built_in_genesis(config, accounts, now)?, None),
    };
    set_forks(&mut genesis.config, &config.fork)?;
    if builtin {
        world::add_contracts_of_forks(&mut genesis);
    }
    let spec = ChainSpec::new(genesis.config.clone(), config.block_time())?;
    let (state, trading) = if config.has_world() {
        let (state, trading) = world::build(&genesis, &spec, &accounts.all(), codes)?;
        (state, Some(trading))
    } else {
        (LocalWorld::of_genesis(&genesis, codes), None)
    };
    let block = genesis_block(&genesis, &spec, state.state_root_in_parallel());
    let hash = block.hash();
    let mut hashes = BlockHashes::default();
    hashes.push(block.number(), hash);
    let mut first = Snapshot::at_head(state, Arc::new(block), hashes);
    first.id = id;
    let base = Snapshot::at_head(first.world.clone(), first.head.clone(), first.hashes.clone());
    let snapshots = Snapshots::new(first, feed_state(config), config.retention());
    let mut chain_file = None;
    if let Some(file) = &config.chain {
        let mut sealed = Ok(());
        let head = chain_file::import(&spec, base, file, |snapshot| {
            let copy = Snapshot::at_head(snapshot.world.clone(), snapshot.head.clone(), snapshot.hashes.clone());
            if sealed.is_ok() {
                sealed = snapshots.apply(Record::Seal { sealed: copy, next: None }).map(drop);
            }
        })
        .wrap_err_with(|| format!("--chain {}", file.display()))?;
        sealed.wrap_err_with(|| format!("--chain {}", file.display()))?;
        tracing::info!(head = head.head.number(), hash = %head.head_hash(), "imported");
        chain_file = Some(file_hash(file, "--chain")?);
    }
    let founded = snapshots.newest().head.number();
    let identity = ChainIdentity::new(hash, genesis_file, chain_file, founded, genesis.config, trading);
    Ok((identity, snapshots))
}

/// Returns the genesis of the built-in devnet, which begins at `now`, in Unix seconds, or the genesis of the chain
/// under test that the settings describe.
fn built_in_genesis(config: &Config, accounts: &DevAccounts, now: u64) -> eyre::Result<Genesis> {
    let chain = &config.test_chain;
    let mut genesis = world::dev_genesis(&accounts.all(), chain.timestamp.unwrap_or(now));
    if !config.testing {
        return Ok(genesis);
    }
    genesis.gas_limit = chain.block_gas();
    genesis.base_fee_per_gas = chain.base_fee.map(u128::from).or(genesis.base_fee_per_gas);
    genesis.config.chain_id = chain.chain_id.unwrap_or(genesis.config.chain_id);
    if let Some(newest) = chain.hardfork {
        set_newest_fork(&mut genesis.config, newest);
    }
    let balance = Unit::ETHER.wei() * U256::from(chain.balance);
    for user in &accounts.users {
        genesis.alloc.entry(user.address()).or_default().balance = balance;
    }
    if let Some(path) = chain.loaded_state() {
        genesis.alloc.extend(state_file(path)?.accounts());
    }
    Ok(genesis)
}

/// Restores the stored chain, if it is the one of `config`.
fn resume(
    config: &Config,
    codes: &CodeCache,
    accounts: &DevAccounts,
    store: &Store,
    identity: ChainIdentity,
    journal: &Journal,
) -> eyre::Result<(ChainIdentity, Snapshots)> {
    check_same(config, codes, store, &identity)?;
    if config.feed() == FeedName::Static && journal.has_records()? {
        return Err(store
            .foreign("it holds a devnet that has gone on, and --feed static would stop it in the middle: leave --feed static out")
            .into());
    }
    journal.prune(config.retention().history)?;
    // The states before the base are only in the chain file.
    let is_imported_again = config.chain.is_some() && journal.base()?.number == identity.founded;
    let snapshots = if is_imported_again {
        // The chain has a genesis file, so it does not depend on the time.
        let epoch = SnapshotId::begin(SnapshotId(journal.base()?.id).epoch());
        let (_, snapshots) = found(config, codes, accounts, 0, epoch)?;
        snapshots.update(|chain| chain.set_archive(journal.keeper()));
        journal.replay_on(&snapshots, codes)?;
        snapshots
    } else {
        journal.restore(codes, feed_state(config), config.retention())?
    };
    let head = &snapshots.newest().head;
    tracing::info!(head = head.number(), hash = %head.hash(), "resuming the chain of the data directory");
    Ok((identity, snapshots))
}

/// Refuses a store that holds another chain than the flags name.
fn check_same(config: &Config, codes: &CodeCache, store: &Store, identity: &ChainIdentity) -> eyre::Result<()> {
    const CURE: &str = "give another --data-dir";
    let foreign = |problem: String| -> Result<(), StoreError> { Err(store.foreign(problem)) };
    match &config.genesis {
        None if !identity.builtin => foreign(format!(
            "it holds the chain of genesis {}, and without --genesis this is the built-in devnet: give its --genesis, or {CURE}",
            identity.genesis
        ))?,
        None => {}
        Some(path) if identity.builtin => foreign(format!(
            "it holds the built-in devnet, and --genesis {} is another chain: leave it out, or {CURE}",
            path.display()
        ))?,
        Some(path) => {
            let (mut genesis, file) = read_genesis(path)?;
            set_forks(&mut genesis.config, &config.fork)?;
            if identity.genesis_file != Some(file) {
                let spec = ChainSpec::new(genesis.config.clone(), config.block_time())?;
                let hash =
                    genesis_block(&genesis, &spec, LocalWorld::of_genesis(&genesis, codes).state_root_in_parallel())
                        .hash();
                if hash != identity.genesis {
                    foreign(format!(
                        "it holds the chain of genesis {}, and --genesis {} is {hash}: give its own, or {CURE}",
                        identity.genesis,
                        path.display()
                    ))?;
                }
                if genesis.config != identity.config {
                    foreign(format!(
                        "it holds a chain with other forks than the `config` of --genesis {} has: give its own, or {CURE}",
                        path.display()
                    ))?;
                }
            }
        }
    }
    if let Some((given, stored)) = first_changed(&identity.config, &config.fork)? {
        foreign(format!(
            "it holds a chain with {stored}, and --fork {given} would change its blocks: leave it out, or {CURE}"
        ))?;
    }
    if let Some(file) = &config.chain
        && identity.chain_file != Some(file_hash(file, "--chain")?)
    {
        foreign(format!("it did not begin with the blocks of --chain {}: give its own, or {CURE}", file.display()))?;
    }
    Ok(())
}

/// Returns the health with which the feed begins.
pub fn feed_state(config: &Config) -> FeedState {
    match config.feed() {
        FeedName::Devnet if config.testing && config.interval().is_none() => FeedState::Static,
        FeedName::Devnet => FeedState::live(config.sub_block()),
        FeedName::Static => FeedState::Static,
    }
}

/// Returns a genesis file, and the hash of its bytes.
pub fn read_genesis(path: &Path) -> eyre::Result<(Genesis, B256)> {
    let text = std::fs::read(path).wrap_err_with(|| format!("--genesis {}", path.display()))?;
    let genesis = parse_genesis(&text)
        .wrap_err_with(|| format!("--genesis {}: expected a geth-format genesis", path.display()))?;
    let config = &genesis.config;
    let number = genesis.number.unwrap_or_default();
    if let (Some(constantinople), Some(petersburg)) = (config.constantinople_block, config.petersburg_block)
        && (constantinople..petersburg).contains(&number)
    {
        bail!(
            "--genesis {}: config.petersburgBlock: {petersburg}: expected at most constantinopleBlock, {constantinople}: \
             gas by EIP-1283, which Constantinople alone has, is not supported",
            path.display()
        );
    }
    Ok((genesis, keccak256(&text)))
}

fn file_hash(path: &Path, flag: &str) -> eyre::Result<B256> {
    Ok(keccak256(std::fs::read(path).wrap_err_with(|| format!("{flag} {}", path.display()))?))
}

/// Accounts of the test mnemonic.
pub struct DevAccounts {
    /// The first accounts of the test mnemonic, or of another one.
    pub users: Vec<PrivateKeySigner>,
    /// The ten accounts of background traffic.
    traffic: Vec<PrivateKeySigner>,
}

impl DevAccounts {
    /// Derives the accounts.
    ///
    /// # Errors
    ///
    /// Returns an error that names the flag if the mnemonic is invalid.
    pub fn derive(config: &Config) -> eyre::Result<Self> {
        let chain = &config.test_chain;
        let users = world::signers_of(chain.mnemonic.as_deref(), chain.accounts.into());
        let has_traffic = config.genesis.is_some() || config.has_world();
        let traffic = if has_traffic { world::traffic_signers()? } else { Vec::new() };
        Ok(Self { users: users.wrap_err("--mnemonic")?, traffic })
    }

    fn all(&self) -> Vec<PrivateKeySigner> {
        self.users.iter().chain(&self.traffic).cloned().collect()
    }
}

/// Returns those of `signers` that have ether.
fn funded(signers: &[PrivateKeySigner], at: &Snapshot) -> Vec<PrivateKeySigner> {
    let has = |signer: &&PrivateKeySigner| {
        at.world.account(&signer.address()).is_some_and(|account| !account.balance.is_zero())
    };
    signers.iter().filter(has).cloned().collect()
}

/// Parses a genesis in geth's format. Fields that geth requires must be there; alloy fills in the others.
fn parse_genesis(text: &[u8]) -> eyre::Result<Genesis> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    #[expect(dead_code, reason = "only whether the fields are there is of interest")]
    struct Required {
        config: IgnoredAny,
        alloc: IgnoredAny,
        gas_limit: IgnoredAny,
        difficulty: IgnoredAny,
    }
    objects::from_slice::<Required>(text)?;
    // The error names the field.
    let mut json = serde_json::Deserializer::from_slice(text);
    Ok(serde_path_to_error::deserialize(ObjectsOnly(&mut json))?)
}

/// Background transactions in each sub-block.
const USUAL_TRAFFIC: u32 = 4;

fn devnet(
    config: &Config,
    spec: &ChainSpec,
    head: &Snapshot,
    accounts: &DevAccounts,
    trading: Option<TradingWorld>,
    clock: Arc<dyn Clock>,
) -> Devnet {
    // Prefers accounts whose nonces no client relies on.
    let mut signers = funded(&accounts.traffic, head);
    if signers.is_empty() {
        signers = funded(&accounts.users, head);
    }
    let traffic = config.traffic.unwrap_or(if config.testing { 0 } else { USUAL_TRAFFIC });
    let traffic = if traffic == 0 {
        None
    } else if spec.next_base_fee(&head.head.header, head.head.number() + 1, head.head.header.timestamp).is_none() {
        tracing::info!("no background traffic: it needs EIP-1559 fees, and this chain is before London");
        None
    } else if signers.is_empty() {
        tracing::info!("no background traffic: no account of the test mnemonic has funds in this genesis");
        None
    } else {
        let market = trading.map(|world| Market::of(world, &head.world));
        Some(Traffic::new(traffic, config.traffic_seed, spec.chain_id(), config.sub_blocks(), signers, market))
    };
    Devnet::new(clock, spec.clone(), config.sub_blocks(), config.sub_block(), config.fee_recipient, traffic)
}
