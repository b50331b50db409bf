//! Decodes entries into the changes of a chain: from the journal after a restart, and from the stream on a following
//! node.

use std::sync::Arc;

use alloy_consensus::Header;
use alloy_primitives::Sealed;

use super::{
    codes::CodesByHash,
    entry::{Block, Canonical, Entry, GoBack, Head, Preconfirmed, Seal, SubBlock},
    frame::FrameError,
    stored::StoredSubBlock,
};
use crate::{
    chain::{BlockBody, BlockGas, BlockHashes, GasRefunds, SealedBlock},
    ledger::{self, BlockChanges, Chain, OpenBlock, Record, Snapshot, SubBlockStart, Unfit},
    state::{AccountChange, World},
    store::{corrupted, problem_of},
};

/// The reason why an entry is not a valid change of a chain, or an image is not valid.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// Another version of presim wrote it, or it is not a frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The entry is malformed, or refers to something unknown.
    #[error("it is malformed: {0}")]
    Message(String),
    /// A block does not fit the known blocks.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// A block contradicts its header.
    #[error("block {number} does not match its header: expected {what} {expected}, got {got}")]
    Mismatch { number: u64, what: &'static str, expected: String, got: String },
}

impl From<redb::Error> for EntryError {
    fn from(error: redb::Error) -> Self {
        Self::Message(problem_of(error))
    }
}

impl Entry {
    /// Reads a change of `on`. The accounts that it changes have their own code, or one of `codes`.
    ///
    /// # Errors
    ///
    /// Returns [`EntryError::Message`] if the entry is malformed or a code is unknown, and [`EntryError::Unfit`] if it completes
    /// a block that is not known.
    pub fn read(self, on: &Chain, codes: &CodesByHash) -> Result<Record, EntryError> {
        Ok(match self {
            Self::SubBlock(sub_block) => Record::SubBlock(sub_block.read(&on.newest, &on.newest, codes)?),
            Self::Seal(seal) => seal.read(on, codes)?,
            Self::Preconfirmed(preconfirmed) => preconfirmed.read(on, codes)?,
            Self::Canonical(canonical) => canonical.read(on, codes)?,
            Self::Content(block) => Record::Content(block.read(None)?),
            Self::GoBack(back) => back.read(on)?,
            Self::Restart(head) => head.read()?,
            Self::Tags(tags) => Record::Tags(tags.0),
            Self::Feed(feed) => Record::Feed(feed.0),
        })
    }
}

impl SubBlock {
    /// Returns the snapshot after the sub-block: on `parent` if it begins a block, else on `newest`.
    fn read(self, parent: &Snapshot, newest: &Snapshot, codes: &CodesByHash) -> Result<Snapshot, redb::Error> {
        let Self { opens, content, verified } = self;
        let (on, open) = match opens.0 {
            Some(header) => (parent, OpenBlock::new(header)),
            None => (newest, newest.open.clone().ok_or_else(|| corrupted("a sub-block has no open block"))?),
        };
        Ok(content.grow(on, open, codes)?.with_verified(verified.0))
    }
}

impl StoredSubBlock {
    /// Returns the snapshot that follows `on`: its open block is `open`, extended by this content.
    fn grow(self, on: &Snapshot, mut open: OpenBlock, codes: &CodesByHash) -> Result<Snapshot, redb::Error> {
        if self.transactions.len() != self.receipts.len() {
            return Err(corrupted("a sub-block has another number of receipts than of transactions"));
        }
        open.index = self.index;
        open.set_gas(BlockGas { regular: self.regular_gas_used, state: self.state_gas_used.unwrap_or_default() });
        open.blob_gas_used = self.blob_gas_used;
        open.refunds = Self::read_refunds(self.refunds)?;
        open.access_lists.extend(self.access_list.map(Arc::new));
        for (tx, receipt) in self.transactions.into_iter().zip(self.receipts) {
            open.push(tx.read()?, receipt.read()?);
        }
        let changes = codes.read(self.changes, &on.world)?;
        Ok(after(on, changes, |world, hashes| Snapshot::new(world, on.head.clone(), Some(open), hashes)))
    }
}

impl Seal {
    fn read(self, on: &Chain, codes: &CodesByHash) -> Result<Record, EntryError> {
        let Self { block, changes, next } = self;
        let verified = block.verified.0;
        let block = Arc::new(block.read(Some(on))?);
        if block.header.hash_slow() != block.hash() {
            return Err(corrupted("a sealed block has not the hash of its header").into());
        }
        let changes = codes.read(changes, &on.newest.world)?;
        let sealed = after(&on.newest, changes, |world, hashes| Snapshot::sealed(world, block, hashes));
        let sealed = sealed.with_verified(verified);
        let next = next.0.map(|next| next.read(&sealed, &sealed, codes)).transpose()?;
        Ok(Record::Seal { sealed, next })
    }
}

/// Returns the snapshot after `on` that `create` makes of the state after `changes`.
fn after(on: &Snapshot, changes: Vec<AccountChange>, create: impl FnOnce(World, BlockHashes) -> Snapshot) -> Snapshot {
    let mut world = on.world.clone();
    world.apply_many(&changes);
    create(world, on.hashes.clone()).after(on, Arc::new(changes))
}

impl Preconfirmed {
    fn read(self, on: &Chain, codes: &CodesByHash) -> Result<Record, EntryError> {
        let Self { complete, sub_block, restates } = self;
        let complete = match complete.0 {
            Some(block) => Some(on.as_parent(block.read(Some(on))?)?),
            None => None,
        };
        let start = match &sub_block.opens.0 {
            None => SubBlockStart::Extends,
            Some(_) if restates => SubBlockStart::Restates,
            Some(_) => SubBlockStart::Opens,
        };
        let parent = match (&sub_block.opens.0, &complete) {
            (Some(header), _) if restates => {
                let before = header.number.checked_sub(1).and_then(|before| on.state_after(before));
                before.filter(|before| before.head_hash() == on.newest.head_hash()).ok_or(Unfit(header.number))?
            }
            (_, Some(complete)) => complete,
            (_, None) => on.latest(),
        };
        let open = sub_block.read(parent, &on.newest, codes)?;
        Ok(Record::Preconfirmed { complete, start, open })
    }
}

impl Canonical {
    fn read(self, on: &Chain, codes: &CodesByHash) -> Result<Record, EntryError> {
        let Self { block, kind, changes } = self;
        let verified = block.verified.0;
        let changes = match kind {
            Self::UNKNOWN => BlockChanges::Unknown,
            Self::TOUCHED => BlockChanges::Touched(Arc::new(codes.read(changes, &on.latest().world)?)),
            Self::LISTED => BlockChanges::Listed(Arc::new(codes.read(changes, &on.latest().world)?)),
            Self::AS_PRECONFIRMED => BlockChanges::AsPreconfirmed,
            Self::THESE => BlockChanges::These(Arc::new(codes.read(changes, &on.latest().world)?)),
            kind => return Err(corrupted(format!("the changes of a block are of the unknown kind {kind}")).into()),
        };
        Ok(Record::Canonical { block: block.read(Some(on))?, changes, verified })
    }
}

impl GoBack {
    fn read(self, on: &Chain) -> Result<Record, redb::Error> {
        let Self { head, feed } = self;
        let number = head.block.header.number;
        match on.state_after(number).filter(|known| known.head_hash() == head.block.hash) {
            Some(_) => Ok(Record::GoBack { number, feed: feed.0 }),
            // A node that retains fewer states begins again.
            None => head.read(),
        }
    }
}

impl Head {
    /// Reads a block without known ancestors.
    ///
    /// # Errors
    ///
    /// Returns [`redb::Error::Corrupted`] if the block cannot be read.
    pub fn read(self) -> Result<Record, redb::Error> {
        let (hashes, verified) = (self.hashes(), self.block.verified.0);
        Ok(Record::Restart { block: self.block.read(None)?, hashes, verified })
    }
}

impl Block {
    /// Reads the block. If its first transactions were left out, they are taken from the block of the same number that
    /// `on` builds or has pre-confirmed.
    ///
    /// # Errors
    ///
    /// Returns [`redb::Error::Corrupted`] if a transaction or a receipt cannot be read, or transactions that were left
    /// out are not known.
    fn read(self, on: Option<&Chain>) -> Result<SealedBlock, redb::Error> {
        let Self { hash, header, known, body, logs, .. } = self;
        let number = header.number;
        let header: Sealed<Header> = Sealed::new_unchecked(header, hash);
        let Some(body) = body.0 else {
            let bare = SealedBlock::bare(header);
            return Ok(match logs.0 {
                Some(logs) => bare.with_logs(logs),
                None => bare,
            });
        };
        let mut body: BlockBody = body.read()?;
        let mut refunds = GasRefunds::default();
        if known > 0 {
            let begun = on.and_then(|on| on.preconfirmed(number)).and_then(ledger::Block::newest);
            let begun = begun.filter(|begun| begun.len() as u64 == known);
            let begun = begun.ok_or_else(|| corrupted("the transactions that a block leaves out are not known"))?;
            let (transactions, receipts): (Vec<_>, Vec<_>) =
                begun.transactions().map(|one| (one.tx.clone(), one.receipt.clone())).unzip();
            body.transactions.splice(..0, transactions);
            body.receipts.splice(..0, receipts);
            refunds = begun.refunds();
        }
        Ok(SealedBlock::named(header, body).with_refunds(refunds))
    }
}
