//! The reasons why a fleet cannot be joined.

use std::{io, path::PathBuf};

use crate::{ledger::codec::VERSION, store::StoreError};

/// The minimum version of a server in a cluster. Older versions lose data when a server fails.
pub const CLUSTER: (u64, u64) = (2, 12);

/// The reason why a fleet cannot be joined.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The servers cannot be reached.
    #[error("the NATS servers at {servers} cannot be reached: {problem}: start them, or give others")]
    Connect { servers: String, problem: String },
    /// A file with secrets or certificates cannot be read.
    #[error("{flag} {}: {error}", path.display())]
    File { flag: &'static str, path: PathBuf, error: io::Error },
    /// NATS refuses something, or does not answer.
    #[error("NATS: {what}: {problem}")]
    Nats { what: &'static str, problem: String },
    /// The servers are a cluster of a version that is too old.
    #[error(
        "the NATS cluster has servers of version {found}, and a cluster needs {}.{} or newer: update its servers, or use a single server",
        CLUSTER.0, CLUSTER.1
    )]
    Cluster { found: String },
    /// The fleet is one of another version of presim.
    #[error(
        "the fleet {fleet} is of version {theirs}, and this presim has version {VERSION}: run one version of presim in the fleet"
    )]
    Version { fleet: String, theirs: u8 },
    /// The fleet's chain is another.
    #[error(
        "the fleet {fleet} is of chain {theirs}, and this node's chain is {ours}: give another --fleet, or begin it again with --publish-anew"
    )]
    OtherChain { fleet: String, theirs: String, ours: String },
    /// There is no such fleet, more than one, or it contradicts the flags.
    #[error("{0}")]
    Which(String),
    /// The image cannot be used.
    #[error("the image of the fleet cannot be used: {0}")]
    Image(String),
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl FleetError {
    /// Returns the error of a request to NATS.
    pub fn nats(what: &'static str, problem: impl std::fmt::Display) -> Self {
        Self::Nats { what, problem: problem.to_string() }
    }

    /// Returns a function that converts the problem of a request to NATS into an error.
    pub fn of_nats<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> Self {
        move |problem| Self::nats(what, problem)
    }
}
