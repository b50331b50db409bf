//! The state that transactions will read: found by running them before their turn, and fetched meanwhile.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use alloy_consensus::transaction::Recovered;
use alloy_primitives::B256;
use futures::{FutureExt, TryFutureExt, future::LocalBoxFuture};
use tokio::time::timeout;

use super::{error::LiveError, import::Predicted, parts::LiveChain};
use crate::{
    chain::ChainTx,
    engine::look_ahead,
    ledger::Snapshot,
    state::{FetchError, Held, Missed},
    upstream::{Hints, UpstreamBlock},
};

/// The transactions that are run at once. Between two such parts, sub-blocks are taken.
const PART: usize = 64;

/// The fetched state, and the block's content that the upstream sent along with it.
type Fetched = Result<(Held, Predicted), FetchError>;

/// The search for the state that the transactions of a block or of a sub-block will read.
///
/// The transactions run without order or effect on an older state, in rounds. The state that a round has missed is fetched, and the
/// next round runs the transactions that have missed something. Reads that depend on the blocks in between are found when the
/// block is executed.
#[derive(Default)]
pub(super) struct Lookahead {
    /// The transactions, by index, that have not yet run without missing state. `None` before the first round.
    unknown: Option<Vec<usize>>,
    /// The transactions that are still to be run in this round.
    to_run: Vec<usize>,
    /// The state that was missed in this round.
    missed: Missed,
    /// Whether the upstream has been asked for access lists.
    has_hinted: bool,
    /// The fetch of the state that was missed in the round before.
    fetch: Option<LocalBoxFuture<'static, Fetched>>,
    /// The state that was fetched.
    held: Held,
    /// The content of the block that the upstream has sent.
    predicted: Predicted,
}

impl Lookahead {
    /// Returns whether state is fetched.
    pub const fn is_fetching(&self) -> bool {
        self.fetch.is_some()
    }

    /// Returns whether a look may find state to fetch.
    pub fn wants_prefetch(&self) -> bool {
        let has_more = |unknown: &Vec<usize>| !unknown.is_empty() || !self.to_run.is_empty();
        !self.is_fetching() && self.unknown.as_ref().is_none_or(has_more)
    }

    /// Returns whether there was no look yet.
    pub const fn is_new(&self) -> bool {
        self.unknown.is_none()
    }

    /// Looks no further.
    pub fn end(&mut self) {
        self.unknown = Some(Vec::new());
        self.to_run.clear();
    }

    /// Runs the next transactions, from the one at `from` on. At the end of a round, fetches the state that it has missed, and
    /// `missed`.
    pub fn prefetch(
        &mut self,
        chain: &LiveChain,
        on: &Snapshot,
        transactions: &[Recovered<ChainTx>],
        from: usize,
        missed: Missed,
    ) {
        let unknown = self.unknown.get_or_insert_with(|| (0..transactions.len()).collect());
        unknown.retain(|index| *index >= from);
        if self.to_run.is_empty() {
            self.to_run = std::mem::take(unknown);
        }
        self.to_run.retain(|index| *index >= from);
        self.missed.extend(missed);
        let rest = self.to_run.split_off(self.to_run.len().min(PART));
        let part = std::mem::replace(&mut self.to_run, rest);
        let missed = &mut self.missed;
        // A transaction that cannot run is found when it is executed.
        let look = || Ok::<_, LiveError>(look_ahead(&chain.spec, on, transactions, &part, missed));
        let still = LiveError::unless_panicked(look);
        unknown.extend(still.unwrap_or_default());
        if !self.to_run.is_empty() || self.missed.is_empty() {
            return;
        }
        // Access lists are asked of the upstream once.
        let hints = match std::mem::replace(&mut self.has_hinted, true) {
            false => Hints::of_transactions(unknown.iter().filter_map(|index| transactions.get(*index))),
            true => Hints::default(),
        };
        let fetch = chain.clone().fetch(std::mem::take(&mut self.missed), hints);
        self.fetch = Some(fetch.map_ok(|held| (held, Predicted::default())).boxed_local());
    }

    /// Asks the upstream to trace the block with this hash, and fetches `missed` meanwhile. After a trace there is nothing left to
    /// look for.
    pub fn trace(&mut self, chain: &LiveChain, hash: B256, missed: Missed) {
        let traced = chain.clone().fetch_traced(missed, hash);
        let traced = traced.map_ok(|(held, prestate)| (held, Predicted { prestate, listed: None }));
        self.fetch = Some(traced.boxed_local());
    }

    /// Asks the upstream for the access list of a block and for its receipts, after which there is nothing left to look for.
    pub fn list(&mut self, chain: &LiveChain, block: UpstreamBlock) {
        let listed = chain.clone().listed(block);
        let listed = listed.map(|listed| Ok((Held::default(), Predicted { prestate: None, listed })));
        self.fetch = Some(listed.boxed_local());
        self.end();
    }

    /// Waits at most `time` for the state that is being fetched.
    pub fn wait_at_most(&mut self, time: Duration) {
        if let Some(fetch) = self.fetch.take() {
            let fetch = async move { timeout(time, fetch).await.unwrap_or_else(|_| Ok(Default::default())) };
            self.fetch = Some(fetch.boxed_local());
        }
    }

    /// Takes the content of the block that the upstream has sent.
    pub fn take_predicted(&mut self) -> Predicted {
        std::mem::take(&mut self.predicted)
    }

    /// Returns the result of the fetch when it has ended, after which there may be another look.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), FetchError>> {
        let Some(fetch) = &mut self.fetch else { return Poll::Pending };
        let fetched = std::task::ready!(fetch.poll_unpin(context));
        self.fetch = None;
        Poll::Ready(fetched.map(|(held, predicted)| {
            self.held.extend(held);
            if predicted.prestate.is_some() || predicted.listed.is_some() {
                self.predicted = predicted;
                self.end();
            }
        }))
    }
}
