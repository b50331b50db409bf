//! Images: everything that is published at one moment, from which a replica begins.

use std::{sync::Arc, time::Instant};

use alloy_consensus::Header;
use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, Sealed, map::B256Map};
use alloy_rlp::{RlpDecodable, RlpEncodable};
use rayon::prelude::*;

use super::{
    change::ChangeRecord,
    frame::{FrameError, pack, unpack},
    health::{read_feed, write_feed},
    live::{CodesByHash, LiveRecord},
    record::{
        JournalEntry, NumberedHash, StoredAccount, StoredBody, StoredChange, StoredHeader, StoredSlot, StoredSubBlock,
    },
    replay::{self, KnownCodes},
};
use crate::{
    chain::{BlockBody, BlockHashes, BlockKeeper, SealedBlock},
    ledger::{Chain, Record, Retention, Snapshot, SnapshotId, Snapshots, Stamp, StateStep, Unfit},
    state::{Account, Code, CodeCache, LocalWorld, World},
    store::{corrupted, decode, encode},
};

/// Everything that is published at one moment: the state, the block being built, the hashes of the last 256 blocks, and the
/// headers of the kept blocks.
#[derive(Debug)]
pub struct StateImage {
    /// The id of the last change in the image.
    pub id: SnapshotId,
    published: Arc<Chain>,
    /// The steps from the state after the head to the newest. Empty on an upstream's state.
    steps: Vec<Arc<StateStep>>,
}

/// The content of an image.
pub enum ImageContent {
    /// A chain that is built by the leader, with all of its state.
    Local(Box<Snapshots>),
    /// An upstream's chain.
    Live(Box<LiveImage>),
}

/// The image of an upstream's chain.
pub struct LiveImage {
    /// The id of the last change in the image.
    pub id: SnapshotId,
    /// The id of the newest snapshot.
    pub newest: SnapshotId,
    /// All that there is but the upstream's state, beginning with the canonical head.
    pub records: Vec<LiveRecord>,
    /// The blocks before the head that are kept, oldest first, without their bodies.
    pub headers: Vec<Arc<SealedBlock>>,
    /// The codes of the accounts that are pre-confirmed.
    pub codes: Vec<Bytes>,
}

/// The reason why an image cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Another version of presim wrote it, or it is no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The content is invalid.
    #[error("it is malformed: {0}")]
    Malformed(String),
    /// The state is not that of its block.
    #[error("its state does not match block {number}: expected root {expected}, got {got}")]
    Root {
        /// The block's number.
        number: u64,
        /// The root in the block's header.
        expected: B256,
        /// The root of the state.
        got: B256,
    },
}

impl From<redb::Error> for ImageError {
    fn from(error: redb::Error) -> Self {
        match error {
            redb::Error::Corrupted(problem) => Self::Malformed(problem),
            other => Self::Malformed(other.to_string()),
        }
    }
}

/// The first byte of an image of a chain that is built by the leader, and of one of an upstream's chain.
const LOCAL: u8 = 0;
const LIVE: u8 = 1;

#[derive(RlpEncodable, RlpDecodable)]
struct LiveImageFields {
    id: u64,
    newest: u64,
    records: Vec<Bytes>,
    headers: Vec<NamedHeader>,
    codes: Vec<Bytes>,
}

/// A header, and the hash that its producer has told: the header may lack fields.
#[derive(RlpEncodable, RlpDecodable)]
struct NamedHeader {
    hash: B256,
    header: Header,
}

#[derive(RlpEncodable, RlpDecodable)]
struct ImageFields {
    id: u64,
    /// The id of the newest snapshot, after which changes without one may have come.
    newest: u64,
    feed: Bytes,
    head: Header,
    body: StoredBody,
    hashes: Vec<NumberedHash>,
    headers: Vec<StoredHeader>,
    open: Vec<OpenFields>,
    codes: Vec<Bytes>,
    accounts: Vec<ImagedAccount>,
}

/// The block being built, as if it had one sub-block.
#[derive(RlpEncodable, RlpDecodable)]
struct OpenFields {
    header: Header,
    content: StoredSubBlock,
}

#[derive(RlpEncodable, RlpDecodable)]
struct ImagedAccount {
    address: Address,
    account: StoredAccount,
    slots: Vec<StoredSlot>,
}

impl StateImage {
    /// Returns the moment at which the newest snapshot was published.
    pub fn published(&self) -> Instant {
        self.published.newest.published
    }

    /// Returns the image of what is published: the state after the head is stored whole, and the changes of the block being
    /// built beside it; of an upstream's state, the changes that are pre-confirmed. `None` if not all changes are retained.
    pub fn of(published: &Arc<Chain>) -> Option<Self> {
        let (latest, newest) = (published.latest(), &published.newest);
        if latest.world.local().is_none() {
            return Some(Self { id: published.last, published: published.clone(), steps: Vec::new() });
        }
        // The block was opened under the id of the head.
        let since = published.since(latest.id).flat_map(|snapshot| &snapshot.path);
        let mut steps: Vec<Arc<StateStep>> = since.skip_while(|step| step.from != latest.state).cloned().collect();
        if newest.open.is_none() {
            steps.clear();
        }
        let reached = steps.iter().try_fold(latest.state, |at, step| (step.from == at).then_some(step.to));
        (reached == Some(newest.state)).then(|| Self { id: published.last, published: published.clone(), steps })
    }

    /// Returns the bytes of the image. Takes time and memory in proportion to the state.
    pub fn write(&self) -> Vec<u8> {
        let (kind, fields) = match self.published.latest().world.local() {
            Some(_) => (LOCAL, self.write_local()),
            None => (LIVE, self.write_live()),
        };
        pack(&[&[kind], fields.as_slice()].concat())
    }

    fn write_live(&self) -> Vec<u8> {
        let mut codes = CodesByHash::default();
        let records = LiveRecord::write_all(LiveRecord::between(None, &self.published, &mut codes));
        let codes = codes.values().map(|code| code.bytecode.original_bytes()).collect();
        let head = self.published.head().number();
        let kept = self.published.blocks(0, head).filter(|block| block.number() < head);
        let headers =
            kept.map(|block| NamedHeader { hash: block.hash(), header: block.header.inner().clone() }).collect();
        encode(&LiveImageFields { id: self.id.0, newest: self.published.newest.id.0, records, headers, codes })
    }

    fn write_local(&self) -> Vec<u8> {
        let (latest, newest) = (self.published.latest(), &self.published.newest);
        let head = &latest.head;
        let oldest = (head.number() + 1).saturating_sub(BlockHashes::DEPTH as u64);
        let hashes = (oldest..=head.number())
            .filter_map(|number| Some(NumberedHash { number, hash: latest.hashes.get(number)? }));
        let kept = self.published.retained_bodies().oldest;
        let numbers = [0].into_iter().chain(kept.max(1)..head.number());
        let headers = numbers.filter(|number| *number < head.number());
        let headers = headers.filter_map(|number| self.published.sealed_block(number));
        let record = newest.open.as_ref().map(|open| (ChangeRecord::of_content(open, &self.steps), &open.header));
        let mut codes: B256Map<Bytes> = B256Map::default();
        let mut accounts = Vec::new();
        let mut add_code = |code: &Code| {
            if code.hash != KECCAK256_EMPTY {
                codes.entry(code.hash).or_insert_with(|| code.bytecode.original_bytes());
            }
        };
        for (address, account) in latest.world.local().into_iter().flat_map(LocalWorld::accounts) {
            add_code(&account.code);
            let slots = account.slots().map(|(key, value)| StoredSlot { key: *key, value: *value }).collect();
            accounts.push(ImagedAccount { address: *address, account: (&**account).into(), slots });
        }
        let open = record.and_then(|(record, header)| {
            record.codes.iter().for_each(&mut add_code);
            match record.entries.into_iter().next() {
                Some(JournalEntry::SubBlock(content)) => Some(OpenFields { header: header.clone(), content }),
                _ => None,
            }
        });
        encode(&ImageFields {
            id: self.id.0,
            newest: newest.id.0,
            feed: write_feed(self.published.feed()).into(),
            head: head.header.inner().clone(),
            body: StoredBody::from(&*head.body()),
            hashes: hashes.collect(),
            headers: headers.map(|block| StoredHeader::pruned(block.header.inner().clone())).collect(),
            open: open.into_iter().collect(),
            codes: codes.into_values().collect(),
            accounts,
        })
    }

    /// Reads an image. The content of one of the leader's own chain is published, and `kept` of it is retained as the chain
    /// goes on.
    ///
    /// # Errors
    ///
    /// Returns [`ImageError`] if the bytes are no image, or the state is not that of its block.
    pub fn read(bytes: &[u8], codes: &CodeCache, kept: Retention) -> Result<ImageContent, ImageError> {
        match unpack(bytes)?.split_first() {
            Some((&LOCAL, fields)) => Ok(ImageContent::Local(Box::new(Self::read_local(fields, codes, kept)?))),
            Some((&LIVE, fields)) => {
                let LiveImageFields { id, newest, records, headers, codes } = decode(fields)?;
                let records = LiveRecord::read_all(&records)?;
                let (id, newest) = (SnapshotId(id), SnapshotId(newest));
                let bare = |named: NamedHeader| SealedBlock::bare(Sealed::new_unchecked(named.header, named.hash));
                let headers = headers.into_iter().map(|named| Arc::new(bare(named))).collect();
                Ok(ImageContent::Live(Box::new(LiveImage { id, newest, records, headers, codes })))
            }
            _ => Err(ImageError::Malformed("its kind is unknown".to_owned())),
        }
    }

    fn read_local(bytes: &[u8], codes: &CodeCache, kept: Retention) -> Result<Snapshots, ImageError> {
        let fields: ImageFields = decode(bytes)?;
        let ImageFields { id, newest, feed, head, body, hashes: known, headers, open, codes: brought, accounts } =
            fields;
        let codes =
            ImageCodes(brought.into_iter().map(|code| codes.chain(code)).map(|code| (code.hash, code)).collect());
        let world = world(accounts, &codes)?;
        let (root, number) = (world.state_root_in_parallel(), head.number);
        if root != head.state_root {
            return Err(ImageError::Root { number, expected: head.state_root, got: root });
        }
        let mut hashes = BlockHashes::default();
        known.iter().for_each(|one| hashes.push(one.number, one.hash));
        let head = Arc::new(SealedBlock::new(head, body.read()?));
        let mut first = Snapshot::at_head(world, head, hashes);
        first.id = SnapshotId(newest);
        let open = match open.into_iter().next() {
            Some(OpenFields { header, content }) => Some(replay::resume(&first, header, content, &codes)?),
            None => None,
        };
        let mut chain = Chain::new(first, read_feed(&feed)?, kept);
        let headers: Vec<Header> = headers.into_iter().map(|header| header.read().0).collect();
        if let Some(genesis) = headers.first().filter(|first| first.number == 0) {
            let withdrawals = genesis.withdrawals_root.map(|_| Default::default());
            let genesis = SealedBlock::new(genesis.clone(), BlockBody { withdrawals, ..BlockBody::default() });
            chain.add_history([(Arc::new(genesis), Vec::new())]);
        }
        chain.set_archive(Arc::new(ImageHeaders::new(headers)));
        if let Some(open) = open {
            chain.apply(Stamp::now(SnapshotId(newest)), Record::SubBlock(open)).map_err(unfit)?;
        }
        let feed = Record::Feed(chain.feed());
        chain.apply(Stamp::now(SnapshotId(id)), feed).map_err(unfit)?;
        Ok(chain.into())
    }
}

/// Returns the error of an image whose records do not stand on its head.
fn unfit(unfit: Unfit) -> ImageError {
    ImageError::Malformed(unfit.to_string())
}

/// Builds the accounts on all threads, because the tries of their slots take most of the time.
fn world(accounts: Vec<ImagedAccount>, codes: &ImageCodes) -> Result<LocalWorld, redb::Error> {
    let build = |fields: ImagedAccount| {
        let ImagedAccount { address, account: StoredAccount { balance, nonce, code_hash }, slots } = fields;
        let mut account = Account::default();
        (account.balance, account.nonce, account.code) = (balance, nonce, codes.find(code_hash)?);
        slots.into_iter().for_each(|slot| account.set_slot(slot.key, slot.value));
        Ok((address, account))
    };
    let accounts = accounts.into_par_iter().map(build).collect::<Result<Vec<_>, redb::Error>>()?;
    let mut world = LocalWorld::default();
    accounts.into_iter().for_each(|(address, account)| world.insert(address, account));
    Ok(world)
}

/// The codes of an image, by hash.
struct ImageCodes(B256Map<Code>);

impl ImageCodes {
    fn find(&self, hash: B256) -> Result<Code, redb::Error> {
        if hash == KECCAK256_EMPTY {
            return Ok(Code::default());
        }
        self.0.get(&hash).cloned().ok_or_else(|| corrupted(format!("the code with hash {hash} is missing")))
    }
}

impl KnownCodes for ImageCodes {
    fn code(&self, _: &StoredChange, hash: B256, _: &World) -> Result<Code, redb::Error> {
        self.find(hash)
    }
}

/// The headers of the blocks before an image's head. Their bodies are not here.
#[derive(Debug)]
struct ImageHeaders {
    headers: Vec<Header>,
    numbers: B256Map<u64>,
}

impl ImageHeaders {
    fn new(headers: Vec<Header>) -> Self {
        let numbers = headers.par_iter().map(|header| (header.hash_slow(), header.number)).collect::<Vec<_>>();
        Self { headers, numbers: numbers.into_iter().collect() }
    }
}

impl BlockKeeper for ImageHeaders {
    fn body(&self, _: u64) -> Option<BlockBody> {
        None
    }

    fn transactions(&self, _: u64) -> Option<Vec<B256>> {
        Some(Vec::new())
    }

    fn header(&self, number: u64) -> Option<Header> {
        let at = self.headers.binary_search_by_key(&number, |header| header.number).ok()?;
        self.headers.get(at).cloned()
    }

    fn number(&self, hash: B256) -> Option<u64> {
        self.numbers.get(&hash).copied()
    }
}
