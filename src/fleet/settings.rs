//! The settings of a fleet's connection, stream and buckets, and of a node's part in its fleet.

use std::{fmt, net::SocketAddr, path::PathBuf, time::Duration};

use url::Url;

use crate::{ledger::Retention, shown};

/// The settings with which a node connects to NATS, and creates the stream and the buckets of its fleet.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The file with a JWT and the seed of its nkey. `None` if NATS knows the node otherwise.
    pub credentials: Option<PathBuf>,
    /// The file with the seed of the node's nkey.
    pub nkey_file: Option<PathBuf>,
    /// The file with additional certificates of authorities that sign the servers' certificates.
    pub authorities: Option<PathBuf>,
    /// The file with the node's certificate.
    pub certificate: Option<PathBuf>,
    /// The file with the private key of `certificate`.
    pub key: Option<PathBuf>,
    /// The number of servers that keep each message. An existing stream keeps its number.
    pub copies: usize,
    /// Maximum length of the stream in bytes.
    pub stream_bytes: u64,
}

/// The settings with which a node joins its fleet.
#[derive(Clone, Debug)]
pub struct JoiningSettings {
    /// The settings of the connection, of the stream and of the buckets.
    pub servers: Settings,
    /// The name of the fleet. `None` for the default.
    pub fleet: Option<String>,
    /// The address on which the node listens. It is part of the node's name.
    pub listen: SocketAddr,
    /// Whether restarting the fleet's stream with the node's chain.
    pub anew: bool,
    /// Whether the node has a wallet, whose address the fleet records.
    pub has_wallet: bool,
    /// The number of messages after an image, beyond which a new one is written.
    pub image_every: u64,
    /// The time for which an image stays after a newer one is complete.
    pub image_keep: Duration,
    /// The time since the latest moment for which a following node is proven to show the leader's state, from which the
    /// node lags.
    pub lagging_after: Duration,
    /// The extent of the retained past.
    pub kept: Retention,
    /// The most bytes of an upstream's state.
    pub cache: usize,
}

/// The servers of NATS: one, or several of a cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct Servers(pub Vec<Url>);

impl fmt::Display for Servers {
    /// Leaves out the parts that may be secret: user, password and token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(shown::url).collect::<Vec<_>>().join(","))
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
