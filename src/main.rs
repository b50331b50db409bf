//! The command line: parse, start, stop; or ask a node that runs.

use std::process::ExitCode;

use presim::{
    command::Command,
    config::{Config, FeedName},
    node::{Node, NodeInfo},
    telemetry,
    wallet::client,
};
use tokio::signal::unix::{SignalKind, signal};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let command = match Command::load(std::env::args_os()) {
        Ok(command) => command,
        Err(error) => error.exit(),
    };
    let done = match command {
        Command::Run(config) => run(*config),
        Command::Wallet(data_dir, task) => {
            client::run(&data_dir, &task, &mut std::io::stdout()).map_err(eyre::Report::from)
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The signal of a write past the largest size of a file: the same number on all that Linux runs on but MIPS.
const SIGXFSZ: i32 = 25;

fn run(config: Config) -> eyre::Result<()> {
    telemetry::init_logs(&config.log, config.log_json)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Heard from before the node starts, so that none is missed while it does.
    let (mut terminate, mut interrupt) = runtime.block_on(async {
        Ok::<_, std::io::Error>((signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?))
    })?;
    // A file that may grow no more (`ulimit -f`) is a full disk, and no reason to be killed.
    let _too_large = runtime.block_on(async { signal(SignalKind::from_raw(SIGXFSZ)) })?;
    let source = source(&config);
    let node = Node::start(config)?;
    print_banner(node.info(), &source);
    runtime.block_on(async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    });
    tracing::info!("stopping: what is under way has five seconds to end");
    node.stop();
    Ok(())
}

/// Where the chain comes from, in a line.
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
    if let Some(trading) = &info.trading {
        println!("\ncontracts");
        for (name, address) in
            [("WETH", trading.weth), ("ALPHA", trading.alpha), ("BETA", trading.beta), ("router", trading.router)]
        {
            println!("  {name:6}  {address}");
        }
    }
    println!("\ntry it:\n{}", example(info, &url));
}

/// One `curl` that simulates something on this very chain.
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
