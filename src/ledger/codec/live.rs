//! The changes of an upstream's chain, as the stream of a fleet has them.

use alloy_consensus::{Header, transaction::Recovered};
use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY, Sealed, map::B256Map};
use alloy_rlp::{RlpDecodable, RlpEncodable};

use super::{
    image::NumberedHash,
    message::{MessageError, read_feed, read_verified, write_feed},
    record::{StoredBody, StoredChange, StoredSubBlock},
};
use crate::{
    chain::{BlockBody, BlockHashes, ChainReceipt, ChainTx, SealedBlock, TransactionLogs},
    ledger::{Chain, FeedState, OpenBlock, Publication, Selector, Snapshot, StateStep, Tags, Verified},
    state::{AccountChange, Code},
    store::{corrupted, decode, encode},
};

/// A change of an upstream's chain, with the codes of the accounts that it changes.
pub struct LiveMessage {
    /// The change.
    pub change: LiveChange,
    /// The codes that the reader may not know, each once.
    pub codes: Vec<Bytes>,
    /// Whether the reader has to forget the codes of earlier messages, because later ones bring what they need again.
    pub forgets: bool,
}

/// A change of an upstream's chain.
pub enum LiveChange {
    /// All that there is at one moment.
    Moment(Box<LiveMoment>),
    /// The next canonical block.
    Canonical(Box<LiveCanonical>),
    /// A sub-block of a pre-confirmed block.
    PreConfirmed(Box<LiveSubBlock>),
    /// The removal of what was pre-confirmed.
    FallBack(FeedState),
    /// The blocks that the upstream calls safe and final.
    Tags(Tags),
    /// The content of a canonical block that came as a header alone.
    Content(Box<LiveBlock>),
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
    /// Whether the pre-confirmed blocks on it stay.
    confirms: bool,
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

/// All that there is of an upstream's chain at one moment: the canonical head, and what is pre-confirmed on it. The state
/// before the head is the upstream's.
#[derive(RlpEncodable, RlpDecodable)]
pub struct LiveMoment {
    /// The canonical blocks up to the head that the readers may not have, oldest first.
    passed: Vec<Bytes>,
    head: LiveBlock,
    hashes: Vec<NumberedHash>,
    tags: TagFields,
    feed: Bytes,
    ahead: Vec<LiveAhead>,
    open: Vec<LiveOpen>,
}

/// The parts of a [`LiveMoment`].
pub struct ReadMoment {
    /// The canonical blocks up to the head that may be new, oldest first.
    pub passed: Vec<LiveCanonical>,
    /// The newest canonical block.
    pub head: SealedBlock,
    /// The extent to which it was compared with its producer's word.
    pub verified: Verified,
    /// The hashes of the last blocks.
    pub hashes: BlockHashes,
    /// The upstream's tags.
    pub tags: Tags,
    /// The health of the feed.
    pub feed: FeedState,
    /// The complete pre-confirmed blocks, oldest first.
    pub ahead: Vec<LiveAhead>,
    /// The header of the block being built, the extent to which that was compared, and its content.
    pub open: Option<(Header, Verified, StoredSubBlock)>,
}

/// A complete pre-confirmed block, with the changes since the canonical head.
#[derive(RlpEncodable, RlpDecodable)]
pub struct LiveAhead {
    /// The block.
    pub block: LiveBlock,
    /// The changes, each account once.
    pub changes: Vec<StoredChange>,
}

/// The block being built, as if it had one sub-block, with the changes since the canonical head.
#[derive(RlpEncodable, RlpDecodable)]
struct LiveOpen {
    header: Header,
    verified: u8,
    content: StoredSubBlock,
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
    /// Whether the pre-confirmed blocks on it stay, for readers that do not see that by themselves.
    confirms: bool,
}

#[derive(RlpEncodable, RlpDecodable)]
struct SubBlockFields {
    complete: Vec<LiveBlock>,
    opens: Vec<Header>,
    content: StoredSubBlock,
    verified: u8,
}

#[derive(RlpEncodable, RlpDecodable)]
struct LiveFields {
    kind: u8,
    change: Bytes,
    codes: Vec<Bytes>,
    forgets: bool,
}

const MOMENT: u8 = 0;
const CANONICAL: u8 = 1;
const PRE_CONFIRMED: u8 = 2;
const FALL_BACK: u8 = 3;
const TAGS: u8 = 4;
const CONTENT: u8 = 5;

/// Bytecode by its hash.
pub type CodesByHash = B256Map<Code>;

impl LiveChange {
    /// Returns what `publication` changes of `on`, and the codes of the accounts in it; `None` if it is no change of an
    /// upstream's chain.
    pub fn of(on: &Chain, publication: &Publication) -> Option<(Self, CodesByHash)> {
        let mut codes = CodesByHash::default();
        let tags = on.tags().unwrap_or_default();
        let change = match publication {
            Publication::Canonical(block) => Self::canonical(on, block, false, &mut codes),
            Publication::Confirm(block) => Self::canonical(on, block, true, &mut codes),
            Publication::PreConfirmed { complete, open } => {
                Self::PreConfirmed(Box::new(LiveSubBlock::of(on, complete.as_ref(), open, &mut codes)?))
            }
            Publication::GoBack { number, feed } => {
                Self::Moment(Box::new(LiveMoment::at(on.state_after(*number)?, tags, *feed)))
            }
            Publication::Restart(first) => Self::Moment(Box::new(LiveMoment::at(first, tags, on.feed()))),
            Publication::FallBack(feed) => Self::FallBack(*feed),
            Publication::Tags(tags) => Self::Tags(*tags),
            Publication::Content(block) => Self::Content(Box::new(LiveBlock::of(block, Verified::None, 0))),
            _ => return None,
        };
        Some((change, codes))
    }

    fn canonical(on: &Chain, block: &Snapshot, confirms: bool, codes: &mut CodesByHash) -> Self {
        let parent = on.select(Selector::Hash(block.head.header.parent_hash)).ok();
        let changes = match (block.path.as_slice(), parent) {
            ([], _) => StoredChanges::Unknown,
            (path, Some(parent)) if path.first().is_some_and(|step| step.from == parent.state) => {
                StoredChanges::These(stored(&StateStep::merged(path), codes))
            }
            _ => StoredChanges::AsPreconfirmed,
        };
        Self::Canonical(Box::new(LiveCanonical { block: LiveBlock::on(on, block), changes, confirms }))
    }
}

impl LiveMessage {
    /// Returns whether the message has all that there is, and not what has changed.
    pub const fn is_moment(&self) -> bool {
        matches!(self.change, LiveChange::Moment(_))
    }

    /// Returns the bytes of the message.
    pub fn write(self) -> Vec<u8> {
        let Self { change, codes, forgets } = self;
        let (kind, change) = match change {
            LiveChange::Moment(moment) => (MOMENT, encode(&*moment)),
            LiveChange::Canonical(canonical) => (CANONICAL, canonical.write()),
            LiveChange::PreConfirmed(sub_block) => (PRE_CONFIRMED, sub_block.write()),
            LiveChange::FallBack(feed) => (FALL_BACK, write_feed(feed)),
            LiveChange::Tags(tags) => (TAGS, encode(&TagFields::from(tags))),
            LiveChange::Content(block) => (CONTENT, encode(&*block)),
        };
        encode(&LiveFields { kind, change: change.into(), codes, forgets })
    }

    /// Reads a message.
    ///
    /// # Errors
    ///
    /// Returns [`MessageError`] if the bytes are not a message.
    pub fn read(bytes: &[u8]) -> Result<Self, MessageError> {
        let LiveFields { kind, change, codes, forgets } = decode(bytes)?;
        let change = match kind {
            MOMENT => LiveChange::Moment(Box::new(decode(&change)?)),
            CANONICAL => LiveChange::Canonical(Box::new(LiveCanonical::read(&change)?)),
            PRE_CONFIRMED => LiveChange::PreConfirmed(Box::new(LiveSubBlock::read(&change)?)),
            FALL_BACK => LiveChange::FallBack(read_feed(&change)?),
            TAGS => LiveChange::Tags(decode::<TagFields>(&change)?.read()),
            CONTENT => LiveChange::Content(Box::new(decode(&change)?)),
            _ => return Err(corrupted("its kind of change is unknown").into()),
        };
        Ok(Self { change, codes, forgets })
    }
}

impl LiveBlock {
    /// Returns the head of `snapshot`, whole.
    fn whole(snapshot: &Snapshot) -> Self {
        Self::without(snapshot, 0)
    }

    /// Returns the head of `snapshot` without the transactions that the pre-confirmed block of its number in `on` has.
    fn on(on: &Chain, snapshot: &Snapshot) -> Self {
        let known = pre_confirmed(on, snapshot.head.number());
        let known =
            known.filter(|known| known.begins(&snapshot.head.body())).map_or(0, |known| known.transactions.len());
        Self::without(snapshot, known)
    }

    fn without(snapshot: &Snapshot, known: usize) -> Self {
        Self::of(&snapshot.head, snapshot.verified, known)
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
    fn passed(published: &Chain, number: u64, codes: &mut CodesByHash) -> Option<Self> {
        let block = published.state_after(number)?;
        let parent = published.state_after(number.checked_sub(1)?)?;
        let changes = match block.path.first() {
            Some(step) if step.from == parent.state => {
                StoredChanges::These(stored(&StateStep::merged(&block.path), codes))
            }
            // The block that was pre-confirmed elsewhere may have been another one.
            _ => StoredChanges::Unknown,
        };
        Some(Self { block: LiveBlock::whole(block), changes, confirms: false })
    }

    fn write(self) -> Vec<u8> {
        let Self { block, changes, confirms } = self;
        let (is_known, is_pre_confirmed, changes) = match changes {
            StoredChanges::Unknown => (false, false, Vec::new()),
            StoredChanges::AsPreconfirmed => (true, true, Vec::new()),
            StoredChanges::These(changes) => (true, false, changes),
        };
        encode(&CanonicalFields { block, is_known, changes, is_pre_confirmed, confirms })
    }

    fn read(bytes: &[u8]) -> Result<Self, redb::Error> {
        let CanonicalFields { block, is_known, changes, is_pre_confirmed, confirms } = decode(bytes)?;
        let changes = match (is_known, is_pre_confirmed) {
            (false, _) => StoredChanges::Unknown,
            (true, true) => StoredChanges::AsPreconfirmed,
            (true, false) => StoredChanges::These(changes),
        };
        Ok(Self { block, changes, confirms })
    }
}

impl LiveSubBlock {
    /// Returns a sub-block; `None` if its snapshot builds no block.
    fn of(on: &Chain, complete: Option<&Snapshot>, next: &Snapshot, codes: &mut CodesByHash) -> Option<Self> {
        let open = next.open.as_ref()?;
        let opens = (open.index == 0).then(|| open.header.clone());
        let known = match (&opens, &on.newest.open) {
            (None, Some(before)) => before.transactions.len(),
            _ => 0,
        };
        let content = content(open, known, stored(&StateStep::merged(&next.path), codes));
        let complete = complete.map(|complete| LiveBlock::on(on, complete));
        Some(Self { complete, opens, content, verified: next.verified })
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

impl LiveMoment {
    /// Returns what is published, and the codes of the accounts that are pre-confirmed.
    pub fn of(published: &Chain) -> (Self, CodesByHash) {
        let mut codes = CodesByHash::default();
        let mut moment = Self::at(published.latest(), published.tags().unwrap_or_default(), published.feed());
        let mut changes = |snapshot: &Snapshot| stored(&snapshot.world.changes_on_remote(), &mut codes);
        let ahead = published.ahead();
        moment.ahead =
            ahead.map(|ahead| LiveAhead { block: LiveBlock::whole(ahead), changes: changes(ahead) }).collect();
        if let Some(open) = &published.newest.open {
            moment.open.push(LiveOpen {
                header: open.header.clone(),
                verified: published.newest.verified as u8,
                content: content(open, 0, changes(&published.newest)),
            });
        }
        (moment, codes)
    }

    /// Adds the canonical blocks of what is published since the readers have `seen` the chain, so that they know each of
    /// them. Adds none if their head is not known any more.
    pub fn since(&mut self, seen: &Chain, published: &Chain, codes: &mut CodesByHash) {
        let head = seen.head();
        if published.state_after(head.number()).is_some_and(|known| known.head_hash() == head.hash()) {
            let numbers = head.number() + 1..=published.head().number();
            let passed = numbers.map_while(|number| LiveCanonical::passed(published, number, codes));
            self.passed = passed.map(|block| block.write().into()).collect();
        }
    }

    /// Returns the moment at which the head of `snapshot` is the canonical head, and nothing is pre-confirmed.
    fn at(snapshot: &Snapshot, tags: Tags, feed: FeedState) -> Self {
        let head = snapshot.head.number();
        let oldest = (head + 1).saturating_sub(BlockHashes::DEPTH as u64);
        let hashes = (oldest..=head)
            .filter_map(|number| Some(NumberedHash { number, hash: snapshot.hashes.get(number)? }))
            .collect();
        let feed = write_feed(feed).into();
        let (tags, head) = (tags.into(), LiveBlock::whole(snapshot));
        Self { passed: Vec::new(), head, hashes, tags, feed, ahead: Vec::new(), open: Vec::new() }
    }

    /// Reads the parts of the moment.
    ///
    /// # Errors
    ///
    /// Returns [`redb::Error::Corrupted`] if a part cannot be read.
    pub fn read(self) -> Result<ReadMoment, redb::Error> {
        let Self { passed, head, hashes: known, tags, feed, ahead, open } = self;
        let passed = passed.iter().map(|block| LiveCanonical::read(block)).collect::<Result<_, _>>()?;
        let mut hashes = BlockHashes::default();
        known.iter().for_each(|one| hashes.push(one.number, one.hash));
        let open = match open.into_iter().next() {
            Some(LiveOpen { header, verified, content }) => Some((header, read_verified(verified)?, content)),
            None => None,
        };
        let verified = head.verified()?;
        let (head, tags, feed) = (head.read(None)?, tags.read(), read_feed(&feed)?);
        Ok(ReadMoment { passed, head, verified, hashes, tags, feed, ahead, open })
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
