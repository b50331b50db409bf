//! States of an upstream's blocks that are older than those that are retained: fetched for requests that name them, and cached.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use alloy_consensus::Header;
use alloy_eips::{BlockId, BlockNumberOrTag, RpcBlockHash};
use alloy_primitives::{Address, Sealed};
use serde_json::value::RawValue;

use crate::{
    chain::{BlockHashes, SealedBlock},
    ledger::{Chain, Snapshot, UnknownBlock},
    lock::Mutex,
    objects,
    rpc::protocol::error::{Result, RpcError},
    state::{FetchError, RemoteSettings, RemoteState, World},
    upstream::{Ask, BlockName, Upstream},
};

/// The states of past blocks, least recently used first. Each has its own cache.
///
/// Only canonical blocks are found. The upstream says which they are, at each request unless the block is final.
#[derive(Debug)]
pub struct PastStates {
    /// The most bytes of all of them together.
    bytes: usize,
    known: Mutex<VecDeque<Arc<Snapshot>>>,
}

impl PastStates {
    /// The most blocks, however small their caches are.
    const MAX_BLOCKS: usize = 1_024;

    /// Creates an empty cache of at most so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self { bytes, known: Mutex::default() }
    }

    /// Returns the chain with the state of the block that `unknown` says it does not retain.
    ///
    /// # Errors
    ///
    /// Returns `unknown` if the upstream has no such block either, 4444 if it has the block and not its state, and an error if it does
    /// not answer.
    pub async fn find(
        &self,
        upstream: &Upstream,
        published: &Chain,
        unknown: UnknownBlock,
        deadline: Instant,
    ) -> Result<Arc<Chain>> {
        let id = match unknown {
            UnknownBlock::Pruned { number, .. } => BlockId::number(number),
            UnknownBlock::Hash { hash } => {
                BlockId::Hash(RpcBlockHash { block_hash: hash, require_canonical: Some(false) })
            }
            unknown => return Err(unknown.into()),
        };
        let is_final = |number: u64| published.finalized().is_some_and(|finalized| number <= finalized);
        let known = self.get(|known| match id {
            BlockId::Hash(hash) => known.head_hash() == hash.block_hash,
            BlockId::Number(number) => number.as_number() == Some(known.head.number()) && is_final(known.head.number()),
        });
        let snapshot = match known {
            Some(snapshot) => snapshot,
            None => self.put(self.fetch(upstream, id, unknown, deadline).await?),
        };
        self.trim();
        let number = snapshot.head.number();
        if let BlockId::Hash(hash) = id
            && !is_final(number)
        {
            // The upstream may know blocks that are not canonical, by their hashes. Nothing is answered from them.
            let named = Ask::<BlockName>::typed("eth_getBlockByNumber", &(BlockNumberOrTag::Number(number), false));
            let named = upstream.one(named, deadline.into()).await.map_err(FetchError::from)?;
            if named.hash != hash.block_hash {
                return Err(unknown.into());
            }
        }
        Ok(Arc::new(published.with_past(snapshot)))
    }

    /// Fetches the header of a block, and asks for a part of its state, to know whether the upstream has it.
    async fn fetch(
        &self,
        upstream: &Upstream,
        id: BlockId,
        unknown: UnknownBlock,
        deadline: Instant,
    ) -> Result<Arc<Snapshot>> {
        let nullable = |answer: &RawValue| Ok((answer.get() != "null").then(|| answer.to_owned()));
        let block = match id {
            BlockId::Hash(hash) => Ask::new("eth_getBlockByHash", &(hash.block_hash, false), nullable),
            BlockId::Number(number) => Ask::new("eth_getBlockByNumber", &(number, false), nullable),
        };
        // A node without the state says so, or answers null, in whatever words: it is not asked again.
        let probe = Ask::new("eth_getBalance", &(Address::ZERO, id), nullable);
        let mut answers = upstream.all(vec![block, probe], deadline.into()).await.into_iter();
        let block = answers.next().unwrap_or(Ok(None)).map_err(FetchError::from)?;
        let Some(block) = block else { return Err(unknown.into()) };
        let (name, header) = read(&block).map_err(|error| {
            FetchError::Unavailable(format!("upstream: the header of a past block cannot be read: {error}"))
        })?;
        if let Some(known) = self.get(|known| known.head_hash() == name.hash) {
            return Ok(known);
        }
        let number = header.number;
        match answers.next() {
            Some(Ok(Some(_))) => {}
            Some(Err(error)) if !error.is_answer() => return Err(FetchError::from(error).into()),
            _ => {
                let text = format!("the upstream does not have the state of block {number} ({}) any more", name.hash);
                return Err(RpcError::new(4444, text));
            }
        }
        let view =
            RemoteState::begin(RemoteSettings { bytes: self.bytes, blocks: 1, is_of_fleet: false }, number, name.hash);
        let mut hashes = BlockHashes::default();
        if let Some(parent) = number.checked_sub(1) {
            hashes.push(parent, header.parent_hash);
        }
        hashes.push(number, name.hash);
        let block = SealedBlock::bare(Sealed::new_unchecked(header, name.hash));
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
        let mut known = self.known.lock();
        let bytes = |snapshot: &Snapshot| snapshot.world.remote().map_or(0, |view| view.state().stats().bytes);
        let mut all: usize = known.iter().map(|snapshot| bytes(snapshot)).sum();
        while known.len() > Self::MAX_BLOCKS || all > self.bytes && known.len() > 1 {
            let Some(oldest) = known.pop_front() else { return };
            all = all.saturating_sub(bytes(&oldest));
        }
    }
}

/// Reads the name and the header of a block.
fn read(block: &RawValue) -> Result<(BlockName, Header), serde_json::Error> {
    Ok((objects::from_str(block.get())?, objects::from_str(block.get())?))
}
