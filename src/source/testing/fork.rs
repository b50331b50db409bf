//! The beginning of a chain that is built here on a block of an upstream's.

use std::{sync::Arc, time::Duration};

use alloy_eips::BlockNumberOrTag;
use alloy_primitives::{Address, U256};
use tokio::time::Instant;

use super::state_file::StateFile;
use crate::{
    chain::ChainSpec,
    ledger::{Chain, FeedState, Retention, Snapshot, SnapshotId},
    source::live::canonical_snapshot,
    state::{AccountChange, CodeCache, FetchError, Held, Overlay, RemoteImage, RemoteSettings, RemoteState},
    telemetry::Metrics,
    upstream::{AnnouncedReceipts, Fetcher, Upstream, UpstreamBlock, UpstreamConfig, UpstreamError},
};

/// The means by which a chain begins on a block of an upstream's.
#[derive(Debug)]
pub struct Forking {
    /// The rules of the chain.
    pub spec: ChainSpec,
    /// The upstream's chain id.
    pub chain_id: u64,
    /// The cache of analysed bytecode.
    pub codes: Arc<CodeCache>,
    /// Fetches the state of the block.
    pub fetcher: Arc<Fetcher>,
    /// The settings of the client of another upstream, but for its URL.
    pub client: UpstreamConfig,
    /// The node's metrics.
    pub metrics: Metrics,
    /// The time that the state which a block reads next may take.
    pub timeout: Duration,
    /// The settings of the cache of the block's state.
    pub cache: RemoteSettings,
    /// The extent of the past that is retained.
    pub kept: Retention,
    /// The health of the feed.
    pub feed: FeedState,
    /// The accounts whose balances are set.
    pub funded: Vec<Address>,
    /// Their balance in wei.
    pub balance: U256,
    /// Accounts of another chain's state, to be set on the fork.
    pub loaded: Option<StateFile>,
}

/// The block of an upstream's on which a chain is to begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForkTarget {
    /// The upstream; `None` for the one that there is.
    pub url: Option<String>,
    /// The number of the block; `None` for the newest.
    pub block: Option<u64>,
}

/// The reason why a chain cannot begin on a block.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ForkError {
    /// The upstream gives no usable answer.
    #[error("the upstream: {0}")]
    Upstream(String),
    /// The upstream is a node of another chain.
    #[error("the upstream's chain is {theirs}, and this fork is of chain {ours}: start another fork for that chain")]
    OtherChain { ours: u64, theirs: u64 },
    /// The upstream does not have the block.
    #[error("the upstream has no block {0}")]
    NoBlock(BlockNumberOrTag),
    /// The state that a block reads is not known.
    #[error(transparent)]
    State(#[from] FetchError),
}

impl From<UpstreamError> for ForkError {
    fn from(error: UpstreamError) -> Self {
        Self::Upstream(error.to_string())
    }
}

/// Returns a block of the upstream's; the newest unless `number` names one.
///
/// # Errors
///
/// Returns a [`ForkError`] if the upstream does not have the block, or gives no usable answer.
pub async fn block(
    upstream: &Upstream,
    spec: &ChainSpec,
    number: Option<u64>,
    deadline: Instant,
) -> Result<UpstreamBlock, ForkError> {
    let id = number.map_or(BlockNumberOrTag::Latest, BlockNumberOrTag::Number);
    let json = upstream.block(id, deadline).await?.ok_or(ForkError::NoBlock(id))?;
    let read = UpstreamBlock::read(json.get(), spec.family(), |_, _| None).await;
    read.map_err(|error| ForkError::Upstream(error.to_string()))
}

impl Forking {
    /// Begins again, on another block, or a block of another node of the same chain.
    ///
    /// # Errors
    ///
    /// Returns a [`ForkError`] if that is not possible. The source of the state is then unchanged.
    pub(super) async fn begin_again(&self, target: ForkTarget) -> Result<Chain, ForkError> {
        let deadline = Instant::now() + self.timeout;
        let other = match target.url {
            None => None,
            Some(url) => Some(self.connect(url, deadline).await?),
        };
        let upstream = other.clone().or_else(|| self.fetcher.upstream());
        let upstream = upstream.ok_or_else(|| ForkError::Upstream("there is none".to_owned()))?;
        let head = block(&upstream, &self.spec, target.block, deadline).await?;
        let before = other.and_then(|other| self.fetcher.turn_to(other));
        let begun = self.begin(&upstream, head, None, SnapshotId::default()).await;
        if let (Err(_), Some(before)) = (&begun, before) {
            self.fetcher.turn_to(before);
        }
        begun
    }

    /// Fetches the state from another node of the same chain.
    ///
    /// # Errors
    ///
    /// Returns a [`ForkError`] if the node does not answer, or is one of another chain.
    pub(super) async fn fetch_from(&self, url: String) -> Result<(), ForkError> {
        let upstream = self.connect(url, Instant::now() + self.timeout).await?;
        self.fetcher.turn_to(upstream);
        Ok(())
    }

    /// Connects to another node of the same chain.
    async fn connect(&self, url: String, deadline: Instant) -> Result<Arc<Upstream>, ForkError> {
        let config = UpstreamConfig { url, ..self.client.clone() };
        let upstream = Arc::new(Upstream::connect(config, &self.metrics)?);
        let (ours, theirs) = (self.chain_id, upstream.chain_id(deadline).await?);
        if ours == theirs { Ok(upstream) } else { Err(ForkError::OtherChain { ours, theirs }) }
    }

    /// Begins on `head`, with the state of it that `image` has. The first snapshot has this id.
    ///
    /// # Errors
    ///
    /// Returns a [`ForkError`] if the state of the accounts that are set is not known.
    pub async fn begin(
        &self,
        upstream: &Upstream,
        head: UpstreamBlock,
        image: Option<RemoteImage>,
        id: SnapshotId,
    ) -> Result<Chain, ForkError> {
        let deadline = Instant::now() + self.timeout;
        let receipts = AnnouncedReceipts::ask(upstream, &head, deadline).await;
        let view = RemoteState::begin(self.cache, head.number(), head.hash());
        if let Some(image) = image {
            view.import(image, &self.codes);
        }
        let theirs = canonical_snapshot(view, head, receipts);
        let (mut held, mut ours) = (Held::default(), theirs.copy());
        let changes: Vec<AccountChange> = loop {
            let mut overlay = Overlay::new(theirs.world.clone(), theirs.hashes.clone());
            self.set(&mut overlay);
            let missed = overlay.take_missed();
            if missed.is_empty() {
                break overlay.changes().cloned().collect();
            }
            held.extend(self.fetcher.fetch(&missed, None, deadline).await?);
        };
        ours.world.apply_many(&changes);
        let mut first = Snapshot::at_head(ours.world, ours.head, ours.hashes);
        first.id = id;
        Ok(Chain::new(first, self.feed, self.kept).forked())
    }

    /// Sets the accounts that are not as the upstream has them.
    fn set(&self, overlay: &mut Overlay) {
        for address in &self.funded {
            overlay.set(*address, Some(self.balance), None, None);
        }
        if let Some(loaded) = &self.loaded {
            loaded.set_in(overlay, &self.codes);
        }
    }
}
