//! The command line: run a node, or talk to a running one.

use std::{ffi::OsString, path::PathBuf};

use clap::{CommandFactory, FromArgMatches, Subcommand, error::ErrorKind};

use crate::config::Config;

/// The action that a command line requests.
#[derive(Clone, Debug)]
pub enum Command {
    /// Run a node.
    Run(Box<Config>),
    /// Act as an approver of the wallet of the node whose socket is in this directory.
    Wallet(PathBuf, WalletTask),
}

#[derive(Clone, Debug, Subcommand)]
enum CommandTask {
    /// Approve or reject the batches and messages that wait in a node run with --wallet-approval ask; replace the
    /// transactions that wait on an upstream's chain.
    ///
    /// The node is the one that runs with this --data-dir. The command talks to it over a Unix socket there, which only
    /// the node's user can open.
    #[command(subcommand)]
    Wallet(WalletTask),
}

/// The action on the batches and messages that wait for approval.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum WalletTask {
    /// Show what waits: senders, calls in words, the results of their simulation, and messages field by field.
    List {
        /// Print one JSON value, with the full data of each call.
        #[arg(long)]
        json: bool,
    },
    /// Show each batch or message as it comes, and ask on the terminal whether to approve it.
    Watch,
    /// Sign a message, or sign and send a batch. Without DIGEST, show it first, and ask on the terminal.
    Approve {
        /// The batch's id, or a beginning of it with at least six characters that no other waiting batch's id has.
        #[arg(value_name = "ID")]
        id: String,
        /// The batch's digest as `presim wallet list` shows it, or at least its first eight digits. A batch with
        /// another digest is not approved.
        #[arg(value_name = "DIGEST")]
        digest: Option<String>,
    },
    /// Reject a batch or a message. Its sender gets error 4001.
    Reject {
        /// The batch's id, or a beginning of it with at least six characters that no other waiting batch's id has.
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Sign the transactions of a batch that wait once more, with the same nonces and higher fees, and send them to the
    /// upstream.
    Bump {
        /// The batch's id, or a beginning of it that no other batch's id has.
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Replace the transactions of a batch that wait by ones that do nothing. A transaction that is mined first stays.
    Cancel {
        /// The batch's id, or a beginning of it that no other batch's id has.
        #[arg(value_name = "ID")]
        id: String,
    },
}

impl Command {
    /// Parses a command line, whose first word is the program, with the environment and the file that they name.
    ///
    /// # Errors
    ///
    /// Returns clap's error for an invalid setting, or for a request for help. The caller prints it.
    pub fn load(args: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let command = CommandTask::augment_subcommands(Config::command());
        let (config, mut matches, mut command) = Config::read(command, args)?;
        if matches.subcommand_name().is_none() {
            config.check(&mut command)?;
            return Ok(Self::Run(Box::new(config)));
        }
        let CommandTask::Wallet(task) =
            CommandTask::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))?;
        let Some(data_dir) = config.data_dir else {
            return Err(command.error(
                ErrorKind::MissingRequiredArgument,
                "presim wallet needs --data-dir: the one that the node runs with",
            ));
        };
        Ok(Self::Wallet(data_dir, task))
    }
}
