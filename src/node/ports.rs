//! The ports of a node, bound before the long work of its start, so that a taken port is reported at once, and the
//! start can be queried.

use std::net::{SocketAddr, TcpListener};

use eyre::WrapErr;

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
            StartupServer::bind(config.server()).wrap_err_with(|| {
                format!(
                    "cannot listen on {}: is another node running there? give another address with --listen",
                    config.listen
                )
            })
        });
        let bind = |address: SocketAddr| {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok::<_, std::io::Error>(listener)
        };
        let metrics = config.metrics.map(|address| {
            bind(address)
                .wrap_err_with(|| format!("cannot serve metrics on {address}: give another address with --metrics"))
        });
        Ok(Self { front: front.transpose()?, metrics: metrics.transpose()? })
    }

    /// Returns the place for the current step of the start.
    pub fn reason(&self) -> StartupReason {
        self.front.as_ref().map(|front| front.reason().clone()).unwrap_or_default()
    }
}
