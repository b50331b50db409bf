//! Settings of a chain that lives elsewhere: the upstream node and its Flashblocks.

use std::time::Duration;

use clap::Args;
use url::Url;

/// Where an upstream answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `http`, `https`, `ws` or `wss`.
    Url(Url),
    /// The path of an IPC socket.
    Ipc(std::path::PathBuf),
}

impl Endpoint {
    /// All of it: it may have a key in it.
    pub fn url(&self) -> String {
        match self {
            Self::Url(url) => url.to_string(),
            Self::Ipc(path) => path.display().to_string(),
        }
    }
}

impl std::fmt::Display for Endpoint {
    /// Without what may be secret in it: user, password, path and query.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Url(url) => {
                write!(f, "{}://{}", url.scheme(), url.host_str().unwrap_or_default())?;
                url.port().map_or(Ok(()), |port| write!(f, ":{port}"))
            }
            Self::Ipc(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Settings of a chain that lives elsewhere.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Upstream")]
pub struct LiveConfig {
    /// Follow this node, and simulate on its chain: http, https, ws, wss, or the path of an IPC socket. Keys belong into PRESIM_UPSTREAM or the file of --config.
    #[arg(long, env = "PRESIM_UPSTREAM", hide_env_values = true, value_name = "URL", value_parser = parse_endpoint)]
    pub upstream: Option<Endpoint>,
    /// Take pre-confirmed sub-blocks from this WebSocket stream (ws, wss) of Flashblocks. Needs --upstream, the node whose blocks they become.
    #[arg(long, env = "PRESIM_FLASHBLOCKS", hide_env_values = true, value_name = "URL", value_parser = parse_stream)]
    pub flashblocks: Option<Url>,
    /// Check what the upstream says of accounts and slots by proofs (eth_getProof) against its blocks' state roots.
    #[arg(long, env = "PRESIM_VERIFY_PROOFS")]
    pub verify_proofs: bool,
    /// Megabytes of the upstream's state that are kept, what is used least goes first.
    #[arg(long, env = "PRESIM_CACHE_MB", value_name = "MB", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub cache_mb: u32,
    /// Milliseconds between two looks at the upstream's newest block, where it has no subscriptions.
    #[arg(long, env = "PRESIM_UPSTREAM_POLL_MS", value_name = "MS", default_value_t = 250, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub upstream_poll_ms: u64,
    /// Milliseconds that one answer of the upstream may take; then it is asked again.
    #[arg(long, env = "PRESIM_UPSTREAM_TIMEOUT_MS", value_name = "MS", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    pub upstream_timeout_ms: u64,
    /// Requests in one JSON-RPC batch to the upstream; more go side by side.
    #[arg(long, env = "PRESIM_UPSTREAM_BATCH", value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub upstream_batch: u32,
    /// Batches that may be under way to the upstream at once.
    #[arg(long, env = "PRESIM_UPSTREAM_CONCURRENCY", value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub upstream_concurrency: u32,
    /// How often a request may be run again because the upstream was to be asked for more state; then it is refused (-32603).
    #[arg(long, env = "PRESIM_UPSTREAM_ROUNDS", value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub upstream_rounds: u32,
    /// Milliseconds that executing a new block may take, fetching what it reads included. One that takes longer is shown all the same, and what was known of the state is asked for anew.
    #[arg(long, env = "PRESIM_UPSTREAM_EXECUTE_MS", value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(0..=600_000))]
    pub upstream_execute_ms: u64,
    /// Milliseconds from the arrival of a sub-block to its snapshot. One that takes longer is not applied: `pending` is canonical until the next block begins.
    #[arg(long, env = "PRESIM_FLASHBLOCKS_APPLY_MS", value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub flashblocks_apply_ms: u64,
    /// Milliseconds without a sub-block after which `pending` is canonical until the next block begins.
    #[arg(long, env = "PRESIM_FLASHBLOCKS_SILENT_MS", value_name = "MS", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(100..=600_000))]
    pub flashblocks_silent_ms: u64,
    /// Milliseconds without a message after which the Flashblocks connection counts as lost.
    #[arg(long, env = "PRESIM_FLASHBLOCKS_IDLE_MS", value_name = "MS", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(100..=600_000))]
    pub flashblocks_idle_ms: u64,
    /// Pre-confirmed blocks that may be ahead of the upstream's newest; past it `pending` is canonical again.
    #[arg(long, env = "PRESIM_FLASHBLOCKS_AHEAD", value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub flashblocks_ahead: u32,
    /// Bytes of one Flashblock, decompressed.
    #[arg(long, env = "PRESIM_FLASHBLOCKS_MAX_BYTES", value_name = "BYTES", default_value_t = 32 << 20, value_parser = clap::value_parser!(u32).range(1_024..))]
    pub flashblocks_max_bytes: u32,
}

impl LiveConfig {
    /// Between two looks at the newest block.
    pub const fn poll(&self) -> Duration {
        Duration::from_millis(self.upstream_poll_ms)
    }

    /// For one answer.
    pub const fn timeout(&self) -> Duration {
        Duration::from_millis(self.upstream_timeout_ms)
    }

    /// For executing a block.
    pub const fn execute(&self) -> Duration {
        Duration::from_millis(self.upstream_execute_ms)
    }
}

fn parse_endpoint(text: &str) -> Result<Endpoint, String> {
    match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https" | "ws" | "wss") && url.has_host() => Ok(Endpoint::Url(url)),
        Ok(url) if text.contains("://") => {
            Err(format!("scheme {}: expected http, https, ws, wss, or the path of an IPC socket", url.scheme()))
        }
        Err(error) if text.contains("://") => Err(error.to_string()),
        _ if text.contains('/') || text.ends_with(".ipc") => Ok(Endpoint::Ipc(text.into())),
        _ => Err("expected a URL like http://127.0.0.1:8545, or the path of an IPC socket".to_owned()),
    }
}

fn parse_stream(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("{error}: expected a URL like wss://host/ws"))?;
    match url.scheme() {
        "ws" | "wss" if url.has_host() => Ok(url),
        scheme => Err(format!("scheme {scheme}: Flashblocks come over WebSocket: expected ws or wss")),
    }
}
