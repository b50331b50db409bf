//! Settings of a live chain: the upstream node and its Flashblocks.

use std::time::Duration;

use alloy_primitives::Address;
use clap::Args;
use url::Url;

use crate::{
    ledger::LateBounds,
    secrets::{SecretParser, secret_url},
    shown,
};

/// The endpoint of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `http`, `https`, `ws` or `wss`.
    Url(Url),
    /// The path of an IPC socket.
    Ipc(std::path::PathBuf),
}

impl Endpoint {
    /// Returns the whole endpoint, which may contain a key.
    pub fn url(&self) -> String {
        match self {
            Self::Url(url) => url.to_string(),
            Self::Ipc(path) => path.display().to_string(),
        }
    }
}

impl std::fmt::Display for Endpoint {
    /// Leaves out what may be secret: user, password, path and query.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Url(url) => f.write_str(&shown::url(url)),
            Self::Ipc(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Settings of a live chain.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Upstream")]
pub struct LiveConfig {
    /// Follow this node, and simulate on its chain: http, https, ws, wss, or the path of an IPC socket. Put keys into
    /// `PRESIM_UPSTREAM` or the file of --config.
    #[arg(long, env = "PRESIM_UPSTREAM", hide_env_values = true, value_name = "URL", value_parser = SecretParser(parse_endpoint))]
    pub upstream: Option<Endpoint>,
    /// Read pre-confirmed sub-blocks from this Flashblocks stream (ws, wss). Needs --upstream, which has the state
    /// below them and the blocks that they become.
    #[arg(long, env = "PRESIM_FLASHBLOCKS", hide_env_values = true, value_name = "URL", value_parser = SecretParser(parse_stream))]
    pub flashblocks: Option<Url>,
    /// Verify the upstream's accounts and slots with proofs (`eth_getProof`) against its blocks' state roots. A replica
    /// that verifies needs an --upstream of its own. The node does not start on an upstream that has no proofs.
    #[arg(long, env = "PRESIM_VERIFY_PROOFS")]
    pub verify_proofs: bool,
    /// Cache for the upstream's state, in megabytes, including abandoned branches that are still read. The least
    /// recently used state is evicted first.
    #[arg(long, env = "PRESIM_CACHE_MB", value_name = "MB", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub cache_mb: u32,
    /// Cache for the upstream's state at blocks older than the retained ones, in megabytes. The state of the least
    /// recently used block is evicted first.
    #[arg(long, env = "PRESIM_ARCHIVE_CACHE_MB", value_name = "MB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub archive_cache_mb: u32,
    /// Interval of polling for the upstream's newest block, in milliseconds, if it offers no subscriptions.
    #[arg(long, env = "PRESIM_UPSTREAM_POLL_MS", value_name = "MS", default_value_t = 250, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub upstream_poll_ms: u64,
    /// Time-out of one answer of the upstream, in milliseconds. Then the call is repeated.
    #[arg(long, env = "PRESIM_UPSTREAM_TIMEOUT_MS", value_name = "MS", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    pub upstream_timeout_ms: u64,
    /// Maximum requests per JSON-RPC batch to the upstream. More are sent in concurrent batches.
    #[arg(long, env = "PRESIM_UPSTREAM_BATCH", value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub upstream_batch: u32,
    /// Maximum concurrent batches to the upstream.
    #[arg(long, env = "PRESIM_UPSTREAM_CONCURRENCY", value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub upstream_concurrency: u32,
    /// Memory for decompressed answers of the upstream that are being read or not yet used, in megabytes. Beyond it,
    /// answers are cut off and their requests fail.
    #[arg(long, env = "PRESIM_UPSTREAM_ANSWERS_MB", value_name = "MB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    pub upstream_answers_mb: u32,
    /// Maximum rounds in which a request misses state and runs again. Then it is rejected (-32603).
    #[arg(long, env = "PRESIM_UPSTREAM_ROUNDS", value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub upstream_rounds: u32,
    /// Milliseconds for executing a new block, fetching included; 0 executes none. A block that takes longer is
    /// published without being executed, and the cached state that it may have changed is fetched again.
    #[arg(long, env = "PRESIM_UPSTREAM_EXECUTE_MS", value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(0..=600_000))]
    pub upstream_execute_ms: u64,
    /// Number of blocks after the one being executed whose state is fetched in advance, while that one waits for state.
    #[arg(long, env = "PRESIM_UPSTREAM_LOOKAHEAD", value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub upstream_lookahead: u32,
    /// Milliseconds for which an announced block, or the receipts of one that is not executed here, may be missing
    /// upstream. Until then, logs of later blocks wait for its logs. `/health` names such blocks.
    #[arg(long, env = "PRESIM_UPSTREAM_LATE_MS", value_name = "MS", default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(0..=3_600_000))]
    pub upstream_late_ms: u64,
    /// Memory for the logs of later blocks that wait for a block whose receipts the upstream does not have yet, in
    /// megabytes.
    #[arg(long, env = "PRESIM_UPSTREAM_LATE_MB", value_name = "MB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub upstream_late_mb: u32,
    /// Interval of polling the upstream's `eth_config`, in seconds. Polling stops at a fork that presim does not know.
    #[arg(long, env = "PRESIM_UPSTREAM_FORKS_S", value_name = "S", default_value_t = 3_600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub upstream_forks_s: u32,
    /// Methods that presim does not have and passes to the upstream, separated by commas. A name may end in `*`. List
    /// only methods that read.
    #[arg(long, env = "PRESIM_FORWARD", value_name = "NAMES", value_delimiter = ',', default_value = "optimism_*,base_meter*,base_transactionStatus", value_parser = parse_forwarded)]
    pub forward: Vec<String>,
    /// Addresses of native contracts that the chain's nodes have and presim does not, separated by commas, in addition
    /// to those that presim knows. The upstream answers a request that calls one.
    #[arg(long, env = "PRESIM_NATIVE", value_name = "ADDRESSES", value_delimiter = ',')]
    pub native: Vec<Address>,
    /// Maximum lag of the newest sub-block behind its arrival, in milliseconds. Beyond it, `pending` is the canonical
    /// head until the next block begins. 0 sets no bound: `pending` is the newest executed sub-block, however late it
    /// is.
    #[arg(long, env = "PRESIM_MAX_LAG_MS", value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=600_000))]
    pub max_lag_ms: u64,
    /// Milliseconds without a sub-block after which `pending` is the canonical head until the next block begins.
    #[arg(long, env = "PRESIM_FLASHBLOCKS_SILENT_MS", value_name = "MS", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(100..=600_000))]
    pub flashblocks_silent_ms: u64,
    /// Milliseconds without a message after which the Flashblocks connection is considered lost.
    #[arg(long, env = "PRESIM_FLASHBLOCKS_IDLE_MS", value_name = "MS", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(100..=600_000))]
    pub flashblocks_idle_ms: u64,
    /// Maximum pre-confirmed blocks ahead of the upstream's newest. Beyond it, `pending` is the canonical head. The
    /// default is the number of blocks that the chain has in 32 seconds, and at least 16.
    #[arg(long, env = "PRESIM_FLASHBLOCKS_AHEAD", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub flashblocks_ahead: Option<u32>,
    /// Maximum size of a Flashblock in bytes, decompressed.
    #[arg(long, env = "PRESIM_FLASHBLOCKS_MAX_BYTES", value_name = "BYTES", default_value_t = 32 << 20, value_parser = clap::value_parser!(u32).range(1_024..))]
    pub flashblocks_max_bytes: u32,
}

impl LiveConfig {
    /// The pre-confirmed blocks that may be ahead of the upstream's newest at least, unless it is set.
    pub const LEAST_AHEAD: u32 = 16;
    /// The time of the blocks that may be ahead of the upstream's newest, unless it is set.
    const AHEAD: Duration = Duration::from_secs(32);

    /// Returns the number of pre-confirmed blocks that may be ahead of the upstream's newest on a chain with this time between
    /// blocks.
    pub fn ahead(&self, block_time: Duration) -> u32 {
        let in_time = Self::AHEAD.as_millis() / block_time.as_millis().max(1);
        let usual = u32::try_from(in_time).unwrap_or(u32::MAX).clamp(Self::LEAST_AHEAD, 256);
        self.flashblocks_ahead.unwrap_or(usual)
    }

    /// Returns the time-out of one answer.
    pub const fn timeout(&self) -> Duration {
        Duration::from_millis(self.upstream_timeout_ms)
    }

    /// Returns how long the logs of later blocks wait for those of a block whose receipts the upstream does not have yet.
    pub const fn late(&self) -> LateBounds {
        let (wait, bytes) = (Duration::from_millis(self.upstream_late_ms), (self.upstream_late_mb as usize) << 20);
        LateBounds { wait, bytes }
    }
}

/// Parses an endpoint: a URL, or the path of a socket.
pub(crate) fn parse_endpoint(text: &str) -> Result<Endpoint, String> {
    let is_path = !text.contains("://") && (text.contains('/') || text.ends_with(".ipc"));
    if is_path {
        return Ok(Endpoint::Ipc(text.into()));
    }
    let url = secret_url(text, &["http", "https", "ws", "wss"], "http://127.0.0.1:8545");
    url.map(Endpoint::Url).map_err(|problem| format!("{problem}, or the path of an IPC socket"))
}

fn parse_forwarded(text: &str) -> Result<String, String> {
    let name = text.strip_suffix('*').unwrap_or(text);
    match !name.is_empty() && name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_') {
        true => Ok(text.to_owned()),
        false => {
            Err("expected the name of a method, like optimism_syncStatus, or the beginning of one, like optimism_*"
                .to_owned())
        }
    }
}

fn parse_stream(text: &str) -> Result<Url, String> {
    secret_url(text, &["ws", "wss"], "wss://host/ws")
        .map_err(|problem| format!("{problem}: Flashblocks come over WebSocket"))
}
