//! Changes of a chain under test, and the handle with which clients ask for them.

use std::time::Duration;

use alloy_consensus::{TxEnvelope, transaction::Recovered};
use alloy_eips::BlockNumHash;
use alloy_primitives::{Address, B256, Bytes, U256};
use tokio::sync::{mpsc, oneshot};

use super::{
    super::devnet::DevnetError,
    fork::{ForkError, ForkTarget},
    state_file::StateFile,
};
use crate::state::FetchError;

/// Changes that may wait for the writer of snapshots.
const WAITING: usize = 64;

/// A change of the chain that a client asks for.
#[derive(Clone, Debug)]
pub enum ChainChange {
    /// Mines blocks. The first one has the pending transactions of the pool.
    Mine {
        /// The number of blocks.
        blocks: u64,
        /// Seconds between two of them; `None` for the clock's time.
        interval: Option<u64>,
        /// The timestamp of the first block; `None` for the clock's time.
        timestamp: Option<u64>,
    },
    /// Changes an account.
    Edit(AccountEdit),
    /// Sets the accounts of another chain's state. The others stay.
    Load(Box<StateFile>),
    /// Chooses a field of the next block.
    Choose(FieldChoice),
    /// Sets the seconds from each block to the next; `None` for the time.
    SetTimestampInterval(Option<u64>),
    /// Saves the chain's state, to return to it.
    Save,
    /// Returns to a saved state. It and later ones are forgotten.
    Return(u64),
    /// Removes the newest blocks.
    RollBack {
        /// The number of blocks.
        blocks: u64,
    },
    /// Removes as many of the newest blocks as these are, and mines these in their place, each of its transactions.
    Reorganise {
        /// The transactions of each block.
        blocks: Vec<Vec<Recovered<TxEnvelope>>>,
    },
    /// Returns to the beginning, or begins on a block of an upstream's, without the transactions that wait and the states that were
    /// saved.
    Reset(Option<ForkTarget>),
    /// Fetches the state of a fork from the node at this URL; changes nothing on a chain that is none.
    FetchFrom(String),
    /// Moves the clock forward, by seconds.
    MoveClock(u64),
    /// Moves the clock to this time, in Unix seconds. The next block is later.
    MoveClockTo(u64),
    /// Sets the timestamp of the next block, in Unix seconds; the clock continues from there.
    SetClock(u64),
    /// Mines each transaction in a block of its own when it arrives, or ends that.
    SetAutomine(bool),
    /// Mines a block at each of these intervals, in seconds; on request only if it is zero.
    SetInterval(u64),
    /// Says how the chain is being tested.
    Describe,
}

/// A field of the next block that a client chooses.
#[derive(Clone, Copy, Debug)]
pub enum FieldChoice {
    /// The recipient of the fees of all later blocks.
    FeeRecipient(Address),
    /// The gas limit of all later blocks.
    GasLimit(u64),
    /// The base fee in wei per unit of gas.
    BaseFee(u64),
    /// The randomness.
    PrevRandao(B256),
}

/// The occasions on which a chain under test mines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mining {
    /// A block for each transaction, when it arrives.
    OnArrival,
    /// A block at each of these intervals, in sub-blocks as any devnet's if they are asked for, else a draft until then.
    Interval(Duration),
    /// On request only. The block being built is a draft of the pending transactions.
    OnRequest,
}

/// The change of an account. Fields that are `None` stay.
#[derive(Clone, Debug, Default)]
pub struct AccountEdit {
    /// The account.
    pub address: Address,
    /// The balance in wei.
    pub balance: Option<U256>,
    /// The ether in wei that the account gets in addition, up to the greatest balance.
    pub credit: U256,
    /// The nonce.
    pub nonce: Option<u64>,
    /// The bytecode.
    pub code: Option<Bytes>,
    /// A storage slot and its value.
    pub slot: Option<(U256, U256)>,
}

/// The outcome of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeOutcome {
    /// The change was made.
    Done,
    /// The state was saved under this id.
    Saved(u64),
    /// Whether there was something to return to, or to end.
    Found(bool),
    /// Seconds that the clock is ahead of the system's.
    Ahead(i64),
    /// The chain as it is being tested.
    Description {
        /// The occasions on which blocks are mined.
        mining: Mining,
        /// The name of the chain since it last began.
        instance: B256,
        /// The ids of the states that are saved, and the head of each.
        saved: Vec<(u64, BlockNumHash)>,
    },
}

/// The reason why a change was not made.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ChangeError {
    /// The next block's timestamp would not be later than its parent's.
    #[error("timestamp {timestamp} is lower than or equal to the previous block's timestamp {previous}")]
    Timestamp { timestamp: u64, previous: u64 },
    /// The timestamp is too late for the blocks after it.
    #[error("timestamp {0}: expected at most 2^63 - 1")]
    TooLate(u64),
    /// The state before the blocks to be removed is not retained.
    #[error("{blocks} blocks: expected at most {most}, the blocks before which the state is retained (--keep-blocks)")]
    TooDeep { blocks: u64, most: u64 },
    /// Transactions cannot be mined in the blocks for which they were meant.
    #[error("{count} transactions cannot be mined, and are in no block: the first of them is {hash}: {reason}")]
    LeftOut { count: usize, hash: B256, reason: String },
    /// More blocks were requested than one request may mine.
    #[error("{blocks} blocks: expected at most {most} (--testing-limit)")]
    TooManyBlocks { blocks: u64, most: u64 },
    /// The queue of changes is full.
    #[error("too busy: {WAITING} changes of the chain wait already")]
    Busy,
    /// The chain does not begin on an upstream's block.
    #[error("this chain is no fork: start one with `presim fork URL`")]
    NoFork,
    /// The chain cannot begin on this block of an upstream's.
    #[error(transparent)]
    Fork(#[from] ForkError),
    /// The state that a block reads is an upstream's, and is not known.
    #[error(transparent)]
    State(#[from] FetchError),
    /// The feed has failed or the node stops.
    #[error("the devnet cannot continue: search the log for the reason")]
    Failed,
}

impl From<DevnetError> for ChangeError {
    fn from(error: DevnetError) -> Self {
        match error {
            DevnetError::State(error) => Self::State(error),
            // The feed is degraded for it.
            DevnetError::Execution(_) | DevnetError::Unpublished(_) => Self::Failed,
        }
    }
}

/// The way to the client that waits for a change.
pub(super) type Answer = oneshot::Sender<Result<ChangeOutcome, ChangeError>>;

/// The handle with which clients change the chain. Its changes are made by the chain's source, the only writer.
#[derive(Clone, Debug)]
pub struct ChainControl(mpsc::Sender<(ChainChange, Answer)>);

impl ChainControl {
    /// Creates a handle, and the queue of its changes.
    pub(super) fn new() -> (Self, mpsc::Receiver<(ChainChange, Answer)>) {
        let (sender, changes) = mpsc::channel(WAITING);
        (Self(sender), changes)
    }

    /// Makes a change after the waiting ones, and returns once it is published.
    ///
    /// # Errors
    ///
    /// Returns the [`ChangeError`] if the change was not made.
    pub async fn make(&self, change: ChainChange) -> Result<ChangeOutcome, ChangeError> {
        let (answer, answered) = oneshot::channel();
        self.0.try_send((change, answer)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => ChangeError::Busy,
            mpsc::error::TrySendError::Closed(_) => ChangeError::Failed,
        })?;
        answered.await.unwrap_or(Err(ChangeError::Failed))
    }
}
