//! Settings of the chain that `--testing` begins with, under the names of anvil's flags.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use alloy_hardforks::EthereumHardfork;
use clap::{Args, ValueEnum};

use super::live::{Endpoint, parse_endpoint};
use crate::secrets::SecretParser;

/// The gas limit of blocks, unless one is set.
const USUAL_GAS_LIMIT: u64 = 30_000_000;
/// The greatest gas limit of a block.
const GREATEST_GAS_LIMIT: u64 = i64::MAX as u64;

/// Settings of the chain that `--testing` begins with.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Testing")]
pub struct TestChainConfig {
    /// With --testing: build the chain on a block of this node's chain, as `presim fork URL` does. State is fetched
    /// when it is needed.
    #[arg(long, visible_alias = "rpc-url", env = "PRESIM_FORK_URL", hide_env_values = true, value_name = "URL", value_parser = SecretParser(parse_endpoint))]
    pub fork_url: Option<Endpoint>,
    /// With --fork-url: number of the block to fork from. The default is the newest.
    #[arg(long, env = "PRESIM_FORK_BLOCK_NUMBER", value_name = "N", requires = "fork_url")]
    pub fork_block_number: Option<u64>,
    /// With --testing: start with the trading world of the built-in devnet.
    #[arg(long, env = "PRESIM_WORLD", conflicts_with_all = ["genesis", "fork_url", "accounts", "balance", "mnemonic"])]
    pub world: bool,
    /// With --testing: accounts that have ether, and that the node signs for.
    #[arg(long, env = "PRESIM_ACCOUNTS", value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub accounts: u16,
    /// With --testing: ether of each account.
    #[arg(long, env = "PRESIM_BALANCE", value_name = "ETHER", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(..=1_000_000_000_000))]
    pub balance: u64,
    /// With --testing: the words from which the accounts' keys are derived, in place of the test mnemonic. Nothing is kept of
    /// them, but the processes of this machine can read a command line.
    #[arg(long, env = "PRESIM_MNEMONIC", hide_env_values = true, value_name = "WORDS")]
    pub mnemonic: Option<String>,
    /// With --testing: the chain id.
    #[arg(long, env = "PRESIM_CHAIN_ID", value_name = "ID", value_parser = clap::value_parser!(u64).range(1..))]
    pub chain_id: Option<u64>,
    /// With --testing: gas limit of the blocks. The default is 30000000, and that of the forked block on a fork.
    #[arg(long, env = "PRESIM_GAS_LIMIT", value_name = "GAS", value_parser = clap::value_parser!(u64).range(5_000..=GREATEST_GAS_LIMIT))]
    pub gas_limit: Option<u64>,
    /// With --testing: bound blocks by a gas limit of 2^63 - 1 alone.
    #[arg(long, env = "PRESIM_DISABLE_BLOCK_GAS_LIMIT", conflicts_with = "gas_limit")]
    pub disable_block_gas_limit: bool,
    /// With --testing: base fee of the first block, in wei per unit of gas.
    #[arg(long, visible_alias = "block-base-fee-per-gas", env = "PRESIM_BASE_FEE", value_name = "WEI")]
    pub base_fee: Option<u64>,
    /// With --testing: time of the first block, in Unix seconds. The clock goes on from there.
    #[arg(long, env = "PRESIM_TIMESTAMP", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=GREATEST_GAS_LIMIT))]
    pub timestamp: Option<u64>,
    /// With --testing: the fork of Ethereum whose rules apply, like `cancun`. The default is the newest that Ethereum has.
    #[arg(long, env = "PRESIM_HARDFORK", value_name = "NAME", value_parser = parse_hardfork)]
    pub hardfork: Option<EthereumHardfork>,
    /// With --testing: cap the gas of a transaction as Ethereum does (EIP-7825).
    #[arg(long, env = "PRESIM_ENABLE_TX_GAS_LIMIT")]
    pub enable_tx_gas_limit: bool,
    /// With --testing: the most bytes of a contract's code.
    #[arg(long, env = "PRESIM_CODE_SIZE_LIMIT", value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    pub code_size_limit: Option<u32>,
    /// With --testing: do not bound a contract's code.
    #[arg(long, env = "PRESIM_DISABLE_CODE_SIZE_LIMIT", conflicts_with = "code_size_limit")]
    pub disable_code_size_limit: bool,
    /// With --testing: impersonate all accounts.
    #[arg(long, env = "PRESIM_AUTO_IMPERSONATE")]
    pub auto_impersonate: bool,
    /// With --testing: begin with the accounts of this state, and write the state there at the end, as JSON in anvil's format.
    #[arg(long, env = "PRESIM_STATE", value_name = "FILE", conflicts_with_all = ["load_state", "dump_state"])]
    pub state: Option<PathBuf>,
    /// With --testing: begin with the accounts of this state.
    #[arg(long, env = "PRESIM_LOAD_STATE", value_name = "FILE")]
    pub load_state: Option<PathBuf>,
    /// With --testing: write the state to this file at the end.
    #[arg(long, env = "PRESIM_DUMP_STATE", value_name = "FILE")]
    pub dump_state: Option<PathBuf>,
    /// With --testing: the order of a block's transactions: by their tips, or as they have arrived.
    #[arg(long, env = "PRESIM_ORDER", value_name = "ORDER", value_enum, default_value_t = TxOrder::Fees)]
    pub order: TxOrder,
    /// With --testing: listen on this port.
    #[arg(long, short, env = "PRESIM_PORT", value_name = "PORT", conflicts_with = "listen")]
    pub port: Option<u16>,
    /// With --testing: listen on this address.
    #[arg(long, env = "PRESIM_HOST", value_name = "ADDRESS", conflicts_with = "listen")]
    pub host: Option<IpAddr>,
    /// With --testing: print nothing, neither at the start nor in the log.
    #[arg(long, env = "PRESIM_SILENT", conflicts_with_all = ["log", "log_json"])]
    pub silent: bool,
}

/// The order of a block's transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TxOrder {
    /// By their tips.
    #[default]
    Fees,
    /// As they have arrived.
    Fifo,
}

impl TestChainConfig {
    /// Returns the gas limit of the blocks, if one is set.
    pub fn set_block_gas(&self) -> Option<u64> {
        if self.disable_block_gas_limit { Some(GREATEST_GAS_LIMIT) } else { self.gas_limit }
    }

    /// Returns the gas limit of the blocks of a chain that begins with its genesis.
    pub fn block_gas(&self) -> u64 {
        self.set_block_gas().unwrap_or(USUAL_GAS_LIMIT)
    }

    /// Returns the file of the state to begin with. That of --state need not be there yet.
    pub fn loaded_state(&self) -> Option<&Path> {
        let kept = self.state.as_deref().filter(|path| path.exists());
        self.load_state.as_deref().or(kept)
    }

    /// Returns the file to which the state is written at the end.
    pub fn dumped_state(&self) -> Option<&Path> {
        self.dump_state.as_deref().or(self.state.as_deref())
    }

    /// Returns the most bytes of a contract's code, if it is not the fork's.
    pub fn code_size(&self) -> Option<usize> {
        let limit = if self.disable_code_size_limit { Some(u32::MAX) } else { self.code_size_limit };
        limit.map(|limit| limit as usize)
    }
}

/// Returns the forks of Ethereum that presim executes. Those that change the number of blobs alone are left out.
fn hardforks() -> impl Iterator<Item = EthereumHardfork> {
    use EthereumHardfork as Fork;
    Fork::VARIANTS.iter().copied().filter(|fork| *fork <= Fork::Amsterdam && !Fork::bpo_variants().contains(fork))
}

/// Returns the names that `--hardfork` takes, as a phrase.
pub(super) fn hardfork_names() -> String {
    let names: Vec<_> = hardforks().map(|fork| fork.name().to_lowercase()).collect();
    format!("latest, merge, or one of {}", names.join(", "))
}

/// Parses the name of a fork of Ethereum, in any case. `merge` is a name of Paris, and `latest` of the newest.
fn parse_hardfork(name: &str) -> Result<EthereumHardfork, String> {
    match name.to_lowercase().as_str() {
        "merge" => Ok(EthereumHardfork::Paris),
        "latest" => Ok(EthereumHardfork::Osaka),
        lower => {
            let found = hardforks().find(|fork| fork.name().to_lowercase() == lower);
            found.ok_or_else(|| format!("expected {}", hardfork_names()))
        }
    }
}
