//! States of an upstream's blocks that are older than the retained ones: fetched for requests that name them, and
//! cached.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use alloy_consensus::Header;
use alloy_eips::{BlockHashOrNumber, BlockId, BlockNumberOrTag, RpcBlockHash};
use alloy_primitives::{Address, B256, U64};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    chain::{BlockHashes, ChainSpec, SealedBlock},
    ledger::{Chain, Past, Snapshot, UnknownBlock},
    lock::Mutex,
    rpc::protocol::error::{Result, RpcError},
    state::{FetchError, RemoteSettings, RemoteState, World},
    upstream::{AnnouncedReceipts, Ask, BlockError, BlockName, Upstream, UpstreamBlock, named_header},
};

/// The states of past blocks, and the blocks inside of which a state was requested, each in order of use, the least
/// recently used first. Each state has its own cache.
///
/// Only canonical blocks are found. The upstream reports which blocks are canonical, at each request unless the block
/// is final.
#[derive(Debug)]
pub struct PastStates {
    /// The most bytes of all of them together.
    bytes: usize,
    known: Mutex<VecDeque<Arc<Snapshot>>>,
    blocks: Mutex<VecDeque<Arc<SealedBlock>>>,
}

/// A search for the state or block that a request misses.
#[derive(Clone, Copy)]
pub struct PastSearch<'a> {
    /// The node that is asked.
    pub upstream: &'a Upstream,
    /// The rules of its chain.
    pub spec: &'a ChainSpec,
    /// The chain of the request.
    pub published: &'a Chain,
    /// The time until which it may answer.
    pub deadline: Instant,
}

impl PastSearch<'_> {
    /// Returns whether a block is canonical forever.
    fn is_final(&self, number: u64) -> bool {
        self.published.finalized().is_some_and(|finalized| number <= finalized)
    }

    /// Checks that presim has the rules of block `number`.
    fn check_rules(&self, number: u64) -> Result<()> {
        let first = self.spec.first_executable();
        if number >= first {
            return Ok(());
        }
        let text = format!(
            "block {number} is from before Bedrock, whose first block is {first}: presim does not execute its rules"
        );
        Err(RpcError::new(-32000, text))
    }

    /// Returns whether a block that is known is the one with this id, without a question to the upstream.
    fn is_named(&self, block: &SealedBlock, id: BlockHashOrNumber) -> bool {
        match id {
            BlockHashOrNumber::Hash(hash) => block.hash() == hash,
            BlockHashOrNumber::Number(number) => block.number() == number && self.is_final(number),
        }
    }

    /// Checks that a block which was named by its hash is canonical. The upstream may know others by their hashes, and nothing is answered
    /// from them.
    async fn check_canonical(&self, block: &SealedBlock, id: BlockHashOrNumber, unknown: UnknownBlock) -> Result<()> {
        let number = block.number();
        if id.as_number().is_some() || self.is_final(number) {
            return Ok(());
        }
        if self.hash_of(number).await? == block.hash() { Ok(()) } else { Err(unknown.into()) }
    }

    /// Asks the upstream for the hash of its canonical block of this number.
    async fn hash_of(&self, number: u64) -> Result<B256> {
        let named = Ask::<BlockName>::typed("eth_getBlockByNumber", &(BlockNumberOrTag::Number(number), false));
        Ok(self.upstream.one(named, self.deadline.into()).await.map_err(FetchError::from)?.hash)
    }
}

/// The position of a transaction, as an upstream reports it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TransactionPlace {
    block_hash: Option<B256>,
}

/// The blocks whose state a node has, as `eth_capabilities` reports them.
#[derive(Deserialize)]
struct NodeCapabilities {
    state: StateCapability,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StateCapability {
    oldest_block: U64,
}

impl PastStates {
    /// The most blocks, however small their caches are.
    const MAX_BLOCKS: usize = 1_024;

    /// Creates a cache of at most so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self { bytes, known: Mutex::default(), blocks: Mutex::default() }
    }

    /// Returns the chain with the missing part named by `unknown`: the state of a block, or a block and the state
    /// before it.
    ///
    /// # Errors
    ///
    /// Returns `unknown` if the upstream has no such block either, 4444 if it has the block and not its state, and an error if it does
    /// not answer.
    pub async fn find(&self, search: PastSearch<'_>, unknown: UnknownBlock) -> Result<Arc<Chain>> {
        let past = match unknown {
            UnknownBlock::Pruned { number, .. } => {
                self.state(search, BlockHashOrNumber::Number(number), unknown).await?
            }
            UnknownBlock::Hash { hash } => self.state(search, BlockHashOrNumber::Hash(hash), unknown).await?,
            UnknownBlock::Bare { number } | UnknownBlock::History { number, .. } => {
                self.contents(search, BlockHashOrNumber::Number(number), unknown).await?
            }
            UnknownBlock::Contents { block } => self.contents(search, block, unknown).await?,
            UnknownBlock::Transaction { hash } => {
                let ask = Ask::<Option<TransactionPlace>>::typed("eth_getTransactionByHash", &(hash,));
                let found = search.upstream.one(ask, search.deadline.into()).await.map_err(FetchError::from)?;
                let Some(block) = found.and_then(|place| place.block_hash) else { return Err(unknown.into()) };
                self.contents(search, BlockHashOrNumber::Hash(block), unknown).await?
            }
            unknown => return Err(unknown.into()),
        };
        Ok(Arc::new(search.published.with_past(&past)))
    }

    /// Returns the state after a block.
    async fn state(&self, search: PastSearch<'_>, id: BlockHashOrNumber, unknown: UnknownBlock) -> Result<Past> {
        let snapshot = match self.get(|known| search.is_named(&known.head, id)) {
            Some(snapshot) => snapshot,
            None => self.put(self.fetch(search, id, unknown).await?),
        };
        self.trim();
        search.check_canonical(&snapshot.head, id, unknown).await?;
        Ok(Past { states: vec![snapshot], blocks: Vec::new() })
    }

    /// Returns a block with its transactions and receipts, and the state before it, unless that is retained.
    async fn contents(&self, search: PastSearch<'_>, id: BlockHashOrNumber, unknown: UnknownBlock) -> Result<Past> {
        let is_cached = |number| self.blocks.lock().iter().any(|block| block.number() == number);
        let named = match id.as_number().filter(|number| !search.is_final(*number) && is_cached(*number)) {
            // The name of a block is cheaper than the block.
            Some(number) => BlockHashOrNumber::Hash(search.hash_of(number).await?),
            None => id,
        };
        let known = {
            let mut blocks = self.blocks.lock();
            let at = blocks.iter().position(|block| search.is_named(block, named));
            let known = at.and_then(|at| blocks.remove(at));
            blocks.extend(known.clone());
            known
        };
        let before = async |block: &Header| {
            let parent = block.number.checked_sub(1).filter(|parent| search.published.state_after(*parent).is_none());
            let parent_hash = BlockHashOrNumber::Hash(block.parent_hash);
            match parent {
                Some(_) => match self.get(|known| search.is_named(&known.head, parent_hash)) {
                    Some(known) => Ok(Some(known)),
                    None => Ok(Some(self.put(self.fetch(search, parent_hash, unknown).await?))),
                },
                None => Ok::<_, RpcError>(None),
            }
        };
        let (block, state) = match known {
            Some(block) => {
                let state = before(&block.header).await?;
                (block, state)
            }
            None => {
                let deadline = search.deadline.into();
                let json = search.upstream.block(named, deadline).await.map_err(FetchError::from)?;
                let Some(json) = json else { return Err(unknown.into()) };
                let unusable = |error: BlockError| FetchError::Unavailable(format!("upstream: a past block: {error}"));
                let block =
                    UpstreamBlock::read(json.get(), search.spec.family(), |_, _| None).await.map_err(unusable)?;
                block.check_transactions().map_err(unusable)?;
                if matches!(named, BlockHashOrNumber::Hash(hash) if hash != block.hash()) {
                    return Err(unknown.into());
                }
                let receipts = AnnouncedReceipts::ask(search.upstream, &block, deadline);
                let (receipts, state) = futures::join!(receipts, before(&block.header));
                let (number, block) = (block.number(), block.into_sealed(receipts));
                if block.find_body().is_none() {
                    let text = format!(
                        "the upstream gives no receipts of block {number}, or it has transactions that presim does not know"
                    );
                    return Err(RpcError::new(-32000, text));
                }
                let block = Arc::new(block);
                self.blocks.lock().push_back(block.clone());
                (block, state?)
            }
        };
        self.trim();
        if block.number() > search.published.head().number() {
            return Err(unknown.into());
        }
        search.check_canonical(&block, id, unknown).await?;
        Ok(Past { states: state.into_iter().collect(), blocks: vec![block] })
    }

    /// Fetches the header of a block, and asks for a part of its state, to know whether the upstream has it.
    async fn fetch(
        &self,
        search: PastSearch<'_>,
        id: BlockHashOrNumber,
        unknown: UnknownBlock,
    ) -> Result<Arc<Snapshot>> {
        let PastSearch { upstream, deadline, .. } = search;
        let nullable = |answer: &RawValue| Ok((answer.get() != "null").then(|| answer.to_owned()));
        let (block, at) = match id {
            BlockHashOrNumber::Hash(hash) => (
                Ask::new("eth_getBlockByHash", &(hash, false), nullable),
                BlockId::Hash(RpcBlockHash { block_hash: hash, require_canonical: Some(false) }),
            ),
            BlockHashOrNumber::Number(number) => {
                let at = BlockNumberOrTag::Number(number);
                (Ask::new("eth_getBlockByNumber", &(at, false), nullable), BlockId::Number(at))
            }
        };
        // A node without the state returns an error in its own words, or null. It is not asked again.
        let probe = Ask::new("eth_getBalance", &(Address::ZERO, at), nullable);
        let mut answers = upstream.all(vec![block, probe], deadline.into()).await.into_iter();
        let block = answers.next().unwrap_or(Ok(None)).map_err(FetchError::from)?;
        let Some(block) = block else { return Err(unknown.into()) };
        let header = named_header(&block).map_err(|error| {
            FetchError::Unavailable(format!("upstream: the header of a past block cannot be read: {error}"))
        })?;
        if let Some(known) = self.get(|known| known.head_hash() == header.hash()) {
            return Ok(known);
        }
        let number = header.number;
        search.check_rules(number)?;
        match answers.next() {
            Some(Ok(Some(_))) => {}
            Some(Err(error)) if !error.is_answer() => return Err(FetchError::from(error).into()),
            _ => {
                let ask = Ask::<NodeCapabilities>::typed("eth_capabilities", &());
                let oldest = upstream.one(ask, deadline.into()).await.map(|can| can.state.oldest_block.to::<u64>());
                let oldest =
                    oldest.map_or_else(|_| String::new(), |oldest| format!(": its oldest is that of block {oldest}"));
                let text = format!(
                    "the upstream does not have the state of block {number} ({}) any more{oldest}",
                    header.hash()
                );
                return Err(RpcError::new(4444, text));
            }
        }
        let view = RemoteState::begin(
            RemoteSettings { bytes: self.bytes, blocks: 1, is_of_fleet: false },
            number,
            header.hash(),
        );
        let mut hashes = BlockHashes::default();
        if let Some(parent) = number.checked_sub(1) {
            hashes.push(parent, header.parent_hash);
        }
        hashes.push(number, header.hash());
        let block = SealedBlock::bare(header);
        Ok(Arc::new(Snapshot::at_head(World::on(view), Arc::new(block), hashes)))
    }

    /// Returns the state for which `is_it` holds, which then is the one used last.
    fn get(&self, is_it: impl Fn(&Snapshot) -> bool) -> Option<Arc<Snapshot>> {
        let mut known = self.known.lock();
        let at = known.iter().position(|snapshot| is_it(snapshot))?;
        let found = known.remove(at)?;
        known.push_back(found.clone());
        Some(found)
    }

    /// Adds a state as the one used last. Returns the one that is known if another request has added the same block meanwhile.
    fn put(&self, snapshot: Arc<Snapshot>) -> Arc<Snapshot> {
        if let Some(known) = self.get(|known| known.head_hash() == snapshot.head_hash()) {
            return known;
        }
        self.known.lock().push_back(snapshot.clone());
        snapshot
    }

    /// Drops the states used least recently beyond the bounds.
    fn trim(&self) {
        let (mut known, mut blocks) = (self.known.lock(), self.blocks.lock());
        let state_bytes = |state: &Snapshot| state.world.remote().map_or(0, |view| view.state().stats().bytes);
        let body_bytes = |block: &SealedBlock| usize::try_from(block.body_bytes()).unwrap_or(usize::MAX);
        let mut all: usize = known.iter().map(|state| state_bytes(state)).sum();
        let mut bodies: usize = blocks.iter().map(|block| body_bytes(block)).sum();
        // States are worth more: each of their parts has cost a round trip.
        while blocks.len() > Self::MAX_BLOCKS || all + bodies > self.bytes && blocks.len() > 1 {
            let Some(oldest) = blocks.pop_front() else { break };
            bodies -= body_bytes(&oldest);
        }
        while known.len() > Self::MAX_BLOCKS || all + bodies > self.bytes && known.len() > 1 {
            let Some(oldest) = known.pop_front() else { return };
            all = all.saturating_sub(state_bytes(&oldest));
        }
    }
}
