//! A snapshot: state, block and history at one moment, immutable.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use alloy_consensus::Header;
use alloy_primitives::{B256, Sealable, Sealed};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{OpenBlock, StateId, StateStep};
use crate::chain::{BlockHashes, GasRefunds, SealedBlock};
use crate::state::{AccountChange, LocalWorld, World};

/// The id of a snapshot: an epoch times 2^32, plus the sequence in it of the change that published the snapshot.
///
/// Each start of a node that produces snapshots begins a new epoch, which is never reused. So an id means the same
/// state on every node, and ids compare as numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId(pub u64);

impl SnapshotId {
    /// Returns the id before the first change of an epoch. No change has this id; the epoch's changes have the ids
    /// after it.
    pub const fn begin(epoch: u64) -> Self {
        Self(epoch << 32)
    }

    /// Returns the epoch.
    pub const fn epoch(self) -> u64 {
        self.0 >> 32
    }

    /// Returns the number of changes after `last` up to this one. If `last` is of another epoch, only the changes of
    /// this epoch are known and counted.
    pub fn changes_after(self, last: Self) -> u32 {
        let changes = match self.epoch() == last.epoch() {
            true => self.0.saturating_sub(last.0),
            false if self < last => 0,
            false => (self.0 & u64::from(u32::MAX)) + 1,
        };
        u32::try_from(changes).unwrap_or(u32::MAX)
    }

    /// Returns the id after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The id of a change, and the moment at which its first publisher has published it.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    /// The id.
    pub id: SnapshotId,
    /// The moment.
    pub at: Instant,
}

impl Stamp {
    /// Creates the stamp of a change that is published now.
    pub fn now(id: SnapshotId) -> Self {
        Self { id, at: Instant::now() }
    }
}

/// The chain at one moment. A request runs on one snapshot only, so its state and its block context always agree.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The snapshot's id on this node, assigned by [`Snapshots`](super::Snapshots) on publication.
    pub id: SnapshotId,
    /// The time of publication.
    pub published: Instant,
    /// The identity of the snapshot's content, regardless of the ids under which it is published.
    pub state: StateId,
    /// The state after the snapshot's last transaction.
    pub world: World,
    /// The newest sealed block.
    pub head: Arc<SealedBlock>,
    /// The block being built on the head; `None` on a chain without a feed.
    pub open: Option<OpenBlock>,
    /// The hashes of the head and of its ancestors.
    pub hashes: BlockHashes,
    /// The steps to this state from an earlier one, oldest first. Empty where the changes are not known.
    pub path: Vec<Arc<StateStep>>,
    /// The extent to which the newest sub-block, and all before it in its block, were compared with their producer's
    /// values.
    pub verified: Verified,
    /// The provisional header of the open block, computed on first use.
    provisional: OnceLock<Sealed<Header>>,
}

impl Snapshot {
    /// Creates a snapshot without an id. Record assigns the id.
    pub fn new(world: impl Into<World>, head: Arc<SealedBlock>, open: Option<OpenBlock>, hashes: BlockHashes) -> Self {
        Self {
            id: SnapshotId::default(),
            published: Instant::now(),
            state: StateId::next(),
            world: world.into(),
            head,
            open,
            hashes,
            path: Vec::new(),
            verified: Verified::Full,
            provisional: OnceLock::new(),
        }
    }

    /// Creates a snapshot without an id: the state after the block `head`, with no block open. `hashes` has the hashes
    /// of the block and its ancestors.
    pub fn at_head(world: impl Into<World>, head: Arc<SealedBlock>, hashes: BlockHashes) -> Self {
        Self::new(world, head, None, hashes)
    }

    /// Creates a snapshot without an id: the state after a block, with no block open. `before` has the hashes of the block's
    /// ancestors.
    pub fn sealed(world: impl Into<World>, head: Arc<SealedBlock>, before: BlockHashes) -> Self {
        let mut hashes = before;
        hashes.push(head.number(), head.hash());
        Self::new(world, head, None, hashes)
    }

    /// Sets the state before, and the changes that lead from there.
    #[must_use]
    pub fn after(mut self, before: &Self, changes: Arc<Vec<AccountChange>>) -> Self {
        let step = StateStep::new(before.state, before.world.clone(), self.state, changes);
        self.path = vec![Arc::new(step)];
        self
    }

    /// Sets the extent to which the snapshot is verified.
    #[must_use]
    pub fn with_verified(self, verified: Verified) -> Self {
        Self { verified, ..self }
    }

    /// Sets the id.
    pub(super) fn named(self, id: SnapshotId) -> Self {
        Self { id, ..self }
    }

    /// Sets the id and the moment of publication.
    pub(super) fn with_stamp(self, stamp: Stamp) -> Self {
        Self { id: stamp.id, published: stamp.at, ..self }
    }

    /// Returns another snapshot of the same moment, with the same age.
    pub fn copy(&self) -> Self {
        self.clone()
    }

    /// Returns a copy whose open block has these gas refunds, which are unchanged for the transactions that it already
    /// has.
    #[must_use]
    pub fn with_refunds(&self, refunds: GasRefunds) -> Self {
        let mut copy = self.clone();
        if let Some(open) = &mut copy.open {
            open.refunds = refunds;
        }
        copy
    }

    /// Returns a copy on `head`, which is the same block with more of its content known.
    pub(super) fn with_head(&self, head: Arc<SealedBlock>) -> Self {
        Self { head, ..self.clone() }
    }

    /// Returns a copy with another state. No id selects it.
    #[must_use]
    pub fn with_world(&self, world: World) -> Self {
        let (id, published, verified) = (self.id, self.published, self.verified);
        let other = Self::new(world, self.head.clone(), self.open.clone(), self.hashes.clone());
        Self { id, published, verified, ..other }
    }

    /// Returns whether the block being built is a draft.
    pub fn is_draft(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.is_draft)
    }

    /// Returns the open block and its provisional header: roots, bloom, gas and hash of its content so far.
    ///
    /// Sealing adds withdrawals and the post-block system calls, so the provisional hash is never the hash of the
    /// sealed block. It identifies this moment of the block, for strictly typed clients that need a hash.
    pub fn open_block(&self) -> Option<(&OpenBlock, &Sealed<Header>)> {
        let open = self.open.as_ref()?;
        let header = self.provisional.get_or_init(|| {
            let mut header = open.header.clone();
            open.totals().close(&mut header);
            // An upstream's state root is unknown until the block is sealed.
            header.state_root = self.world.local().map_or(B256::ZERO, LocalWorld::state_root);
            header.seal_slow()
        });
        Some((open, header))
    }

    /// Returns the hash that was returned for the block being built here. Computes no hash: `None` if none was returned.
    pub fn given_out(&self) -> Option<B256> {
        self.provisional.get().map(|header| header.hash())
    }

    /// Returns the header for calls at this snapshot: the open block's if there is one, else the head's.
    pub fn header(&self) -> &Header {
        self.open.as_ref().map_or_else(|| self.head.header.inner(), |open| &open.header)
    }

    /// Returns the hash of the head.
    pub fn head_hash(&self) -> B256 {
        self.head.hash()
    }

    /// Returns the index of the newest sub-block in the block being built.
    pub fn index(&self) -> u32 {
        self.open.as_ref().map_or(0, |open| open.index)
    }
}

/// The health of the source of sub-blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum FeedState {
    /// Sub-blocks are applied on time.
    Live {
        /// Milliseconds between sub-blocks.
        every_ms: u64,
    },
    /// The feed is late: `pending` is the newest consistent snapshot, and newer sub-blocks or blocks are on their way.
    Lagging(FeedLag),
    /// The chain has no feed, by configuration.
    Static,
    /// The feed is broken: `pending` is the canonical head.
    Degraded(FeedProblem),
}

/// The distance of the newest snapshot from the newest sub-block or block that the node knows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedLag {
    /// The time at which the oldest part that is not applied yet arrived, or at which the stream was lost. Serialized as
    /// milliseconds before now.
    #[serde(serialize_with = "write_age", deserialize_with = "read_age")]
    pub since: Instant,
    /// The sub-blocks, or on a chain without pre-confirmations the blocks, that were announced and are not applied yet.
    pub waiting: u32,
    /// The reason: [`FeedProblem::Upstream`] while state is fetched, [`FeedProblem::Disconnected`] while the stream is
    /// opened again, [`FeedProblem::Behind`] on a node that is later than its leader, otherwise [`FeedProblem::Lagging`].
    pub cause: FeedProblem,
    /// Milliseconds between sub-blocks.
    pub every_ms: u64,
}

fn write_age<S: Serializer>(since: &Instant, to: S) -> Result<S::Ok, S::Error> {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX).serialize(to)
}

fn read_age<'de, D: Deserializer<'de>>(from: D) -> Result<Instant, D::Error> {
    let now = Instant::now();
    Ok(now.checked_sub(Duration::from_millis(u64::deserialize(from)?)).unwrap_or(now))
}

impl FeedState {
    /// Returns the health of a feed that is on time, with this time between two sub-blocks.
    pub fn live(every: Duration) -> Self {
        Self::Live { every_ms: u64::try_from(every.as_millis()).unwrap_or(u64::MAX) }
    }
}

impl FeedLag {
    /// Returns the lag in milliseconds now.
    pub fn ms(&self) -> u128 {
        self.since.elapsed().as_millis()
    }
}

/// The extent to which a snapshot was compared with the values that its producer announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Verified {
    /// The producer has announced nothing to compare, or the block was not executed here.
    None,
    /// Something was compared, and equal: gas, balances or single receipts.
    Partial,
    /// Gas, receipts root and logs bloom of the block so far were compared, and equal. A block that was built here is
    /// verified in full.
    Full,
    /// The block was not executed: its state is from its access list (EIP-7928), whose hash is in the header. Gas,
    /// receipts root and logs bloom match the receipts that the upstream has sent.
    List,
}

impl Verified {
    /// Returns the word for it: `full`, `list`, `partial` or `none`.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The reason why a feed is degraded. Programs read the names, so they do not change.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "snake_case")]
pub enum FeedProblem {
    /// Nothing has arrived since the start.
    Connecting,
    /// The connection was lost, and nothing has arrived on a new one yet.
    Disconnected,
    /// A sub-block is missing.
    Gap,
    /// A sub-block is not the one that was due: its index was sent before with other content, or the builder changed in
    /// the middle of a block.
    OutOfOrder,
    /// A block began on a parent that is neither canonical nor pre-confirmed.
    UnknownParent,
    /// The canonical chain took another branch than the pre-confirmed blocks.
    Reorg,
    /// A canonical block, or the execution of a sub-block, differs from what was pre-confirmed.
    Mismatch,
    /// A transaction or a block cannot be executed.
    Execution,
    /// The upstream node does not answer, or the pre-confirmed blocks are too far ahead of it.
    Upstream,
    /// Sub-blocks arrive later than they should, or are applied more slowly. A feed for which it is the only problem is
    /// late, and not degraded.
    Lagging,
    /// The feed is later than it may be, or more sub-blocks wait than there is memory for.
    TooLate,
    /// No sub-block has arrived for a time, although the connection is open.
    Silent,
    /// The upstream is a node of another chain than the one at the start, or the fleet has another.
    OtherChain,
    /// The store cannot write the changes.
    Store,
    /// The stream of the fleet does not accept the changes.
    Stream,
    /// Nothing has been heard from the leader of the fleet for some time.
    Partition,
    /// The node is later than the leader of its fleet, or cannot prove that it is not. A feed for which it is the only problem
    /// is late, and not degraded.
    Behind,
}

impl FeedProblem {
    /// All problems.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Returns the problem's name, as programs read it.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns an explanation for people.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Connecting => "nothing has come from it yet",
            Self::Disconnected => "the connection was lost",
            Self::Gap => "a sub-block is missing",
            Self::OutOfOrder => "another sub-block came than was due",
            Self::UnknownParent => "a block was begun on an unknown parent",
            Self::Reorg => "the canonical chain took another branch",
            Self::Mismatch => "what was pre-confirmed differs from what was executed or became canonical",
            Self::Execution => "a block cannot be executed",
            Self::Upstream => "the upstream node does not answer or is too far behind",
            Self::Lagging => "sub-blocks come late or faster than they are applied",
            Self::TooLate => "it is later than it may be",
            Self::Silent => "no sub-block has come for a time",
            Self::OtherChain => "the upstream is a node of another chain now, or the fleet has another",
            Self::Store => "the store fails",
            Self::Stream => "the stream of the fleet takes nothing, so publishing is paused",
            Self::Partition => "nothing comes from the leader of the fleet",
            Self::Behind => "this node is behind the leader of its fleet",
        }
    }
}

impl FeedState {
    /// Returns the word for it: `live`, `lagging`, `static` or `degraded`.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns the reason why the feed is degraded; `None` if it is not.
    pub const fn problem(self) -> Option<FeedProblem> {
        match self {
            Self::Live { .. } | Self::Lagging(_) | Self::Static => None,
            Self::Degraded(problem) => Some(problem),
        }
    }

    /// Returns how late the feed is; `None` if it is not late, or broken.
    pub const fn lag(&self) -> Option<&FeedLag> {
        match self {
            Self::Lagging(lag) => Some(lag),
            _ => None,
        }
    }

    /// Returns the name of the reason why the feed is late or degraded.
    pub const fn cause(self) -> Option<FeedProblem> {
        match self {
            Self::Lagging(lag) => Some(lag.cause),
            Self::Degraded(problem) => Some(problem),
            Self::Live { .. } | Self::Static => None,
        }
    }

    /// Returns whether the feed is broken, so that `pending` is the canonical head.
    pub const fn is_degraded(self) -> bool {
        self.problem().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_another_epoch_only_the_changes_are_counted_that_it_has() {
        let at = |epoch: u64, sequence: u64| SnapshotId(SnapshotId::begin(epoch).0 + sequence);
        for (id, last, changes) in [
            (at(7, 9), at(7, 4), 5),
            (at(7, 9), at(7, 9), 0),
            (at(7, 3), at(7, 9), 0),
            // The epoch itself is a change, too.
            (at(8, 2), at(7, 9), 3),
            (at(9, 0), at(7, 9), 1),
            (at(6, 5), at(7, 1), 0),
        ] {
            assert_eq!(id.changes_after(last), changes, "{:#x} after {:#x}", id.0, last.0);
        }
    }
}
