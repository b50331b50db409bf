//! Settings of a fleet: many machines that answer from one feed, over NATS.

use std::path::PathBuf;

use clap::Args;

use crate::{
    fleet::settings::{Servers, Settings},
    secrets::{SecretParser, secret_url},
};

/// Settings of a fleet.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Fleet")]
pub struct FleetConfig {
    /// Publish this node's snapshots to the NATS servers at these URLs (nats, tls; separated by commas), for nodes with
    /// --follow. Of several such nodes one leads, and another takes over if it fails. Needs --upstream. Put secrets
    /// into `PRESIM_PUBLISH` or the file of --config.
    #[arg(long, env = "PRESIM_PUBLISH", hide_env_values = true, value_name = "URLS", value_parser = SecretParser(parse_servers))]
    pub publish: Option<Servers>,
    /// Follow the leader that publishes to the NATS servers at these URLs, and answer from the same snapshots under the
    /// same ids. Put secrets into `PRESIM_FOLLOW` or the file of --config.
    #[arg(long, env = "PRESIM_FOLLOW", hide_env_values = true, value_name = "URLS", value_parser = SecretParser(parse_servers))]
    pub follow: Option<Servers>,
    /// Name of the fleet. With --publish, the default is the chain id and the beginning of the genesis hash; with
    /// --follow, it is the only fleet on the servers.
    #[arg(long, env = "PRESIM_FLEET", value_name = "NAME", value_parser = parse_fleet)]
    pub fleet: Option<String>,
    /// Delete the fleet's stream, and start it again with this node's chain. Needs --publish.
    #[arg(long, env = "PRESIM_PUBLISH_ANEW")]
    pub publish_anew: bool,
    /// Number of servers of the NATS cluster that store each message. An existing stream keeps its number.
    #[arg(long, env = "PRESIM_PUBLISH_COPIES", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
    pub publish_copies: u8,
    /// Size of the fleet's stream, in megabytes. Beyond it, the oldest messages are deleted. A new image is written
    /// before they are needed.
    #[arg(long, env = "PRESIM_PUBLISH_MB", value_name = "MB", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub publish_mb: u32,
    /// Number of messages after which the leader writes a new image. A node that joins replays the messages after the
    /// newest image.
    #[arg(long, env = "PRESIM_IMAGE_EVERY", value_name = "N", default_value_t = 3_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub image_every: u32,
    /// Seconds to retain an image after a newer one is complete, for nodes that are still reading it.
    #[arg(long, env = "PRESIM_IMAGE_KEEP_S", value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub image_keep_s: u64,
    /// Milliseconds that a request waits for the snapshot named in its `x-presim-min-snapshot`. Then it is rejected
    /// (-32000).
    #[arg(long, env = "PRESIM_MAX_CATCH_UP_MS", value_name = "MS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    pub max_catch_up_ms: u64,
    /// Maximum proven lag behind the leader, in milliseconds. Beyond it, the feed of a following node is `lagging` and
    /// the node is not ready.
    #[arg(long, env = "PRESIM_LAGGING_AFTER_MS", value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(150..=60_000))]
    pub lagging_after_ms: u64,
    /// NATS credentials file: a JWT and an nkey seed, as `nsc` writes it.
    #[arg(long, env = "PRESIM_NATS_CREDENTIALS", value_name = "FILE")]
    pub nats_credentials: Option<PathBuf>,
    /// File with the nkey seed that authenticates this node to NATS.
    #[arg(long, env = "PRESIM_NATS_NKEY_FILE", value_name = "FILE")]
    pub nats_nkey_file: Option<PathBuf>,
    /// File with CA certificates for the NATS servers, in addition to the system's.
    #[arg(long, env = "PRESIM_NATS_CA", value_name = "FILE")]
    pub nats_ca: Option<PathBuf>,
    /// File with the client certificate that authenticates this node to NATS. Needs --nats-key.
    #[arg(long, env = "PRESIM_NATS_CERT", value_name = "FILE")]
    pub nats_cert: Option<PathBuf>,
    /// File with the private key of --nats-cert.
    #[arg(long, env = "PRESIM_NATS_KEY", value_name = "FILE")]
    pub nats_key: Option<PathBuf>,
}

impl FleetConfig {
    /// Returns the settings of the connection, of the stream and of the buckets.
    pub fn settings(&self) -> Settings {
        Settings {
            credentials: self.nats_credentials.clone(),
            nkey_file: self.nats_nkey_file.clone(),
            authorities: self.nats_ca.clone(),
            certificate: self.nats_cert.clone(),
            key: self.nats_key.clone(),
            copies: self.publish_copies.into(),
            stream_bytes: u64::from(self.publish_mb) << 20,
        }
    }
}

fn parse_servers(text: &str) -> Result<Servers, String> {
    let parse = |text: &str| secret_url(text, &["nats", "tls"], "nats://127.0.0.1:4222");
    text.split(',').map(parse).collect::<Result<_, _>>().map(Servers)
}

/// Parses the name of a fleet, which is a part of the names of its subjects, its stream and its buckets.
fn parse_fleet(text: &str) -> Result<String, String> {
    let fits = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_');
    match (1..=64).contains(&text.len()) && text.chars().all(fits) {
        true => Ok(text.to_owned()),
        false => Err("expected 1 to 64 letters, digits, `-` and `_`".to_owned()),
    }
}
