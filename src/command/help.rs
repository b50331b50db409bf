//! Help in two lengths: `-h` has the flags that most people use, `--help` has all.

/// The flags of a node that `-h` shows.
const USUAL: [&str; 12] = [
    "config",
    "listen",
    "data_dir",
    "metrics",
    "log",
    "genesis",
    "chain",
    "upstream",
    "flashblocks",
    "testing",
    "token_file",
    "wallet_approval",
];

/// Returns the command of a node. Its `-h` shows only the usual flags.
pub fn with_two_lengths(command: clap::Command) -> clap::Command {
    command
        .mut_args(|flag| if USUAL.contains(&flag.get_id().as_str()) { flag } else { flag.hide_short_help(true) })
        .after_help("`presim --help` has all flags, and `presim help COMMAND` those of a command.")
        // The long help does not mention itself.
        .after_long_help("`presim help COMMAND` has the flags of a command.")
}
