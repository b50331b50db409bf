//! The messages of a fleet's stream.

use std::sync::Arc;

use alloy_consensus::Header;
use alloy_primitives::{Bytes, Sealable};
use alloy_rlp::{RlpDecodable, RlpEncodable};

use super::ChangeRecord;
use super::{
    health::{MessageError, read_feed, read_verified, write_feed},
    live::LiveMessage,
    record::{JournalEntry, StoredBody},
    time::LeaderTime,
};
use crate::{
    chain::{BlockBody, SealedBlock},
    ledger::{Chain, FeedState, OpenBlock, Record, SnapshotId, Verified},
    store::{corrupted, decode, encode},
};

/// A message of the stream. Each has an id of its own.
pub enum StreamMessage {
    /// A node leads from here on.
    Epoch {
        /// The id of the message before.
        follows: SnapshotId,
        /// The name of the node, for people.
        leader: String,
    },
    /// A change of a chain that is built by the leader.
    Change(Box<StreamChange>),
    /// A change of an upstream's chain.
    Live(LiveMessage),
    /// The health of the leader's feed.
    Feed(FeedState),
}

/// A change of a chain that is built by the leader.
pub struct StreamChange {
    /// The entries, in order.
    pub entries: Vec<JournalEntry>,
    /// The codes that accounts have got, each once.
    pub codes: Vec<Bytes>,
    /// The extent to which the leader has verified the snapshot.
    pub verified: Verified,
    block: Option<StreamBlock>,
}

/// A sealed block without the transactions that the block being built has already.
#[derive(RlpEncodable, RlpDecodable)]
struct StreamBlock {
    header: Header,
    /// The number of the transactions that are left out.
    known: u64,
    body: StoredBody,
}

#[derive(RlpEncodable, RlpDecodable)]
struct EpochFields {
    follows: u64,
    leader: String,
}

#[derive(RlpEncodable, RlpDecodable)]
struct ChangeFields {
    entries: Vec<Bytes>,
    codes: Vec<Bytes>,
    verified: u8,
    blocks: Vec<StreamBlock>,
}

const EPOCH: u8 = 0;
const CHANGE: u8 = 1;
const FEED: u8 = 2;
const LIVE: u8 = 3;

impl StreamMessage {
    /// Returns the message about a change of `on`; `None` if the stream has no such changes.
    pub fn of(on: &Chain, change: &Record) -> Option<Self> {
        if let Record::Feed(state) = change {
            return Some(Self::Feed(*state));
        }
        let verified = match change {
            Record::SubBlock(next) => next.verified,
            Record::Seal { sealed, next } => next.as_ref().unwrap_or(sealed).verified,
            _ => Verified::Full,
        };
        let ChangeRecord { entries, sealed, known, codes, .. } = ChangeRecord::of(on, change)?;
        let block = sealed.map(|sealed| StreamBlock {
            header: sealed.header.inner().clone(),
            known: known as u64,
            body: StoredBody::after(&sealed.body(), known),
        });
        let codes = codes.iter().map(|code| code.bytecode.original_bytes()).collect();
        Some(Self::Change(Box::new(StreamChange { entries, codes, verified, block })))
    }

    /// Returns the bytes of the message, with the time at which the newest snapshot after it was published.
    pub fn write(self, dated: LeaderTime) -> Vec<u8> {
        let (kind, fields) = match self {
            Self::Epoch { follows, leader } => (EPOCH, encode(&EpochFields { follows: follows.0, leader })),
            Self::Change(change) => {
                let StreamChange { entries, codes, verified, block } = *change;
                let entries = entries.into_iter().map(|entry| entry.write().into()).collect();
                let blocks = block.into_iter().collect();
                (CHANGE, encode(&ChangeFields { entries, codes, verified: verified as u8, blocks }))
            }
            Self::Live(message) => (LIVE, message.write()),
            Self::Feed(state) => (FEED, write_feed(state)),
        };
        [dated.0.to_be_bytes().as_slice(), &[kind], &fields].concat()
    }

    /// Reads a message, and the time at which the newest snapshot after it was published.
    ///
    /// # Errors
    ///
    /// Returns [`MessageError`] if the bytes are not a message.
    pub fn read(bytes: &[u8]) -> Result<(LeaderTime, Self), MessageError> {
        let (dated, bytes) = bytes.split_first_chunk::<8>().ok_or_else(|| corrupted("it is too short"))?;
        Ok((LeaderTime(u64::from_be_bytes(*dated)), Self::read_undated(bytes)?))
    }

    fn read_undated(bytes: &[u8]) -> Result<Self, MessageError> {
        match bytes.split_first() {
            Some((&EPOCH, fields)) => {
                let EpochFields { follows, leader } = decode(fields)?;
                Ok(Self::Epoch { follows: SnapshotId(follows), leader })
            }
            Some((&CHANGE, fields)) => {
                let ChangeFields { entries, codes, verified, blocks } = decode(fields)?;
                let entries = entries.iter().map(|entry| JournalEntry::read(entry)).collect::<Result<Vec<_>, _>>()?;
                let verified = read_verified(verified)?;
                let block = blocks.into_iter().next();
                Ok(Self::Change(Box::new(StreamChange { entries, codes, verified, block })))
            }
            Some((&LIVE, fields)) => Ok(Self::Live(LiveMessage::read(fields)?)),
            Some((&FEED, fields)) => Ok(Self::Feed(read_feed(fields)?)),
            _ => Err(corrupted("its kind is unknown").into()),
        }
    }
}

impl StreamChange {
    /// Takes the sealed block out, whose first transactions are those of `open`, the block being built.
    ///
    /// # Errors
    ///
    /// Returns [`MessageError`] if the message has no block, or `open` has not the transactions that it leaves out.
    pub fn take_block(&mut self, open: Option<&OpenBlock>) -> Result<Arc<SealedBlock>, MessageError> {
        let StreamBlock { header, known, body } =
            self.block.take().ok_or_else(|| corrupted("a sealed block is missing"))?;
        let BlockBody { transactions, receipts, ommers, withdrawals, access_list } = body.read()?;
        let built = open.map_or(0, |open| open.transactions.len());
        let known = usize::try_from(known).ok().filter(|known| *known <= built);
        let known = known.ok_or_else(|| corrupted("a sealed block lacks transactions"))?;
        let open_transactions = open.iter().flat_map(|open| open.transactions.iter().take(known).cloned());
        let open_receipts = open.iter().flat_map(|open| open.receipts.iter().take(known).cloned());
        let body = BlockBody {
            transactions: open_transactions.chain(transactions).collect(),
            receipts: open_receipts.chain(receipts).collect(),
            ommers,
            withdrawals,
            access_list,
        };
        Ok(Arc::new(SealedBlock::named(header.seal_slow(), body)))
    }
}
