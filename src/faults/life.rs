//! A node from its start to its end: production's state machines on a simulated disk and clock.

use std::{
    ffi::OsString,
    io::{self, Write as _},
    ops::Bound,
    path::Path,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{
    clock::Clock,
    config::Config,
    ledger::Snapshots,
    node::{self, OwnChain},
    pool::Pool,
    rpc::StartupReason,
    source::{
        Feed,
        devnet::{
            DevnetSource,
            world::{dev_genesis, dev_signers, traffic_signers},
        },
        testing::{ChainChange, ChangeError, ChangeOutcome, Mining, TestingSource},
    },
    state::CodeCache,
    store::Store,
    telemetry::Metrics,
    wallet::{Accounts, Approvals, PreparedBatch, Wallet},
};
use redb::{BackendError, StorageBackend};
use tempfile::NamedTempFile;

use crate::faults::disk::Disk;

/// The time at which the simulated clock begins, in Unix seconds.
pub const BEGIN: u64 = 1_800_000_000;
/// Bytes of the cache of bytecode, and the bound of `--testing-limit`.
const CODES: usize = 1 << 20;
const TESTING: u32 = 16;

static GENESIS: LazyLock<NamedTempFile> = LazyLock::new(|| {
    let signers = [dev_signers().unwrap(), traffic_signers().unwrap()].concat();
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(&serde_json::to_vec(&dev_genesis(&signers, BEGIN - 1_000)).unwrap()).unwrap();
    file
});

/// A fault of the machinery around the state machines, which the simulation must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// No fault.
    None,
    /// The disk does not sync.
    LyingSync,
    /// A client is answered before its write is on the disk.
    EarlyAnswer,
    /// The pool is not stored.
    ForgetfulPool,
    /// Sub-blocks are published without being recorded.
    NoJournal,
}

/// The time of a simulation, in microseconds.
#[derive(Debug)]
pub struct SimClock {
    unix: AtomicU64,
    monotonic: AtomicU64,
    /// The time that each look at the clock takes.
    look: AtomicU64,
}

impl SimClock {
    pub fn new() -> Self {
        Self { unix: (BEGIN * 1_000_000).into(), monotonic: 0.into(), look: 0.into() }
    }

    /// Moves the time by microseconds.
    pub fn advance(&self, micros: u64) {
        self.unix.fetch_add(micros, Relaxed);
        self.monotonic.fetch_add(micros, Relaxed);
    }

    /// Moves the time that the system shows by seconds.
    pub fn jump(&self, seconds: i64) {
        self.unix.fetch_add((seconds * 1_000_000).cast_unsigned(), Relaxed);
    }

    pub fn set_look(&self, micros: u64) {
        self.look.store(micros, Relaxed);
    }
}

impl Clock for SimClock {
    fn unix(&self) -> Duration {
        Duration::from_micros(self.unix.load(Relaxed))
    }

    fn monotonic(&self) -> Duration {
        self.advance(self.look.load(Relaxed));
        Duration::from_micros(self.monotonic.load(Relaxed))
    }
}

/// The source of a chain's states.
enum Source {
    Devnet(Box<DevnetSource>),
    Testing(Box<TestingSource>),
}

/// A running node.
pub struct Life {
    pub store: Store,
    pub snapshots: Arc<Snapshots>,
    pub pool: Arc<Pool>,
    pub wallet: Wallet,
    /// Batches that wait to be submitted.
    pub prepared: Vec<PreparedBatch>,
    pub feed: Feed,
    source: Source,
}

/// Returns the settings of a node with these flags.
pub fn config(flags: &[String], testing: bool) -> Config {
    let genesis = ["presim", "--genesis"].map(OsString::from).into_iter().chain([GENESIS.path().into()]);
    let testing = testing.then(|| ["--feed", "devnet", "--testing"].map(OsString::from));
    Config::load(genesis.chain(flags.iter().map(OsString::from)).chain(testing.into_iter().flatten())).unwrap()
}

impl Life {
    /// Starts a node on a disk, as the program does.
    pub fn start(config: &Config, disk: &Disk, clock: Arc<SimClock>, mutant: Mutant) -> eyre::Result<Self> {
        let metrics = Metrics::default();
        let disk = SimDisk { disk: disk.clone(), lies: mutant == Mutant::LyingSync };
        let store = match config.testing {
            true => Store::in_memory(&metrics)?,
            false => Store::open_stepped(disk, Path::new("the simulated disk"), &metrics)?,
        };
        let codes = Arc::new(CodeCache::new(CODES));
        let chain = OwnChain::begin(config, &codes, &store, &StartupReason::default(), clock)?;
        let sink = chain.sink().filter(|_| mutant != Mutant::NoJournal);
        let snapshots = Arc::new(chain.snapshots);
        let pooled = if mutant == Mutant::ForgetfulPool { Store::in_memory(&metrics)? } else { store.clone() };
        let pool = node::pool(config, &chain.spec, &snapshots, &pooled)?;
        let approvals = Arc::new(Approvals::new(1, Duration::MAX, &metrics));
        let accounts = Accounts::new(chain.accounts, Vec::new());
        let wallet = node::wallet(config, &chain.spec, &codes, &pool, accounts, approvals, store.clone());
        let devnet = chain.devnet.ok_or_else(|| eyre::eyre!("the chain stands still"))?;
        let source = match config.testing {
            true => {
                // Ticks are steps of the simulation.
                let mining = Mining::Interval(config.sub_block());
                let every = Some(config.sub_block());
                let (source, _) = TestingSource::new(devnet, snapshots.load(), mining, every, codes, TESTING);
                Source::Testing(Box::new(source))
            }
            false => Source::Devnet(Box::new(devnet)),
        };
        let feed = Feed::new(snapshots.clone(), sink, pool.clone(), &metrics);
        Ok(Self { store, snapshots, pool, wallet, prepared: Vec::new(), feed, source })
    }

    /// Builds and publishes the next sub-block.
    pub fn tick(&mut self) {
        match &mut self.source {
            Source::Devnet(devnet) => futures::executor::block_on(devnet.go_on(&mut self.feed)),
            Source::Testing(testing) => futures::executor::block_on(testing.go_on(&mut self.feed)),
        }
    }

    /// Changes the chain as a client of `--testing` does.
    pub fn change(&mut self, change: ChainChange) -> Option<Result<ChangeOutcome, ChangeError>> {
        let Source::Testing(testing) = &mut self.source else { return None };
        Some(futures::executor::block_on(testing.make(&mut self.feed, change)))
    }
}

/// A disk that may lie about what is synced.
#[derive(Debug)]
pub struct SimDisk {
    pub disk: Disk,
    pub lies: bool,
}

impl StorageBackend for SimDisk {
    fn len(&self) -> io::Result<u64> {
        self.disk.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.disk.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.lies { Ok(()) } else { self.disk.sync_data() }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.disk.write(offset, data)
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.disk.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.disk.try_lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.disk.unlock_range(start, end)
    }
}
