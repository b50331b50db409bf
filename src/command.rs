//! What the program is asked to do: run a node, or speak to one that runs.

use std::{ffi::OsString, path::PathBuf};

use clap::{CommandFactory, FromArgMatches, Subcommand, error::ErrorKind};

use crate::config::Config;

/// What a command line asks for.
#[derive(Clone, Debug)]
pub enum Command {
    /// To run a node.
    Run(Box<Config>),
    /// To say yes or no to the batches of a node that keeps its socket in this directory.
    Wallet(PathBuf, WalletTask),
}

#[derive(Clone, Debug, Subcommand)]
enum CommandTask {
    /// Say yes or no to the batches that wait in a node run with --wallet-approval ask.
    ///
    /// The node is the one that runs with this --data-dir; it is spoken to through a Unix socket there, which only its own user may open.
    #[command(subcommand)]
    Wallet(WalletTask),
}

/// What to do about the batches that wait for approval.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum WalletTask {
    /// Show the batches that wait: who sends what to whom, and what the simulation said.
    List {
        /// One JSON value, with all of each call's data.
        #[arg(long)]
        json: bool,
    },
    /// Have a batch signed and sent. Without DIGEST, the batch is shown first, and the terminal is asked.
    Approve {
        /// The batch: its id, or a beginning of it, six characters at least, that no other waiting batch's id has.
        #[arg(value_name = "ID")]
        id: String,
        /// The batch's digest as `presim wallet list` shows it, or its first digits, eight at least: no other batch is approved.
        #[arg(value_name = "DIGEST")]
        digest: Option<String>,
    },
    /// Refuse a batch: its sender gets error 4001.
    Reject {
        /// The batch: its id, or a beginning of it, six characters at least, that no other waiting batch's id has.
        #[arg(value_name = "ID")]
        id: String,
    },
}

impl Command {
    /// What a command line asks for, its first word the program, with the environment and the file that they name.
    ///
    /// # Errors
    /// What clap says of what cannot be used, a request for help among it; printing it is up to the caller.
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
