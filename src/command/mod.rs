//! The command line: run a node; simulate, search, watch, trace and shadow on a running node or on a local state;
//! approve for a wallet; print files for operating and using presim.

mod answer;
mod calls;
mod error;
mod fork;
mod help;
mod input;
mod link;
mod names;
mod print;
mod search;
mod shadow;
mod show;
mod simulate;
mod state;
mod trace;
mod tree;
mod waiting;
pub mod wallet;
mod watch;

pub use self::{
    error::CommandError,
    link::{NodeArgs, NodeTarget},
    print::PrintTask,
};

use std::{
    ffi::OsString,
    io::Write,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

use clap::{CommandFactory, FromArgMatches, Subcommand, error::ErrorKind};

use self::{
    fork::ForkArgs, names::LazyLink, search::SearchArgs, shadow::ShadowArgs, simulate::SimulateArgs, trace::TraceArgs,
    wallet::WalletTask, watch::WatchArgs,
};
use crate::config::Config;

/// The action that a command line requests.
#[derive(Clone, Debug)]
pub enum Command {
    /// Run a node.
    Run(Box<Config>),
    /// Ask a node.
    Ask(Box<AskTask>),
    /// Print a file that systems or users need.
    Print(PrintTask),
    /// Act as an approver of the wallet of the node whose socket is in this directory.
    Wallet(PathBuf, WalletTask),
}

/// A question, and the node that is asked.
#[derive(Clone, Debug)]
pub struct AskTask {
    target: NodeTarget,
    question: QuestionTask,
    /// Set when an endless command that sums up is to end.
    stop: Arc<AtomicBool>,
}

#[derive(Clone, Debug, Subcommand)]
enum QuestionTask {
    /// Simulate a bundle of calls, and show what each call does.
    ///
    /// The bundle is a FILE with a payload of `presim_simulate`, or calls given by --to, --sig and --args. It runs on the node at --url, or
    /// without a node on the state of --upstream or --genesis.
    ///
    /// Exit codes: 0, 1 if a required call failed, 2 for bad input or no node.
    Simulate(SimulateArgs),
    /// Search for the values of a bundle's variables that optimise an objective.
    ///
    /// The search is a FILE with a payload of `presim_search`, or a call given by --to, --sig and --args, with --vary and an objective.
    ///
    /// Exit codes: 0, 1 if no value meets the requirements, 2 for bad input or no node.
    Search(SearchArgs),
    /// Watch bundles: print a table on a terminal, otherwise a line per changed answer.
    ///
    /// FILE has the bundles of `presim_watch`, or one payload of `presim_simulate` or `presim_search`.
    Watch(WatchArgs),
    /// Show the call tree of a transaction.
    Trace(TraceArgs),
    /// Show which transactions of real blocks would behave differently under another fork.
    ///
    /// Each transaction runs twice on the state before it: under the rules of its block, and under the fork. It differs if its status,
    /// return data, logs, created contracts, code, nonces, storage, or balances beyond fees differ, or if it is invalid under the fork.
    /// Gas alone is no difference, nor are the logs of transfers (EIP-7708). The blocks are read from the node at --upstream, which must
    /// have their state.
    ///
    /// Exit codes: 0, 1 if a block could not be run, 2 for bad input or no node.
    Shadow(ShadowArgs),
}

#[expect(clippy::large_enum_variant, reason = "a command line is parsed once")]
#[derive(Clone, Debug, Subcommand)]
enum CommandTask {
    #[command(flatten)]
    Ask(QuestionTask),
    /// Run a private test chain on the state of another node's chain, with the methods of --testing.
    ///
    /// Blocks are mined locally, on state that is fetched from URL when it is needed. No transaction is forwarded to it. Blocks that are
    /// mined locally have no state root.
    Fork(ForkArgs),
    /// Approve or reject batches and messages that wait in a node with --wallet-approval ask; replace transactions that wait
    /// on an upstream's chain.
    ///
    /// The command connects to the node that runs with this --data-dir, over a Unix socket in the directory, which only the
    /// node's user can open.
    #[command(subcommand)]
    Wallet(WalletTask),
    /// Print shell completions, the manual page, an example configuration, and files for operators.
    #[command(subcommand)]
    Print(PrintTask),
}

/// Prints a file that systems or users need to `out`.
///
/// # Errors
///
/// Returns [`CommandError::Input`] if there is no such command, and [`CommandError::Output`] if `out` cannot be written.
pub fn print(task: PrintTask, out: &mut impl Write) -> Result<(), CommandError> {
    task.print(command_line(), out)
}

/// Returns the whole command line.
fn command_line() -> clap::Command {
    let command = help::with_two_lengths(CommandTask::augment_subcommands(Config::command()));
    fork::with_node_flags(state::with_state_flags(command))
}

impl Command {
    /// Parses a command line, whose first word is the program, with the environment and the file that they name.
    ///
    /// # Errors
    ///
    /// Returns clap's error for an invalid setting, or for a request for help. The caller prints it.
    pub fn load(args: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let (config, matches, mut command) = Config::read(command_line(), args)?;
        if matches.subcommand_name().is_none() {
            config.check(&mut command)?;
            return Ok(Self::Run(Box::new(config)));
        }
        let task = CommandTask::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        match task {
            CommandTask::Ask(question) => {
                let target = state::target(question.node(), &matches, &mut command)?;
                Ok(Self::Ask(Box::new(AskTask { target, question, stop: Arc::default() })))
            }
            CommandTask::Fork(args) => Ok(Self::Run(Box::new(fork::config(&args, &matches)?))),
            CommandTask::Print(task) => Ok(Self::Print(task)),
            CommandTask::Wallet(task) => match config.data_dir {
                Some(data_dir) => Ok(Self::Wallet(data_dir, task)),
                None => Err(command.error(
                    ErrorKind::MissingRequiredArgument,
                    "presim wallet needs --data-dir: the one that the node runs with",
                )),
            },
        }
    }
}

impl QuestionTask {
    const fn node(&self) -> &NodeArgs {
        match self {
            Self::Simulate(args) => &args.bundle.node,
            Self::Search(args) => &args.bundle.node,
            Self::Watch(args) => &args.bundle.node,
            Self::Trace(args) => &args.node,
            Self::Shadow(args) => &args.node,
        }
    }
}

impl AskTask {
    /// Returns whether the command runs until it is interrupted.
    pub const fn is_endless(&self) -> bool {
        match &self.question {
            QuestionTask::Watch(_) => true,
            QuestionTask::Shadow(args) => args.blocks.is_none(),
            _ => false,
        }
    }

    /// Returns the flag that stops a command which prints totals at its end. `None` for other commands.
    pub fn stop(&self) -> Option<Arc<AtomicBool>> {
        matches!(self.question, QuestionTask::Shadow(_)).then(|| self.stop.clone())
    }

    /// Asks the node, and writes the answer to `out`.
    ///
    /// # Errors
    ///
    /// Returns [`CommandError::Failed`] if a required call failed, and the other variants if the input cannot be used,
    /// no node answers, or the output cannot be written.
    pub fn run(self, out: &mut impl Write) -> Result<(), CommandError> {
        let Self { target, question, stop } = self;
        let node = question.node().clone();
        // Bad input is rejected before a node is looked for.
        let link = LazyLink::new(&node, target);
        let done = match question {
            QuestionTask::Simulate(args) => simulate::run(&args, args.bundle.read(&link)?, &link, out),
            QuestionTask::Search(args) => search::run(&args, args.read(&link)?, &link, out),
            QuestionTask::Watch(args) => watch::run(&args, args.read(&link)?, link.open()?, out),
            QuestionTask::Trace(args) => trace::run(&args, &args.abi.book()?, &link, out),
            QuestionTask::Shadow(args) => shadow::run(&args, &link, &stop, out),
        };
        done.or_else(CommandError::unless_unread)
    }
}
