//! The changes of an upstream's chain, as the stream of a fleet has them.

use std::sync::Arc;

use alloy_consensus::{Header, transaction::Recovered};
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY, Sealed, map::B256Map};
use alloy_rlp::{RlpDecodable, RlpEncodable};

use super::{
    health::{MessageError, read_feed, read_verified, write_feed},
    record::{NumberedHash, StoredBody, StoredChange, StoredSubBlock},
};
use crate::{
    chain::{BlockBody, BlockHashes, ChainReceipt, ChainTx, SealedBlock, TransactionLogs},
    ledger::{BlockChanges, Chain, FeedState, OpenBlock, Record, Snapshot, SnapshotId, StateStep, Tags, Verified},
    state::{AccountChange, Code},
    store::{corrupted, decode, encode},
};

/// Changes of an upstream's chain under one id, with the codes of the accounts that they change.
pub struct LiveMessage {
    /// The id of the change that they follow; `None` if it is the one before theirs.
    pub follows: Option<SnapshotId>,
    /// The changes, in order: one, or all between what the readers have seen and what there is.
    pub records: Vec<LiveRecord>,
    /// The codes that the reader may not know, each once.
    pub codes: Vec<Bytes>,
    /// Whether the reader has to forget the codes of earlier messages, because later ones bring what they need again.
    pub forgets: bool,
}

/// A change of an upstream's chain.
pub enum LiveRecord {
    /// The next canonical block.
    Canonical(Box<LiveCanonical>),
    /// A sub-block of a pre-confirmed block.
    Preconfirmed(Box<LiveSubBlock>),
    /// The removal of what was pre-confirmed.
    FallBack(FeedState),
    /// The return of the chain to this block.
    GoBack(Box<LiveHead>, FeedState),
    /// A canonical block without known ancestors.
    Restart(Box<LiveHead>),
    /// The blocks that the upstream calls safe and final.
    Tags(Tags),
    /// The content of a canonical block that came as a header alone.
    Content(Box<LiveBlock>),
    /// The health of the feed.
    Feed(FeedState),
}

/// A canonical block, and the hashes of the last blocks up to it.
#[derive(RlpEncodable, RlpDecodable)]
pub struct LiveHead {
    /// The block.
    pub block: LiveBlock,
    hashes: Vec<NumberedHash>,
}

/// A canonical block, or a complete pre-confirmed one.
#[derive(RlpEncodable, RlpDecodable)]
pub struct LiveBlock {
    /// The block's hash, which its producer has told: the header may lack fields.
    pub hash: B256,
    /// The header.
    pub header: Header,
    verified: u8,
    /// The number of the first transactions that are left out, because the reader has them in its pre-confirmed block.
    known: u64,
    /// The body; none if only the header is known.
    body: Vec<StoredBody>,
    /// The logs of a block whose body is not known, if they are known all the same.
    logs: Vec<StoredLogs>,
}

/// The logs of the transactions of a block.
#[derive(RlpEncodable, RlpDecodable)]
struct StoredLogs {
    transactions: Vec<TransactionLogs>,
}

/// The changes of a canonical block.
pub enum StoredChanges {
    /// The block was not executed.
    Unknown,
    /// The changes of the same block as it was pre-confirmed.
    AsPreconfirmed,
    /// The changes, each account once.
    These(Vec<StoredChange>),
}

/// The next canonical block.
pub struct LiveCanonical {
    /// The block.
    pub block: LiveBlock,
    /// The changes of the state.
    pub changes: StoredChanges,
}

/// A sub-block of a pre-confirmed block.
pub struct LiveSubBlock {
    /// The complete block before it, if the sub-block is the first on that.
    pub complete: Option<LiveBlock>,
    /// The header of the block that the sub-block begins.
    pub opens: Option<Header>,
    /// The transactions, receipts and changes.
    pub content: StoredSubBlock,
    /// The extent to which it was compared with its producer's word.
    pub verified: Verified,
}

#[derive(RlpEncodable, RlpDecodable)]
struct TagFields {
    safe: Vec<u64>,
    finalized: Vec<u64>,
}

#[derive(RlpEncodable, RlpDecodable)]
struct CanonicalFields {
    block: LiveBlock,
    is_known: bool,
    changes: Vec<StoredChange>,
    is_pre_confirmed: bool,
}

#[derive(RlpEncodable, RlpDecodable)]
struct SubBlockFields {
    complete: Vec<LiveBlock>,
    opens: Vec<Header>,
    content: StoredSubBlock,
    verified: u8,
}

#[derive(RlpEncodable, RlpDecodable)]
struct GoBackFields {
    head: LiveHead,
    feed: Bytes,
}

#[derive(RlpEncodable, RlpDecodable)]
struct LiveFields {
    follows: Vec<u64>,
    records: Vec<Bytes>,
    codes: Vec<Bytes>,
    forgets: bool,
}

const CANONICAL: u8 = 1;
const PRE_CONFIRMED: u8 = 2;
const FALL_BACK: u8 = 3;
const TAGS: u8 = 4;
const CONTENT: u8 = 5;
const GO_BACK: u8 = 6;
const RESTART: u8 = 7;
const FEED: u8 = 8;

/// Bytecode by its hash.
pub type CodesByHash = B256Map<Code>;

impl LiveRecord {
    /// Returns the encoded form of `record`, which changes `on`, and adds the codes of the accounts in it; `None` if it is no change
    /// of an upstream's chain.
    pub fn of(on: &Chain, record: &Record, codes: &mut CodesByHash) -> Option<Self> {
        Some(match record {
            Record::Canonical { block, changes, verified } => {
                let changes = match changes {
                    BlockChanges::Unknown => StoredChanges::Unknown,
                    BlockChanges::AsPreconfirmed => StoredChanges::AsPreconfirmed,
                    BlockChanges::These(changes) => StoredChanges::These(stored(changes, codes)),
                };
                let block = LiveBlock::on(on, block, *verified);
                Self::Canonical(Box::new(LiveCanonical { block, changes }))
            }
            Record::Preconfirmed { complete, opens, open } => {
                Self::Preconfirmed(Box::new(LiveSubBlock::of(on, complete.as_ref(), *opens, open, codes)?))
            }
            Record::GoBack { number, feed } => {
                let fork = on.state_after(*number)?;
                Self::GoBack(Box::new(LiveHead::of(&fork.head, &fork.hashes, fork.verified)), *feed)
            }
            Record::Restart { block, hashes, verified } => {
                Self::Restart(Box::new(LiveHead::of(block, hashes, *verified)))
            }
            Record::FallBack(feed) => Self::FallBack(*feed),
            Record::Tags(tags) => Self::Tags(*tags),
            Record::Content(block) => Self::Content(Box::new(LiveBlock::of(block, Verified::None, 0))),
            Record::Feed(feed) => Self::Feed(*feed),
            Record::SubBlock(_) | Record::Seal { .. } | Record::Return(_) => return None,
        })
    }

    /// Returns the changes that lead readers who have `seen` an upstream's chain to what there is, and adds the codes of the accounts
    /// in them. Readers who have seen nothing begin with a [`Restart`](Self::Restart).
    pub fn between(seen: Option<&Chain>, chain: &Chain, codes: &mut CodesByHash) -> Vec<Self> {
        let head = chain.head().number();
        let is_known = |number: &u64| {
            let known = seen.and_then(|seen| seen.state_after(*number));
            known.zip(chain.state_after(*number)).is_some_and(|(known, own)| known.head_hash() == own.head_hash())
        };
        let seen_head = seen.map_or(0, |seen| seen.head().number());
        let known = (chain.oldest_state()..=head.min(seen_head)).rev().find(is_known);
        let mut records = Vec::new();
        let first = known.and_then(|number| chain.state_after(number)).unwrap_or_else(|| chain.latest());
        let whole = || Box::new(LiveHead::of(&first.head, &first.hashes, first.verified));
        match known {
            None => records.push(Self::Restart(whole())),
            Some(number) if number < seen_head => records.push(Self::GoBack(whole(), chain.feed())),
            Some(_) => records.push(Self::FallBack(chain.feed())),
        }
        let passed = first.head.number() + 1..=head;
        let passed = passed.filter_map(|number| LiveCanonical::passed(chain, number, codes));
        records.extend(passed.map(|block| Self::Canonical(Box::new(block))));
        let late = seen.into_iter().flat_map(Chain::late_blocks).filter_map(|(number, late)| {
            let block = chain.sealed_block(number).filter(|block| block.hash() == late.hash)?;
            let is_told = !block.is_bare() || block.logs_alone().is_some();
            is_told.then(|| Self::Content(Box::new(LiveBlock::of(&block, Verified::None, 0))))
        });
        records.extend(late);
        records.extend([Self::Tags(chain.tags().unwrap_or_default()), Self::Feed(chain.feed())]);
        let mut complete = None;
        for after in chain.ahead() {
            let changes = stored(&chain.changes_ahead(after.head.number()), codes);
            records.push(Self::Preconfirmed(Box::new(LiveSubBlock::whole(complete, after, changes))));
            complete = Some(after);
        }
        if let Some(open) = &chain.newest.open {
            let changes = stored(&chain.changes_ahead(open.header.number), codes);
            let sub_block = LiveSubBlock {
                complete: complete.map(|complete| LiveBlock::known(complete)),
                opens: Some(open.header.clone()),
                content: content(open, 0, changes),
                verified: chain.newest.verified,
            };
            records.push(Self::Preconfirmed(Box::new(sub_block)));
        }
        records
    }

    fn write(self) -> Bytes {
        let (kind, fields) = match self {
            Self::Canonical(canonical) => (CANONICAL, canonical.write()),
            Self::Preconfirmed(sub_block) => (PRE_CONFIRMED, sub_block.write()),
            Self::FallBack(feed) => (FALL_BACK, write_feed(feed)),
            Self::GoBack(head, feed) => (GO_BACK, encode(&GoBackFields { head: *head, feed: write_feed(feed).into() })),
            Self::Restart(head) => (RESTART, encode(&*head)),
            Self::Tags(tags) => (TAGS, encode(&TagFields::from(tags))),
            Self::Content(block) => (CONTENT, encode(&*block)),
            Self::Feed(feed) => (FEED, write_feed(feed)),
        };
        [&[kind], fields.as_slice()].concat().into()
    }

    fn read(bytes: &[u8]) -> Result<Self, redb::Error> {
        Ok(match bytes.split_first() {
            Some((&CANONICAL, fields)) => Self::Canonical(Box::new(LiveCanonical::read(fields)?)),
            Some((&PRE_CONFIRMED, fields)) => Self::Preconfirmed(Box::new(LiveSubBlock::read(fields)?)),
            Some((&FALL_BACK, fields)) => Self::FallBack(read_feed(fields)?),
            Some((&GO_BACK, fields)) => {
                let GoBackFields { head, feed } = decode(fields)?;
                Self::GoBack(Box::new(head), read_feed(&feed)?)
            }
            Some((&RESTART, fields)) => Self::Restart(Box::new(decode(fields)?)),
            Some((&TAGS, fields)) => Self::Tags(decode::<TagFields>(fields)?.read()),
            Some((&CONTENT, fields)) => Self::Content(Box::new(decode(fields)?)),
            Some((&FEED, fields)) => Self::Feed(read_feed(fields)?),
            _ => return Err(corrupted("its kind of change is unknown")),
        })
    }

    /// Returns the encoded form of records.
    pub fn write_all(records: Vec<Self>) -> Vec<Bytes> {
        records.into_iter().map(Self::write).collect()
    }

    /// Reads records.
    ///
    /// # Errors
    ///
    /// Returns [`redb::Error::Corrupted`] if one cannot be read.
    pub fn read_all(records: &[Bytes]) -> Result<Vec<Self>, redb::Error> {
        records.iter().map(|record| Self::read(record)).collect()
    }
}

impl LiveMessage {
    /// Returns the bytes of the message.
    pub fn write(self) -> Vec<u8> {
        let Self { follows, records, codes, forgets } = self;
        let (follows, records) = (follows.map(|id| id.0).into_iter().collect(), LiveRecord::write_all(records));
        encode(&LiveFields { follows, records, codes, forgets })
    }

    /// Reads a message.
    ///
    /// # Errors
    ///
    /// Returns [`MessageError`] if the bytes are not a message.
    pub fn read(bytes: &[u8]) -> Result<Self, MessageError> {
        let LiveFields { follows, records, codes, forgets } = decode(bytes)?;
        let follows = follows.first().copied().map(SnapshotId);
        Ok(Self { follows, records: LiveRecord::read_all(&records)?, codes, forgets })
    }
}

impl LiveHead {
    fn of(block: &SealedBlock, hashes: &BlockHashes, verified: Verified) -> Self {
        let oldest = (block.number() + 1).saturating_sub(BlockHashes::DEPTH as u64);
        let numbered = |number| Some(NumberedHash { number, hash: hashes.get(number)? });
        let hashes = (oldest..=block.number()).filter_map(numbered).collect();
        Self { block: LiveBlock::of(block, verified, 0), hashes }
    }

    /// Returns the hashes of the last blocks.
    pub fn hashes(&self) -> BlockHashes {
        let mut hashes = BlockHashes::default();
        self.hashes.iter().for_each(|one| hashes.push(one.number, one.hash));
        hashes
    }
}

impl LiveBlock {
    /// Returns a block without the transactions that the pre-confirmed block of its number in `on` has.
    fn on(on: &Chain, block: &SealedBlock, verified: Verified) -> Self {
        let known = pre_confirmed(on, block.number());
        let known = known.filter(|known| block.find_body().is_some_and(|body| known.begins(&body)));
        Self::of(block, verified, known.map_or(0, |known| known.transactions.len()))
    }

    /// Returns a complete pre-confirmed block for readers who have all of its transactions.
    fn known(after: &Snapshot) -> Self {
        let count = after.head.find_body().map_or(0, |body| body.transactions.len());
        Self::of(&after.head, after.verified, count)
    }

    fn of(block: &SealedBlock, verified: Verified, known: usize) -> Self {
        let logs = block.logs_alone().map(|logs| StoredLogs { transactions: logs.to_vec() });
        Self {
            hash: block.hash(),
            header: block.header.inner().clone(),
            verified: verified as u8,
            known: known as u64,
            body: block.find_body().map(|body| StoredBody::after(&body, known)).into_iter().collect(),
            logs: logs.into_iter().collect(),
        }
    }

    /// Returns the extent to which the block was compared with its producer's word.
    ///
    /// # Errors
    ///
    /// Returns [`redb::Error::Corrupted`] if it is unknown.
    pub fn verified(&self) -> Result<Verified, redb::Error> {
        read_verified(self.verified)
    }

    /// Returns the block. Its first transactions are those of the pre-confirmed block of its number in `on`, as far as
    /// they were left out.
    ///
    /// # Errors
    ///
    /// Returns [`redb::Error::Corrupted`] if a transaction or a receipt cannot be read, or those that were left out are
    /// not known.
    pub fn read(self, on: Option<&Chain>) -> Result<SealedBlock, redb::Error> {
        let Self { hash, header, known, body, logs, .. } = self;
        let number = header.number;
        let header = Sealed::new_unchecked(header, hash);
        let Some(body) = body.into_iter().next() else {
            let bare = SealedBlock::bare(header);
            return Ok(match logs.into_iter().next() {
                Some(logs) => bare.with_logs(logs.transactions),
                None => bare,
            });
        };
        let rest = body.read()?;
        if known == 0 {
            return Ok(SealedBlock::named(header, rest));
        }
        let begun = on.and_then(|on| pre_confirmed(on, number));
        let begun = begun.filter(|begun| begun.transactions.len() as u64 == known);
        let Content { mut transactions, mut receipts } =
            begun.ok_or_else(|| corrupted("the transactions that a block leaves out are not known"))?;
        transactions.extend(rest.transactions);
        receipts.extend(rest.receipts);
        Ok(SealedBlock::named(header, BlockBody { transactions, receipts, ..rest }))
    }
}

/// The transactions of a pre-confirmed block so far, with their receipts.
struct Content {
    transactions: Vec<Recovered<ChainTx>>,
    receipts: Vec<ChainReceipt>,
}

impl Content {
    /// Returns whether a block begins with these transactions, and they have the same receipts in it.
    fn begins(&self, body: &BlockBody) -> bool {
        let same =
            self.transactions.iter().zip(&body.transactions).all(|(own, other)| own.tx_hash() == other.tx_hash());
        same && self.transactions.len() <= body.transactions.len() && body.receipts.starts_with(&self.receipts)
    }
}

/// Returns the content so far of the pre-confirmed block of this number.
fn pre_confirmed(on: &Chain, number: u64) -> Option<Content> {
    let snapshot = on.preconfirmed(number)?;
    let Some(open) = &snapshot.open else {
        let body = snapshot.head.find_body()?;
        return Some(Content { transactions: body.transactions.clone(), receipts: body.receipts.clone() });
    };
    let (transactions, receipts) = (open.transactions.iter().cloned(), open.receipts.iter().cloned());
    Some(Content { transactions: transactions.collect(), receipts: receipts.collect() })
}

impl LiveCanonical {
    /// Returns the retained canonical block of this number as the next of a chain with nothing pre-confirmed on it.
    fn passed(chain: &Chain, number: u64, codes: &mut CodesByHash) -> Option<Self> {
        let block = chain.state_after(number)?;
        let parent = chain.state_after(number.checked_sub(1)?)?;
        let changes = match block.path.first() {
            Some(step) if step.from == parent.state => {
                StoredChanges::These(stored(&StateStep::merged(&block.path), codes))
            }
            // The block that was pre-confirmed elsewhere may have been another one.
            _ => StoredChanges::Unknown,
        };
        Some(Self { block: LiveBlock::of(&block.head, block.verified, 0), changes })
    }

    fn write(self) -> Vec<u8> {
        let Self { block, changes } = self;
        let (is_known, is_pre_confirmed, changes) = match changes {
            StoredChanges::Unknown => (false, false, Vec::new()),
            StoredChanges::AsPreconfirmed => (true, true, Vec::new()),
            StoredChanges::These(changes) => (true, false, changes),
        };
        encode(&CanonicalFields { block, is_known, changes, is_pre_confirmed })
    }

    fn read(bytes: &[u8]) -> Result<Self, redb::Error> {
        let CanonicalFields { block, is_known, changes, is_pre_confirmed } = decode(bytes)?;
        let changes = match (is_known, is_pre_confirmed) {
            (false, _) => StoredChanges::Unknown,
            (true, true) => StoredChanges::AsPreconfirmed,
            (true, false) => StoredChanges::These(changes),
        };
        Ok(Self { block, changes })
    }
}

impl LiveSubBlock {
    /// Returns a sub-block; `None` if its snapshot builds no block.
    fn of(
        on: &Chain,
        complete: Option<&Snapshot>,
        opens: bool,
        next: &Snapshot,
        codes: &mut CodesByHash,
    ) -> Option<Self> {
        let open = next.open.as_ref()?;
        let known = on.newest.open.as_ref().filter(|_| !opens).map_or(0, |before| before.transactions.len());
        let content = content(open, known, stored(&StateStep::merged(&next.path), codes));
        let complete = complete.map(|complete| LiveBlock::on(on, &complete.head, complete.verified));
        let opens = opens.then(|| open.header.clone());
        Some(Self { complete, opens, content, verified: next.verified })
    }

    /// Returns all of the complete pre-confirmed block before the state `after`, as one sub-block on the block `complete`.
    fn whole(complete: Option<&Arc<Snapshot>>, after: &Snapshot, changes: Vec<StoredChange>) -> Self {
        let header = after.head.header.inner();
        let body = after.head.body();
        let content = StoredSubBlock {
            index: 0,
            regular_gas_used: header.gas_used,
            blob_gas_used: header.blob_gas_used.unwrap_or_default(),
            transactions: body.transactions.iter().map(Into::into).collect(),
            receipts: body.receipts.iter().map(Into::into).collect(),
            changes,
            state_gas_used: None,
            access_list: None,
        };
        let complete = complete.map(|complete| LiveBlock::known(complete));
        Self { complete, opens: Some(header.clone()), content, verified: after.verified }
    }

    fn write(self) -> Vec<u8> {
        let Self { complete, opens, content, verified } = self;
        let (complete, opens) = (complete.into_iter().collect(), opens.into_iter().collect());
        encode(&SubBlockFields { complete, opens, content, verified: verified as u8 })
    }

    fn read(bytes: &[u8]) -> Result<Self, redb::Error> {
        let SubBlockFields { complete, opens, content, verified } = decode(bytes)?;
        let (complete, opens) = (complete.into_iter().next(), opens.into_iter().next());
        Ok(Self { complete, opens, content, verified: read_verified(verified)? })
    }
}

impl From<Tags> for TagFields {
    fn from(tags: Tags) -> Self {
        Self { safe: tags.safe.into_iter().collect(), finalized: tags.finalized.into_iter().collect() }
    }
}

impl TagFields {
    fn read(&self) -> Tags {
        Tags { safe: self.safe.first().copied(), finalized: self.finalized.first().copied() }
    }
}

/// Returns the content of a block being built from the transaction at `known` on. Only a block's producer needs its access list.
fn content(open: &OpenBlock, known: usize, changes: Vec<StoredChange>) -> StoredSubBlock {
    StoredSubBlock::of(open, known, open.access_lists.len(), changes)
}

/// Returns changes in their encoded form, and adds the codes of their accounts.
fn stored(changes: &[AccountChange], codes: &mut CodesByHash) -> Vec<StoredChange> {
    for info in changes.iter().filter_map(|change| change.info.as_ref()) {
        if info.code_hash != KECCAK256_EMPTY {
            codes.entry(info.code_hash).or_insert_with(|| Code::of(info));
        }
    }
    changes.iter().map(StoredChange::from).collect()
}
