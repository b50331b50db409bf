//! The settings of a fleet's connection, stream and buckets.

use std::{fmt, path::PathBuf};

use url::Url;

use crate::shown;

/// The settings with which a node connects to NATS, and creates the stream and the buckets of its fleet.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The file with a JWT and the seed of its nkey. `None` if NATS knows the node otherwise.
    pub credentials: Option<PathBuf>,
    /// The file with the seed of the node's nkey.
    pub nkey_file: Option<PathBuf>,
    /// The file with the certificates of the authorities that sign those of the servers, beside the system's.
    pub authorities: Option<PathBuf>,
    /// The file with the node's certificate.
    pub certificate: Option<PathBuf>,
    /// The file with the private key of `certificate`.
    pub key: Option<PathBuf>,
    /// The number of servers that keep each message. A stream that exists keeps its number.
    pub copies: usize,
    /// Maximum length of the stream in bytes. The stream of sent transactions has a quarter more.
    pub stream_bytes: u64,
}

/// The servers of NATS: one, or several of a cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct Servers(pub Vec<Url>);

impl fmt::Display for Servers {
    /// Leaves out what may be secret: user, password and token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(shown::url).collect::<Vec<_>>().join(","))
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
