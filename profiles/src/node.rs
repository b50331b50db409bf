//! The presim that is recorded.

use std::{
    env,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use eyre::{OptionExt, WrapErr, ensure};

/// Builds presim with a Cargo profile, and with line tables, which name inlined functions. Returns the path of the program.
pub fn build(profile: &str) -> eyre::Result<PathBuf> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--package", "presim", "--bin", "presim", "--profile", profile])
        .args(["--config", &format!("profile.{profile}.debug='line-tables-only'")])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(crate::WORKSPACE)
        .stderr(Stdio::inherit())
        .output()
        .wrap_err("cannot run cargo")?;
    ensure!(built.status.success(), "presim could not be built");
    // presim is the last artifact with an executable.
    let text = String::from_utf8(built.stdout).wrap_err("cargo's messages")?;
    let path = text.lines().rev().find_map(|line| line.split_once("\"executable\":\"")?.1.split_once('"'));
    Ok(path.ok_or_eyre("cargo names no executable")?.0.into())
}

/// A running presim on a port of its own. Stopped on drop.
#[derive(Debug)]
pub struct Node {
    process: Child,
    url: String,
}

impl Node {
    /// Starts `presim` as a devnet on `genesis`, and waits until it listens.
    pub fn start(presim: &Path, genesis: &Path) -> eyre::Result<Self> {
        let process = Command::new(presim)
            .arg("--genesis")
            .arg(genesis)
            .args(["--feed", "devnet", "--listen", "127.0.0.1:0", "--log", "warn"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .wrap_err_with(|| format!("cannot start {}", presim.display()))?;
        let mut node = Self { process, url: String::new() };
        let mut output = BufReader::new(node.process.stdout.take().ok_or_eyre("presim has no output")?);
        let mut banner = String::new();
        output.read_line(&mut banner)?;
        let url = banner.split_once("listens on ").and_then(|(_, rest)| rest.split_whitespace().next());
        node.url = url.ok_or_eyre("presim ended before it listened")?.to_owned();
        // Drained, because a full pipe would block the node.
        std::thread::spawn(move || output.lines().map_while(Result::ok).for_each(drop));
        Ok(node)
    }

    /// Returns the node's URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
