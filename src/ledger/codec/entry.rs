//! Entries: the encoded form of the changes of a chain. The journal on disk, the stream of a fleet and its images share
//! it.
//!
//! An entry is encoded relative to the chain before its change, and leaves out what that chain already has: a block
//! that becomes complete is encoded without the transactions that it had while it was being built.

use alloy_consensus::Header;
use alloy_primitives::{B256, Bytes};
use alloy_rlp::{Encodable, RlpDecodable, RlpEncodable};

use super::{
    codes::CodesByHash,
    items::ItemBudget,
    json::Json,
    stored::{Maybe, StoredBody, StoredChange, StoredSubBlock},
};
use crate::{
    chain::{BlockHashes, SealedBlock, TransactionLogs},
    ledger::{
        self, BlockChanges, Chain, FeedState, Included, OpenBlock, Record, Snapshot, StateStep, SubBlockStart, Tags,
        Verified,
    },
    state::NumberedHash,
    store::{StoredTx, corrupted, decode},
};

/// Defines [`Entry`] by its variants: their content, and the byte that names them.
macro_rules! entries {
    ($($(#[$doc:meta])* $name:ident($content:ty) = $kind:literal,)*) => {
        /// The encoded form of a [`Record`].
        pub enum Entry {
            $($(#[$doc])* $name($content),)*
        }

        impl Entry {
            /// Returns the kind of the entry, followed by its RLP.
            pub fn write(&self) -> Bytes {
                let (kind, content): (u8, &dyn Encodable) = match self {
                    $(Self::$name(content) => ($kind, content),)*
                };
                let mut bytes = Vec::with_capacity(1 + content.length());
                bytes.push(kind);
                content.encode(&mut bytes);
                bytes.into()
            }

            /// Decodes an entry.
            ///
            /// # Errors
            ///
            /// Returns [`redb::Error::Corrupted`] if the bytes are not exactly one entry.
            pub fn decode(bytes: &[u8]) -> Result<Self, redb::Error> {
                match bytes.split_first() {
                    $(Some(($kind, content)) => decode(content).map(Self::$name),)*
                    Some((kind, _)) => Err(corrupted(format!("a change of the chain is of the unknown kind {kind}"))),
                    None => Err(corrupted("a change of the chain is empty")),
                }
            }
        }
    };
}

entries! {
    /// A sub-block of a block that is built here, or the opening of one.
    SubBlock(Box<SubBlock>) = 0,
    /// The seal of a block that was built here.
    Seal(Box<Seal>) = 1,
    /// A sub-block of a pre-confirmed block of an upstream.
    Preconfirmed(Box<Preconfirmed>) = 2,
    /// The upstream's next canonical block.
    Canonical(Box<Canonical>) = 3,
    /// The content of a canonical block that was published as a header only.
    Content(Box<Block>) = 4,
    /// The return to a block.
    GoBack(Box<GoBack>) = 5,
    /// A canonical block of the upstream without known ancestors, and the block with which an image begins.
    Restart(Box<Head>) = 6,
    /// The blocks that the upstream calls safe and final.
    Tags(Json<Tags>) = 7,
    /// The health of the feed.
    Feed(Json<FeedState>) = 8,
}

/// A block that is canonical, or complete.
#[derive(RlpEncodable, RlpDecodable)]
pub struct Block {
    /// The block's hash, as reported by its producer: the header may lack fields.
    pub hash: B256,
    /// The header.
    pub header: Header,
    /// The extent to which the block is verified.
    pub verified: Json<Verified>,
    /// The number of the first transactions that are left out, because the chain has them in the block being built.
    pub known: u64,
    /// The body; none if only the header is known.
    pub body: Maybe<StoredBody>,
    /// The logs of the block. Set only if they are known although the body is not.
    pub logs: Maybe<Vec<TransactionLogs>>,
}

/// A canonical block, and the hashes of the last blocks up to it.
#[derive(RlpEncodable, RlpDecodable)]
pub struct Head {
    /// The block.
    pub block: Block,
    hashes: Vec<NumberedHash>,
}

/// A sub-block.
#[derive(RlpEncodable, RlpDecodable)]
pub struct SubBlock {
    /// The header of the block that the sub-block begins.
    pub opens: Maybe<Header>,
    /// The transactions, receipts and changes.
    pub content: StoredSubBlock,
    /// The extent to which the snapshot is verified.
    pub verified: Json<Verified>,
}

/// The seal of a block.
#[derive(RlpEncodable, RlpDecodable)]
pub struct Seal {
    /// The block.
    pub block: Block,
    /// The changes since the sub-block before, each account once.
    pub changes: Vec<StoredChange>,
    /// The opening of the next block.
    pub next: Maybe<SubBlock>,
}

/// A sub-block of a pre-confirmed block.
#[derive(RlpEncodable, RlpDecodable)]
pub struct Preconfirmed {
    /// The complete block before it, if the sub-block is the first on that.
    pub complete: Maybe<Block>,
    /// The sub-block. It has all of its block if it begins or replaces that block.
    pub sub_block: SubBlock,
    /// Whether the sub-block replaces the block being built, with other refunds.
    pub restates: bool,
}

/// The upstream's next canonical block.
#[derive(RlpEncodable, RlpDecodable)]
pub struct Canonical {
    /// The block.
    pub block: Block,
    /// [`UNKNOWN`](Self::UNKNOWN), [`AS_PRECONFIRMED`](Self::AS_PRECONFIRMED), [`THESE`](Self::THESE),
    /// [`TOUCHED`](Self::TOUCHED) or [`LISTED`](Self::LISTED).
    pub kind: u8,
    /// The changes of the state, each account once.
    pub changes: Vec<StoredChange>,
}

/// The return to a block.
#[derive(RlpEncodable, RlpDecodable)]
pub struct GoBack {
    /// The block.
    pub head: Head,
    /// The health of the feed.
    pub feed: Json<FeedState>,
}

impl Entry {
    /// Returns the encoded form of `record`, a change of `on`, and adds the codes that accounts get by it. `None` for
    /// the return to an earlier moment, which no other node follows.
    pub fn of(on: &Chain, record: &Record, codes: &mut CodesByHash) -> Option<Self> {
        Some(match record {
            Record::SubBlock(next) => Self::SubBlock(Box::new(SubBlock::built(next, on.newest.open.as_ref(), codes)?)),
            Record::Seal { sealed, next } => {
                let known = on.newest.open.as_ref().map_or(0, |open| open.transactions.len());
                let block = Block::of(&sealed.head, sealed.verified, known);
                let changes = codes.new_of(&sealed.path);
                let next = next.as_ref().and_then(|next| SubBlock::built(next, None, codes));
                Self::Seal(Box::new(Seal { block, changes, next: Maybe(next) }))
            }
            Record::Preconfirmed { complete, start, open } => {
                let before = on.newest.open.as_ref().filter(|_| *start == SubBlockStart::Extends);
                let changes = codes.all_of(&StateStep::merged(&open.path));
                let sub_block = SubBlock::preconfirmed(open, before, changes)?;
                let complete = complete.as_ref().map(|complete| Block::on(on, &complete.head, complete.verified));
                let (complete, restates) = (Maybe(complete), *start == SubBlockStart::Restates);
                Self::Preconfirmed(Box::new(Preconfirmed { complete, sub_block, restates }))
            }
            Record::Canonical { block, changes, verified } => {
                let (kind, changes) = match changes {
                    BlockChanges::Unknown => (Canonical::UNKNOWN, Vec::new()),
                    BlockChanges::Touched(changes) => (Canonical::TOUCHED, codes.all_of(changes)),
                    BlockChanges::Listed(changes) => (Canonical::LISTED, codes.all_of(changes)),
                    BlockChanges::AsPreconfirmed => (Canonical::AS_PRECONFIRMED, Vec::new()),
                    BlockChanges::These(changes) => (Canonical::THESE, codes.all_of(changes)),
                };
                Self::Canonical(Box::new(Canonical { block: Block::on(on, block, *verified), kind, changes }))
            }
            Record::GoBack { number, feed } => {
                let head = Head::of(on.state_after(*number)?);
                Self::GoBack(Box::new(GoBack { head, feed: Json(*feed) }))
            }
            Record::Restart { block, hashes, verified } => {
                Self::Restart(Box::new(Head::with(Block::of(block, *verified, 0), hashes)))
            }
            Record::Tags(tags) => Self::Tags(Json(*tags)),
            Record::Content(block) => Self::Content(Box::new(Block::of(block, Verified::None, 0))),
            Record::Feed(feed) => Self::Feed(Json(*feed)),
            Record::Return(_) => return None,
        })
    }

    /// Decodes an entry of a message, and takes its items from the message's budget.
    ///
    /// # Errors
    ///
    /// Returns [`redb::Error::Corrupted`] if the entry has more items than are left, the bytes are not exactly one
    /// entry, or it is not an entry of an upstream's chain.
    pub fn arrived(bytes: &[u8], items: &mut ItemBudget) -> Result<Self, redb::Error> {
        items.take(bytes.get(1..).unwrap_or_default())?;
        match Self::decode(bytes)? {
            Self::SubBlock(_) | Self::Seal(_) => Err(corrupted("a change of a fleet's chain is none of an upstream's")),
            entry => Ok(entry),
        }
    }

    /// Returns the transactions that the entry brings, in order.
    pub fn transactions(&self) -> &[StoredTx] {
        match self {
            Self::SubBlock(sub_block) => &sub_block.content.transactions,
            Self::Seal(seal) => seal.block.body.0.as_ref().map_or(&[], |body| &body.transactions),
            _ => &[],
        }
    }
}

impl SubBlock {
    /// Returns the content that `next` adds to the block `before`, or all of a block that it opens.
    fn built(next: &Snapshot, before: Option<&OpenBlock>, codes: &mut CodesByHash) -> Option<Self> {
        let known_lists = before.map_or(0, |before| before.access_lists.len());
        Self::of(next, before, known_lists, codes.new_of(&next.path))
    }

    /// Returns the entry of a pre-confirmed block. Its access lists are left out, because only its producer needs them.
    pub fn preconfirmed(next: &Snapshot, before: Option<&OpenBlock>, changes: Vec<StoredChange>) -> Option<Self> {
        Self::of(next, before, usize::MAX, changes)
    }

    fn of(next: &Snapshot, before: Option<&OpenBlock>, known_lists: usize, changes: Vec<StoredChange>) -> Option<Self> {
        let open = next.open.as_ref()?;
        let known = before.map_or(0, |before| before.transactions.len());
        Some(Self {
            opens: Maybe(before.is_none().then(|| open.header.clone())),
            content: StoredSubBlock::of(open, known, known_lists, changes),
            verified: Json(next.verified),
        })
    }

    /// Returns all of the complete pre-confirmed block before the state `after`, as one sub-block.
    pub fn whole(after: &Snapshot, changes: Vec<StoredChange>) -> Self {
        let (header, body) = (after.head.header.inner(), after.head.body());
        let content = StoredSubBlock {
            refunds: StoredSubBlock::refunds_of(&after.head.refunds(&body)),
            regular_gas_used: header.gas_used,
            blob_gas_used: header.blob_gas_used.unwrap_or_default(),
            transactions: body.transactions.iter().map(Into::into).collect(),
            receipts: body.receipts.iter().map(Into::into).collect(),
            changes,
            ..StoredSubBlock::default()
        };
        Self { opens: Maybe(Some(header.clone())), content, verified: Json(after.verified) }
    }
}

impl Canonical {
    /// The block was not executed.
    pub const UNKNOWN: u8 = 0;
    /// The changes are the ones of the same block as it was pre-confirmed.
    pub const AS_PRECONFIRMED: u8 = 1;
    /// The changes are in the entry.
    pub const THESE: u8 = 2;
    /// The block was not executed. The changes are listed without their values.
    pub const TOUCHED: u8 = 3;
    /// The block was not executed. The changes are from its access list.
    pub const LISTED: u8 = 4;
}

impl Head {
    /// Returns the head of a state.
    pub fn of(state: &Snapshot) -> Self {
        Self::with(Block::of(&state.head, state.verified, 0), &state.hashes)
    }

    fn with(block: Block, hashes: &BlockHashes) -> Self {
        let number = block.header.number;
        let oldest = (number + 1).saturating_sub(BlockHashes::DEPTH as u64);
        let numbered = |number| Some(NumberedHash { number, hash: hashes.get(number)? });
        Self { block, hashes: (oldest..=number).filter_map(numbered).collect() }
    }

    /// Returns the hashes of the last blocks.
    pub fn hashes(&self) -> BlockHashes {
        let mut hashes = BlockHashes::default();
        self.hashes.iter().for_each(|one| hashes.push(one.number, one.hash));
        hashes
    }
}

impl Block {
    /// Returns a block without the transactions that the pre-confirmed block of its number in `on` has, if it begins with them.
    fn on(on: &Chain, block: &SealedBlock, verified: Verified) -> Self {
        let known = on.preconfirmed(block.number()).and_then(|begun| {
            let (begun, body) = (ledger::Block::newest(begun)?, block.find_body()?);
            let mut all = body.transactions.iter().zip(&body.receipts);
            let is_next = |own: Included<'_>| {
                all.next().is_some_and(|(tx, receipt)| own.tx.tx_hash() == tx.tx_hash() && own.receipt == receipt)
            };
            begun.transactions().all(is_next).then_some(begun.len())
        });
        Self::of(block, verified, known.unwrap_or(0))
    }

    /// Returns a complete pre-confirmed block for readers who have all of its transactions.
    pub fn whole(after: &Snapshot) -> Self {
        let count = after.head.find_body().map_or(0, |body| body.transactions.len());
        Self::of(&after.head, after.verified, count)
    }

    /// Returns a block without its first `known` transactions.
    pub fn of(block: &SealedBlock, verified: Verified, known: usize) -> Self {
        Self {
            hash: block.hash(),
            header: block.header.inner().clone(),
            verified: Json(verified),
            known: known as u64,
            body: Maybe(block.find_body().map(|body| StoredBody::after(&body, known))),
            logs: Maybe(block.logs_alone().map(<[_]>::to_vec)),
        }
    }
}
