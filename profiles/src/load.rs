//! The load: wrk, with the bodies of a workload in turn.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use eyre::{OptionExt, WrapErr, ensure};

/// What is asked, and by how many connections.
#[derive(Debug)]
pub struct Load {
    /// The wrk script that sends the bodies.
    pub script: PathBuf,
    /// The requests, one a line.
    pub bodies: PathBuf,
    /// The block selector that stands for `latest`.
    pub tag: String,
    /// Connections, each with one request at a time.
    pub connections: u16,
}

/// A load that runs.
#[derive(Debug)]
pub struct Running(Child);

impl Load {
    /// Asks `url` for `time`.
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
    /// Waits for its end. Returns the requests a second.
    ///
    /// # Errors
    /// That an answer was wrong: a profile of errors would show nothing.
    pub fn finish(self) -> eyre::Result<f64> {
        let done = self.0.wait_with_output()?;
        let (said, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        ensure!(done.status.success() && !errors.contains("BAD"), "the load failed: {errors}{said}");
        let rate = said.lines().find_map(|line| line.strip_prefix("Requests/sec:"));
        Ok(rate.ok_or_eyre("wrk tells no rate")?.trim().parse()?)
    }
}
