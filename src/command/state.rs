//! The node that a command asks: the URL of a running one, or a local state, for which a node is started within the
//! command.

use std::{ffi::OsString, net::SocketAddr};

use clap::{ArgMatches, CommandFactory, error::ErrorKind, parser::ValueSource};
use url::Url;

use super::link::{NodeArgs, NodeTarget};
use crate::{
    config::{Config, FeedName},
    shown,
};

/// The commands that ask a node.
const ASKING: [&str; 5] = ["simulate", "search", "watch", "trace", "shadow"];
/// The settings of a node that apply to a local state. The first two select one.
const STATE: [&str; 14] = [
    "upstream",
    "genesis",
    "chain",
    "fork",
    "flashblocks",
    "feed",
    "block_time",
    "verify_proofs",
    "native",
    "upstream_timeout_ms",
    "cache_mb",
    "gas_cap",
    "deadline_ms",
    "log",
];
/// Minimum deadline of a request for a whole block, in milliseconds.
const BLOCK_DEADLINE_MS: u64 = 600_000;
/// The settings of a state of its own that `-h` shows.
const USUAL: [&str; 3] = ["upstream", "genesis", "chain"];

/// Adds the flags of a local state to the commands that ask a node.
pub fn with_state_flags(command: clap::Command) -> clap::Command {
    let flags: Vec<clap::Arg> = command
        .get_arguments()
        .filter(|flag| STATE.contains(&flag.get_id().as_str()))
        .map(|flag| {
            let is_usual = USUAL.contains(&flag.get_id().as_str());
            flag.clone().help_heading("A state of its own").hide_short_help(!is_usual)
        })
        .collect();
    ASKING.iter().fold(command, |command, name| command.mut_subcommand(name, |one| one.args(flags.clone())))
}

/// Returns the node that the command line, the environment and the file name. The command line wins over
/// both, and a URL over a state.
///
/// # Errors
///
/// Returns clap's error if the command line names both, or if no node can run with the settings.
pub fn target(node: &NodeArgs, matches: &ArgMatches, command: &mut clap::Command) -> Result<NodeTarget, clap::Error> {
    let asked = matches.subcommand().map_or(matches, |(_, asked)| asked);
    if is_given(matches, "data_dir") {
        let text = "--data-dir: a state of its own is not kept: leave it out";
        return Err(command.error(ErrorKind::ArgumentConflict, text));
    }
    let state_is_given = ["upstream", "genesis"].iter().any(|id| is_given(matches, id) || is_given(asked, id));
    match &node.url {
        Some(url) if is_given(asked, "url") && state_is_given => {
            let text = format!(
                "--url {} and a state of its own (--upstream, --genesis): leave one of them out",
                shown::url(url)
            );
            Err(command.error(ErrorKind::ArgumentConflict, text))
        }
        Some(url) if !state_is_given => Ok(NodeTarget::Url(url.clone())),
        _ => {
            let config = own(matches, asked, command)?;
            let is_own = config.live.upstream.is_some() || config.genesis.is_some();
            Ok(if is_own { NodeTarget::Own(Box::new(config)) } else { NodeTarget::Url(usual_url()) })
        }
    }
}

/// Returns the URL of a node with the usual settings on this machine.
fn usual_url() -> Url {
    // The text is a URL.
    Url::parse("http://127.0.0.1:8545").unwrap_or_else(|error| unreachable!("{error}"))
}

fn is_given(matches: &ArgMatches, id: &str) -> bool {
    matches.try_contains_id(id).is_ok() && matches.value_source(id) == Some(ValueSource::CommandLine)
}

/// Returns the settings of a node that are given on a command line, before the subcommand or after it, as flags.
pub fn given_flags(matches: &ArgMatches, asked: &ArgMatches) -> Vec<OsString> {
    let mut args = Vec::new();
    for flag in Config::command().get_arguments() {
        let (Some(long), id) = (flag.get_long(), flag.get_id().as_str()) else { continue };
        for matches in [matches, asked].into_iter().filter(|matches| is_given(matches, id)) {
            if !flag.get_action().takes_values() {
                args.push(format!("--{long}").into());
                continue;
            }
            for value in matches.get_raw(id).into_iter().flatten() {
                let mut arg = OsString::from(format!("--{long}="));
                arg.push(value);
                args.push(arg);
            }
            // A flag for all commands is in both.
            if flag.is_global_set() {
                break;
            }
        }
    }
    args
}

/// Returns the settings of a node that serves only the command.
fn own(matches: &ArgMatches, asked: &ArgMatches, command: &mut clap::Command) -> Result<Config, clap::Error> {
    let args = [vec![OsString::from("presim")], given_flags(matches, asked)].concat();
    let logs = is_given(matches, "log") || is_given(asked, "log");
    let (mut config, ..) = Config::read(Config::command(), args)?;
    if config.feed.is_none() && config.live.upstream.is_none() {
        config.feed = Some(FeedName::Static);
    }
    config.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    config.is_of_command = true;
    if matches.subcommand_name() == Some("shadow") {
        // The state of a whole block may have to be fetched.
        config.deadline_ms = config.deadline_ms.max(BLOCK_DEADLINE_MS);
    }
    if !logs {
        "warn".clone_into(&mut config.log);
    }
    // Settings for other clients of a node, which the environment or the file may contain.
    config.metrics = None;
    config.ipc = None;
    config.data_dir = None;
    config.token_file = None;
    config.testing = false;
    config.wallet_key_file.clear();
    config.wallet_password_file.clear();
    config.wallet_token_file = None;
    config.wallet_approval = crate::config::ApprovalPolicy::Deny;
    if config.live.upstream.is_some() || config.genesis.is_some() {
        config.check(command)?;
    }
    Ok(config)
}
