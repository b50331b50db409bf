//! Applying the changes of an upstream's chain. The state before them is the upstream's, which is fetched where a request
//! needs it.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use alloy_consensus::Header;
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY};

use super::apply::{ApplyError, check_receipts};
use crate::{
    chain::{BlockHashes, SealedBlock},
    feed::{
        apply::stand_on,
        codec::{
            BlockChanges, CodesByHash, LiveAhead, LiveCanonical, LiveChange, LiveImage, LiveMessage, LiveMoment,
            LiveSubBlock, ReadMoment, StoredChange, StoredSubBlock,
            replay::{self, KnownCodes},
        },
    },
    state::{
        Code, CodeCache, MergedChanges, Publication, Published, RemoteState, RemoteView, Retention, Selector, Snapshot,
        SnapshotId, Snapshots, Verified, World,
    },
    store::corrupted,
};

/// The parts of an upstream's chain that a node which follows keeps beside the snapshots.
#[derive(Debug)]
pub struct LiveReplica {
    remote: Arc<RemoteState>,
    /// The changes of the pre-confirmed blocks by their numbers, oldest first.
    ahead: VecDeque<(u64, MergedChanges)>,
    codes: LiveCodes,
}

/// The codes that messages have brought, and that later ones name by their hashes.
#[derive(Debug, Default)]
struct LiveCodes(CodesByHash);

impl KnownCodes for LiveCodes {
    fn code(&self, _: &StoredChange, hash: B256, _: &World) -> Result<Code, redb::Error> {
        if hash == KECCAK256_EMPTY {
            return Ok(Code::default());
        }
        self.0.get(&hash).cloned().ok_or_else(|| corrupted(format!("the code with hash {hash} is missing")))
    }
}

impl LiveReplica {
    /// Begins with an image, of whose snapshots `kept` is retained, and an empty cache of up to `cache` bytes. Returns the
    /// cell of what is published, too.
    ///
    /// # Errors
    ///
    /// Returns [`ApplyError`] if the image does not fit together.
    pub fn begin(
        image: LiveImage,
        cache: usize,
        codes: &CodeCache,
        kept: Retention,
    ) -> Result<(Snapshots, Self), ApplyError> {
        let LiveImage { id, newest, moment, headers, codes: brought } = image;
        let ReadMoment { head, verified, hashes, tags, feed, ahead, open, .. } = moment.read()?;
        check_receipts(&head)?;
        let (number, hash) = (head.number(), head.hash());
        let remote = RemoteState::of_fleet(cache, number, hash);
        remote.retain_blocks(kept.blocks);
        let mut replica = Self { remote, ahead: VecDeque::new(), codes: LiveCodes::default() };
        replica.learn(brought, codes);
        let view = replica.remote.newest().ok_or(ApplyError::Unfit { number })?;
        let mut first = canonical(view, verified, head, hashes);
        first.id = newest;
        let snapshots = Snapshots::new(first, feed, kept);
        let before = headers.len().saturating_sub(kept.blocks.saturating_sub(1));
        snapshots.add_history(headers.into_iter().skip(before).map(|block| (block, Vec::new())));
        replica.pre_confirm(&snapshots, (newest, Instant::now()), ahead, open)?;
        // Changes without a snapshot may have come after the newest.
        snapshots.apply_as(id, Publication::Tags(tags));
        // Messages after the image bring what they need.
        replica.codes = LiveCodes::default();
        Ok((snapshots, replica))
    }

    /// Applies a change under its id, whose snapshots the leader has published at a moment.
    ///
    /// # Errors
    ///
    /// Returns [`ApplyError`] if the change does not fit what is published.
    pub fn apply(
        &mut self,
        state: &Snapshots,
        codes: &CodeCache,
        named: (SnapshotId, Instant),
        message: LiveMessage,
    ) -> Result<(), ApplyError> {
        let LiveMessage { change, codes: brought, forgets } = message;
        if forgets {
            self.codes = LiveCodes::default();
        }
        self.learn(brought, codes);
        let (id, at) = named;
        match change {
            LiveChange::Moment(moment) => self.moment(state, named, *moment)?,
            LiveChange::Canonical(block) => {
                let publication = self.canonical(&state.load(), *block)?;
                state.apply_dated(id, at, publication);
            }
            LiveChange::PreConfirmed(sub_block) => {
                let publication = self.sub_block(&state.load(), *sub_block)?;
                state.apply_dated(id, at, publication);
            }
            LiveChange::FallBack(feed) => {
                self.ahead.clear();
                state.apply_dated(id, at, Publication::FallBack(feed));
            }
            LiveChange::Tags(tags) => state.apply_dated(id, at, Publication::Tags(tags)),
            LiveChange::Content(block) => {
                let block = block.read(None)?;
                check_receipts(&block)?;
                state.apply_dated(id, at, Publication::Content(block));
            }
        }
        Ok(())
    }

    fn learn(&mut self, brought: Vec<Bytes>, codes: &CodeCache) {
        let brought = brought.into_iter().map(|code| codes.chain(code));
        self.codes.0.extend(brought.map(|code| (code.hash, code)));
    }

    /// Takes the next canonical block.
    fn canonical(&mut self, on: &Published, canonical_block: LiveCanonical) -> Result<Publication, ApplyError> {
        let LiveCanonical { block, changes, confirms } = canonical_block;
        let (number, hash, parent_hash) = (block.header.number, block.hash, block.header.parent_hash);
        let verified = block.verified()?;
        let parent = on.select(Selector::Hash(parent_hash)).ok().filter(|parent| parent.open.is_none());
        let parent = parent.ok_or(ApplyError::Unfit { number })?;
        let block = block.read(Some(on))?;
        check_receipts(&block)?;
        let mut same = None;
        let changes = match changes {
            BlockChanges::Unknown => None,
            BlockChanges::These(changes) => Some(replay::changes(&parent.world, changes, &self.codes)?),
            BlockChanges::PreConfirmed => {
                let (_, changes) =
                    self.ahead.front().filter(|(ahead, _)| *ahead == number).ok_or(ApplyError::Unfit { number })?;
                same = match &on.newest.open {
                    Some(open) if open.header.number == number => Some(on.newest.clone()),
                    _ => on.ahead().find(|ahead| ahead.head.number() == number).cloned(),
                };
                Some(changes.to_vec())
            }
        };
        let view = match &changes {
            Some(changes) => self.remote.advance(number, hash, changes),
            None => self.remote.cut(number, hash),
        };
        let mut hashes = parent.hashes.clone();
        hashes.push(number, hash);
        let snapshot = canonical(view.ok_or(ApplyError::Unfit { number })?, verified, block, hashes);
        let snapshot = match (same, changes) {
            (Some(same), _) => snapshot.after(&same, Arc::default()),
            (None, Some(changes)) => snapshot.after(&parent, Arc::new(changes)),
            (None, None) => snapshot,
        };
        if confirms {
            self.ahead.pop_front();
            return Ok(Publication::Confirm(snapshot));
        }
        self.ahead.clear();
        Ok(Publication::Canonical(snapshot))
    }

    /// Takes a sub-block.
    fn sub_block(&mut self, on: &Published, sub_block: LiveSubBlock) -> Result<Publication, ApplyError> {
        let LiveSubBlock { complete, opens, content, verified } = sub_block;
        let complete = match complete {
            None => None,
            Some(block) => {
                let (number, verified) = (block.header.number, block.verified()?);
                let same = match &on.newest.open {
                    Some(open) if open.header.number == number => Some(&on.newest),
                    _ => on.ahead().find(|ahead| ahead.head.number() == number),
                };
                let same = same.ok_or(ApplyError::Unfit { number })?;
                let block = block.read(Some(on))?;
                check_receipts(&block)?;
                let mut world = World::on(self.view(on.latest())?);
                for (_, changes) in self.ahead.iter().filter(|(ahead, _)| *ahead <= number) {
                    world.apply_many(&changes.to_vec());
                }
                let mut hashes = same.hashes.clone();
                hashes.push(number, block.hash());
                let complete = stand_on(world, Arc::new(block), hashes).after(same, Arc::default());
                Some(complete.with_verified(verified))
            }
        };
        let open = match opens {
            None => replay::extend(&on.newest, content, &self.codes)?,
            Some(header) => {
                let parent = complete.as_ref().unwrap_or_else(|| on.latest());
                if parent.head_hash() != header.parent_hash {
                    return Err(ApplyError::Unfit { number: header.number });
                }
                self.ahead.retain(|(number, _)| *number < header.number);
                self.ahead.push_back((header.number, MergedChanges::default()));
                replay::resume(parent, header, content, &self.codes)?
            }
        };
        if let Some((_, changes)) = self.ahead.back_mut() {
            open.path.iter().for_each(|step| changes.add(step.changes()));
        }
        Ok(Publication::PreConfirmed { complete, open: open.with_verified(verified) })
    }

    /// Replaces the published state by a moment, whose canonical head is the same, one that the chain goes back to, the next,
    /// or one without known ancestors.
    fn moment(
        &mut self,
        state: &Snapshots,
        named: (SnapshotId, Instant),
        moment: LiveMoment,
    ) -> Result<(), ApplyError> {
        let ReadMoment { passed, head, verified, hashes, tags, feed, ahead, open } = moment.read()?;
        check_receipts(&head)?;
        let ((id, at), number, hash) = (named, head.number(), head.hash());
        for block in passed {
            let on = state.load();
            if block.block.header.parent_hash == on.head().hash() {
                let publication = self.canonical(&on, block)?;
                state.apply_dated(id, at, publication);
            }
        }
        let on = state.load();
        self.ahead.clear();
        let known = on.state_after(number).filter(|_| number <= on.head().number());
        if known.is_some_and(|known| known.head_hash() == hash) && self.remote.revert_to(number, hash).is_some() {
            state.apply_dated(id, at, Publication::GoBack { number, feed });
        } else if on.head().hash() == head.header.parent_hash
            && let Some(view) = self.remote.cut(number, hash)
        {
            state.apply_dated(id, at, Publication::Canonical(canonical(view, verified, head, hashes)));
        } else {
            let view = self.remote.restart(number, hash);
            state.apply_dated(id, at, Publication::Restart(canonical(view, verified, head, hashes)));
        }
        state.apply_dated(id, at, Publication::Tags(tags));
        state.apply_dated(id, at, Publication::Feed(feed));
        self.pre_confirm(state, named, ahead, open)
    }

    /// Publishes pre-confirmed blocks, each with its changes since the canonical head, which is published.
    fn pre_confirm(
        &mut self,
        state: &Snapshots,
        (id, at): (SnapshotId, Instant),
        blocks: Vec<LiveAhead>,
        open: Option<(Header, Verified, StoredSubBlock)>,
    ) -> Result<(), ApplyError> {
        let latest = state.load().latest().clone();
        let mut complete: Vec<Snapshot> = Vec::new();
        for LiveAhead { block, changes } in blocks {
            let verified = block.verified()?;
            let block = block.read(None)?;
            let changes = replay::changes(&latest.world, changes, &self.codes)?;
            let mut merged = MergedChanges::default();
            merged.add(&changes);
            let mut world = latest.world.clone();
            world.apply_many(&changes);
            let mut hashes = complete.last().map_or(&latest.hashes, |before| &before.hashes).clone();
            hashes.push(block.number(), block.hash());
            self.ahead.push_back((block.number(), merged));
            complete.push(stand_on(world, Arc::new(block), hashes).with_verified(verified));
        }
        let open = match open {
            None => None,
            Some((header, verified, content)) => {
                let parent = complete.last().unwrap_or(&latest);
                let on = stand_on(latest.world.clone(), parent.head.clone(), parent.hashes.clone());
                let (number, mut merged) = (header.number, MergedChanges::default());
                let open = replay::resume(&on, header, content, &self.codes)?;
                open.path.iter().for_each(|step| merged.add(step.changes()));
                self.ahead.push_back((number, merged));
                Some(open.with_verified(verified))
            }
        };
        if open.is_some() || !complete.is_empty() {
            state.apply_dated(id, at, Publication::Ahead { complete, open });
        }
        Ok(())
    }

    fn view(&self, latest: &Snapshot) -> Result<RemoteView, ApplyError> {
        let number = latest.head.number();
        self.remote.view(number, latest.head_hash()).ok_or(ApplyError::Unfit { number })
    }
}

/// Returns the state after a canonical block.
fn canonical(view: RemoteView, verified: Verified, head: SealedBlock, hashes: BlockHashes) -> Snapshot {
    stand_on(World::on(view), Arc::new(head), hashes).with_verified(verified)
}
