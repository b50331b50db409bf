//! Applying the changes of an upstream's chain. The state before them is the upstream's, which is fetched where a request
//! needs it.

use std::{sync::Arc, time::Instant};

use alloy_consensus::Header;
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY};

use super::apply::{ApplyError, check_receipts};
use crate::{
    chain::{BlockHashes, SealedBlock},
    ledger::{
        BlockChanges, Chain, Publication, Retention, Selector, Snapshot, SnapshotId, Snapshots, Unfit, Verified,
        codec::{
            CodesByHash, LiveAhead, LiveCanonical, LiveChange, LiveImage, LiveMessage, LiveMoment, LiveSubBlock,
            ReadMoment, StoredChange, StoredChanges, StoredSubBlock,
            replay::{self, KnownCodes, ReadSubBlock},
        },
    },
    state::{AccountChange, Code, CodeCache, RemoteState, RemoteView, World},
    store::corrupted,
};

/// The parts of an upstream's chain that a node which follows keeps beside the snapshots.
#[derive(Debug)]
pub struct LiveReplica {
    remote: Arc<RemoteState>,
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
        let mut replica = Self { remote, codes: LiveCodes::default() };
        replica.learn(brought, codes);
        let view = replica.remote.newest().ok_or(ApplyError::Unfit(Unfit(number)))?;
        let mut first = canonical(view, verified, head, hashes);
        first.id = newest;
        let snapshots = Snapshots::new(first, feed, kept);
        let before = headers.len().saturating_sub(kept.blocks.saturating_sub(1));
        snapshots.add_history(headers.into_iter().skip(before).map(|block| (block, Vec::new())));
        replica
            .read_ahead(&snapshots.load().latest().world, ahead, open)?
            .publish(&snapshots, (newest, Instant::now()));
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
            LiveChange::FallBack(feed) => state.apply_dated(id, at, Publication::FallBack(feed)),
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
    fn canonical(&self, on: &Chain, canonical: LiveCanonical) -> Result<Publication, ApplyError> {
        let LiveCanonical { block, changes, .. } = canonical;
        let (parent, verified) = (block.header.parent_hash, block.verified()?);
        let block = block.read(Some(on))?;
        check_receipts(&block)?;
        let changes = match changes {
            StoredChanges::Unknown => BlockChanges::Unknown,
            StoredChanges::AsPreconfirmed => BlockChanges::AsPreconfirmed,
            StoredChanges::These(changes) => {
                let parent = on.select(Selector::Hash(parent)).map_err(|_| ApplyError::Unfit(Unfit(block.number())))?;
                BlockChanges::These(Arc::new(replay::changes(&parent.world, changes, &self.codes)?))
            }
        };
        Ok(on.next_canonical(&self.remote, block, changes, verified)?)
    }

    /// Takes a sub-block.
    fn sub_block(&self, on: &Chain, sub_block: LiveSubBlock) -> Result<Publication, ApplyError> {
        let LiveSubBlock { complete, opens, content, verified } = sub_block;
        let complete = match complete {
            None => None,
            Some(block) => {
                let block = block.read(Some(on))?;
                check_receipts(&block)?;
                Some(on.completed(self.view(on.latest())?, block)?)
            }
        };
        let open = match opens {
            None => replay::extend(&on.newest, content, &self.codes)?,
            Some(header) => {
                let parent = complete.as_ref().unwrap_or_else(|| on.latest());
                if parent.head_hash() != header.parent_hash {
                    return Err(Unfit(header.number).into());
                }
                replay::resume(parent, header, content, &self.codes)?
            }
        };
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
        // Read before anything changes, so that a moment that cannot be read leaves all as it was.
        let ahead = self.read_ahead(&state.load().latest().world, ahead, open)?;
        let ((id, at), number, hash) = (named, head.number(), head.hash());
        for block in passed {
            let on = state.load();
            if block.block.header.parent_hash == on.head().hash() {
                let publication = self.canonical(&on, block)?;
                state.apply_dated(id, at, publication);
            }
        }
        let on = state.load();
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
        ahead.publish(state, named);
        Ok(())
    }

    /// Reads pre-confirmed blocks, each with its changes since the canonical head, whose state is `world`.
    fn read_ahead(
        &self,
        world: &World,
        complete: Vec<LiveAhead>,
        open: Option<(Header, Verified, StoredSubBlock)>,
    ) -> Result<ReadAhead, ApplyError> {
        let read = |LiveAhead { block, changes }: LiveAhead| {
            let verified = block.verified()?;
            Ok((block.read(None)?, verified, Arc::new(replay::changes(world, changes, &self.codes)?)))
        };
        let complete = complete.into_iter().map(read).collect::<Result<_, redb::Error>>()?;
        let read = |(header, verified, content): (_, _, StoredSubBlock)| {
            Ok::<_, redb::Error>((header, verified, content.read(world, &self.codes)?))
        };
        let open = open.map(read);
        let open = open.transpose()?;
        Ok(ReadAhead { complete, open })
    }

    fn view(&self, latest: &Snapshot) -> Result<RemoteView, ApplyError> {
        let number = latest.head.number();
        self.remote.view(number, latest.head_hash()).ok_or(ApplyError::Unfit(Unfit(number)))
    }
}

/// The pre-confirmed blocks of a moment: the complete ones, oldest first, and the one being built.
struct ReadAhead {
    complete: Vec<(SealedBlock, Verified, Arc<Vec<AccountChange>>)>,
    open: Option<(Header, Verified, ReadSubBlock)>,
}

impl ReadAhead {
    /// Publishes the blocks on the canonical head that is published.
    fn publish(self, state: &Snapshots, (id, at): (SnapshotId, Instant)) {
        let latest = state.load().latest().clone();
        let mut complete: Vec<(Snapshot, Arc<Vec<AccountChange>>)> = Vec::new();
        for (block, verified, changes) in self.complete {
            let mut world = latest.world.clone();
            world.apply_many(&changes);
            let before = complete.last().map_or(&latest.hashes, |(before, _)| &before.hashes).clone();
            let after = Snapshot::sealed(world, Arc::new(block), before).with_verified(verified);
            complete.push((after, changes));
        }
        let open = self.open.map(|(header, verified, content)| {
            let parent = complete.last().map_or(&*latest, |(parent, _)| parent);
            let on = Snapshot::at_head(latest.world.clone(), parent.head.clone(), parent.hashes.clone());
            content.resume(&on, header).with_verified(verified)
        });
        if open.is_some() || !complete.is_empty() {
            state.apply_dated(id, at, Publication::Ahead { complete, open });
        }
    }
}

/// Returns the state after a canonical block.
fn canonical(view: RemoteView, verified: Verified, head: SealedBlock, hashes: BlockHashes) -> Snapshot {
    Snapshot::at_head(World::on(view), Arc::new(head), hashes).with_verified(verified)
}
