//! The parts of a live chain, and the bounds with which it is followed.

use std::{sync::Arc, time::Duration};

use alloy_primitives::B256;
use tokio::time::Instant;

use super::flashblocks::{Events, FlashblockSequence};
use crate::{
    chain::ChainSpec,
    state::{FetchError, Held, Missed},
    upstream::{Fetcher, Heads, Hints, Prestate, Upstream},
};

/// The pause before a failed fetch of state is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// The parts and the settings with which a live chain is followed.
#[derive(Debug)]
pub struct LiveSource {
    /// The chain.
    pub spec: ChainSpec,
    /// The upstream.
    pub upstream: Arc<Upstream>,
    /// Fetches state from the upstream.
    pub fetcher: Arc<Fetcher>,
    /// The upstream's newest block, as it changes.
    pub heads: Heads,
    /// The stream of sub-blocks, if there is one.
    pub flashblocks: Option<FlashblockSource>,
    /// Bounds.
    pub limits: LiveLimits,
}

/// A stream of sub-blocks, and its rules.
#[derive(Debug)]
pub struct FlashblockSource {
    /// The stream.
    pub events: Events,
    /// The state machine of the sub-blocks.
    pub rules: FlashblockSequence,
}

/// Bounds of a live chain.
#[derive(Clone, Copy, Debug)]
pub struct LiveLimits {
    /// The time-out for the upstream to return a block, or the state for a sub-block.
    pub wait: Duration,
    /// The time for executing a canonical block, fetching included.
    pub execute: Duration,
    /// The time between the sub-blocks of a stream, past which a sub-block counts as late.
    pub sub_block: Duration,
    /// The time without sub-blocks after which a stream counts as broken.
    pub silent: Duration,
    /// The lag past which `pending` is the canonical head; `None` if it may lag as long as it does.
    pub max_lag: Option<Duration>,
    /// The most bytes of sub-blocks that wait to be applied.
    pub held: usize,
    /// Whether blocks whose headers do not match their hashes are rejected.
    pub verify: bool,
    /// The number of blocks after the one being executed whose state is fetched in advance.
    pub lookahead: usize,
    /// The number of blocks to catch up with block by block. A larger gap is skipped.
    pub gap: usize,
    /// The time for which the upstream may not have a block that it has announced.
    pub late: Duration,
}

/// The parts of a live chain that tasks other than the feed's own need.
#[derive(Clone, Debug)]
pub(super) struct LiveChain {
    pub(super) spec: Arc<ChainSpec>,
    pub(super) upstream: Arc<Upstream>,
    pub(super) fetcher: Arc<Fetcher>,
    pub(super) limits: LiveLimits,
}

impl LiveChain {
    /// Fetches the state that runs have missed, as [`fetch`](Self::fetch) does, and has the upstream trace the block with this hash
    /// meanwhile. With proofs, the trace only names the keys to fetch.
    pub(super) async fn fetch_traced(self, missed: Missed, hash: B256) -> Result<(Held, Option<Prestate>), FetchError> {
        let view = missed.by_view().next().map(|(view, _)| view.clone());
        let fetch = async {
            match missed.is_empty() {
                true => Ok(Held::default()),
                false => self.clone().fetch(missed, Hints::default()).await,
            }
        };
        let (held, prestate) = futures::join!(fetch, self.fetcher.prestate(hash));
        let mut held = held?;
        if !self.fetcher.verifies() {
            return Ok((held, prestate));
        }
        if let (Some(view), Some(prestate)) = (view, &prestate) {
            let unknown = prestate.keys().filter(|key| !view.knows(key));
            held.extend(self.clone().fetch(Missed::at(&view, unknown), Hints::default()).await?);
        }
        // Nothing is taken from a trace without proof.
        Ok((held, prestate.map(|_| Prestate::default())))
    }

    /// Fetches and holds the state that runs have missed, and fetches the values that `hints` predict. Errors are
    /// returned after a pause.
    pub(super) async fn fetch(self, missed: Missed, hints: Hints) -> Result<Held, FetchError> {
        let hints = (!hints.is_empty()).then_some(hints);
        let fetched = self.fetcher.fetch(&missed, hints.as_ref(), Instant::now() + self.limits.wait).await;
        if fetched.is_err() {
            tokio::time::sleep(RETRY_PAUSE).await;
        }
        fetched
    }
}
