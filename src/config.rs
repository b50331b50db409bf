//! The settings, from flags, `PRESIM_*` environment variables and a TOML file, in that order of precedence.

mod check;
mod choices;
mod fleet;
mod layers;
mod live;
mod testing;
#[cfg(test)]
#[expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "tests meet neither the meter nor users")]
mod tests;

pub use choices::{ApprovalPolicy, DialectName, FeedName, IpcSocket, RevertPolicy, StandardReceipts, UpgradePolicy};
pub use fleet::FleetConfig;
pub(crate) use live::parse_endpoint;
pub use live::{Endpoint, LiveConfig};
pub use testing::{TestChainConfig, TxOrder};

use std::{
    ffi::OsString,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use alloy_primitives::Address;
use clap::{Args as _, CommandFactory, FromArgMatches, Parser, error::ErrorKind, parser::ValueSource};
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

use crate::{chain::ForkTime, ledger::Retention, nearest::nearest, secrets};

/// Simulates calls and bundles on the newest pre-confirmed state of an EVM chain.
///
/// Without arguments, it runs its own devnet on 127.0.0.1:8545, with funded accounts and a small trading world.
/// Every flag can also be set as `PRESIM_<FLAG>` in the environment, or as `flag = value` in the file of --config.
#[derive(Clone, Debug, Parser)]
#[command(name = "presim", version, max_term_width = 120)]
pub struct Config {
    /// Read settings from this TOML file, one `flag = value` per line. Flags and environment take precedence over it.
    #[arg(long, env = "PRESIM_CONFIG", value_name = "FILE", global = true, help_heading = "General")]
    pub config: Option<PathBuf>,
    /// Listen on this address for HTTP and WebSocket. `localhost:PORT` and `:PORT` are 127.0.0.1. An address that is not
    /// loopback needs --token-file.
    #[arg(long, env = "PRESIM_LISTEN", value_name = "ADDR:PORT", default_value = "127.0.0.1:8545", value_parser = parse_address, help_heading = "General")]
    pub listen: SocketAddr,
    /// Serve the methods of `/standard` on a Unix socket at this path; without a path, at `presim.ipc` in the data
    /// directory. Only presim's own user can open it, and no token is needed, not even for the wallet.
    #[arg(long, env = "PRESIM_IPC", value_name = "PATH", num_args = 0..=1, require_equals = true, default_missing_value = IpcSocket::ALONE, value_parser = IpcSocket::parse, help_heading = "General")]
    pub ipc: Option<IpcSocket>,
    /// Store the chain, the pool's transactions and the wallet's batches in this directory, and resume from them after
    /// a restart. Without it, all state is lost when the process ends.
    #[arg(long, env = "PRESIM_DATA_DIR", value_name = "DIR", global = true, help_heading = "General")]
    pub data_dir: Option<PathBuf>,
    /// Accept a --data-dir that is owned by a user other than presim's or root. That user can read and change
    /// everything that the node stores.
    #[arg(long, env = "PRESIM_DATA_DIR_SHARED", requires = "data_dir", help_heading = "General")]
    pub data_dir_shared: bool,
    /// Dialect of `/`: `project` is presim's own contract, `standard` is execution-apis as geth implements it.
    /// `/standard` always has the latter. The default is project; with --testing, standard.
    #[arg(long, env = "PRESIM_DIALECT", value_enum, help_heading = "General")]
    pub dialect: Option<DialectName>,
    /// When the standard dialect exposes receipts, and the block of a transaction: once `latest` has the block
    /// (`latest`), or once the transaction is pre-confirmed (`preconfirmed`), as `/` does.
    #[arg(long, env = "PRESIM_STANDARD_RECEIPTS", value_name = "WHEN", value_enum, default_value_t = StandardReceipts::Latest, help_heading = "General")]
    pub standard_receipts: StandardReceipts,
    /// Serve Prometheus metrics at http://ADDR:PORT/metrics.
    #[arg(long, env = "PRESIM_METRICS", value_name = "ADDR:PORT", value_parser = parse_address, help_heading = "General")]
    pub metrics: Option<SocketAddr>,
    /// Maximum lag of the feed, and maximum age of the newest canonical block by its timestamp, in milliseconds. Beyond
    /// either, `/ready` answers 503. 0 sets no bound.
    #[arg(long, env = "PRESIM_READY_LAG_MS", value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=86_400_000), help_heading = "General")]
    pub ready_lag_ms: u64,
    /// Log filter: a level, or directives like `presim=debug,info`.
    #[arg(long, env = "PRESIM_LOG", value_name = "FILTER", default_value = "info", value_parser = parse_log, help_heading = "General")]
    pub log: String,
    /// Log in JSON, one object per line.
    #[arg(long, env = "PRESIM_LOG_JSON", help_heading = "General")]
    pub log_json: bool,

    /// Start from this genesis file in geth's format instead of the built-in devnet's.
    #[arg(long, alias = "init", env = "PRESIM_GENESIS", value_name = "FILE", help_heading = "Source of state")]
    pub genesis: Option<PathBuf>,
    /// Import the blocks of this file (consecutive RLP) on top of the genesis. Each block is checked against its
    /// header. Needs --genesis.
    #[arg(long, env = "PRESIM_CHAIN", value_name = "FILE", help_heading = "Source of state")]
    pub chain: Option<PathBuf>,
    /// Source of new blocks: `devnet` builds them locally, `static` adds none. The default is static with --chain,
    /// otherwise devnet.
    #[arg(long, env = "PRESIM_FEED", value_enum, help_heading = "Source of state")]
    pub feed: Option<FeedName>,
    /// Background transactions per sub-block of the devnet, in addition to the load that moves the built-in devnet's
    /// base fee. 0 disables both. The default is 4; with --testing, 0.
    #[arg(long, env = "PRESIM_TRAFFIC", value_name = "N", help_heading = "Source of state")]
    pub traffic: Option<u32>,
    /// Seed of the background traffic. The same seed produces the same trades.
    #[arg(long, env = "PRESIM_TRAFFIC_SEED", value_name = "N", default_value_t = 1, help_heading = "Source of state")]
    pub traffic_seed: u64,
    /// Milliseconds between the devnet's sub-blocks. The default is 200.
    #[arg(long, env = "PRESIM_SUB_BLOCK_MS", value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000), help_heading = "Source of state")]
    pub sub_block_ms: Option<u64>,
    /// Sub-blocks per sealed block. The default is 10.
    #[arg(long, env = "PRESIM_SUB_BLOCKS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000), help_heading = "Source of state")]
    pub sub_blocks: Option<u32>,
    /// Time between blocks in simulations of several blocks: `200ms`, `2s`, or a number of seconds. The default is 12 s
    /// on a static chain, and the time between the newest blocks on an upstream's. With --testing, mine a block at this
    /// interval, in sub-blocks if --sub-block-ms or --traffic is given.
    #[arg(long, env = "PRESIM_BLOCK_TIME", value_name = "TIME", value_parser = parse_block_time, help_heading = "Source of state")]
    pub block_time: Option<Duration>,
    /// Activate a fork at a time other than the chain's own: `NAME=TIME`, where TIME is a Unix time in seconds or
    /// `never`. Repeat for several. On an upstream's chain whose forks are unknown, NAME=0 selects Ethereum's rules up
    /// to that fork.
    #[arg(
        long,
        env = "PRESIM_FORK",
        value_name = "NAME=TIME",
        value_delimiter = ',',
        help_heading = "Source of state"
    )]
    pub fork: Vec<ForkTime>,
    /// Fee recipient of the devnet's blocks.
    #[arg(long, env = "PRESIM_FEE_RECIPIENT", value_name = "ADDRESS", default_value_t = Address::ZERO, help_heading = "Source of state")]
    pub fee_recipient: Address,
    /// Number of recent blocks whose state can be queried.
    #[arg(long, env = "PRESIM_KEEP_BLOCKS", value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Source of state")]
    pub keep_blocks: u32,
    /// Number of recent blocks whose transactions, receipts and logs are retained, or `all`. Genesis is always
    /// retained. The default is 10000; with --data-dir, 100000. Requests for older blocks are rejected (4444), except
    /// for their headers. On an upstream's chain, blocks older than the retained states are read from the upstream.
    #[arg(long, env = "PRESIM_KEEP_HISTORY", value_name = "BLOCKS", value_parser = parse_history, help_heading = "Source of state")]
    pub keep_history: Option<u64>,
    /// Memory for the transactions, receipts and logs of retained blocks, in MiB. Beyond it, the oldest blocks are
    /// pruned. Bodies on disk do not count. The default is 256, or no bound if --keep-history is given.
    #[arg(long, env = "PRESIM_KEEP_HISTORY_MB", value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Source of state")]
    pub keep_history_mb: Option<u32>,
    /// Number of recent snapshots that can be queried by their snapshotId.
    #[arg(long, env = "PRESIM_KEEP_SNAPSHOTS", value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "Source of state")]
    pub keep_snapshots: u32,
    /// Reject `pending` while the feed is degraded, instead of answering from the canonical head.
    #[arg(long, env = "PRESIM_STRICT_PENDING", help_heading = "Source of state")]
    pub strict_pending: bool,
    /// Let clients change the devnet, for tests: serve the methods of anvil, hardhat and ganache that mine, set
    /// balances, code, storage, nonces and time, impersonate accounts, and save and restore states. Each transaction is
    /// mined in its own block on arrival, unless --no-mining or --block-time is given. `testing_buildBlockV1`, which a
    /// static chain also has, builds blocks. Nothing is written to disk.
    #[arg(long, env = "PRESIM_TESTING", help_heading = "Source of state")]
    pub testing: bool,
    /// With --testing: mine blocks only on request (`evm_mine`), not when transactions arrive.
    #[arg(long, env = "PRESIM_NO_MINING", help_heading = "Source of state")]
    pub no_mining: bool,
    /// Maximum states that --testing saves, accounts that it impersonates, and blocks that one request mines.
    #[arg(long, env = "PRESIM_TESTING_LIMIT", value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Source of state")]
    pub testing_limit: u32,
    /// Settings of the chain that --testing begins with.
    #[command(flatten)]
    pub test_chain: TestChainConfig,
    /// Settings of a chain that an upstream node serves.
    #[command(flatten)]
    pub live: LiveConfig,
    /// Settings of a fleet.
    #[command(flatten)]
    pub fleet: FleetConfig,
    /// Whether a command has started the node for itself.
    #[arg(skip)]
    pub is_of_command: bool,
    /// Whether the node listens nowhere, because the program that it is part of calls it.
    #[arg(skip)]
    pub is_closed: bool,

    /// Maximum transactions in the pool.
    #[arg(long, env = "PRESIM_POOL_TRANSACTIONS", value_name = "N", default_value_t = 5_120, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Sending")]
    pub pool_transactions: u32,
    /// Maximum transactions of one account in the pool.
    #[arg(long, env = "PRESIM_POOL_ACCOUNT_TRANSACTIONS", value_name = "N", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Sending")]
    pub pool_account_transactions: u32,
    /// Maximum bytes of transactions in the pool, without blobs, which are dropped after their check.
    #[arg(long, env = "PRESIM_POOL_BYTES", value_name = "BYTES", default_value_t = 160 << 20, help_heading = "Sending")]
    pub pool_bytes: usize,
    /// Maximum bundles of `eth_sendBundle` that wait for their blocks. --pool-bytes bounds their bytes as well,
    /// separately from those of the transactions.
    #[arg(long, env = "PRESIM_POOL_BUNDLES", value_name = "N", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Sending")]
    pub pool_bundles: u32,
    /// Minimum increase in price for a transaction that replaces one in the pool, in per cent; at least 100 for blob
    /// transactions.
    #[arg(long, env = "PRESIM_POOL_PRICE_BUMP", value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000), help_heading = "Sending")]
    pub pool_price_bump: u32,
    /// Minimum tip of a transaction, in wei per unit of gas.
    #[arg(long, env = "PRESIM_POOL_MIN_TIP", value_name = "WEI", default_value_t = 1, help_heading = "Sending")]
    pub pool_min_tip: u64,
    /// Default time-out of `eth_sendRawTransactionSync`, in milliseconds.
    #[arg(long, env = "PRESIM_SYNC_TIMEOUT_MS", value_name = "MS", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=3_600_000), help_heading = "Sending")]
    pub sync_timeout_ms: u64,
    /// Maximum time-out that a client may request of `eth_sendRawTransactionSync`, in milliseconds.
    #[arg(long, env = "PRESIM_MAX_SYNC_TIMEOUT_MS", value_name = "MS", default_value_t = 60_000, value_parser = clap::value_parser!(u64).range(1..=3_600_000), help_heading = "Sending")]
    pub max_sync_timeout_ms: u64,
    /// Maximum concurrent requests of `eth_sendRawTransactionSync`. One more is rejected (-32005) before its
    /// transaction is accepted.
    #[arg(long, env = "PRESIM_MAX_SYNC_WAITERS", value_name = "N", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Sending")]
    pub max_sync_waiters: u32,

    /// Number of CPU workers for simulations. The default is one per core.
    #[arg(long, env = "PRESIM_WORKERS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Limits")]
    pub workers: Option<u16>,
    /// Milliseconds without progress of a worker, while requests wait for one, after which `/health` and `/ready`
    /// answer 503.
    #[arg(long, env = "PRESIM_WORKER_STALL_MS", value_name = "MS", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=3_600_000), help_heading = "Limits")]
    pub worker_stall_ms: u64,
    /// Number of threads for connections, which also run short calls inline. The default is one per core.
    #[arg(long, env = "PRESIM_IO_THREADS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Limits")]
    pub io_threads: Option<u16>,
    /// Gas limit of one request, summed over its calls.
    #[arg(long, env = "PRESIM_GAS_CAP", value_name = "GAS", default_value_t = 50_000_000, help_heading = "Limits")]
    pub gas_cap: u64,
    /// Milliseconds from the arrival of a request to its deadline, at which it is stopped (-32016).
    #[arg(long, env = "PRESIM_DEADLINE_MS", value_name = "MS", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..), help_heading = "Limits")]
    pub deadline_ms: u64,
    /// Maximum blocks of a simulation, gaps included, and bundles in one `eth_callMany`.
    #[arg(long, env = "PRESIM_MAX_BLOCKS", value_name = "N", default_value_t = 256, help_heading = "Limits")]
    pub max_blocks: u64,
    /// Maximum calls in one simulated block, and transactions in one `eth_callBundle`.
    #[arg(long, env = "PRESIM_MAX_BLOCK_CALLS", value_name = "N", default_value_t = 5_000, help_heading = "Limits")]
    pub max_block_calls: usize,
    /// Maximum calls in a simulation, and in all bundles of an `eth_callMany` together.
    #[arg(long, env = "PRESIM_MAX_CALLS", value_name = "N", default_value_t = 10_000, help_heading = "Limits")]
    pub max_calls: usize,
    /// Memory for shared beginnings of simulations, in megabytes. Blocks and calls that several simulations of a token
    /// begin with run once per snapshot. 0 disables sharing.
    #[arg(long, env = "PRESIM_PREFIX_CACHE_MB", value_name = "MB", default_value_t = 64, help_heading = "Limits")]
    pub prefix_cache_mb: usize,
    /// Maximum variants of a bundle that one `presim_search` runs.
    #[arg(long, env = "PRESIM_MAX_SEARCH_RUNS", value_name = "N", default_value_t = 10_000, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..), help_heading = "Limits")]
    pub max_search_runs: usize,
    /// Maximum standing bundles of one `presim_watch`.
    #[arg(long, env = "PRESIM_MAX_WATCHED", value_name = "N", default_value_t = 10_000, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..), help_heading = "Limits")]
    pub max_watched: usize,
    /// Memory for the standing bundles of a token, in megabytes: their requests, read sets and answers.
    #[arg(long, env = "PRESIM_WATCH_MB", value_name = "MB", default_value_t = 256, help_heading = "Limits")]
    pub watch_mb: usize,
    /// Share of the workers that may run standing bundles while requests wait.
    #[arg(long, env = "PRESIM_WATCH_SHARE", value_name = "SHARE", default_value_t = 0.5, value_parser = share, help_heading = "Limits")]
    pub watch_share: f64,
    /// Seconds to retain standing bundles without a connection or a poll.
    #[arg(long, env = "PRESIM_WATCH_KEEP_S", value_name = "SECONDS", default_value_t = 300, help_heading = "Limits")]
    pub watch_keep_s: u64,
    /// Maximum range of one `eth_getLogs` or `trace_filter`, in blocks.
    #[arg(long, env = "PRESIM_MAX_LOG_BLOCKS", value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..), help_heading = "Limits")]
    pub max_log_blocks: u64,
    /// Maximum logs that one `eth_getLogs` returns.
    #[arg(long, env = "PRESIM_MAX_LOGS", value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    pub max_logs: u32,
    /// Maximum installed filters (`eth_newFilter` and its kin). A filter that is not polled for five minutes is
    /// dropped. One more filter evicts the longest unpolled filter of the client that has the most.
    #[arg(long, env = "PRESIM_MAX_FILTERS", value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    pub max_filters: u32,
    /// Queue limit for short calls (a batch's entries count as one), and separately for reads and sends. Requests
    /// beyond it are rejected (-32005).
    #[arg(long, env = "PRESIM_QUEUE_SHORT", value_name = "N", default_value_t = 4_096, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Limits")]
    pub queue_short: u32,
    /// Queue limit for bundles. Requests beyond it are rejected (-32005).
    #[arg(long, env = "PRESIM_QUEUE_BUNDLE", value_name = "N", default_value_t = 4_096, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Limits")]
    pub queue_bundle: u32,
    /// Maximum expected wait for a worker, in milliseconds, once more than 8 requests per worker wait. A request that
    /// would wait longer is rejected (-32005).
    #[arg(long, env = "PRESIM_QUEUE_WAIT_MS", value_name = "MS", default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..=3_600_000), help_heading = "Limits")]
    pub queue_wait_ms: u64,
    /// Maximum wait in an overloaded lane, in per cent of a request's run time. A lane is overloaded from its first
    /// rejection for the expected wait until its load is below capacity. Requests of a client below its quota are still
    /// admitted.
    #[arg(long, env = "PRESIM_OVERLOAD_WAIT", value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Limits")]
    pub overload_wait: u32,
    /// Maximum size of a request body, of a WebSocket message, and of a message on the Unix socket, in bytes.
    #[arg(long, env = "PRESIM_MAX_BODY", value_name = "BYTES", default_value_t = 32 << 20, value_parser = clap::value_parser!(u32).range(64..), help_heading = "Limits")]
    pub max_body: u32,
    /// Maximum size of an answer, in bytes.
    #[arg(long, env = "PRESIM_MAX_RESPONSE", value_name = "BYTES", default_value_t = 64 << 20, value_parser = clap::value_parser!(u32).range(1024..), help_heading = "Limits")]
    pub max_response: u32,
    /// Maximum entries of a JSON-RPC batch.
    #[arg(long, env = "PRESIM_MAX_BATCH", value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    pub max_batch: u32,
    /// Memory for bodies, answers and unsent notifications of all connections together, in bytes. Each connection may
    /// always hold a small part, and more while memory is free. A body waits for room; an answer without room is
    /// rejected (-32005).
    #[arg(long, env = "PRESIM_MAX_MEMORY_IO", value_name = "BYTES", default_value_t = 256 << 20, value_parser = clap::value_parser!(u32).range(4096..), help_heading = "Limits")]
    pub max_memory_io: u32,
    /// Milliseconds that a connection may stall before it is closed: before the head of its first request is complete
    /// (at most five seconds), within a body or a message, and while its peer does not read.
    #[arg(long, env = "PRESIM_IO_TIMEOUT_MS", value_name = "MS", default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(1..=3_600_000), help_heading = "Limits")]
    pub io_timeout_ms: u64,
    /// Maximum open HTTP connections, and, separately, open connections of WebSocket and the Unix socket. At the limit,
    /// the connection that has been idle longest is closed for a new one: among those without a valid token (or without
    /// a request, where no token is needed), otherwise among the HTTP connections without a request under way.
    #[arg(long, env = "PRESIM_MAX_CONNECTIONS", value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    pub max_connections: u32,
    /// Maximum open connections per address, HTTP and WebSocket together. An IPv6 network of 64 bits counts as one
    /// address. The default is 128, without a limit for loopback.
    #[arg(long, env = "PRESIM_MAX_CONNECTIONS_PER_ADDRESS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    pub max_connections_per_address: Option<u32>,
    /// Maximum requests of one WebSocket or Unix-socket connection that are under way or unsent. At the limit, the
    /// connection is not read.
    #[arg(long, env = "PRESIM_MAX_WS_IN_FLIGHT", value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    pub max_ws_in_flight: u32,
    /// Maximum subscriptions of one WebSocket or Unix-socket connection.
    #[arg(long, env = "PRESIM_MAX_SUBSCRIPTIONS", value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    pub max_subscriptions: u32,
    /// Maximum unsent notifications of one WebSocket or Unix-socket connection. Beyond it, the connection is closed.
    #[arg(long, env = "PRESIM_MAX_WS_NOTIFICATIONS", value_name = "N", default_value_t = 8_192, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    pub max_ws_notifications: u32,
    /// Maximum unsent bytes of one WebSocket or Unix-socket connection. Beyond it, the connection is closed.
    #[arg(long, env = "PRESIM_MAX_WS_UNSENT", value_name = "BYTES", default_value_t = 128 << 20, value_parser = clap::value_parser!(u32).range(1024..), help_heading = "Limits")]
    pub max_ws_unsent: u32,
    /// Memory for the traces of one request while it runs, in bytes. A request that needs more is stopped (-32005).
    #[arg(long, env = "PRESIM_MAX_TRACE_BYTES", value_name = "BYTES", default_value_t = 256 << 20, help_heading = "Limits")]
    pub max_trace_bytes: usize,
    /// Cache for analysed bytecode, in bytes: the code, its padded copy and its jump table. In addition, each thread
    /// holds up to 512 codes that it runs repeatedly, at most 14 MiB.
    #[arg(long, env = "PRESIM_CODE_CACHE", value_name = "BYTES", default_value_t = 256 << 20, help_heading = "Limits")]
    pub code_cache: usize,

    /// File with the bearer tokens that may use the node: TOML with `[[token]]` tables of `name`, `token` and `rate`
    /// (requests per second). Read again on SIGHUP.
    #[arg(long, env = "PRESIM_TOKEN_FILE", value_name = "FILE", help_heading = "Access")]
    pub token_file: Option<PathBuf>,
    /// Host names that requests may use, for metrics too, in addition to localhost and the listening address. Repeat,
    /// or separate by commas.
    #[arg(long, env = "PRESIM_ALLOW_HOST", value_name = "HOST", value_delimiter = ',', help_heading = "Access")]
    pub allow_host: Vec<String>,
    /// Origins whose pages may send requests from a browser, over HTTP (CORS) and WebSocket: `https://app.example`,
    /// `chrome-extension://*`, `moz-extension://*`, or `*` for all. Repeat, or separate by commas.
    #[arg(long, env = "PRESIM_ALLOW_ORIGIN", value_name = "ORIGIN", value_delimiter = ',', help_heading = "Access")]
    pub allow_origin: Vec<String>,
    /// Do not serve the page for browsers at `/`.
    #[arg(long, env = "PRESIM_NO_PAGE", help_heading = "Access")]
    pub no_page: bool,

    /// Key of an account that the wallet signs for: an encrypted keystore (Web3 secret storage), or a file with one
    /// private key in hex. Repeat, or separate by commas.
    #[arg(long, env = "PRESIM_WALLET_KEY_FILE", value_name = "FILE", value_delimiter = ',', help_heading = "Wallet")]
    pub wallet_key_file: Vec<PathBuf>,
    /// File whose first line is the password of the keystores: one file for all keystores, or one for each, in order.
    #[arg(
        long,
        env = "PRESIM_WALLET_PASSWORD_FILE",
        value_name = "FILE",
        value_delimiter = ',',
        help_heading = "Wallet"
    )]
    pub wallet_password_file: Vec<PathBuf>,
    /// Bearer tokens that may use the node and its wallet, in a file like --token-file's. Other tokens then cannot use
    /// the wallet. Read again on SIGHUP.
    #[arg(long, env = "PRESIM_WALLET_TOKEN_FILE", value_name = "FILE", help_heading = "Wallet")]
    pub wallet_token_file: Option<PathBuf>,
    /// Approval of batches and of messages to be signed: `auto` approves all, `deny` rejects all, and `ask` waits for
    /// `presim wallet watch` or `presim wallet approve ID`. `ask` needs --data-dir.
    #[arg(long, env = "PRESIM_WALLET_APPROVAL", value_name = "POLICY", value_enum, default_value_t = ApprovalPolicy::Auto, help_heading = "Wallet")]
    pub wallet_approval: ApprovalPolicy,
    /// Milliseconds that a batch or a message waits for approval. Then it is rejected (4001). Clients may give up
    /// earlier.
    #[arg(long, env = "PRESIM_WALLET_APPROVAL_TIMEOUT_MS", value_name = "MS", default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(1..=86_400_000), help_heading = "Wallet")]
    pub wallet_approval_timeout_ms: u64,
    /// Maximum batches and messages that wait for approval, for each client with a token, and for all clients without
    /// one together. One more is rejected (-32005).
    #[arg(long, env = "PRESIM_WALLET_MAX_WAITING", value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "Wallet")]
    pub wallet_max_waiting: u32,
    /// Maximum requests that wait for approval, and ids of withdrawn batches that stay reserved until their approval
    /// would have timed out, together. Each client with a token has an equal part, as have all clients without one
    /// together. A client whose part is used up is rejected (-32005).
    #[arg(long, env = "PRESIM_WALLET_MAX_WITHDRAWN", value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=16_777_216), help_heading = "Wallet")]
    pub wallet_max_withdrawn: u32,
    /// Maximum calls per batch; larger batches are rejected (5740).
    #[arg(long, env = "PRESIM_WALLET_MAX_CALLS", value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "Wallet")]
    pub wallet_max_calls: u32,
    /// Maximum bytes of call data of a batch, over all calls, and of a message to be signed. A larger batch is rejected
    /// (5740), and so is a larger message (-32602).
    #[arg(long, env = "PRESIM_WALLET_MAX_BYTES", value_name = "BYTES", default_value_t = 128 << 10, help_heading = "Wallet")]
    pub wallet_max_bytes: u32,
    /// Whether the wallet may delegate an account to the batch executor (EIP-7702), which atomic batches need. If not,
    /// they are refused (5750).
    #[arg(long, env = "PRESIM_WALLET_UPGRADE", value_name = "POLICY", value_enum, default_value_t = UpgradePolicy::Allow, help_heading = "Wallet")]
    pub wallet_upgrade: UpgradePolicy,
    /// Handling of an atomic batch that reverts in simulation: `refuse` it with the reason, or `send` it anyway.
    #[arg(long, env = "PRESIM_WALLET_REVERT", value_name = "POLICY", value_enum, default_value_t = RevertPolicy::Refuse, help_heading = "Wallet")]
    pub wallet_revert: RevertPolicy,
    /// Batch executor (ERC-7821) that accounts delegate to, instead of presim's own.
    #[arg(long, env = "PRESIM_WALLET_EXECUTOR", value_name = "ADDRESS", help_heading = "Wallet")]
    pub wallet_executor: Option<Address>,
    /// Gas that is added to what a batch's transactions needed in simulation, in per cent.
    #[arg(long, env = "PRESIM_WALLET_GAS_MARGIN", value_name = "PERCENT", default_value_t = 25, value_parser = clap::value_parser!(u32).range(0..=10_000), help_heading = "Wallet")]
    pub wallet_gas_margin: u32,
    /// Per cent by which the fees shown to an approver exceed the current ones. Transactions with higher gas fees are
    /// not signed, and nothing is signed if the fees that the chain charges in addition to gas have risen by more.
    #[arg(long, env = "PRESIM_WALLET_FEE_MARGIN", value_name = "PERCENT", default_value_t = 25, value_parser = clap::value_parser!(u32).range(0..=10_000), help_heading = "Wallet")]
    pub wallet_fee_margin: u32,
    /// Maximum batches that are retained with their ids. One more evicts the oldest.
    #[arg(long, env = "PRESIM_WALLET_KEEP_BATCHES", value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Wallet")]
    pub wallet_keep_batches: u32,
    /// Milliseconds after which a waiting transaction of the wallet is sent to the upstream again.
    #[arg(long, env = "PRESIM_WALLET_RESEND_MS", value_name = "MS", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(100..=3_600_000), help_heading = "Wallet")]
    pub wallet_resend_ms: u64,
    /// Milliseconds to search the upstream for the receipt of a transaction, or for another transaction with its nonce,
    /// once the nonce is used. Then the transaction counts as replaced; the search continues.
    #[arg(long, env = "PRESIM_WALLET_RECEIPT_WAIT_MS", value_name = "MS", default_value_t = 600_000, value_parser = clap::value_parser!(u64).range(1..=3_600_000), help_heading = "Wallet")]
    pub wallet_receipt_wait_ms: u64,
    /// Seconds after which the status of a transaction is stored as final if the upstream has not finalized its block
    /// by then.
    #[arg(long, env = "PRESIM_WALLET_FINAL_S", value_name = "S", default_value_t = 3_600, value_parser = clap::value_parser!(u64).range(1..=604_800), help_heading = "Wallet")]
    pub wallet_final_s: u64,
}

impl Config {
    /// Returns the settings of a command line, whose first word is the program, with the environment and the file that
    /// they name.
    ///
    /// # Errors
    ///
    /// Returns clap's error for an invalid flag, variable or line of the file, or for a request for help. The caller
    /// prints it.
    pub fn load(args: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let (config, _, mut command) = Self::read(Self::command(), args)?;
        config.check(&mut command)?;
        Ok(config)
    }

    /// Returns the settings, not yet checked; the other matches of `command`; and `command` with the file's settings as
    /// defaults.
    pub(crate) fn read(
        mut command: clap::Command,
        args: impl IntoIterator<Item = OsString>,
    ) -> Result<(Self, clap::ArgMatches, clap::Command), clap::Error> {
        let args: Vec<OsString> = args.into_iter().collect();
        if let Some(problem) = misspelt_variable(&command) {
            return Err(command.error(ErrorKind::UnknownArgument, problem));
        }
        if let Some(path) = config_path(&args) {
            command = with_file(command, &path)?;
        }
        let of_testing = TestChainConfig::augment_args(clap::Command::new(""));
        let of_testing: Vec<_> =
            of_testing.get_arguments().filter_map(|arg| Some((arg.get_id(), arg.get_long()?))).collect();
        if !args.iter().any(|arg| arg == "--testing") {
            let is_of_testing = |arg: &clap::Arg| of_testing.iter().any(|(id, _)| *id == arg.get_id());
            command = command.mut_args(|arg| if is_of_testing(&arg) { arg.hide(true) } else { arg });
        }
        let matches = command.clone().try_get_matches_from(args)?;
        let config = Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        let is_given =
            |id: &str| matches!(matches.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable));
        let given = of_testing.iter().find(|(id, _)| is_given(id.as_str()));
        if let Some((_, flag)) = given.filter(|_| !config.testing) {
            let text = format!("--{flag} needs --testing: it is a setting of a chain that tests change");
            return Err(command.error(ErrorKind::MissingRequiredArgument, text));
        }
        let TestChainConfig { port, host, .. } = config.test_chain;
        let listen = (host.unwrap_or(config.listen.ip()), port.unwrap_or(config.listen.port())).into();
        Ok((Self { listen, ..config }, matches, command))
    }

    /// Returns the names that --hardfork takes, as a phrase.
    pub fn hardforks() -> String {
        testing::hardfork_names()
    }

    /// Returns whether the built-in devnet has the trading world.
    pub fn has_world(&self) -> bool {
        self.genesis.is_none() && (!self.testing || self.test_chain.world)
    }

    /// Returns the feed. Without a setting, a chain from a file is static.
    pub fn feed(&self) -> FeedName {
        self.feed.unwrap_or(if self.chain.is_some() { FeedName::Static } else { FeedName::Devnet })
    }

    /// Returns the dialect of `/`. Clients written for other test chains use `/`.
    pub fn dialect(&self) -> DialectName {
        self.dialect.unwrap_or(if self.testing { DialectName::Standard } else { DialectName::Project })
    }

    /// Returns the number of CPU workers.
    pub fn workers(&self) -> usize {
        self.workers.map_or_else(available_cores, usize::from)
    }

    /// Returns the number of threads for connections.
    pub fn io_threads(&self) -> usize {
        self.io_threads.map_or_else(available_cores, usize::from)
    }

    /// Returns whether blocks are built in sub-blocks. A chain under test does so only on request.
    pub fn has_sub_blocks(&self) -> bool {
        !self.testing || self.sub_block_ms.is_some() || self.traffic.is_some_and(|traffic| traffic > 0)
    }

    /// Returns the time between the devnet's sub-blocks: at most that between the blocks that a test has mined at an interval.
    pub fn sub_block(&self) -> Duration {
        let set = Duration::from_millis(self.sub_block_ms.unwrap_or(200));
        match self.interval() {
            Some(interval) if self.has_sub_blocks() => interval.min(set),
            Some(interval) => interval,
            None => set,
        }
    }

    /// Returns the number of sub-blocks of the devnet's blocks.
    pub fn sub_blocks(&self) -> u32 {
        match self.interval() {
            Some(interval) => {
                u32::try_from(interval.as_millis() / self.sub_block().as_millis().max(1)).unwrap_or(u32::MAX)
            }
            None => self.sub_blocks.unwrap_or(10),
        }
    }

    /// Returns the interval at which a devnet under test mines by itself, if it does.
    pub fn interval(&self) -> Option<Duration> {
        self.block_time.filter(|_| self.testing && self.feed() == FeedName::Devnet)
    }

    /// Returns the time between blocks: the devnet's own, in whole seconds, or the setting for a static chain.
    pub fn block_time(&self) -> Duration {
        match self.feed() {
            FeedName::Devnet if self.testing => self.block_time.unwrap_or(Duration::from_secs(1)),
            FeedName::Devnet => {
                let ms = self.sub_block().as_millis() * u128::from(self.sub_blocks());
                Duration::from_secs(u64::try_from(ms.div_ceil(1000)).unwrap_or(u64::MAX))
            }
            FeedName::Static => self.block_time.unwrap_or(Duration::from_secs(12)),
        }
    }

    /// Returns how much of the past is retained.
    pub fn retention(&self) -> Retention {
        let usual = if self.data_dir.is_some() { 100_000 } else { 10_000 };
        let history = self.keep_history.unwrap_or_else(|| usual.max(self.keep_blocks.into()));
        let most = self.keep_history_mb.or_else(|| self.keep_history.is_none().then_some(256));
        let history_bytes = most.map_or(u64::MAX, |mib| u64::from(mib) << 20);
        Retention { blocks: self.keep_blocks as usize, snapshots: self.keep_snapshots as usize, history, history_bytes }
    }

    /// Returns whether a node can run with it: the rules that are of more than one setting.
    pub(crate) fn check(&self, command: &mut clap::Command) -> Result<(), clap::Error> {
        self.problem().map_or(Ok(()), |problem| Err(command.error(ErrorKind::ArgumentConflict, problem)))
    }
}

/// Parses an address to listen on. A name is not looked up, because it may have several addresses.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix("localhost").unwrap_or(text).strip_prefix(':').and_then(|port| port.parse().ok());
    match port {
        Some(port) => Ok((Ipv4Addr::LOCALHOST, port).into()),
        None => text.parse().map_err(|_| {
            "expected ADDR:PORT, like 127.0.0.1:8545, [::1]:8545, 0.0.0.0:8545, localhost:8545 or :8545".to_owned()
        }),
    }
}

/// The beginning of the names of variables that are settings.
const PREFIX: &str = "PRESIM_";

/// Parses a log filter. A misspelt level, which would count as the name of a module, is rejected, because it would log
/// nothing.
fn parse_log(text: &str) -> Result<String, String> {
    let is_level = |part: &str| part.trim().parse::<LevelFilter>().is_ok();
    let is_known = text.split(',').all(|part| part.contains(['=', '[']) || is_level(part));
    if !is_known || EnvFilter::builder().parse(text).is_err() {
        let levels = "expected a level (off, error, warn, info, debug or trace), or directives like presim=debug,info";
        return Err(levels.to_owned());
    }
    Ok(text.to_owned())
}

/// Parses a share: more than 0, and at most 1.
fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("expected a number above 0 and up to 1".to_owned()),
    }
}

/// Reads a time between blocks, from a millisecond to a day.
fn parse_block_time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}': expected 200ms, 2s, or a number of seconds, from 1ms to 86400s");
    let (digits, unit) = text.split_at(text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len()));
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let time = match unit {
        "ms" => Duration::from_millis(number),
        "s" | "" => Duration::from_secs(number),
        _ => return Err(wrong()),
    };
    let bounds = Duration::from_millis(1)..=Duration::from_secs(86_400);
    if bounds.contains(&time) { Ok(time) } else { Err(wrong()) }
}

/// Parses the number of blocks to retain: at least 1, or `all`.
fn parse_history(text: &str) -> Result<u64, String> {
    match text.parse() {
        _ if text == "all" => Ok(u64::MAX),
        Ok(blocks) if blocks > 0 => Ok(blocks),
        _ => Err("expected a number of blocks of at least 1, or `all`".to_owned()),
    }
}

/// Describes a variable of the environment whose name is nearly a setting's. Other ones may be meant for other programs.
fn misspelt_variable(command: &clap::Command) -> Option<String> {
    let known: Vec<&str> = command.get_arguments().filter_map(|arg| arg.get_env()?.to_str()).collect();
    std::env::vars_os().filter(|(_, value)| !value.is_empty()).find_map(|(name, _)| {
        let name = name.to_str()?;
        let word = name.strip_prefix(PREFIX).filter(|_| !known.contains(&name))?;
        let meant = nearest(word, known.iter().filter_map(|known| known.strip_prefix(PREFIX)))?;
        Some(format!("the variable {name} is no setting: did you mean {PREFIX}{meant}? Rename it, or unset it"))
    })
}

/// Returns the file of `--config`, or of its variable: needed before the rest can be read.
fn config_path(args: &[OsString]) -> Option<PathBuf> {
    let mut args = args.iter().skip(1);
    while let Some(arg) = args.next() {
        let Some(text) = arg.to_str() else { continue };
        if text == "--config" {
            return args.next().map(PathBuf::from);
        }
        if let Some(path) = text.strip_prefix("--config=") {
            return Some(path.into());
        }
    }
    std::env::var_os("PRESIM_CONFIG").map(PathBuf::from)
}

/// Sets the file's values as defaults of their flags, so that flags and environment take precedence.
fn with_file(mut command: clap::Command, path: &std::path::Path) -> Result<clap::Command, clap::Error> {
    let shown = path.display();
    let fail = |text: String| command.clone().error(ErrorKind::InvalidValue, text);
    let text = std::fs::read_to_string(path)
        .map_err(|error| fail(format!("--config {shown}: {}", secrets::open_problem(&error))))?;
    // The error's own text would show the line, which may contain a key.
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let before = text.get(..error.span().map_or(0, |span| span.start)).unwrap_or_default();
        let line = 1 + before.matches('\n').count();
        let expected = "expected one `flag = value` per line, and texts in quotes";
        fail(format!("--config {shown}: line {line}: {}: {expected}", error.message()))
    })?;
    for (key, value) in table {
        let id = key.replace('-', "_");
        if id == "config" || !command.get_arguments().any(|arg| arg.get_id() == id.as_str()) {
            let settings = command.get_arguments().filter_map(clap::Arg::get_long).filter(|long| *long != "config");
            let meant = nearest(&key.replace('_', "-"), settings);
            let meant = meant.map_or_else(String::new, |near| format!(": did you mean `{near}`?"));
            return Err(command.clone().error(
                ErrorKind::UnknownArgument,
                format!("--config {shown}: unknown setting `{key}`{meant}: the settings are the flags of --help, without the dashes before them"),
            ));
        }
        let values = match value {
            toml::Value::Array(values) => values.into_iter().map(plain).collect(),
            value => vec![plain(value)],
        };
        command = command.mut_arg(id, |arg| arg.default_values(values));
    }
    Ok(command)
}

fn plain(value: toml::Value) -> String {
    match value {
        toml::Value::String(text) => text,
        other => other.to_string(),
    }
}

fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
