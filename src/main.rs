//! The program: parses its command line, and runs a node or talks to a running one.

use std::{io, process::ExitCode};

use eyre::eyre;
use presim::{
    command::{AskTask, Command, CommandError, print},
    config::{Config, FeedName},
    node::{Node, NodeInfo},
    telemetry,
    wallet::client,
};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before anything else, so that a signal always ends the program in order.
    match Signals::listen().map_err(eyre::Report::from).and_then(obey) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            error.downcast_ref::<CommandError>().map_or(ExitCode::FAILURE, CommandError::exit_code)
        }
    }
}

/// Executes the command, until a signal arrives.
fn obey(mut signals: Signals) -> eyre::Result<()> {
    let interrupted = || Err(eyre!("interrupted: see which batches still wait with `presim wallet list`"));
    let Some(command) = signals.unless_stopped(|| Command::load(std::env::args_os()))? else {
        // A node has nothing to end yet. An approver must not take the end for a success.
        return if std::env::args_os().any(|arg| arg == "wallet") { interrupted() } else { Ok(()) };
    };
    match command {
        Err(error) => error.exit(),
        Ok(Command::Run(config)) => run(*config, signals),
        Ok(Command::Ask(task)) => ask(*task, signals),
        Ok(Command::Print(task)) => Ok(print(task, &mut io::stdout()).or_else(CommandError::unless_unread)?),
        Ok(Command::Wallet(data_dir, task)) => {
            match signals.unless_stopped(move || client::run(&data_dir, &task, &mut io::stdout()))? {
                Some(done) => Ok(done?),
                None => interrupted(),
            }
        }
    }
}

/// Asks a node. A signal ends the command: a watch as it is meant to end, another one without a result.
fn ask(task: AskTask, mut signals: Signals) -> eyre::Result<()> {
    let is_endless = task.is_endless();
    match signals.unless_stopped(move || task.run(&mut io::stdout()))? {
        Some(done) => Ok(done?),
        None if is_endless => Ok(()),
        None => Err(CommandError::NoNode("interrupted before the node has answered".to_owned()).into()),
    }
}

fn run(config: Config, mut signals: Signals) -> eyre::Result<()> {
    telemetry::init_logs(&config.log, config.log_json)?;
    let started = signals.unless_stopped(move || {
        let source = source(&config);
        let node = Node::start(config)?;
        print_banner(node.info(), &source);
        Ok::<_, eyre::Report>(node)
    })?;
    let Some(node) = started else {
        tracing::info!("stopping: the node had not started");
        return Ok(());
    };
    let node = node?;
    signals.wait();
    let stopped = signals.unless_stopped(move || {
        tracing::info!("stopping: requests under way have five seconds to end; another signal ends them at once");
        node.stop();
    })?;
    stopped.ok_or_else(|| eyre!("stopped at once by a second signal: requests under way may not have ended"))
}

/// The signal of a write beyond the largest size of a file. The number is the same on all of Linux's platforms but
/// MIPS.
const SIGXFSZ: i32 = 25;

/// SIGTERM and SIGINT (Ctrl-C). From [`listen`](Self::listen) on they do not kill the process, but wait to be received.
struct Signals {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
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
        Ok(Self { runtime, terminate, interrupt, _too_large: too_large })
    }

    /// Waits for a signal.
    fn wait(&mut self) {
        let Self { runtime, terminate, interrupt, .. } = self;
        runtime.block_on(either(terminate, interrupt));
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
        let Self { runtime, terminate, interrupt, .. } = self;
        let done = runtime.block_on(async {
            tokio::select! {
                biased;
                done = done => Some(done),
                () = either(terminate, interrupt) => None,
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

async fn either(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Returns the source of the chain, in a line.
fn source(config: &Config) -> String {
    if let Some(upstream) = &config.live.upstream {
        let stream = match &config.live.flashblocks {
            Some(url) => format!(", and the Flashblocks of {}", url.host_str().unwrap_or_default()),
            None => String::new(),
        };
        return format!("follows the upstream {upstream}{stream}; state is fetched as requests need it");
    }
    match config.feed() {
        FeedName::Devnet => {
            let kept = match &config.data_dir {
                Some(dir) => format!("kept in {}: the next start goes on with it", dir.display()),
                None => {
                    "ephemeral, kept in memory only: it begins anew with each start (--data-dir keeps it)".to_owned()
                }
            };
            format!("devnet: a sub-block every {} ms, {} to a block; {kept}", config.sub_block_ms, config.sub_blocks)
        }
        FeedName::Static => "the chain stands still".to_owned(),
    }
}

fn print_banner(info: &NodeInfo, source: &str) {
    let url = format!("http://{}", info.listen);
    println!("presim {} listens on {url} (and {url}/standard, as geth speaks)", env!("CARGO_PKG_VERSION"));
    println!("WebSocket at ws://{} (and ws://{}/standard)", info.listen, info.listen);
    println!("chain id {}, head {}", info.chain_id, info.head);
    println!("{source}");
    if let Some(metrics) = info.metrics {
        println!("metrics at http://{metrics}/metrics");
    }
    if !info.accounts.is_empty() {
        println!("\naccounts, 10,000 ether each (the test mnemonic's: everybody knows these keys)");
        for account in &info.accounts {
            println!("  {}  {}", account.address(), account.to_bytes());
        }
    }
    if let Some(world) = &info.trading {
        println!("\ncontracts");
        let contracts = [
            ("WETH", world.weth),
            ("ALPHA", world.alpha),
            ("BETA", world.beta),
            ("factory", world.factory),
            ("router", world.router),
        ];
        for (name, address) in contracts.into_iter().chain(info.pairs.iter().map(|pair| (pair.name, pair.address))) {
            println!("  {name:10}  {address}");
        }
    }
    println!("\ntry it:\n{}", example(info, &url));
}

/// Returns a `curl` command that simulates something on this chain.
fn example(info: &NodeInfo, url: &str) -> String {
    let call = match (info.accounts.first(), &info.trading) {
        (Some(account), Some(trading)) => format!(
            r#"{{"from":"{}","to":"{}","data":"0x70a08231000000000000000000000000{:x}"}}"#,
            account.address(),
            trading.alpha,
            account.address()
        ),
        _ => r#"{"from":"0x0000000000000000000000000000000000000001","to":"0x0000000000000000000000000000000000000004","data":"0x1234"}"#.to_owned(),
    };
    format!(
        r#"curl -s {url} -H 'content-type: application/json' -d '{{"jsonrpc":"2.0","id":1,"method":"eth_simulateV1","params":[{{"blockStateCalls":[{{"calls":[{call}]}}]}},"pending"]}}'"#
    )
}
