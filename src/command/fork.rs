//! `presim fork`: a chain under test on a block of an upstream's.

use std::ffi::OsString;

use clap::{ArgMatches, Args, CommandFactory};

use super::state::given_flags;
use crate::config::{Config, Endpoint, parse_endpoint};
use crate::secrets::SecretParser;

/// The arguments of `presim fork`, beside the settings of a node.
#[derive(Clone, Debug, Args)]
pub struct ForkArgs {
    /// Node whose state the chain builds on: http, https, ws, wss, or the path of an IPC socket.
    #[arg(value_name = "URL", value_parser = SecretParser(parse_endpoint))]
    url: Endpoint,
    /// Number of the block to build on. The default is the newest.
    #[arg(long, value_name = "N")]
    block: Option<u64>,
}

/// The settings of a node that a fork does not have, or that it has by its name.
const OTHERS: [&str; 18] = [
    "testing",
    "fork_url",
    "fork_block_number",
    "world",
    "chain_id",
    "chain",
    "feed",
    "traffic",
    "traffic_seed",
    "upstream",
    "flashblocks",
    "flashblocks_silent_ms",
    "flashblocks_idle_ms",
    "flashblocks_ahead",
    "flashblocks_max_bytes",
    "max_lag_ms",
    "dialect",
    "ready_lag_ms",
];

/// Gives `presim fork` the flags of a node.
pub fn with_node_flags(command: clap::Command) -> clap::Command {
    let is_other = |flag: &clap::Arg| {
        let heading = flag.get_help_heading();
        flag.is_global_set() || OTHERS.contains(&flag.get_id().as_str()) || heading == Some("Fleet")
    };
    let flags: Vec<clap::Arg> = command.get_arguments().filter(|flag| !is_other(flag)).cloned().collect();
    command.mut_subcommand("fork", |fork| fork.args(flags))
}

/// Returns the settings of the node that a command line describes, which are those of `--testing --fork-url`.
///
/// # Errors
///
/// Returns clap's error if no node can run with them.
pub fn config(args: &ForkArgs, matches: &ArgMatches) -> Result<Config, clap::Error> {
    let asked = matches.subcommand().map_or(matches, |(_, asked)| asked);
    let mut flat = vec![OsString::from("presim"), "--testing".into(), format!("--fork-url={}", args.url.url()).into()];
    flat.extend(args.block.map(|block| format!("--fork-block-number={block}").into()));
    flat.extend(given_flags(matches, asked));
    let (config, _, mut command) = Config::read(Config::command(), flat)?;
    config.check(&mut command)?;
    Ok(config)
}
