//! The facts of a node that has started, for a person at a terminal and for the log.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
};

use super::NodeInfo;
use crate::{
    config::{Config, FeedName},
    shown,
};

/// The text that the program prints when it answers requests.
#[derive(Clone, Debug)]
pub struct Banner<'a> {
    config: &'a Config,
    info: &'a NodeInfo,
    /// Whether the devnet's private keys are shown.
    with_keys: bool,
}

impl<'a> Banner<'a> {
    /// Creates the banner of a node that runs with `config`. `with_keys` shows the private keys of the devnet's
    /// accounts. They are public, but scanners of logs report them.
    pub const fn new(config: &'a Config, info: &'a NodeInfo, with_keys: bool) -> Self {
        Self { config, info, with_keys }
    }

    /// Logs the facts, without keys.
    pub fn log(&self) {
        let info = self.info;
        let listen = info.listens_on();
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            listen,
            metrics = info.metrics.map(tracing::field::display),
            ipc = info.ipc.as_deref().map(|path| tracing::field::display(path.display())),
            chain_id = info.chain_id,
            head = info.head,
            accounts = info.accounts.len(),
            data_dir = info.data_dir.as_deref().map(|dir| tracing::field::display(dir.display())),
            source = source(self.config),
            "listening on {listen}"
        );
    }
}

impl fmt::Display for Banner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { config, info, with_keys } = *self;
        let Some(listen) = info.listen else { return writeln!(f, "presim {}", env!("CARGO_PKG_VERSION")) };
        let address = reachable(listen);
        let url = format!("http://{address}");
        let everywhere = match address == listen {
            true => String::new(),
            false => format!(" and every other address of this machine, port {}", listen.port()),
        };
        writeln!(
            f,
            "presim {} listens on {url} (and {url}/standard, as geth speaks){everywhere}",
            env!("CARGO_PKG_VERSION")
        )?;
        writeln!(f, "a page for browsers at {url}/")?;
        writeln!(f, "WebSocket at ws://{address} (and ws://{address}/standard)")?;
        if let Some(path) = &info.ipc {
            writeln!(f, "Unix socket at {} (as {url}/standard)", path.display())?;
        }
        writeln!(f, "chain id {}, head {}", info.chain_id, info.head)?;
        writeln!(f, "{}", source(config))?;
        if let Some(metrics) = info.metrics {
            writeln!(f, "metrics at http://{}/metrics", reachable(metrics))?;
        }
        if !info.accounts.is_empty() {
            writeln!(
                f,
                "\naccounts, {} ether each ({})",
                shown::grouped(config.test_chain.balance),
                match (config.test_chain.mnemonic.is_some(), with_keys) {
                    (true, _) => "of --mnemonic",
                    (false, true) => "the test mnemonic's: everybody knows these keys",
                    (false, false) => "the test mnemonic's: everybody knows their keys, which a terminal shows",
                }
            )?;
            for account in &info.accounts {
                match with_keys {
                    true => writeln!(f, "  {}  {}", account.address(), account.to_bytes())?,
                    false => writeln!(f, "  {}", account.address())?,
                }
            }
        }
        let contracts = info.contracts();
        if !contracts.is_empty() {
            writeln!(f, "\ncontracts")?;
            for (name, address) in contracts {
                writeln!(f, "  {name:10}  {address}")?;
            }
        }
        let (note, authorization) = match config.token_file.as_deref().map(|path| (path, header(path))) {
            None => (String::new(), String::new()),
            Some((_, Some(header))) => (String::new(), header),
            Some((path, None)) => (
                format!(", with a token of {} in the place of TOKEN", path.display()),
                " -H 'authorization: Bearer TOKEN'".to_owned(),
            ),
        };
        let call = example(info);
        write!(
            f,
            r#"
try it{note}:
curl -s {url} -H 'content-type: application/json'{authorization} -d '{{"jsonrpc":"2.0","id":1,"method":"eth_simulateV1","params":[{{"blockStateCalls":[{{"calls":[{call}]}}]}},"pending"]}}'"#
        )
    }
}

/// Returns the source of the chain, in a line.
fn source(config: &Config) -> String {
    if let Some(servers) = &config.fleet.follow {
        let fleet = config.fleet.fleet.as_ref().map(|fleet| format!(" {fleet}")).unwrap_or_default();
        let upstream = config.live.upstream.as_ref();
        let upstream =
            upstream.map(|upstream| format!("; state that the leader does not have is fetched from {upstream}"));
        let upstream = upstream.unwrap_or_default();
        return format!("replica: follows the leader of the fleet{fleet} at {servers}, and makes no blocks{upstream}");
    }
    let published = config.fleet.publish.as_ref();
    let published = published.map(|servers| format!("; published to {servers} while this node leads its fleet"));
    format!("{}{}", own_source(config), published.unwrap_or_default())
}

/// Returns the source of the chain of a node that follows no other.
fn own_source(config: &Config) -> String {
    if let Some(upstream) = &config.live.upstream {
        let stream = config.live.flashblocks.as_ref();
        let stream = stream.map(|url| format!(", and the Flashblocks of {}", shown::url(url))).unwrap_or_default();
        return format!("follows the upstream {upstream}{stream}; state is fetched as requests need it");
    }
    let chain = &config.test_chain;
    if let Some(upstream) = &chain.fork_url {
        let block =
            chain.fork_block_number.map_or_else(|| "the newest block".to_owned(), |number| format!("block {number}"));
        let mined = when_mined(config).unwrap_or_default();
        return format!(
            "fork of {upstream} at {block}{mined}; ephemeral; state is fetched as it is needed, and nothing is sent there"
        );
    }
    match config.feed() {
        FeedName::Devnet => {
            let kept = match &config.data_dir {
                Some(dir) => format!("kept in {}: the next start goes on with it", dir.display()),
                None => {
                    "ephemeral, kept in memory only: it starts again with each start (--data-dir keeps it)".to_owned()
                }
            };
            match when_mined(config) {
                Some(mined) if config.testing => format!("devnet under test{mined}; {kept}"),
                _ => {
                    let every = config.sub_block().as_millis();
                    format!("devnet: a sub-block every {every} ms, {} to a block; {kept}", config.sub_blocks())
                }
            }
        }
        FeedName::Static => "the chain stands still".to_owned(),
    }
}

/// Returns when a chain under test mines, as the end of a phrase. `None` on a chain that grows in sub-blocks.
fn when_mined(config: &Config) -> Option<String> {
    match (config.interval(), config.no_mining) {
        (None, false) => Some(": a block for each transaction, when it arrives".to_owned()),
        (None, true) => Some(": blocks are mined on request (evm_mine)".to_owned()),
        (Some(every), _) => (!config.has_sub_blocks()).then(|| format!(": a block every {every:?}")),
    }
}

/// Returns the address by which this machine reaches a listener: loopback for one that listens on all addresses,
/// because requests may not name those (`--allow-host`).
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// Returns the arguments of `curl` that send the first token of a token file. They do not contain the token itself: the
/// shell reads it from the file. Returns `None` if the file does not have the form that this requires.
fn header(token_file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(token_file).ok()?;
    let found = text.lines().find_map(|line| {
        let value = line.trim_start_matches(' ').strip_prefix("token")?.trim_start_matches(' ').strip_prefix('=')?;
        Some(value.trim_start_matches(' ').strip_prefix('"')?.split_once('"')?.0)
    })?;
    let table: toml::Table = text.parse().ok()?;
    if table.get("token")?.get(0)?.get("token")?.as_str()? != found {
        return None;
    }
    let path = token_file.to_str()?.replace('\'', r"'\''");
    Some(format!(r#" -H "authorization: Bearer $(sed -n 's/^ *token *= *"\([^"]*\)".*/\1/p' '{path}' | head -n 1)""#))
}

/// Returns a call that succeeds on this chain.
fn example(info: &NodeInfo) -> String {
    match (info.accounts.first(), &info.trading) {
        (Some(account), Some(trading)) => format!(
            r#"{{"from":"{}","to":"{}","data":"0x70a08231000000000000000000000000{:x}"}}"#,
            account.address(),
            trading.alpha,
            account.address()
        ),
        _ => r#"{"from":"0x0000000000000000000000000000000000000001","to":"0x0000000000000000000000000000000000000004","data":"0x1234"}"#.to_owned(),
    }
}
