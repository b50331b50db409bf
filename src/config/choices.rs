//! Settings that are one of a few words.

use clap::ValueEnum;

/// Who says what `/` speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DialectName {
    /// presim's own contract.
    Project,
    /// execution-apis, as geth has it.
    Standard,
}

/// Whether the chain goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FeedName {
    /// Blocks are built.
    Devnet,
    /// The chain stands still.
    Static,
}

/// When idle cores are kept from sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KeepAwake {
    /// While requests come fast, where the system lets us.
    Load,
    /// As long as the node runs.
    Always,
    /// Never.
    Never,
}

/// Who says yes to a batch of the wallet's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ApprovalPolicy {
    /// Nobody need: it is sent.
    Auto,
    /// Nobody can: it is rejected.
    Deny,
    /// Somebody at the node: it waits for `presim wallet approve`.
    Ask,
}

/// Whether the wallet may delegate an account to the batch executor (EIP-7702).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UpgradePolicy {
    /// It may.
    Allow,
    /// It may not: only an account that is delegated already sends atomically.
    Deny,
}

/// What becomes of an atomic batch that reverts when it is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RevertPolicy {
    /// It is refused with the reason, and nothing is signed.
    Refuse,
    /// It is sent, and may revert on the chain too.
    Send,
}
