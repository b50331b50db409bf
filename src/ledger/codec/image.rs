//! Images: everything that is published at one moment, from which a replica begins.

use std::{sync::Arc, time::Instant};

use alloy_consensus::Header;
use alloy_primitives::{Address, B256, Bytes, Sealed, map::B256Map};
use alloy_rlp::{RlpDecodable, RlpEncodable};
use rayon::prelude::*;

use super::{
    check::check,
    codes::CodesByHash,
    decode::EntryError,
    entry::{Entry, Head, SubBlock},
    frame::{FrameError, MAX_IMAGE_BYTES, unpack, write},
    items::ItemBudget,
    stored::{Maybe, StoredAccount, StoredChange, StoredSlot},
};
use crate::{
    chain::{BlockBody, BlockKeeper, SealedBlock},
    ledger::{Chain, FeedState, Record, Retention, Snapshot, SnapshotId, Stamp, StateStep, Unfit},
    state::{Account, CodeCache, LocalWorld, RemoteSettings, RemoteState, World},
    store::{corrupted, problem_of},
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

/// The reason why an image cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Another version of presim wrote it, or it is no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The content is invalid.
    #[error("it is malformed: {0}")]
    Malformed(String),
    /// A change in it is none of its chain's.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// The state is not that of its block.
    #[error("its state does not match block {number}: expected root {expected}, got {got}")]
    Root { number: u64, expected: B256, got: B256 },
}

impl From<redb::Error> for ImageError {
    fn from(error: redb::Error) -> Self {
        Self::Malformed(problem_of(error))
    }
}

impl From<Unfit> for ImageError {
    fn from(unfit: Unfit) -> Self {
        Self::Entry(unfit.into())
    }
}

#[derive(RlpEncodable, RlpDecodable)]
struct ImageFields {
    id: u64,
    /// The id of the newest snapshot, after which changes without one may have come.
    newest: u64,
    /// The accounts after the head on a chain that is built by its leader, which has all of them; none on an upstream's.
    accounts: Maybe<Vec<StoredChange>>,
    /// All else there is, beginning with the canonical head.
    entries: Vec<Bytes>,
    /// The blocks before the head that are kept, oldest first, without their bodies.
    headers: Vec<NamedHeader>,
    /// The codes of all accounts in the image.
    codes: Vec<Bytes>,
}

/// A header, and the hash that its producer has told: the header may lack fields.
#[derive(RlpEncodable, RlpDecodable)]
struct NamedHeader {
    hash: B256,
    header: Header,
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
        let chain = &self.published;
        let head = chain.head().number();
        let mut codes = CodesByHash::default();
        let accounts = chain.latest().world.local().map(|world| accounts(world, &mut codes));
        let (entries, blocks) = match &accounts {
            None => {
                let kept = chain.blocks(0, head).filter(|block| block.number() < head);
                (Entry::between(None, chain, &mut codes), kept.cloned().collect())
            }
            Some(_) => {
                let kept = chain.retained_bodies().oldest.max(1);
                let numbers = [0].into_iter().chain(kept..head).filter(|number| *number < head);
                (self.entries(&mut codes), numbers.filter_map(|number| chain.sealed_block(number)).collect::<Vec<_>>())
            }
        };
        let named = |block: &Arc<SealedBlock>| NamedHeader { hash: block.hash(), header: block.header.inner().clone() };
        write(&ImageFields {
            id: self.id.0,
            newest: chain.newest.id.0,
            accounts: Maybe(accounts),
            entries: entries.iter().map(Entry::write).collect(),
            headers: blocks.iter().map(named).collect(),
            codes: codes.bytes(),
        })
    }

    /// Returns the entries of a chain that is built here: its head, and the block being built as if it had one sub-block.
    fn entries(&self, codes: &mut CodesByHash) -> Vec<Entry> {
        let chain = &self.published;
        let mut entries = vec![Entry::Restart(Box::new(Head::of(chain.latest())))];
        let open = SubBlock::built(&chain.newest, None, &self.steps, codes);
        entries.extend(open.map(|open| Entry::SubBlock(Box::new(open))));
        entries.push(Entry::Feed(chain.feed().into()));
        entries
    }

    /// Reads an image, of whose snapshots `kept` is retained as the chain goes on. An upstream's state begins with an empty cache
    /// of up to `cache` bytes.
    ///
    /// # Errors
    ///
    /// Returns [`ImageError`] if the bytes are no image, or the state is not that of its block.
    pub fn read(bytes: &[u8], codes: &CodeCache, kept: Retention, cache: usize) -> Result<Chain, ImageError> {
        let mut items = ItemBudget::of(MAX_IMAGE_BYTES);
        let fields = items.decode(&unpack(bytes, MAX_IMAGE_BYTES)?)?;
        let ImageFields { id, newest, accounts, entries, headers, codes: brought } = fields;
        let mut known = CodesByHash::default();
        known.extend(brought, codes);
        let mut entries = entries.iter().map(|entry| Entry::arrived(entry, &mut items));
        let Some(Entry::Restart(head)) = entries.next().transpose()? else {
            return Err(corrupted("it does not begin with a block").into());
        };
        let base = head.read()?;
        check(&base)?;
        let Record::Restart { block, hashes, verified } = base else {
            return Err(corrupted("it does not begin with a block").into());
        };
        let is_local = accounts.0.is_some();
        let world = match accounts.0 {
            Some(accounts) => World::from(local_world(accounts, &block, &known)?),
            None => {
                let settings = RemoteSettings { bytes: cache, blocks: kept.blocks, is_of_fleet: true };
                World::on(RemoteState::begin(settings, block.number(), block.hash()))
            }
        };
        let mut first = Snapshot::at_head(world, Arc::new(block), hashes).with_verified(verified);
        first.id = SnapshotId(newest);
        let mut chain = Chain::new(first, FeedState::Static, kept);
        if is_local {
            add_headers(&mut chain, headers);
        } else {
            let bare = |named: NamedHeader| SealedBlock::bare(Sealed::new_unchecked(named.header, named.hash));
            let before = headers.len().saturating_sub(kept.blocks.saturating_sub(1));
            let headers = headers.into_iter().skip(before);
            chain.add_history(headers.map(|named| (Arc::new(bare(named)), Vec::new())));
        }
        for entry in entries {
            let record = entry?.read(&chain, &known)?;
            check(&record)?;
            chain.apply(Stamp::now(SnapshotId(newest)), record)?;
        }
        // Changes without a snapshot may have come after the newest.
        let feed = Record::Feed(chain.feed());
        chain.apply(Stamp::now(SnapshotId(id)), feed)?;
        Ok(chain)
    }
}

/// Adds the blocks before the head of a chain that is built by its leader: genesis, and the headers of the others.
fn add_headers(chain: &mut Chain, headers: Vec<NamedHeader>) {
    let headers: Vec<Header> = headers.into_iter().map(|named| named.header).collect();
    if let Some(genesis) = headers.first().filter(|first| first.number == 0) {
        let withdrawals = genesis.withdrawals_root.map(|_| Default::default());
        let genesis = SealedBlock::new(genesis.clone(), BlockBody { withdrawals, ..BlockBody::default() });
        chain.add_history([(Arc::new(genesis), Vec::new())]);
    }
    chain.set_archive(Arc::new(ImageHeaders::new(headers)));
}

/// Returns the accounts of a state as changes of an empty one, and adds their codes.
fn accounts(world: &LocalWorld, codes: &mut CodesByHash) -> Vec<StoredChange> {
    let change = |(address, account): (&Address, &Arc<Account>)| {
        codes.add(&account.code);
        StoredChange {
            address: *address,
            account: Maybe(Some((&account.info()).into())),
            storage_cleared: false,
            slots: StoredSlot::sorted(account.slots()),
        }
    };
    let mut accounts: Vec<StoredChange> = world.accounts().map(change).collect();
    accounts.sort_unstable_by_key(|change| change.address);
    accounts
}

/// Returns the state of an image after `block`, which is checked. The accounts are built on all threads, because the tries of
/// their slots take most of the time.
fn local_world(
    accounts: Vec<StoredChange>,
    block: &SealedBlock,
    codes: &CodesByHash,
) -> Result<LocalWorld, ImageError> {
    let build = |change: StoredChange| {
        let StoredAccount { balance, nonce, code_hash } =
            change.account.0.ok_or_else(|| corrupted("an account of it is missing"))?;
        let mut account = Account::default();
        (account.balance, account.nonce, account.code) = (balance, nonce, codes.find(code_hash)?);
        change.slots.into_iter().for_each(|slot| account.set_slot(slot.key, slot.value));
        Ok((change.address, account))
    };
    let accounts = accounts.into_par_iter().map(build).collect::<Result<Vec<_>, redb::Error>>()?;
    let mut world = LocalWorld::default();
    accounts.into_iter().for_each(|(address, account)| world.insert(address, account));
    let (root, header) = (world.state_root_in_parallel(), &block.header);
    if header.hash_slow() != block.hash() {
        return Err(corrupted("its head has not the hash of its header").into());
    }
    match root == header.state_root {
        true => Ok(world),
        false => Err(ImageError::Root { number: header.number, expected: header.state_root, got: root }),
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
