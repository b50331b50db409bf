//! The settings of an embedded node.

use std::{ffi::OsString, fmt::Display, net::SocketAddr, path::Path, time::Duration};

use clap::CommandFactory;

use crate::{
    config::Config as Settings,
    node::StartError,
    shown::{self, without_secrets},
};

/// The settings of a [`Node`](crate::Node). The default is the built-in devnet, which listens nowhere and stores nothing.
///
/// The methods are the settings that most programs need. Each of the others is a flag of the program `presim`, and
/// [`with`](Self::with) sets it by its name; `src/config/README.md` lists them. Nothing is read from the environment or from
/// a file of settings. [`Node::start`](crate::Node::start) checks the values.
///
/// ```
/// use std::time::Duration;
///
/// use presim::Config;
///
/// let config = Config::default().sub_block(Duration::from_millis(50)).workers(2).with("traffic", 0);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Flags and their values, in the order in which they were set.
    flags: Vec<(String, Option<String>)>,
    listens: bool,
}

impl Config {
    /// Returns the settings of a node that follows the node at `url` (`http`, `https`, `ws` or `wss`, or the path of a Unix
    /// socket).
    ///
    /// ```
    /// let config = presim::Config::following("wss://node.example").flashblocks("wss://builder.example/ws");
    /// ```
    #[must_use]
    pub fn following(url: impl Into<String>) -> Self {
        Self::default().with("upstream", url.into())
    }

    /// Returns the settings of a node whose chain begins with this genesis file in geth's format.
    ///
    /// The chain grows as the devnet does, and the accounts of the test mnemonic that have ether in it send transactions.
    /// With `traffic` 0, its blocks have only the transactions that are sent to the node; with `feed` `static`, it does not
    /// grow.
    ///
    /// ```
    /// let config = presim::Config::genesis("genesis.json").with("traffic", 0);
    /// ```
    #[must_use]
    pub fn genesis(file: impl AsRef<Path>) -> Self {
        Self::default().with("genesis", file.as_ref().display())
    }

    /// Takes the sub-blocks of a builder from this WebSocket, in addition to the blocks of the node that is followed.
    #[must_use]
    pub fn flashblocks(self, url: impl Into<String>) -> Self {
        self.with("flashblocks", url.into())
    }

    /// Stores the chain, or the state that was fetched, in this directory, and resumes from it.
    ///
    /// ```
    /// let config = presim::Config::default().data_dir("/var/lib/bot");
    /// ```
    #[must_use]
    pub fn data_dir(self, directory: impl AsRef<Path>) -> Self {
        self.with("data-dir", directory.as_ref().display())
    }

    /// Answers HTTP and WebSocket on this address, as the program does.
    ///
    /// ```
    /// let config = presim::Config::default().listen(([127, 0, 0, 1], 8545).into());
    /// ```
    #[must_use]
    pub fn listen(self, address: SocketAddr) -> Self {
        Self { listens: true, ..self.with("listen", address) }
    }

    /// Sets the number of threads that simulate. The default is the number of cores.
    #[must_use]
    pub fn workers(self, count: usize) -> Self {
        self.with("workers", count)
    }

    /// Sets the time between the sub-blocks of a devnet.
    #[must_use]
    pub fn sub_block(self, time: Duration) -> Self {
        self.with("sub-block-ms", time.as_millis())
    }

    /// Sets the time that a simulation may take, from the call of the method to its result.
    #[must_use]
    pub fn deadline(self, time: Duration) -> Self {
        self.with("deadline-ms", time.as_millis())
    }

    /// Sets the flag with this name, without the dashes before it, to a value. A flag without a value is set by `true`. A name
    /// that is set again gets the later value, or, if it is one that may be repeated, both.
    ///
    /// ```
    /// let config = presim::Config::following("http://127.0.0.1:8545").with("verify-proofs", true).with("keep-blocks", 64);
    /// ```
    #[must_use]
    pub fn with(mut self, flag: &str, value: impl Display) -> Self {
        let flag = flag.trim_start_matches('-');
        match value.to_string().as_str() {
            // Flags that are on or off have no value on a command line.
            "true" => self.flags.push((flag.to_owned(), None)),
            "false" => self.flags.retain(|(name, _)| name != flag),
            text => self.flags.push((flag.to_owned(), Some(text.to_owned()))),
        }
        self
    }

    /// Returns the settings as the node takes them.
    ///
    /// # Errors
    ///
    /// Returns [`StartError::Setting`], which names the flag, if a value is invalid or conflicts with another.
    pub(super) fn settings(&self) -> Result<Settings, StartError> {
        let command = Settings::command().mut_args(|arg| arg.env(None::<&str>)).args_override_self(true);
        let flags = self.flags.iter().map(|(name, value)| match value {
            Some(value) => format!("--{name}={value}"),
            None => format!("--{name}"),
        });
        let args = std::iter::once("presim".to_owned()).chain(flags).map(OsString::from);
        let refused = |error: clap::Error| {
            if !error.use_stderr() {
                return StartError::Setting(
                    "--help and --version are commands, not settings: leave them out".to_owned(),
                );
            }
            let text = without_secrets(&error.render().to_string());
            // The advice of a command line follows.
            let ends = ["\n\nUsage:", "\n\nFor more information"].map(|advice| text.find(advice).unwrap_or(text.len()));
            let lines = text[..ends[0].min(ends[1])].lines().map(str::trim).filter(|line| !line.is_empty());
            let text = lines.collect::<Vec<_>>().join("; ");
            StartError::Setting(shown::printable(text.trim_start_matches("error: ")))
        };
        let (mut settings, _, mut command) = Settings::read(command, args).map_err(refused)?;
        settings.check(&mut command).map_err(refused)?;
        settings.is_closed = !self.listens;
        Ok(settings)
    }
}
