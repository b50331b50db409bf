//! Settings with a few named values.

use std::path::PathBuf;

use clap::ValueEnum;

/// The dialect of `/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DialectName {
    /// presim's own contract.
    Project,
    /// execution-apis, as geth has it.
    Standard,
}

/// The place of the Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IpcSocket {
    /// `presim.ipc` in the data directory.
    InDataDir,
    /// A path.
    At(PathBuf),
}

impl IpcSocket {
    /// The value of the flag without a path.
    pub(super) const ALONE: &str = "true";

    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text {
            Self::ALONE => Ok(Self::InDataDir),
            "" | "false" => Err("expected a path, or `true` for presim.ipc in the data directory".to_owned()),
            path => Ok(Self::At(path.into())),
        }
    }
}

/// When `/standard` tells receipts, and the block of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StandardReceipts {
    /// When `latest` has the block.
    Latest,
    /// As soon as the transaction is pre-confirmed.
    Preconfirmed,
}

/// The source of new blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FeedName {
    /// Blocks are built here.
    Devnet,
    /// There are no new blocks.
    Static,
}

/// The approval of the wallet's batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ApprovalPolicy {
    /// Every batch is approved.
    Auto,
    /// Every batch is rejected.
    Deny,
    /// Batches wait for `presim wallet approve`.
    Ask,
}

/// Whether the wallet may delegate an account to the batch executor (EIP-7702).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UpgradePolicy {
    /// The wallet may delegate accounts.
    Allow,
    /// The wallet may not. Only accounts that are delegated already send atomically.
    Deny,
}

/// The treatment of an atomic batch that reverts in simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RevertPolicy {
    /// The batch is refused with the reason, and nothing is signed.
    Refuse,
    /// The batch is sent, and may revert on the chain, too.
    Send,
}
