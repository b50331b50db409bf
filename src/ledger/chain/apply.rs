//! Applying records: each change of a chain, and the rules that it must not break.

use std::sync::Arc;

use super::{
    BlockChanges, Chain, Origin, Unfit,
    changes::{ChangesAhead, difference},
};
use crate::{
    chain::SealedBlock,
    ledger::{Record, Snapshot, Stamp, StateStep, SubBlockStart},
    state::{RemoteView, World},
};

impl Chain {
    /// Applies a change. Its snapshots get the id and the moment of `stamp`.
    ///
    /// The cache of an upstream's state advances and goes back with the chain. That cannot be undone, so only one of
    /// several copies of a chain may be changed. The other copies stay readable: the views of their snapshots keep the
    /// state of their blocks, also if the chain leaves these blocks, or if a later change does not fit and both are
    /// dropped.
    ///
    /// # Errors
    ///
    /// Returns [`Unfit`] if the change does not fit the known blocks. The chain is then unchanged.
    pub fn apply(&mut self, stamp: Stamp, record: Record) -> Result<(), Unfit> {
        match record {
            Record::SubBlock(next) => {
                self.check_open(&next, &self.latest)?;
                self.push(Arc::new(next.with_stamp(stamp)));
            }
            Record::Seal { sealed, next } => {
                let (hash, parent) = (sealed.head_hash(), sealed.head.header.parent_hash);
                Unfit::unless([hash, parent].contains(&self.latest.head_hash()), sealed.head.number())?;
                let next = next.map(|mut next| {
                    // The sealed block's own state is not found by an id.
                    next.path.splice(..0, sealed.path.iter().cloned());
                    next.with_stamp(stamp)
                });
                let sealed = self.add_canonical(sealed.with_stamp(stamp));
                self.push(next.map_or(sealed, Arc::new));
            }
            Record::Preconfirmed { complete, start, open } => self.add_preconfirmed(stamp, complete, start, open)?,
            Record::Canonical { block, changes, verified } => {
                let (after, stays) = self.next_canonical(block, changes)?;
                let after = after.with_verified(verified);
                if stays { self.confirm(after.with_stamp(stamp)) } else { self.replace_ahead(after.with_stamp(stamp)) }
            }
            Record::Content(block) => self.put_content(block),
            Record::GoBack { number, feed } if number == self.latest.head.number() => {
                self.feed = feed;
                if self.newest.open.is_some() || self.newest.head.number() != number {
                    let again = self.latest.copy().named(stamp.id);
                    self.forget_from(number + 1);
                    self.push(Arc::new(again));
                }
            }
            Record::GoBack { number, feed } => {
                let fork = self.sealed.get(&number).filter(|_| number <= self.latest.head.number());
                let fork = fork.ok_or(Unfit(number))?.copy();
                let is_back = fork.world.remote().is_none_or(RemoteView::go_back);
                Unfit::unless(is_back, number)?;
                let fork = Arc::new(fork.named(stamp.id));
                self.feed = feed;
                self.forget_from(number + 1);
                self.sealed.insert(number, fork.clone());
                self.latest = fork.clone();
                self.push(fork);
            }
            Record::Restart { block, hashes, verified } => {
                let view = self.remote()?.begin_anew(block.number(), block.hash());
                let first = Snapshot::at_head(World::on(view), Arc::new(block), hashes).with_verified(verified);
                let first = Arc::new(first.with_stamp(stamp));
                self.forget_from(0);
                self.add_block(&first);
                self.expect_content(&first.head);
                self.latest = first.clone();
                self.push(first);
            }
            Record::Return(then) => {
                let returns = self.returns + 1;
                *self = Self { feed: self.feed, returns, ..self.back_to(&then) };
                self.push(Arc::new(then.newest.copy().with_stamp(stamp)));
            }
            Record::Tags(tags) => {
                self.origin = Origin::Upstream(tags);
                self.drop_final();
            }
            Record::Feed(feed) => self.feed = feed,
        }
        self.last = stamp.id;
        Ok(())
    }

    /// Checks that the block that `next` builds is the one on `parent`.
    fn check_open(&self, next: &Snapshot, parent: &Snapshot) -> Result<(), Unfit> {
        let number = next.open.as_ref().map_or(next.head.number() + 1, |open| open.header.number);
        Unfit::unless(next.head_hash() == parent.head_hash() && number == parent.head.number() + 1, number)
    }

    /// Returns the upstream's state after the newest canonical block.
    fn remote(&self) -> Result<&RemoteView, Unfit> {
        self.latest.world.remote().ok_or(Unfit(self.latest.head.number()))
    }

    /// Adds a sub-block of a block that is not canonical.
    fn add_preconfirmed(
        &mut self,
        stamp: Stamp,
        complete: Option<Snapshot>,
        start: SubBlockStart,
        mut open: Snapshot,
    ) -> Result<(), Unfit> {
        // The block before may have become canonical since.
        let complete = complete.filter(|complete| complete.head.number() > self.latest.head.number());
        match &complete {
            Some(complete) => {
                Unfit::unless(self.preconfirmed(complete.head.number()).is_some(), complete.head.number())?;
                self.check_open(&open, complete)?;
            }
            None if start == SubBlockStart::Opens => self.check_open(&open, &self.latest)?,
            None => {
                let number = open.header().number;
                let goes_on = self.newest.open.as_ref().is_some_and(|before| before.header.number == number);
                Unfit::unless(goes_on && open.head_hash() == self.newest.head_hash(), number)?;
            }
        }
        if let Some(complete) = complete {
            open.path.splice(..0, complete.path.iter().cloned());
            // The snapshots of the block's sub-blocks stay. Blocks on top of it belong to an earlier attempt.
            let number = complete.head.number();
            self.forget_blocks_from(number);
            self.forget_snapshots_from(number + 1);
            self.provisional.remove(number + 1..=u64::MAX);
            self.forget_changes_from(number + 1);
            self.add_block(&Arc::new(complete.with_stamp(stamp)));
        } else if start == SubBlockStart::Opens {
            self.forget_from(open.header().number);
        }
        let number = open.header().number;
        if start == SubBlockStart::Restates {
            let before = self.changes_ahead(number);
            let changes = ChangesAhead::from(StateStep::merged(&open.path));
            let step = difference(&before, &changes.merged(), &open);
            self.changes_ahead.insert(number, changes);
            open = open.after(&self.newest, Arc::new(step));
        } else {
            self.changes_ahead.entry(number).or_default().add(&open);
        }
        self.prune_states();
        self.push(Arc::new(open.with_stamp(stamp)));
        Ok(())
    }

    /// Returns the state after the upstream's next block, to which its cache advances, and whether the pre-confirmed
    /// blocks on it stay.
    fn next_canonical(&self, block: SealedBlock, changes: BlockChanges) -> Result<(Snapshot, bool), Unfit> {
        let (number, hash) = (block.number(), block.hash());
        let unfit = || Unfit(number);
        let parent = &self.latest;
        Unfit::unless(parent.head_hash() == block.header.parent_hash, number)?;
        let remote = self.remote()?;
        let (view, same, changes) = match changes {
            BlockChanges::Unknown => (remote.push_unknown_block(number, hash), None, None),
            BlockChanges::Touched(touched) => (remote.touch(number, hash, &touched), None, None),
            BlockChanges::Listed(changes) => (remote.advance_by_list(number, hash, &changes), None, Some(changes)),
            BlockChanges::These(changes) => (remote.advance(number, hash, &changes), None, Some(changes)),
            BlockChanges::AsPreconfirmed => {
                let same = self.preconfirmed(number).ok_or_else(unfit)?;
                let (_, ahead) =
                    self.changes_ahead.get_min().filter(|(first, _)| *first == number).ok_or_else(unfit)?;
                let changes = Arc::new(ahead.merged());
                (remote.advance(number, hash, &changes), Some(same), Some(changes))
            }
        };
        let after = Snapshot::sealed(World::on(view.ok_or_else(unfit)?), Arc::new(block), parent.hashes.clone());
        let after = match (same, changes) {
            (Some(same), _) => after.after(same, Arc::default()),
            (None, Some(changes)) => after.after(parent, changes),
            (None, None) => after,
        };
        let child = self.preconfirmed(number + 1).filter(|_| same.is_some());
        let stays = child.is_some_and(|child| child.header().parent_hash == hash);
        Ok((after, stays))
    }

    /// Makes a pre-confirmed block canonical under its existing id. Pre-confirmed blocks on it stay.
    fn confirm(&mut self, canonical: Snapshot) {
        let known = self.sealed.get(&canonical.head.number()).map_or(canonical.id, |known| known.id);
        let canonical = Arc::new(canonical.named(known));
        self.add_block(&canonical);
        self.expect_content(&canonical.head);
        self.changes_ahead.remove(&canonical.head.number());
        self.latest = canonical;
    }

    /// Adds a canonical block and removes the pre-confirmed blocks that it replaces.
    fn replace_ahead(&mut self, canonical: Snapshot) {
        let number = canonical.head.number();
        self.forget_blocks_from(number);
        // The sub-blocks of a block that became canonical unchanged are states of the chain.
        let unchanged = canonical.path.first().is_some_and(|step| step.from == self.newest.state)
            && self.newest.open.as_ref().is_some_and(|open| open.header.number == number);
        if unchanged || self.open_is_prefix_of(&canonical.head) {
            self.retain_hashes_of(number);
        } else {
            self.provisional.remove(number..=number);
        }
        self.provisional.remove(number + 1..=u64::MAX);
        self.forget_snapshots_from(if unchanged { number + 1 } else { number });
        self.expect_content(&canonical.head);
        self.changes_ahead.clear();
        let canonical = self.add_canonical(canonical);
        self.push(canonical);
    }
}
