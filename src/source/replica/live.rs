//! Applying the changes of an upstream's chain. The state before them is the upstream's, which is fetched where a request
//! needs it.

use std::sync::Arc;

use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY};

use super::apply::{ApplyError, check_receipts};
use crate::{
    ledger::{
        BlockChanges, Chain, FeedState, Record, Retention, Snapshot, Snapshots, Stamp, Unfit,
        codec::{
            CodesByHash, LiveCanonical, LiveHead, LiveImage, LiveMessage, LiveRecord, LiveSubBlock, StoredChange,
            StoredChanges,
            replay::{self, KnownCodes},
        },
    },
    state::{Code, CodeCache, RemoteState, World},
    store::corrupted,
};

/// The parts of an upstream's chain that a node which follows keeps beside the snapshots.
#[derive(Debug)]
pub struct LiveReplica {
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
        let LiveImage { id, newest, records, headers, codes: brought } = image;
        let mut records = records.into_iter();
        let Some(LiveRecord::Restart(head)) = records.next() else {
            return Err(corrupted("an image does not begin with a block").into());
        };
        let (hashes, verified) = (head.hashes(), head.block.verified()?);
        let block = head.block.read(None)?;
        check_receipts(&block)?;
        let remote = RemoteState::of_fleet(cache, block.number(), block.hash());
        remote.retain_blocks(kept.blocks);
        let view = remote.newest().ok_or(Unfit(block.number()))?;
        let mut first = Snapshot::at_head(World::on(view), Arc::new(block), hashes).with_verified(verified);
        first.id = newest;
        let mut chain = Chain::new(first, FeedState::Static, kept);
        let before = headers.len().saturating_sub(kept.blocks.saturating_sub(1));
        chain.add_history(headers.into_iter().skip(before).map(|block| (block, Vec::new())));
        let mut replica = Self { codes: LiveCodes::default() };
        replica.learn(brought, codes);
        replica.apply_all(&mut chain, Stamp::now(newest), records)?;
        // Changes without a snapshot may have come after the newest.
        let feed = Record::Feed(chain.feed());
        chain.apply(Stamp::now(id), feed)?;
        // Messages after the image bring what they need.
        replica.codes = LiveCodes::default();
        Ok((chain.into(), replica))
    }

    /// Applies changes, whose snapshots the leader has published with this stamp.
    ///
    /// # Errors
    ///
    /// Returns [`ApplyError`] if a change does not fit what is published. All is as it was then.
    pub fn apply(
        &mut self,
        state: &Snapshots,
        codes: &CodeCache,
        stamp: Stamp,
        message: LiveMessage,
    ) -> Result<(), ApplyError> {
        let LiveMessage { records, codes: brought, forgets, .. } = message;
        if forgets {
            self.codes = LiveCodes::default();
        }
        self.learn(brought, codes);
        state.try_update(|chain| self.apply_all(chain, stamp, records))
    }

    fn apply_all(
        &self,
        chain: &mut Chain,
        stamp: Stamp,
        records: impl IntoIterator<Item = LiveRecord>,
    ) -> Result<(), ApplyError> {
        for record in records {
            let record = self.read(chain, record)?;
            chain.apply(stamp, record)?;
        }
        Ok(())
    }

    /// Reads a change of `on`.
    fn read(&self, on: &Chain, record: LiveRecord) -> Result<Record, ApplyError> {
        Ok(match record {
            LiveRecord::Canonical(block) => self.canonical(on, *block)?,
            LiveRecord::Preconfirmed(sub_block) => self.sub_block(on, *sub_block)?,
            LiveRecord::FallBack(feed) => Record::FallBack(feed),
            LiveRecord::GoBack(head, feed) => {
                let number = head.block.header.number;
                let known = on.state_after(number).filter(|known| known.head_hash() == head.block.hash);
                match known {
                    Some(_) => Record::GoBack { number, feed },
                    // A node that retains fewer states begins again.
                    None => restart(*head)?,
                }
            }
            LiveRecord::Restart(head) => restart(*head)?,
            LiveRecord::Tags(tags) => Record::Tags(tags),
            LiveRecord::Content(block) => {
                let block = block.read(None)?;
                check_receipts(&block)?;
                Record::Content(block)
            }
            LiveRecord::Feed(feed) => Record::Feed(feed),
        })
    }

    fn learn(&mut self, brought: Vec<Bytes>, codes: &CodeCache) {
        let brought = brought.into_iter().map(|code| codes.chain(code));
        self.codes.0.extend(brought.map(|code| (code.hash, code)));
    }

    /// Reads the next canonical block.
    fn canonical(&self, on: &Chain, canonical: LiveCanonical) -> Result<Record, ApplyError> {
        let LiveCanonical { block, changes } = canonical;
        let verified = block.verified()?;
        let block = block.read(Some(on))?;
        check_receipts(&block)?;
        let changes = match changes {
            StoredChanges::Unknown => BlockChanges::Unknown,
            StoredChanges::AsPreconfirmed => BlockChanges::AsPreconfirmed,
            StoredChanges::These(changes) => {
                BlockChanges::These(Arc::new(replay::changes(&on.latest().world, changes, &self.codes)?))
            }
        };
        Ok(Record::Canonical { block, changes, verified })
    }

    /// Reads a sub-block.
    fn sub_block(&self, on: &Chain, sub_block: LiveSubBlock) -> Result<Record, ApplyError> {
        let LiveSubBlock { complete, opens, content, verified } = sub_block;
        let complete = match complete {
            None => None,
            Some(block) => {
                let block = block.read(Some(on))?;
                check_receipts(&block)?;
                Some(on.completed(block)?)
            }
        };
        let (open, opens) = match opens {
            None => (replay::extend(&on.newest, content, &self.codes)?, false),
            Some(header) => {
                let parent = complete.as_ref().unwrap_or_else(|| on.latest());
                (replay::resume(parent, header, content, &self.codes)?, true)
            }
        };
        Ok(Record::Preconfirmed { complete, opens, open: open.with_verified(verified) })
    }
}

/// Reads a block without known ancestors.
fn restart(head: LiveHead) -> Result<Record, ApplyError> {
    let (hashes, verified) = (head.hashes(), head.block.verified()?);
    let block = head.block.read(None)?;
    check_receipts(&block)?;
    Ok(Record::Restart { block, hashes, verified })
}
