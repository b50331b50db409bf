//! The load: wrk, which sends the bodies of a workload in turn.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use eyre::{OptionExt, WrapErr, ensure};

/// The settings of a load.
#[derive(Debug)]
pub struct Load {
    /// The wrk script that sends the bodies.
    pub script: PathBuf,
    /// The file of requests, one per line.
    pub bodies: PathBuf,
    /// The block selector that replaces `latest`.
    pub tag: String,
    /// Connections, each with one request at a time.
    pub connections: u16,
}

/// A running load.
#[derive(Debug)]
pub struct Running(Child);

impl Load {
    /// Sends requests to `url` for `time`.
    pub fn run(&self, url: &str, time: Duration) -> eyre::Result<Running> {
        let wrk = Command::new("wrk")
            .args(["-t1", &format!("-c{}", self.connections), &format!("-d{}s", time.as_secs()), "-s"])
            .arg(&self.script)
            .arg(url)
            .env("BODIES", &self.bodies)
            .env("TAG", &self.tag)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Ok(Running(wrk.wrap_err("cannot run wrk: it is needed for the load (Debian: apt-get install wrk)")?))
    }
}

impl Running {
    /// Waits for the end of the load. Returns the requests per second.
    ///
    /// # Errors
    ///
    /// Returns an error if an answer was wrong, because a profile of errors would show nothing.
    pub fn finish(self) -> eyre::Result<f64> {
        let done = self.0.wait_with_output()?;
        let (said, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        ensure!(done.status.success() && !errors.contains("BAD"), "the load failed: {errors}{said}");
        let rate = said.lines().find_map(|line| line.strip_prefix("Requests/sec:"));
        Ok(rate.ok_or_eyre("wrk tells no rate")?.trim().parse()?)
    }
}
