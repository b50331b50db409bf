//! perf: samples of the stacks of a process.

use std::{
    fmt,
    io::BufReader,
    process::{Command, Stdio},
    time::Duration,
};

use eyre::{OptionExt, WrapErr, ensure};
use inferno::collapse::{
    Collapse,
    perf::{Folder, Options},
};
use tempfile::TempDir;

/// Samples per second of CPU time. Not a divisor of any timer's rate.
pub const RATE: u32 = 499;
/// Bytes of stack that each sample copies for unwinding, enough for the frames of tokio and hyper at the bottom.
const STACK: u32 = 48 << 10;

/// Checks that perf is installed. The error says what to install.
pub fn check() -> eyre::Result<()> {
    let there =
        Command::new("perf").arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    ensure!(there, "cannot run perf: it records the stacks (Debian: apt-get install linux-perf)");
    Ok(())
}

/// The samples of a recording.
#[derive(Debug)]
pub struct Samples(TempDir);

/// A stack, with the number of its samples.
#[derive(Debug)]
pub struct Stack {
    /// The thread's name, then the frames from the outermost to the innermost. Names of kernel frames end in `_[k]`.
    pub frames: Vec<String>,
    /// The number of samples.
    pub count: u64,
}

/// Samples a process for `time`.
///
/// By the clock, because virtual machines seldom have hardware counters, and unwound by DWARF, because the assembly of
/// Keccak keeps no frame pointer, and a hash without its caller says nothing. So the recorded program is exactly the
/// shipped one.
pub fn record(process: u32, time: Duration) -> eyre::Result<Samples> {
    let folder = TempDir::new()?;
    let recorded = Command::new("perf")
        .args(["record", "--quiet", "--event", "cpu-clock", "--freq", &RATE.to_string()])
        .args(["--call-graph", &format!("dwarf,{STACK}"), "--pid", &process.to_string(), "--output"])
        .arg(folder.path().join("perf.data"))
        .args(["sleep", &time.as_secs().to_string()])
        .output()
        .wrap_err("cannot run perf")?;
    let errors = String::from_utf8_lossy(&recorded.stderr);
    ensure!(
        recorded.status.success(),
        "perf recorded nothing: {errors}(where it is forbidden: sysctl kernel.perf_event_paranoid=1)"
    );
    Ok(Samples(folder))
}

impl Samples {
    /// Returns the stacks, each once.
    pub fn stacks(&self) -> eyre::Result<Vec<Stack>> {
        let mut script = Command::new("perf")
            .args(["script", "--no-inline", "--fields", "comm,pid,tid,time,event,ip,sym,dso", "--input"])
            .arg(self.0.path().join("perf.data"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut options = Options::default();
        options.annotate_kernel = true;
        let mut folded = Vec::new();
        let output = script.stdout.take().ok_or_eyre("perf script has no output")?;
        Folder::from(options).collapse(BufReader::new(output), &mut folded)?;
        ensure!(script.wait()?.success(), "perf script failed");
        let text = String::from_utf8(folded).wrap_err("a symbol's name")?;
        text.lines().map(Stack::parse).collect()
    }
}

/// The outermost frame of tokio's tasks. The frames below are the same for all, and not always unwound.
const TASK: &str = "tokio::runtime::task::harness::Harness<T,S>::poll";

impl Stack {
    fn parse(line: &str) -> eyre::Result<Self> {
        let (stack, count) = line.rsplit_once(' ').ok_or_eyre("a stack without a count")?;
        let frames: Vec<&str> = stack.split(';').collect();
        let (thread, frames) = frames.split_first().ok_or_eyre("a stack without a thread")?;
        let from = frames.iter().rposition(|frame| frame.starts_with(TASK)).unwrap_or(0);
        let known = frames[from..].iter().filter(|frame| **frame != "[unknown]");
        // The kernel maps the vDSO, but it runs as the caller's own code.
        let known = known.map(|frame| if frame.starts_with("__vdso") { frame.trim_end_matches("_[k]") } else { frame });
        let frames = std::iter::once(*thread).chain(known).map(str::to_owned);
        Ok(Self { frames: frames.collect(), count: count.parse()? })
    }

    /// Returns the frame that was running.
    pub fn innermost(&self) -> &str {
        self.frames.last().map_or("", String::as_str)
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.frames.join(";"), self.count)
    }
}
