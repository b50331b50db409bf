//! The model of a chain against a naive one, which holds plain lists: random sequences of records, some of which do not fit. A
//! second chain follows an upstream's by their encoded form, as a replica does, and one that is built here is restored from the journal.

use std::{collections::BTreeMap, ffi::OsString, sync::Arc};

use crate::{
    chain::{BlockBody, BlockHashes, ChainTx, SealedBlock},
    clock::SystemClock,
    config::Config,
    fleet::replica::{Applier, LeaderClock},
    ledger::{
        BlockChanges, Chain, FeedState, LeaderTime, OpenBlock, Record, Retention, Selector, Snapshot, SnapshotId,
        Stamp, StateStep, StreamMessage, SubBlockStart, Tags, Verified,
    },
    node::{self, OwnChain},
    publish::Change,
    rpc::StartupReason,
    source::Feed,
    state::{AccountChange, CodeCache, Lookup, RemoteSettings, RemoteState, World},
    store::{DataDir, Store},
    telemetry::Metrics,
};
use alloy_consensus::{Header, transaction::Recovered};
use alloy_primitives::{Address, B256, Sealable, U256};
use rand::{Rng, SeedableRng, rngs::SmallRng};

const SEQUENCES: u64 = 400;
const RECORDS: usize = 60;
/// The sequences of chains that are built here, each on a store of its own.
const OWN_SEQUENCES: u64 = 8;
const ACCOUNTS: u8 = 6;
/// The damaged forms of a message that are read.
const DAMAGED: usize = 20;
const KEPT: Retention = Retention { blocks: 12, snapshots: 16, history: 12, history_bytes: u64::MAX };
/// The records after which what is shown follows: fewer blocks than those whose states are retained.
const PAUSED: usize = 10;
const LIVE: FeedState = FeedState::Live { every_ms: 200 };

/// Balances that a block changes.
type Changes = BTreeMap<u8, u64>;

/// A block of the naive chain.
#[derive(Clone, Debug)]
struct NaiveBlock {
    number: u64,
    /// `None` while the block is being built.
    hash: Option<B256>,
    /// `None` if the block was not executed.
    changes: Option<Changes>,
}

/// The naive chain: its canonical blocks, and those that are pre-confirmed on them.
#[derive(Clone, Debug)]
struct NaiveChain {
    canonical: Vec<NaiveBlock>,
    ahead: Vec<NaiveBlock>,
    finalized: Option<u64>,
    degraded: bool,
}

impl NaiveChain {
    fn head(&self) -> &NaiveBlock {
        self.canonical.last().unwrap()
    }

    fn ahead_at(&self, number: u64) -> Option<usize> {
        self.ahead.iter().position(|block| block.number == number)
    }

    /// Returns the balance after these blocks of the canonical chain, and these of the pre-confirmed ones; `None` if it is not
    /// known here.
    fn balance(&self, canonical: usize, ahead: usize, account: u8) -> Option<u64> {
        let blocks = self.canonical[..canonical].iter().chain(&self.ahead[..ahead]);
        for block in blocks.rev() {
            match &block.changes {
                None => return None,
                Some(changes) if changes.contains_key(&account) => return changes.get(&account).copied(),
                Some(_) => {}
            }
        }
        None
    }
}

fn address(account: u8) -> Address {
    Address::repeat_byte(account + 1)
}

fn balance(world: &World, account: u8) -> Option<u64> {
    match world.look_up(&address(account)) {
        Lookup::Known(info) => Some(info.map_or(0, |info| info.balance.to())),
        Lookup::Unknown => None,
    }
}

fn change((account, balance): (&u8, &u64)) -> AccountChange {
    let mut change = AccountChange { address: address(*account), ..AccountChange::default() };
    change.info = Some(revm::state::AccountInfo { balance: U256::from(*balance), ..Default::default() });
    change
}

fn account_changes(changes: &Changes) -> Arc<Vec<AccountChange>> {
    Arc::new(changes.iter().map(change).collect())
}

/// The two chains side by side.
struct Pair {
    random: SmallRng,
    chain: Chain,
    naive: NaiveChain,
    id: u64,
    /// Follows by the messages about the records.
    replica: Applier,
    /// Follows as well, until it has to read damaged messages, which may mean anything.
    victim: Applier,
    /// The id of the message that is damaged for the victim.
    damaged: u64,
}

/// Returns the first snapshot of a chain that begins with `block`.
fn first(block: &SealedBlock) -> Snapshot {
    let (number, hash) = (block.number(), block.hash());
    let mut hashes = BlockHashes::default();
    hashes.push(number, hash);
    let view = RemoteState::begin(RemoteSettings::of_bytes(1 << 20), number, hash);
    let mut first = Snapshot::at_head(World::on(view), Arc::new(block.clone()), hashes);
    first.id = SnapshotId(1);
    first
}

impl Pair {
    fn new(seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let block = sealed(&mut random, 100, B256::ZERO);
        let (number, hash) = (block.number(), block.hash());
        let canonical = vec![NaiveBlock { number, hash: Some(hash), changes: None }];
        let naive = NaiveChain { canonical, ahead: Vec::new(), finalized: None, degraded: false };
        let follower = || {
            Applier::new(
                Chain::new(first(&block), LIVE, KEPT).into(),
                Arc::new(CodeCache::new(1 << 20)),
                LeaderClock::default(),
            )
        };
        let (replica, victim) = (follower(), follower());
        let damaged = random.random_range(2..RECORDS as u64);
        let chain = Chain::new(first(&block), LIVE, KEPT);
        let mut pair = Self { random, chain, naive, id: 1, replica, victim, damaged };
        assert!(pair.apply(Record::Tags(Tags::default())));
        pair
    }

    /// Applies a record, and returns whether it fits.
    fn apply(&mut self, record: Record) -> bool {
        let before = self.chain.clone();
        let text = format!("{record:?}");
        let id = SnapshotId(self.id + 1);
        // A sub-block that goes on names no block: the reader's own is meant.
        let names_its_block = !matches!(record, Record::Preconfirmed { start: SubBlockStart::Extends, .. });
        let message = Change::of(&before, id, &record).message(LeaderTime(0));
        if let Some(message) = &message {
            self.damage(id, message);
        }
        let fits = self.chain.apply(Stamp::now(SnapshotId(self.id + 1)), record).is_ok();
        if fits {
            self.id += 1;
            assert_eq!(self.chain.last, SnapshotId(self.id), "{text}");
            let (dated, read) = StreamMessage::read(&message.expect("the message about a record")).expect(&text);
            self.replica.apply(id, dated, read).expect(&text);
        } else {
            let message = message.filter(|_| names_its_block);
            if let Some((dated, read)) = message.and_then(|message| StreamMessage::read(&message).ok()) {
                let shown = self.replica.chain().clone();
                assert!(self.replica.apply(id, dated, read).is_err(), "{text}");
                assert!(Arc::ptr_eq(&shown, self.replica.chain()), "what is shown stays as it was");
            }
            assert_eq!(before.last, self.chain.last, "{text}");
            assert!(
                Arc::ptr_eq(&before.newest, &self.chain.newest) && Arc::ptr_eq(before.latest(), self.chain.latest())
            );
        }
        fits
    }

    /// Lets the victim follow, and read damaged messages once: each is refused, or means something else.
    fn damage(&mut self, id: SnapshotId, message: &[u8]) {
        if id.0 == self.damaged {
            for _ in 0..DAMAGED {
                let mut bytes = message.to_vec();
                for _ in 0..self.random.random_range(1..4) {
                    let at = self.random.random_range(0..bytes.len());
                    match self.random.random_range(0..3) {
                        0 => bytes[at] = self.random.random(),
                        1 => bytes[at] ^= 1 << self.random.random_range(0..8),
                        _ => bytes.truncate(at.max(1)),
                    }
                }
                if let Ok((dated, read)) = StreamMessage::read(&bytes) {
                    let _ = self.victim.apply(id, dated, read);
                }
            }
        } else if let Ok((dated, read)) = StreamMessage::read(message) {
            let _ = self.victim.apply(id, dated, read);
        }
    }

    fn changes(&mut self) -> Changes {
        (0..self.random.random_range(0..4))
            .map(|_| (self.random.random_range(0..ACCOUNTS), self.random.random()))
            .collect()
    }

    /// Returns the snapshot `on` with a block open: `open`, after these changes.
    fn open(on: &Snapshot, open: OpenBlock, changes: &Changes) -> Snapshot {
        let changes = account_changes(changes);
        let mut world = on.world.clone();
        world.apply_many(&changes);
        Snapshot::new(world, on.head.clone(), Some(open), on.hashes.clone()).after(on, changes)
    }

    /// The next sub-block of the block being built.
    fn extend(&mut self) {
        let newest = self.chain.newest.clone();
        let Some(mut open) = newest.open.clone() else { return };
        open.index += 1;
        let changes = self.changes();
        let open = Self::open(&newest, open, &changes);
        assert!(self.apply(Record::Preconfirmed { complete: None, start: SubBlockStart::Extends, open }));
        self.naive.ahead.last_mut().unwrap().changes.as_mut().unwrap().extend(changes);
    }

    /// The next sub-block of the block being built, which replaces what the block has done so far.
    fn restate(&mut self) {
        let before = self.chain.newest.clone();
        let Some(mut open) = before.open.clone() else { return };
        open.index += 1;
        let changes = self.changes();
        let parent = self.chain.state_after(open.header.number - 1).unwrap().clone();
        let open = Self::open(&parent, open, &changes);
        assert!(self.apply(Record::Preconfirmed { complete: None, start: SubBlockStart::Restates, open }));
        self.naive.ahead.last_mut().unwrap().changes = Some(changes);
        assert!(self.chain.select(Selector::Snapshot(before.id)).is_ok(), "the snapshots before stay");
        // The changes of the step lead from the snapshot before to this one.
        let after = &self.chain.newest;
        let mut led = before.world.clone();
        led.apply_many(&StateStep::merged(&after.path));
        for account in 0..ACCOUNTS {
            if let Some(known) = balance(&after.world, account) {
                assert_eq!(balance(&led, account), Some(known));
            }
        }
    }

    /// The first sub-block of a block, on the head or on any of the pre-confirmed blocks.
    fn begin(&mut self) {
        let head = self.naive.head().number;
        let on = head + self.random.random_range(0..=self.naive.ahead.len() as u64);
        let changes = self.changes();
        let complete = (on > head).then(|| {
            let at = self.naive.ahead_at(on).unwrap();
            let before = self.chain.preconfirmed(on).unwrap().clone();
            let block = match before.open {
                None => SealedBlock::clone(&before.head),
                Some(_) => sealed(&mut self.random, on, before.head_hash()),
            };
            self.naive.ahead.truncate(at + 1);
            self.naive.ahead[at].hash = Some(block.hash());
            self.chain.as_parent(block).unwrap()
        });
        if complete.is_none() {
            self.naive.ahead.clear();
        }
        let parent = complete.as_ref().unwrap_or_else(|| self.chain.latest());
        let header = Header { number: on + 1, parent_hash: parent.head_hash(), ..Header::default() };
        let open = Self::open(parent, OpenBlock::new(header), &changes);
        assert!(self.apply(Record::Preconfirmed { complete, start: SubBlockStart::Opens, open }));
        self.naive.ahead.push(NaiveBlock { number: on + 1, hash: None, changes: Some(changes) });
    }

    /// The next canonical block: as it was pre-confirmed, executed, or not executed.
    fn canonical(&mut self) {
        let (number, parent) = (self.naive.head().number + 1, self.naive.head().hash.unwrap());
        let kind = self.random.random_range(0..4);
        let first = self.naive.ahead.first().cloned();
        let own = first.as_ref().and_then(|first| first.hash).filter(|_| self.random.random_bool(0.7));
        let block = match own {
            Some(_) => SealedBlock::clone(&self.chain.state_after(number).unwrap().head),
            None => sealed(&mut self.random, number, parent),
        };
        let hash = block.hash();
        let (changes, known) = match kind {
            0 => (BlockChanges::Unknown, None),
            1 => {
                let changes = self.changes();
                (BlockChanges::These(account_changes(&changes)), Some(changes))
            }
            _ => (BlockChanges::AsPreconfirmed, first.as_ref().and_then(|first| first.changes.clone())),
        };
        let newest = self.chain.newest.clone();
        let fits = self.apply(Record::Canonical { block, changes, verified: Verified::Full });
        assert_eq!(fits, kind < 2 || first.is_some(), "what was not pre-confirmed is not as it was");
        if !fits {
            return;
        }
        let stays = kind >= 2 && own.is_some();
        self.naive.canonical.push(NaiveBlock { number, hash: Some(hash), changes: known });
        match stays {
            true => {
                self.naive.ahead.remove(0);
                assert!(Arc::ptr_eq(&newest, &self.chain.newest), "what stands on it stays");
            }
            false => self.naive.ahead.clear(),
        }
    }

    fn go_back(&mut self) {
        let oldest = self.chain.oldest_state().max(self.naive.canonical[0].number);
        let number = self.random.random_range(oldest..=self.naive.head().number);
        assert!(self.apply(Record::GoBack { number, feed: LIVE }));
        self.naive.canonical.retain(|block| block.number <= number);
        self.naive.ahead.clear();
        self.naive.degraded = false;
    }

    fn restart(&mut self) {
        let number = self.naive.head().number + self.random.random_range(1..9);
        let parent = self.random.random();
        let block = sealed(&mut self.random, number, parent);
        let hash = block.hash();
        let mut hashes = BlockHashes::default();
        hashes.push(number, hash);
        assert!(self.apply(Record::Restart { block, hashes, verified: Verified::None }));
        self.naive.canonical = vec![NaiveBlock { number, hash: Some(hash), changes: None }];
        self.naive.ahead.clear();
    }

    /// Records that do not stand on what is known.
    fn unfit(&mut self) {
        let newest = self.chain.newest.clone();
        let number = self.random.random_range(self.naive.head().number..self.naive.head().number + 4);
        let parent = self.random.random();
        let changes = BlockChanges::These(Arc::default());
        let block = sealed(&mut self.random, number, parent);
        assert!(!self.apply(Record::Canonical { block, changes, verified: Verified::Full }), "an unknown parent");
        let header = Header { number: number + 7, ..Header::default() };
        let open = || Self::open(&newest, OpenBlock::new(header.clone()), &Changes::new());
        for start in [SubBlockStart::Opens, SubBlockStart::Extends, SubBlockStart::Restates] {
            let record = Record::Preconfirmed { complete: None, start, open: open() };
            assert!(!self.apply(record), "a number is left out, or it is another block");
        }
        assert!(!self.apply(Record::GoBack { number: number + 9, feed: LIVE }), "a block that is not here yet");
        assert!(!self.apply(Record::GoBack { number: 3, feed: LIVE }), "a block from before");
        let block = sealed(&mut self.random, number + 9, newest.head_hash());
        assert!(self.chain.as_parent(block).is_err(), "nothing is pre-confirmed there");
    }

    fn step(&mut self) {
        match self.random.random_range(0..100) {
            0..25 => self.extend(),
            25..35 => self.restate(),
            35..60 => self.begin(),
            60..80 => self.canonical(),
            80..84 => {
                assert!(self.apply(Record::GoBack {
                    number: self.chain.head().number(),
                    feed: FeedState::Degraded(crate::ledger::FeedProblem::Gap)
                }));
                (self.naive.degraded, self.naive.ahead) = (true, Vec::new());
            }
            84..88 => self.go_back(),
            88..90 => self.restart(),
            90..93 => {
                let finalized = Some(self.naive.head().number);
                assert!(self.apply(Record::Tags(Tags { safe: None, finalized })));
                self.naive.finalized = finalized;
            }
            93..96 => {
                assert!(self.apply(Record::Feed(LIVE)));
                self.naive.degraded = false;
            }
            _ => self.unfit(),
        }
    }

    /// Compares the chain, or the replica's, with the naive one.
    fn check(&self, chain: &Chain) {
        self.naive.check(chain);
    }
}

impl NaiveChain {
    /// Compares a chain with this one.
    fn check(&self, chain: &Chain) {
        let naive = self;
        assert_eq!(Some(chain.head().hash()), naive.head().hash);
        assert_eq!(chain.latest().head.number(), naive.head().number);
        assert_eq!((chain.feed().is_degraded(), chain.finalized()), (naive.degraded, naive.finalized));
        let complete: Vec<_> = naive.ahead.iter().filter_map(|block| block.hash).collect();
        assert_eq!(chain.ahead().map(|after| after.head_hash()).collect::<Vec<_>>(), complete);
        let open = naive.ahead.last().filter(|block| block.hash.is_none()).map(|block| block.number);
        assert_eq!(chain.newest.open.as_ref().map(|open| open.header.number), open);
        assert!(
            chain.newest.path.last().is_none_or(|step| step.to == chain.newest.state),
            "the steps lead to the state"
        );
        for account in 0..ACCOUNTS {
            let all = naive.canonical.len();
            for (index, block) in naive.canonical.iter().enumerate().filter(|(_, b)| b.number >= chain.oldest_state()) {
                let after = chain.select(Selector::Number(block.number)).unwrap();
                assert_eq!(Some(after.head_hash()), block.hash);
                let expected = naive.balance(index + 1, 0, account);
                let known = balance(&after.world, account);
                assert!(known.is_none() || known == expected, "{known:?} {expected:?}");
                assert!(index + 1 < all || known == expected, "the newest state lacks nothing: {known:?} {expected:?}");
            }
            for (index, block) in naive.ahead.iter().enumerate() {
                let after = chain.preconfirmed(block.number).unwrap();
                assert_eq!(balance(&after.world, account), naive.balance(all, index + 1, account));
            }
        }
        for block in &naive.ahead {
            let mut changes: Vec<_> = chain.changes_ahead(block.number);
            changes.sort_unstable_by_key(|change| change.address);
            let changes = changes.iter().map(|change| (change.address, change.info.as_ref().unwrap().balance));
            let expected =
                block.changes.as_ref().unwrap().iter().map(|(account, n)| (address(*account), U256::from(*n)));
            assert!(changes.eq(expected));
        }
        let pending = chain.select(Selector::Pending).unwrap();
        assert_eq!(pending.state, if naive.degraded { chain.latest().state } else { chain.newest.state });
        assert!(chain.select(Selector::Snapshot(chain.newest.id)).is_ok());
    }
}

/// Returns an empty block that differs from every other.
fn sealed(random: &mut SmallRng, number: u64, parent_hash: B256) -> SealedBlock {
    let extra_data = random.random::<[u8; 32]>().to_vec().into();
    let header = Header { number, parent_hash, extra_data, ..Header::default() };
    SealedBlock::named(header.seal_slow(), BlockBody::default())
}

#[test]
fn random_records_of_an_upstreams_chain_do_what_plain_lists_do() {
    for seed in 0..SEQUENCES {
        let mut pair = Pair::new(seed);
        // The chain that is shown while the stream takes nothing stays what it was, whatever comes after it.
        let mut shown = (pair.chain.clone(), pair.naive.clone());
        for record in 0..RECORDS {
            pair.step();
            pair.check(&pair.chain);
            pair.check(pair.replica.chain());
            shown.1.check(&shown.0);
            if record % PAUSED == 0 {
                shown = (pair.chain.clone(), pair.naive.clone());
            }
        }
    }
}

/// Returns the next executed block on a chain, which sets a balance.
fn executed(random: &mut SmallRng, on: &Chain, balance: u64) -> Record {
    let block = sealed(random, on.head().number() + 1, on.head().hash());
    let changes = BlockChanges::These(account_changes(&Changes::from([(1, balance)])));
    Record::Canonical { block, changes, verified: Verified::Full }
}

#[test]
fn a_message_that_fails_half_way_leaves_what_is_shown_readable() {
    let mut pair = Pair::new(0);
    let mut random = SmallRng::seed_from_u64(1);
    for balance in [10, 20, 30] {
        let record = executed(&mut random, &pair.chain, balance);
        assert!(pair.apply(record));
    }
    let shown = pair.replica.chain().clone();
    let fork = shown.head().number() - 2;
    // The leader's changes are one message, of which the last does not fit.
    let leader = &mut pair.chain;
    let id = leader.last.next();
    let mut entries = Vec::new();
    let mut send = |leader: &Chain, record: &Record| {
        let message = Change::of(leader, id, record).message(LeaderTime(0)).unwrap();
        let Ok((dated, StreamMessage::Changes(mut changes))) = StreamMessage::read(&message) else {
            panic!("a change")
        };
        entries.append(&mut changes.entries);
        (dated, StreamMessage::Changes(changes))
    };
    let mut last = None;
    for step in 0..4 {
        let record = match step {
            0 => Record::GoBack { number: fork, feed: LIVE },
            1 | 2 => executed(&mut random, leader, 40 + step),
            _ => {
                let (parent, changes) = (random.random(), BlockChanges::Unknown);
                let block = sealed(&mut random, leader.head().number() + 1, parent);
                Record::Canonical { block, changes, verified: Verified::None }
            }
        };
        last = Some(send(leader, &record));
        assert_eq!(leader.apply(Stamp::now(id), record).is_ok(), step < 3);
    }
    let (dated, StreamMessage::Changes(mut message)) = last.unwrap() else { panic!("a change") };
    message.entries = entries;
    assert!(pair.replica.apply(id, dated, StreamMessage::Changes(message)).is_err());
    assert!(Arc::ptr_eq(&shown, pair.replica.chain()));
    for (number, expected) in (fork..).zip([10, 20, 30]) {
        assert_eq!(balance(&shown.state_after(number).unwrap().world, 1), Some(expected), "block {number}");
    }
    assert_eq!(balance(&leader.latest().world, 1), Some(42));
}

/// A moment of a chain that is built here.
struct NaiveMoment {
    id: SnapshotId,
    head: (u64, B256),
    /// The transactions of the block being built.
    open: Vec<B256>,
    balances: Vec<U256>,
}

fn hashes<'a>(transactions: impl IntoIterator<Item = &'a Recovered<ChainTx>>) -> Vec<B256> {
    transactions.into_iter().map(|tx| *tx.tx_hash()).collect()
}

/// A chain that is built here, with the plain list of what it was.
struct Own {
    accounts: Vec<Address>,
    moments: Vec<NaiveMoment>,
    /// The transactions of each sealed block, by its number.
    blocks: BTreeMap<u64, Vec<B256>>,
}

impl Own {
    /// Notes what the chain is now.
    fn note(&mut self, newest: &Snapshot) {
        let head = &newest.head;
        self.blocks.entry(head.number()).or_insert_with(|| hashes(&head.body().transactions));
        self.moments.push(NaiveMoment {
            id: newest.id,
            head: (head.number(), head.hash()),
            open: newest.open.as_ref().map_or_else(Vec::new, |open| hashes(&open.transactions)),
            balances: self.balances(&newest.world),
        });
    }

    fn balances(&self, world: &World) -> Vec<U256> {
        let balance = |address| world.account(address).map_or(U256::ZERO, |account| account.balance);
        self.accounts.iter().map(balance).collect()
    }

    /// Compares a chain with the list. Returns the number of the moments that it retains.
    fn check(&self, chain: &Chain) -> usize {
        let last = self.moments.last().unwrap();
        assert_eq!((chain.head().number(), chain.head().hash()), last.head);
        let mut retained = 0;
        for moment in &self.moments {
            let Ok(found) = chain.select(Selector::Snapshot(moment.id)) else { continue };
            retained += 1;
            assert_eq!((found.head.number(), found.head_hash()), moment.head, "{:?}", moment.id);
            let open = hashes(found.open.iter().flat_map(|open| &open.transactions));
            assert_eq!(open, moment.open, "{:?}", moment.id);
            assert_eq!(self.balances(&found.world), moment.balances, "{:?}", moment.id);
        }
        for (number, transactions) in self.blocks.range(chain.oldest_history()..) {
            let block = chain.sealed_block(*number).unwrap();
            assert_eq!(&hashes(&block.body().transactions), transactions, "block {number}");
            for hash in transactions {
                assert!(chain.is_mined(hash), "{hash} of block {number}");
            }
        }
        let states = self.blocks.keys().filter(|number| **number >= chain.oldest_state());
        for number in states {
            // The moment of the seal opens the next block, without transactions.
            let sealed = self.moments.iter().find(|moment| moment.head.0 == *number && moment.open.is_empty());
            let after = chain.select(Selector::Number(*number)).unwrap();
            let sealed = sealed.unwrap_or_else(|| panic!("block {number} was sealed"));
            assert_eq!((after.head_hash(), self.balances(&after.world)), (sealed.head.1, sealed.balances.clone()));
        }
        retained
    }
}

#[test]
fn random_blocks_of_an_own_chain_do_what_plain_lists_do() {
    for seed in 0..OWN_SEQUENCES {
        let mut random = SmallRng::seed_from_u64(seed);
        let (sub_blocks, traffic) = (random.random_range(1..5).to_string(), random.random_range(1..40).to_string());
        let (blocks, snapshots) = (random.random_range(2..6).to_string(), random.random_range(4..20).to_string());
        let seed = seed.to_string();
        let flags = ["presim", "--sub-blocks", &sub_blocks, "--traffic", &traffic, "--traffic-seed", &seed];
        let flags = flags.into_iter().chain(["--keep-blocks", &blocks, "--keep-snapshots", &snapshots]);
        let config = Config::load(flags.map(OsString::from)).unwrap();
        let (folder, metrics, codes) =
            (tempfile::tempdir().unwrap(), Metrics::default(), Arc::new(CodeCache::new(1 << 24)));
        let dir = DataDir::open(folder.path(), false).unwrap();
        let begin = || {
            let store = Store::open(&dir, &metrics).unwrap();
            let clock = Arc::new(SystemClock::default());
            let chain = OwnChain::begin(&config, &codes, &store, &StartupReason::default(), clock).unwrap();
            (store, chain)
        };
        let (store, mut chain) = begin();
        let sink = chain.sink();
        let (shown, mut devnet) = (Arc::new(chain.snapshots), chain.devnet.take().unwrap().devnet);
        let accounts = chain.accounts.iter().map(|account| account.address()).collect();
        let mut own = Own { accounts, moments: Vec::new(), blocks: BTreeMap::new() };
        own.note(&shown.newest());
        let pool = node::pool(&config, &chain.spec, &shown, &store).unwrap();
        let mut feed = Feed::new(shown.clone(), sink, pool.clone(), &metrics);
        for _ in 0..RECORDS {
            let newest = shown.newest();
            let step = match random.random_range(0..8) {
                0 => devnet.last_step(&newest, &pool),
                _ => devnet.step(&newest, &pool),
            };
            let id = feed.publish(step.unwrap().into()).unwrap();
            pool.advance();
            own.note(&shown.newest());
            assert_eq!((shown.load().last, shown.newest().id), (id, id));
            let retained = own.check(&shown.load());
            assert!(retained >= own.moments.len().min(4), "{retained} of {}", own.moments.len());
        }
        let retained = own.check(&shown.load());
        drop((feed, pool, store, chain.journal, shown));
        let (_store, restored) = begin();
        let restored = restored.snapshots.load();
        assert!(own.check(&restored) <= retained + RECORDS);
    }
}
