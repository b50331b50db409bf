//! The properties of a method that decide how its requests are answered.

use crate::scheduler::RunTarget;

/// The facts of a method that its requests carry.
#[derive(Clone, Copy, Debug)]
pub struct MethodInfo {
    /// The method's name on the wire.
    pub name: &'static str,
    /// The index of the method's row in the table.
    pub index: usize,
    /// Whether the method runs inline, on a worker, or both.
    pub target: RunTarget,
    /// Whether the method commits something, so that its response must not be lost.
    pub commits: bool,
    /// The nodes that have the method.
    pub scope: MethodScope,
    /// The part of the answer that waits until `latest` has its block, if the dialect requires it.
    pub waits: SealedOnly,
    /// The node that answers.
    pub by: AnsweredBy,
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
    /// Returns whether a node of this scope has a method of another scope. Methods of all nodes are everywhere, and a
    /// devnet under test also has the methods of other nodes under test.
    pub fn has(self, method: Self) -> bool {
        method == self || method == Self::Any || self == Self::TestedDevnet && method == Self::Testing
    }
}

/// The node that answers the requests of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnsweredBy {
    /// This node.
    Node,
    /// This node; or its upstream, or the leader of its fleet, if it does not know the block or the transaction.
    WhoKnows,
    /// A node with the whole state, which a proof requires: the upstream, if the state is an upstream's.
    WholeState,
    /// A node that takes transactions: the upstream, if the state is an upstream's.
    Taker,
    /// A node of the fleet that reads the chain's source: the leader, if this node is a replica.
    Reader,
    /// The node of the fleet that has the wallet. The others reject the request, and name that node.
    Wallet,
}

/// The part of an answer that waits until `latest` has its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealedOnly {
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
