//! The settings of the layers below, as the flags set them.

use std::{path::PathBuf, time::Duration};

use super::{ApprovalPolicy, Config, DialectName, FeedName, IpcSocket, RevertPolicy, TxOrder, UpgradePolicy};
use crate::{
    chain::ChainSpec,
    fleet::settings::JoiningSettings,
    pool::{self, BlocksBuilt},
    rpc::{
        ConnectionLimits, IPC_SOCKET, ServerConfig, SocketBounds,
        dialect::{ANVIL, Dialect, PRESIM, STANDARD},
    },
    wallet::{Policy, SendingSettings},
};

impl Config {
    /// Returns the settings of the pool on a chain.
    pub fn pool(&self, spec: &ChainSpec) -> pool::Settings {
        let built = match self.feed() {
            _ if self.fleet.follow.is_some() => BlocksBuilt::Nowhere,
            _ if self.live.upstream.is_some() => BlocksBuilt::Upstream,
            FeedName::Devnet => BlocksBuilt::Here,
            FeedName::Static => BlocksBuilt::Nowhere,
        };
        pool::Settings {
            transactions: self.pool_transactions as usize,
            per_account: self.pool_account_transactions as usize,
            bytes: self.pool_bytes,
            price_bump: self.pool_price_bump,
            min_tip: self.pool_min_tip,
            contracts_may_send: spec.lifted().contracts_may_send,
            is_fifo: self.test_chain.order == TxOrder::Fifo,
            bundles: self.pool_bundles as usize,
            built,
        }
    }

    /// Returns the settings with which the node joins its fleet.
    pub fn joining(&self) -> JoiningSettings {
        JoiningSettings {
            servers: self.fleet.settings(),
            fleet: self.fleet.fleet.clone(),
            listen: self.listen,
            anew: self.fleet.publish_anew,
            has_wallet: !self.wallet_key_file.is_empty(),
            image_every: self.fleet.image_every.into(),
            image_keep: Duration::from_secs(self.fleet.image_keep_s),
            lagging_after: Duration::from_millis(self.fleet.lagging_after_ms),
            kept: self.retention(),
            cache: (self.live.cache_mb as usize) << 20,
        }
    }

    /// Returns the settings of the wallet.
    pub fn wallet(&self) -> Policy {
        Policy {
            ask: self.wallet_approval == ApprovalPolicy::Ask,
            deny: self.wallet_approval == ApprovalPolicy::Deny,
            max_calls: self.wallet_max_calls as usize,
            max_bytes: self.wallet_max_bytes as usize,
            allow_upgrade: self.wallet_upgrade == UpgradePolicy::Allow,
            refuse_reverts: self.wallet_revert == RevertPolicy::Refuse,
            gas_margin: self.wallet_gas_margin.into(),
            fee_margin: self.wallet_fee_margin.into(),
            executor: self.wallet_executor,
        }
    }

    /// Returns the settings with which the wallet's transactions are sent to an upstream.
    pub const fn sending(&self) -> SendingSettings {
        SendingSettings {
            resend: Duration::from_millis(self.wallet_resend_ms),
            timeout: self.live.timeout(),
            batch: self.live.upstream_batch as usize,
            receipt_wait: Duration::from_millis(self.wallet_receipt_wait_ms),
            final_after: Duration::from_secs(self.wallet_final_s),
        }
    }

    /// Returns the path of the Unix socket, if the node has one.
    pub fn ipc(&self) -> Option<PathBuf> {
        match self.ipc.as_ref()? {
            IpcSocket::At(path) => Some(path.clone()),
            IpcSocket::InDataDir => self.data_dir.as_ref().map(|directory| directory.join(IPC_SOCKET)),
        }
    }

    /// Returns the settings of the servers.
    pub fn server(&self) -> ServerConfig {
        let standard: &Dialect = if self.testing { &ANVIL } else { &STANDARD };
        ServerConfig {
            listen: self.listen,
            root: if self.dialect() == DialectName::Standard { standard } else { &PRESIM },
            standard,
            max_body: self.max_body as usize,
            read_timeout: Duration::from_millis(self.deadline_ms),
            max_catch_up: Duration::from_millis(self.fleet.max_catch_up_ms),
            io_timeout: Duration::from_millis(self.io_timeout_ms),
            hosts: self.allow_host.clone(),
            origins: self.allow_origin.clone(),
            connections: ConnectionLimits {
                most: self.max_connections as usize,
                per_address: self.max_connections_per_address.map(|most| most as usize),
            },
            sockets: SocketBounds {
                max_in_flight: self.max_ws_in_flight as usize,
                max_unsent: self.max_ws_unsent as usize,
                max_notifications: self.max_ws_notifications as usize,
            },
            metrics: self.metrics,
            ready_lag: (self.ready_lag_ms > 0).then(|| Duration::from_millis(self.ready_lag_ms)),
        }
    }
}
