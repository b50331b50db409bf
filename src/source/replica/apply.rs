//! Applying the messages of a stream: no transaction is executed, and what the sealed headers say is checked.

use std::sync::Arc;

use alloy_consensus::Header;
use alloy_primitives::{B256, KECCAK256_EMPTY, map::B256Map};

use super::{LiveReplica, clock::LeaderClock};
use crate::{
    chain::{BlockBody, BlockTotals, SealedBlock, agrees_with_receipts, receipts_root_and_bloom},
    ledger::{
        Record, Snapshot, SnapshotId, Snapshots, Stamp, Unfit,
        codec::{
            JournalEntry, LeaderTime, MessageError, StoredChange, StreamChange, StreamMessage,
            replay::{self, KnownCodes},
        },
    },
    source::journal::Journal,
    state::{Code, CodeCache, World},
    store::corrupted,
};

/// Applies the messages of a stream to a state.
#[derive(Debug)]
pub struct Applier {
    state: Snapshots,
    codes: Arc<CodeCache>,
    /// The parts of an upstream's chain beside the snapshots; `None` on a chain that the leader builds.
    live: Option<LiveReplica>,
    clock: LeaderClock,
}

/// The reason why a message is not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Messages before it are missing.
    #[error("message {id:#x} is not the one after {last:#x}")]
    Gap {
        /// The message's id.
        id: u64,
        /// The id of the last change here.
        last: u64,
    },
    /// The message cannot be read, or does not fit the state.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A block does not stand on those that are known here.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// A sealed block is not what its header says.
    #[error("block {number} does not match its header: expected {what} {expected}, got {got}")]
    Mismatch {
        /// The block's number.
        number: u64,
        /// The value that differs.
        what: &'static str,
        /// The header's value.
        expected: String,
        /// The value of the state or the body here.
        got: String,
    },
}

impl From<redb::Error> for ApplyError {
    fn from(error: redb::Error) -> Self {
        Self::Message(error.into())
    }
}

impl Applier {
    /// Creates an applier of messages to `state`.
    pub fn new(state: Snapshots, codes: Arc<CodeCache>) -> Self {
        Self { state, codes, live: None, clock: LeaderClock::default() }
    }

    /// Creates an applier of messages about an upstream's chain to `state`.
    pub fn of_live(state: Snapshots, codes: Arc<CodeCache>, live: LiveReplica) -> Self {
        Self { live: Some(live), ..Self::new(state, codes) }
    }

    /// Returns the same, which learns from `clock` how old a snapshot is.
    #[must_use]
    pub fn with_clock(self, clock: LeaderClock) -> Self {
        Self { clock, ..self }
    }

    /// Returns the state.
    pub const fn state(&self) -> &Snapshots {
        &self.state
    }

    /// Returns whether the message `id` was applied already, or bears an older epoch than one that was seen.
    pub fn is_old(&self, id: SnapshotId) -> bool {
        id <= self.state.load().last
    }

    /// Applies the message `id`, whose snapshot the leader has dated, after writing it to the journal if there is one.
    ///
    /// # Errors
    ///
    /// Returns [`ApplyError::Gap`] if it is not the next message, [`ApplyError::Message`] if it does not fit the state, and
    /// [`ApplyError::Mismatch`] if a sealed block is not what its header says. The state is as it was then.
    pub fn apply(
        &mut self,
        id: SnapshotId,
        dated: LeaderTime,
        message: StreamMessage,
        journal: Option<&Journal>,
    ) -> Result<(), ApplyError> {
        let published = self.state.load();
        let last = published.last;
        let moment = self.clock.earliest_or_own(id.epoch(), dated);
        let gap = || ApplyError::Gap { id: id.0, last: last.0 };
        let stamp = Stamp { id, at: moment };
        let record = match message {
            StreamMessage::Epoch { follows, leader } => {
                if follows != last || id != SnapshotId::begin(id.epoch()) {
                    return Err(gap());
                }
                tracing::info!(leader, epoch = id.epoch(), "a node leads the fleet");
                self.state.update(|chain| chain.begin_epoch(id.epoch()));
                return Ok(());
            }
            // Changes that were never published one by one are not missing.
            StreamMessage::Live(message) if message.follows.map_or(id == last.next(), |follows| follows == last) => {
                let live = self.live.as_mut().ok_or_else(gap)?;
                return live.apply(&self.state, &self.codes, stamp, message);
            }
            StreamMessage::Live(_) => return Err(gap()),
            _ if id != last.next() => return Err(gap()),
            StreamMessage::Feed(state) => Record::Feed(state),
            StreamMessage::Change(change) => self.record(&published.newest, *change)?,
        };
        if let Some(journal) = journal {
            let written = journal.record(&published, id, &record);
            written.map_err(|error| corrupted(error.to_string()))?;
        }
        Ok(self.state.apply_as(stamp, record)?)
    }

    fn record(&self, on: &Arc<Snapshot>, mut change: StreamChange) -> Result<Record, ApplyError> {
        let brought = change.codes.drain(..).map(|code| self.codes.chain(code.0.to_vec().into()));
        let codes = BroughtCodes(brought.map(|code| (code.hash, code)).collect());
        let verified = change.verified;
        let mut entries = std::mem::take(&mut change.entries).into_iter();
        let (first, second) = (entries.next(), entries.next());
        match (first, second) {
            (Some(JournalEntry::Open { header, changes, access_list }), None) => {
                let next = replay::open(on, *header, changes, access_list, &codes)?;
                Ok(Record::SubBlock(next.with_verified(verified)))
            }
            (Some(JournalEntry::SubBlock(sub_block)), None) => {
                let next = replay::extend(on, sub_block, &codes)?;
                Ok(Record::SubBlock(next.with_verified(verified)))
            }
            (Some(JournalEntry::Seal { changes, .. }), next) => {
                let block = change.take_block(on.open.as_ref())?;
                let sealed = replay::seal(on, block, changes, &codes)?;
                check(&sealed.head, &sealed.world)?;
                let next = match next {
                    None => None,
                    Some(JournalEntry::Open { header, changes, access_list }) => {
                        Some(replay::open(&sealed, *header, changes, access_list, &codes)?.with_verified(verified))
                    }
                    Some(_) => return Err(unknown()),
                };
                Ok(Record::Seal { sealed, next })
            }
            _ => Err(unknown()),
        }
    }
}

fn unknown() -> ApplyError {
    corrupted("its entries are in no known order").into()
}

/// Checks a sealed block against its header: what follows from its transactions and receipts, and the state root where the
/// state is whole.
fn check(block: &SealedBlock, world: &World) -> Result<(), ApplyError> {
    let (header, body) = (&block.header, block.body());
    let totals =
        BlockTotals::of(&body.transactions, &body.receipts, header.gas_used, header.blob_gas_used.unwrap_or_default());
    let mut closed = header.inner().clone();
    totals.close(&mut closed);
    let number = header.number;
    check_gas(header, &body)?;
    ApplyError::unless_equal(number, "transactionsRoot", &header.transactions_root, &closed.transactions_root)?;
    ApplyError::unless_equal(number, "receiptsRoot", &header.receipts_root, &closed.receipts_root)?;
    ApplyError::unless_equal(number, "logsBloom", &header.logs_bloom, &closed.logs_bloom)?;
    match world.local() {
        Some(world) => {
            ApplyError::unless_equal(number, "stateRoot", &header.state_root, &world.state_root_in_parallel())
        }
        None => Ok(()),
    }
}

/// Checks the receipts of an upstream's block against its header, if they are known. Its transactions are as the upstream
/// has them.
pub(super) fn check_receipts(block: &SealedBlock) -> Result<(), ApplyError> {
    let (header, Some(body)) = (&block.header, block.find_body()) else { return Ok(()) };
    let (root, bloom) = receipts_root_and_bloom(&body.receipts);
    check_gas(header, &body)?;
    ApplyError::unless_equal(header.number, "receiptsRoot", &header.receipts_root, &root)?;
    ApplyError::unless_equal(header.number, "logsBloom", &header.logs_bloom, &bloom)
}

/// Checks the gas that the transactions of a block have used by their receipts.
fn check_gas(header: &Header, body: &BlockBody) -> Result<(), ApplyError> {
    let gas = body.receipts.last().map_or(0, alloy_consensus::TxReceipt::cumulative_gas_used);
    match agrees_with_receipts(header, gas) {
        true => Ok(()),
        false => ApplyError::unless_equal(header.number, "gasUsed", &header.gas_used, &gas),
    }
}

impl ApplyError {
    fn unless_equal<T: PartialEq + std::fmt::Display>(
        number: u64,
        what: &'static str,
        expected: &T,
        got: &T,
    ) -> Result<(), Self> {
        if expected == got {
            return Ok(());
        }
        Err(Self::Mismatch { number, what, expected: expected.to_string(), got: got.to_string() })
    }
}

/// The codes that a message brings. An account that has its code already keeps it.
struct BroughtCodes(B256Map<Code>);

impl KnownCodes for BroughtCodes {
    fn code(&self, change: &StoredChange, hash: B256, world: &World) -> Result<Code, redb::Error> {
        if hash == KECCAK256_EMPTY {
            return Ok(Code::default());
        }
        if let Some(code) = self.0.get(&hash) {
            return Ok(code.clone());
        }
        let known = world.account(&change.address).map(|account| account.code.clone());
        let known = known.filter(|code| code.hash == hash);
        known.ok_or_else(|| corrupted(format!("the code with hash {hash} is missing")))
    }
}
