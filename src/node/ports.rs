//! The ports of a node, taken before the long work of its start: a port that is taken is told at once, and the start can be asked about.

use std::net::{SocketAddr, TcpListener};

use eyre::WrapErr;

use crate::{
    config::Config,
    rpc::{ServerConfig, StartupServer},
};

/// The ports that a node serves on.
#[derive(Debug)]
pub struct Ports {
    /// The port for requests, which answers what the start waits for.
    pub front: StartupServer,
    /// The port for metrics.
    pub metrics: Option<TcpListener>,
}

impl Ports {
    /// Takes the ports that `config` names.
    ///
    /// # Errors
    /// Returns an error that names the flag if a port is taken, or is not for this process.
    pub fn take(config: &Config) -> eyre::Result<Self> {
        let front = StartupServer::bind(ServerConfig::new(config)).wrap_err_with(|| {
            format!("cannot listen on {}: is another node running there? --listen takes another address", config.listen)
        })?;
        let bind = |address: SocketAddr| {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok::<_, std::io::Error>(listener)
        };
        let metrics = config.metrics.map(|address| {
            bind(address)
                .wrap_err_with(|| format!("cannot serve metrics on {address}: --metrics takes another address"))
        });
        Ok(Self { front, metrics: metrics.transpose()? })
    }
}
