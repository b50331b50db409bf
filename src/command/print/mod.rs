//! `presim print`: completions, the manual page, an example configuration, and files for operators.

mod config;

use std::io::Write;

use clap::Subcommand;
use clap_complete::Shell;

use super::error::CommandError;
use crate::rpc::{
    MethodScope,
    dialect::{PRESIM, STANDARD},
    table,
};

/// A file to be printed.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum PrintTask {
    /// Completions of a shell: `presim print completions bash > /etc/bash_completion.d/presim`.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// The manual page: `presim print man > /usr/local/share/man/man1/presim.1`.
    Man {
        /// The command whose page is printed. Without it, that of presim itself.
        command: Option<String>,
    },
    /// An example of the TOML file of --config, with every setting, its default and its meaning.
    Config,
    /// A dashboard of Grafana for the metrics.
    Grafana,
    /// Alerting rules of Prometheus for the metrics.
    Alerts,
    /// A unit of systemd that runs a node.
    Systemd,
    /// The `OpenRPC` document of the methods, as `rpc.discover` returns it.
    Openrpc {
        /// Describe the methods of a devnet with --testing, too.
        #[arg(long)]
        testing: bool,
        /// Describe the methods as /standard has them, and not as / does.
        #[arg(long)]
        standard: bool,
    },
}

impl PrintTask {
    /// Prints a file of the program whose command line is `line` to `out`.
    pub(super) fn print(self, mut line: clap::Command, out: &mut impl Write) -> Result<(), CommandError> {
        match self {
            Self::Completions { shell } => {
                let mut text = Vec::new();
                clap_complete::generate(shell, &mut line, "presim", &mut text);
                out.write_all(&text)?;
            }
            Self::Man { command } => {
                line.build();
                let of = match &command {
                    Some(name) => line.find_subcommand(name).cloned().ok_or_else(|| {
                        let names: Vec<&str> = line
                            .get_subcommands()
                            .map(clap::Command::get_name)
                            .filter(|name| *name != "help")
                            .collect();
                        CommandError::Input(format!("COMMAND: {name:?}: expected one of {}", names.join(", ")))
                    })?,
                    None => line,
                };
                clap_mangen::Man::new(of).render(out)?;
            }
            Self::Config => out.write_all(config::example(&line).as_bytes())?,
            Self::Grafana => out.write_all(include_bytes!("grafana.json"))?,
            Self::Alerts => out.write_all(include_bytes!("alerts.yml"))?,
            Self::Systemd => out.write_all(include_bytes!("presim.service"))?,
            Self::Openrpc { testing, standard } => {
                let dialect = if standard { &STANDARD } else { &PRESIM };
                let scope = if testing { MethodScope::TestedDevnet } else { MethodScope::Any };
                writeln!(out, "{}", table::document(dialect, scope))?;
            }
        }
        Ok(out.flush()?)
    }
}
