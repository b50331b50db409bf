//! The ports of a node, bound before the long work of its start, so that a taken port is reported at once, and the
//! start can be queried.

use std::{
    io::{self, ErrorKind},
    net::{SocketAddr, TcpListener},
};

use crate::{
    config::Config,
    rpc::{StartupReason, StartupServer},
};

/// The ports that a node serves on.
#[derive(Debug)]
pub struct Ports {
    /// The port for requests, which answers with the current step of the startup. `None` on a node that listens nowhere.
    pub front: Option<StartupServer>,
    /// The port for metrics.
    pub metrics: Option<TcpListener>,
}

impl Ports {
    /// Binds the ports of `config`.
    ///
    /// # Errors
    ///
    /// Returns an error that names the flag if a port is taken, or is not allowed for this process.
    pub fn take(config: &Config) -> eyre::Result<Self> {
        let front = (!config.is_closed).then(|| {
            StartupServer::bind(config.server()).map_err(|error| {
                let cure = cure(&error, "--listen");
                eyre::Report::from(error).wrap_err(format!("cannot listen on {}: {cure}", config.listen))
            })
        });
        let bind = |address: SocketAddr| {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok::<_, std::io::Error>(listener)
        };
        let metrics = config.metrics.map(|address| {
            bind(address).map_err(|error| {
                let cure = cure(&error, "--metrics");
                eyre::Report::from(error).wrap_err(format!("cannot serve metrics on {address}: {cure}"))
            })
        });
        Ok(Self { front: front.transpose()?, metrics: metrics.transpose()? })
    }

    /// Returns the place for the current step of the start.
    pub fn reason(&self) -> StartupReason {
        self.front.as_ref().map(|front| front.reason().clone()).unwrap_or_default()
    }
}

/// Returns what to do about a port that cannot be bound, whose address `flag` sets.
fn cure(error: &io::Error, flag: &str) -> String {
    match error.kind() {
        ErrorKind::AddrInUse => {
            format!("another program listens there, perhaps another node: stop it, or give another address with {flag}")
        }
        ErrorKind::AddrNotAvailable => {
            format!("this machine does not have the address: give one that it has with {flag}")
        }
        ErrorKind::PermissionDenied => {
            format!("presim's user may not use ports below 1024: give a higher one with {flag}")
        }
        _ => format!("give another address with {flag}"),
    }
}
