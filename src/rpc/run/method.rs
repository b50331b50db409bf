//! The facts of a method by which its requests are answered.

use crate::{rpc::protocol::dialect::Dialect, scheduler::RunTarget};

/// The facts of a method that its requests carry.
#[derive(Clone, Copy, Debug)]
pub struct MethodInfo {
    /// The method's name on the wire.
    pub name: &'static str,
    /// The index of the method's row in the table.
    pub index: usize,
    /// Whether the method runs inline, on a worker, or both.
    pub target: RunTarget,
    /// The upstream's part in answering, if the state is an upstream's.
    pub upstream: UpstreamUse,
    /// Whether the method commits something, so that its response must not be lost.
    pub commits: bool,
    /// The nodes that have the method.
    pub scope: MethodScope,
    /// The part of the answer that waits until `latest` has its block, where the dialect says so.
    pub waits: WaitingPart,
    /// The part of the fleet's leader, or of the node that has its wallet, in answering.
    pub leader: LeaderUse,
}

impl MethodInfo {
    /// Creates the facts of a method that the node answers itself, and that commits nothing.
    pub const fn new(name: &'static str, target: RunTarget) -> Self {
        Self {
            name,
            index: 0,
            target,
            upstream: UpstreamUse::Unasked,
            commits: false,
            scope: MethodScope::Any,
            waits: WaitingPart::Nothing,
            leader: LeaderUse::IfUnknown,
        }
    }
}

/// The nodes that have a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MethodScope {
    /// All nodes.
    Any,
    /// Nodes that a command has started for itself.
    Command,
    /// Nodes with `--testing`.
    Testing,
    /// Devnets with `--testing`.
    TestedDevnet,
}

impl MethodScope {
    /// Returns whether a node of this scope has a method of another. Those of all nodes are everywhere, and a devnet under test has those of
    /// other nodes under test.
    pub fn has(self, method: Self) -> bool {
        method == self || method == Self::Any || self == Self::TestedDevnet && method == Self::Testing
    }
}

/// The upstream's part in answering a request, if the state is an upstream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamUse {
    /// The node answers the request itself.
    Unasked,
    /// The node answers, or forwards the request if it does not know the block or the transaction.
    IfUnknown,
    /// The request is forwarded, because a proof requires the whole state.
    Proves,
    /// The transaction is forwarded.
    Sends,
}

/// The part of another node of the fleet in answering a request.
#[derive(Clone, Copy, Debug)]
pub enum LeaderUse {
    /// The leader answers what an upstream would be asked, if the replica does not know it.
    IfUnknown,
    /// The leader answers these parameters, because the answer depends on its pool.
    If(fn(&str, &Dialect) -> bool),
    /// The leader answers, because it has the pool, the bundles, the accounts, and the word of the chain's source.
    Always,
    /// The node that has the wallet of the fleet answers, because that has the ids of the batches and the keys.
    Wallet,
}

/// The part of an answer that waits until `latest` has its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingPart {
    /// No part.
    Nothing,
    /// A receipt, which is null until then.
    Receipt,
    /// The receipts of a block, which are null until then.
    BlockReceipts,
    /// The inclusion of a transaction, which is shown as one that waits until then.
    Inclusion,
}

/// The rules by which a request was executed, and the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExecutedBy {
    /// This node, by the rules of the block.
    #[default]
    Node,
    /// This node, by the rules of the fork that the request asks for.
    Under(&'static str),
    /// The upstream, because presim cannot.
    Upstream,
}
