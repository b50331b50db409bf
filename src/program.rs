//! The program: parses its command line, and runs a node or talks to a running one.

use std::{
    io::{self, IsTerminal, Write},
    ops::ControlFlow,
    path::Path,
    process::ExitCode,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use eyre::{WrapErr, eyre};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
};

use crate::{
    command::{AskTask, Command, CommandError, print, wallet},
    config::Config,
    node::{Banner, Node, Watchdog, configure_memory, notify_ready, notify_stopping},
    shown,
    source::testing::state_file::StateFile,
    telemetry,
};

/// Runs the program: the command that its arguments name, until that has ended or a signal arrives.
#[must_use]
pub fn run() -> ExitCode {
    configure_memory();
    // Before the command is read, so that a signal always ends the program in order.
    match Signals::listen().map_err(eyre::Report::from).and_then(run_command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Parts of the text may be from a third party, such as an upstream's error. The reader may have
            // disconnected.
            let text = shown::printable(&shown::without_secrets(&format!("{error:#}")));
            let _ = writeln!(io::stderr(), "error: {text}");
            error.downcast_ref::<CommandError>().map_or(ExitCode::FAILURE, CommandError::exit_code)
        }
    }
}

/// Executes the command, until a signal arrives.
fn run_command(mut signals: Signals) -> eyre::Result<()> {
    let interrupted = || Err(eyre!("interrupted: see which batches still wait with `presim wallet list`"));
    let Some(command) = signals.unless_stopped(|| Command::load(std::env::args_os()))? else {
        // A node has nothing to end yet. An approver must not take the end for a success.
        return if std::env::args_os().any(|arg| arg == "wallet") { interrupted() } else { Ok(()) };
    };
    match command {
        Err(error) => exit(&error),
        Ok(Command::Run(config)) => run_node(*config, signals),
        Ok(Command::Ask(task)) => ask(*task, signals),
        Ok(Command::Print(task)) => Ok(print(task, &mut io::stdout()).or_else(CommandError::unless_unread)?),
        Ok(Command::Wallet(data_dir, task)) => {
            match signals.unless_stopped(move || wallet::run(&data_dir, &task, &mut io::stdout()))? {
                Some(done) => Ok(done?),
                None => interrupted(),
            }
        }
    }
}

/// Prints the error of a command line, or the help that it asks for, and ends the program.
fn exit(error: &clap::Error) -> ! {
    let text = error.render().to_string();
    let shown = shown::without_secrets(&text);
    if error.use_stderr() && shown != text {
        // A URL was given where none is expected. The reader may have disconnected.
        let _ = write!(io::stderr(), "{shown}");
        std::process::exit(error.exit_code());
    }
    error.exit()
}

/// Runs a command that asks a node. A signal ends it: a watch regularly, another command without a result.
fn ask(task: AskTask, mut signals: Signals) -> eyre::Result<()> {
    let (is_endless, stop) = (task.is_endless(), task.stop());
    let (tell, ended) = std::sync::mpsc::channel();
    // The receiver is there until the command has ended.
    let is_done = signals.unless_stopped(move || drop(tell.send(task.run(&mut io::stdout()))))?.is_some();
    let done = match (is_done, stop) {
        (true, _) => ended.recv().ok(),
        (false, None) => None,
        (false, Some(stop)) => {
            stop.store(true, Ordering::Relaxed);
            ended.recv_timeout(SUMMING_UP).ok()
        }
    };
    match done {
        Some(done) => Ok(done?),
        None if is_endless => Ok(()),
        None => Err(CommandError::NoNode("interrupted before the node has answered".to_owned()).into()),
    }
}

fn run_node(config: Config, mut signals: Signals) -> eyre::Result<()> {
    signals.listen_for_hang_up()?;
    let dumped_state = config.test_chain.dumped_state().map(Path::to_owned);
    let is_silent = config.test_chain.silent;
    telemetry::init_logs(if is_silent { "off" } else { &config.log }, config.log_json)?;
    let started = signals.unless_stopped(move || {
        let node = Node::start(config.clone())?;
        let banner = Banner::new(&config, node.info(), io::stdout().is_terminal());
        // The banner is logged first, so that it is in the log once it is printed.
        banner.log();
        if !is_silent {
            // A node does not need a reader.
            let _ = writeln!(io::stdout(), "{banner}");
        }
        Ok::<_, eyre::Report>(node)
    })?;
    let Some(node) = started else {
        tracing::info!("stopping: the node had not started");
        return Ok(());
    };
    let node = node?;
    let watchdog = Watchdog::start(node.vitals())?;
    notify_ready(node.info());
    signals.wait(|| hang_up(&node));
    notify_stopping();
    drop(watchdog);
    let snapshots = node.snapshots().clone();
    let stopped = signals.unless_stopped(move || {
        tracing::info!("stopping: requests under way have five seconds to end; another signal ends them at once");
        node.stop();
    })?;
    if let Some(path) = &dumped_state {
        // Now nothing changes the state any more.
        let state = StateFile::of(snapshots.load().latest()).json()?;
        std::fs::write(path, state).wrap_err_with(|| format!("the state is not written to {}", path.display()))?;
    }
    stopped.ok_or_else(|| eyre!("stopped at once by a second signal: requests under way may not have ended"))
}

/// Reads the token files again. Without token files, SIGHUP stops the node, because its terminal was closed.
fn hang_up(node: &Node) -> ControlFlow<()> {
    let access = node.access();
    if !access.has_files() {
        if io::stdin().is_terminal() {
            return ControlFlow::Break(());
        }
        tracing::info!("SIGHUP: there is no token file to read again");
        return ControlFlow::Continue(());
    }
    match access.read_files() {
        Ok(tokens) => tracing::info!(tokens, "SIGHUP: the token files were read again"),
        Err(error) => tracing::error!(%error, "SIGHUP: the token files cannot be used: the tokens are unchanged"),
    }
    ControlFlow::Continue(())
}

/// The time within which a command that sums up at its end has done so.
const SUMMING_UP: Duration = Duration::from_secs(5);
/// The time after the first signal to stop within which others count as the same: `timeout` and shells signal a process, and then
/// its group.
const SAME_STOP: Duration = Duration::from_millis(300);
/// The signal for exceeding the maximum size of a file. The number is the same on all of Linux's platforms but MIPS.
const SIGXFSZ: i32 = 25;

/// SIGTERM and SIGINT (Ctrl-C). From [`listen`](Self::listen) on they do not kill the process, but wait to be received.
struct Signals {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
    /// SIGHUP, once a node listens for it.
    hang_up: Option<Signal>,
    /// The moment of the signal at which a node began to stop.
    stopping: Option<Instant>,
    /// Received so that a file that may not grow (`ulimit -f`) counts as a full disk instead of killing the process.
    _too_large: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let registering = runtime.enter();
        let [terminate, interrupt] = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
        let too_large = signal(SignalKind::from_raw(SIGXFSZ))?;
        drop(registering);
        Ok(Self { runtime, terminate, interrupt, hang_up: None, stopping: None, _too_large: too_large })
    }

    /// Registers SIGHUP. Other commands end on it.
    fn listen_for_hang_up(&mut self) -> io::Result<()> {
        let _registering = self.runtime.enter();
        self.hang_up = Some(signal(SignalKind::hangup())?);
        Ok(())
    }

    /// Waits for a signal to stop. Calls `hang_up` on each SIGHUP, which may also end the wait.
    fn wait(&mut self, hang_up: impl Fn() -> ControlFlow<()>) {
        let Self { runtime, terminate, interrupt, hang_up: hung_up, .. } = self;
        runtime.block_on(async {
            loop {
                tokio::select! {
                    () = stop(terminate, interrupt, None) => return,
                    Some(()) = async { hung_up.as_mut()?.recv().await } => if hang_up().is_break() { return },
                }
            }
        });
        self.stopping = Some(Instant::now());
    }

    /// Does `work` on a thread of its own, and returns its result; `None` if a signal arrives first. The thread then
    /// ends with the process at any point, because the data on disk survives that as it survives `kill -9`.
    fn unless_stopped<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Option<T>> {
        let (tell, done) = oneshot::channel();
        let thread = std::thread::Builder::new().name("presim-main".to_owned()).spawn(move || {
            let _ = tell.send(work());
        })?;
        let Self { runtime, terminate, interrupt, stopping, .. } = self;
        let done = runtime.block_on(async {
            tokio::select! {
                biased;
                done = done => Some(done),
                () = stop(terminate, interrupt, *stopping) => None,
            }
        });
        match done {
            None => Ok(None),
            Some(Ok(done)) => Ok(Some(done)),
            // The thread has panicked.
            Some(Err(_)) => match thread.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => Err(io::Error::other("a thread ended without a result")),
            },
        }
    }
}

/// Waits for a signal to stop that is another one than the signal at `first`.
async fn stop(terminate: &mut Signal, interrupt: &mut Signal, first: Option<Instant>) {
    loop {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if first.is_none_or(|first| first.elapsed() > SAME_STOP) {
            return;
        }
    }
}
