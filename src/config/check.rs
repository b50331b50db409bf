//! The rules that are of more than one setting.

use std::net::SocketAddr;

use super::{ApprovalPolicy, Config, FeedName, FleetConfig, IpcSocket, LiveConfig};

/// Returns the text for a setting that has no effect without another.
fn needs(flag: &str, other: &str, why: &str) -> String {
    format!("{flag} needs {other}: {why}")
}

/// Returns the text for two settings that exclude each other.
fn conflict(flag: &str, other: &str, why: &str) -> String {
    format!("{flag} and {other}: {why}: leave one of them out")
}

impl Config {
    /// Returns the rule that the settings of a node break among themselves, if they break one.
    pub(super) fn problem(&self) -> Option<String> {
        let problem = self.own_problem().or_else(|| self.testing_problem()).or_else(|| self.upstream_problem());
        problem.or_else(|| self.fleet_problem()).or_else(|| self.wallet_problem())
    }

    fn own_problem(&self) -> Option<String> {
        let is_open = |address: SocketAddr| !address.ip().is_loopback() && self.token_file.is_none();
        let (listen, keep_blocks) = (self.listen, self.keep_blocks);
        Some(if is_open(listen) {
            format!(
                "--listen {listen}: an address that is not loopback needs --token-file: give one, or listen on 127.0.0.1"
            )
        } else if let Some(metrics) = self.metrics.filter(|metrics| is_open(*metrics)) {
            format!(
                "--metrics {metrics}: an address that is not loopback needs --token-file: give one, or serve metrics on 127.0.0.1"
            )
        } else if let Some(origin) = self.allow_origin.iter().find(|origin| !is_origin(origin)) {
            format!(
                "--allow-origin {origin}: no origin: expected `*`, `chrome-extension://*`, `moz-extension://*`, or scheme and host like https://app.example"
            )
        } else if self.ipc == Some(IpcSocket::InDataDir) && self.data_dir.is_none() {
            needs("--ipc without a path", "--data-dir", "the socket is made there")
        } else if self.chain.is_some() && self.genesis.is_none() {
            needs("--chain", "--genesis", "the file of the genesis that its blocks build on")
        } else if let Some(history) = self.keep_history.filter(|history| *history < keep_blocks.into()) {
            format!(
                "--keep-history {history}: expected at least --keep-blocks ({keep_blocks}); raise it, or lower --keep-blocks"
            )
        } else if self.feed == Some(FeedName::Static) && self.genesis.is_none() {
            let text = "the built-in devnet has nothing to show when it stands still";
            format!("--feed static: {text}: give --genesis, and --chain where there is one")
        } else {
            return None;
        })
    }

    /// Returns a setting that a genesis has, too, if one is given beside --genesis. On a fork the genesis has the rules alone.
    fn set_of_genesis(&self) -> Option<&'static str> {
        let chain = &self.test_chain;
        let given = [
            ("--chain-id", chain.chain_id.is_some()),
            ("--gas-limit", chain.gas_limit.is_some()),
            ("--disable-block-gas-limit", chain.disable_block_gas_limit),
            ("--base-fee", chain.base_fee.is_some()),
            ("--timestamp", chain.timestamp.is_some()),
            ("--state", chain.state.is_some()),
            ("--load-state", chain.load_state.is_some()),
        ];
        let applies = self.genesis.is_some() && chain.fork_url.is_none();
        given.iter().find(|(_, given)| *given && applies).map(|(flag, _)| *flag)
    }

    fn testing_problem(&self) -> Option<String> {
        let is_fork = self.test_chain.fork_url.is_some();
        let has_sub_blocks = [
            ("--sub-block-ms", self.sub_block_ms.is_some()),
            ("--sub-blocks", self.sub_blocks.is_some()),
            ("--traffic", self.traffic.is_some_and(|traffic| traffic > 0)),
        ];
        let sets_sub_blocks = has_sub_blocks.iter().find(|(_, given)| *given).map(|(flag, _)| flag);
        Some(if !self.testing {
            if !self.no_mining {
                return None;
            }
            needs("--no-mining", "--testing", "any other devnet mines by itself")
        } else if self.no_mining && self.block_time.is_some() {
            conflict("--no-mining", "--block-time", "blocks are mined on request, or at an interval")
        } else if let Some(flag) =
            sets_sub_blocks.filter(|_| self.feed() == FeedName::Devnet && self.block_time.is_none())
        {
            format!(
                "{flag} and --testing: blocks are mined as transactions arrive, or on request: give --block-time to mine at an interval, or leave {flag} out"
            )
        } else if self.sub_blocks.is_some() && self.feed() == FeedName::Devnet {
            conflict("--sub-blocks", "--block-time", "the interval and --sub-block-ms say how many there are")
        } else if self.data_dir.is_some() && !is_fork {
            conflict("--testing", "--data-dir", "a chain that tests change is not kept")
        } else if self.live.upstream.is_some() {
            "--testing and --upstream: the chain goes on as the upstream's does: `presim fork URL` builds on its state"
                .to_owned()
        } else if let Some(flag) = self.set_of_genesis() {
            let why = "the genesis has it";
            conflict("--genesis", flag, why)
        } else if is_fork && self.feed() == FeedName::Static {
            conflict("--fork-url", "--chain or --feed static", "a fork is built here")
        } else if is_fork && self.traffic.is_some_and(|traffic| traffic > 0) {
            conflict("--fork-url", "--traffic", "a fork has no background traffic")
        } else if is_fork && self.test_chain.chain_id.is_some() {
            conflict("--fork-url", "--chain-id", "a fork has the chain id of its upstream")
        } else if self.genesis.is_some() && self.test_chain.hardfork.is_some() {
            conflict("--genesis", "--hardfork", "the forks are those of the genesis")
        } else if self.chain.is_some() && self.feed() == FeedName::Devnet {
            conflict("--testing", "--chain with --feed devnet", "an imported chain is not changed")
        } else {
            return None;
        })
    }

    fn upstream_problem(&self) -> Option<String> {
        let (live, keep_blocks) = (&self.live, self.keep_blocks);
        let is_followed = live.upstream.is_some();
        let ahead = live.flashblocks_ahead.unwrap_or(LiveConfig::LEAST_AHEAD);
        Some(if !is_followed && live.flashblocks.is_some() {
            let why = "the node that has the state which they build on, and the blocks that they become";
            needs("--flashblocks", "--upstream", why)
        } else if !is_followed && live.verify_proofs && self.test_chain.fork_url.is_none() {
            let why = if self.fleet.follow.is_some() {
                "the leader gives a replica no proofs"
            } else {
                "the state of a chain that presim has itself needs no proofs"
            };
            needs("--verify-proofs", "--upstream", why)
        } else if !is_followed {
            return None;
        } else if keep_blocks <= ahead {
            format!("--keep-blocks {keep_blocks}: with --upstream expected more than --flashblocks-ahead ({ahead})")
        } else if self.chain.is_some() {
            conflict("--upstream", "--chain", "the blocks come from the upstream")
        } else if !self.wallet_key_file.is_empty() && self.data_dir.is_none() {
            let why = "what the wallet signs is stored there before it is sent";
            format!("--upstream and --wallet-key-file need --data-dir: {why}")
        } else if let Some(feed) = self.feed {
            let feed = if feed == FeedName::Devnet { "--feed devnet" } else { "--feed static" };
            conflict("--upstream", feed, "the chain goes on as the upstream's does")
        } else {
            return None;
        })
    }

    fn fleet_problem(&self) -> Option<String> {
        let fleet = &self.fleet;
        let sets_chain = [
            ("--genesis", self.genesis.is_some()),
            ("--feed", self.feed.is_some()),
            ("--flashblocks", self.live.flashblocks.is_some()),
            ("--testing", self.testing),
        ];
        Some(if let Some(problem) = fleet.problem() {
            problem
        } else if fleet.publish.is_some() && self.live.upstream.is_none() {
            let why = "a fleet follows an upstream, and a chain that presim builds itself runs on one machine";
            needs("--publish", "--upstream", why)
        } else if fleet.publish.is_some() && self.keep_blocks < 2 {
            needs("--publish", "--keep-blocks of at least 2", "a block that the stream has not taken is taken back")
        } else if fleet.follow.is_none() {
            return None;
        } else if let Some((flag, _)) = sets_chain.iter().find(|(_, given)| *given) {
            conflict("--follow", flag, "the chain is the one of the fleet")
        } else if self.data_dir.is_some() {
            conflict("--follow", "--data-dir", "a replica keeps nothing, and begins with the fleet's image")
        } else {
            return None;
        })
    }

    fn wallet_problem(&self) -> Option<String> {
        let (keys, passwords) = (self.wallet_key_file.len(), self.wallet_password_file.len());
        let listen = self.listen;
        Some(if self.wallet_approval == ApprovalPolicy::Ask && self.data_dir.is_none() {
            let why = "the socket that `presim wallet approve` speaks to is kept there";
            needs("--wallet-approval ask", "--data-dir", why)
        } else if passwords > 0 && keys == 0 {
            needs("--wallet-password-file", "--wallet-key-file", "the keystore that it is the password of")
        } else if passwords > 1 && passwords > keys {
            // The number of keystores among the files is known only after reading them.
            let count = format!("{passwords} files, and --wallet-key-file has {keys}");
            format!("--wallet-password-file: {count}: give one for all the keystores, or one each")
        } else if keys > 0 && !listen.ip().is_loopback() && self.wallet_token_file.is_none() {
            let why = "with --wallet-key-file, an address that is not loopback needs --wallet-token-file";
            format!("--listen {listen}: {why}: give one, or listen on 127.0.0.1")
        } else {
            return None;
        })
    }
}

impl FleetConfig {
    /// Returns the rule that the settings of a fleet break among themselves, if they break one.
    fn problem(&self) -> Option<String> {
        let needs_server = [
            ("--fleet", self.fleet.is_some()),
            ("--nats-credentials", self.nats_credentials.is_some()),
            ("--nats-nkey-file", self.nats_nkey_file.is_some()),
            ("--nats-ca", self.nats_ca.is_some()),
            ("--nats-cert", self.nats_cert.is_some()),
            ("--nats-key", self.nats_key.is_some()),
        ];
        let has_server = self.publish.is_some() || self.follow.is_some();
        Some(if self.publish.is_some() && self.follow.is_some() {
            conflict("--publish", "--follow", "a node makes the snapshots of a fleet or follows them")
        } else if self.publish_anew && self.publish.is_none() {
            needs("--publish-anew", "--publish", "the servers whose stream starts again")
        } else if let Some((flag, _)) = needs_server.iter().find(|(_, given)| *given && !has_server) {
            needs(flag, "--publish or --follow", "the servers that it is about")
        } else if self.nats_cert.is_some() != self.nats_key.is_some() {
            "--nats-cert and --nats-key belong together: give both".to_owned()
        } else if self.nats_credentials.is_some() && self.nats_nkey_file.is_some() {
            conflict("--nats-credentials", "--nats-nkey-file", "both name the node")
        } else {
            return None;
        })
    }
}

/// Returns whether `--allow-origin` takes this: `*`, all extensions of a browser, or what a browser may send as its
/// `Origin`, so without a path.
fn is_origin(text: &str) -> bool {
    let host = text.split_once("://").map_or("", |(_, host)| host);
    let is_host = !host.is_empty() && !host.contains(['/', '*']) && text.parse::<http::HeaderValue>().is_ok();
    matches!(text, "*" | "chrome-extension://*" | "moz-extension://*") || is_host
}
