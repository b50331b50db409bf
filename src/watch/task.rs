//! The task of a watch: what it needs, and how it records the ends of runs.

use std::sync::Arc;

use super::{
    bundle::{Bundle, BundleError, StaleReason},
    bundles::StandingRun,
    list::{Watch, WatchList, WatchState},
    listener::{Behind, Listener},
};
use crate::{
    engine::SimulationRules,
    ledger::{Chain, Selector, Snapshot},
    scheduler::{ClientShare, Host},
    state::ReadSet,
};

/// The task that keeps the answers of a watch up to date.
pub struct WatchTask<B: Bundle, L: Listener<B>> {
    /// All watches, of which this is one.
    pub list: Arc<WatchList<B, L>>,
    /// The watch.
    pub watch: Arc<Watch<B, L>>,
    /// The workers and the chain.
    pub host: Arc<Host>,
    /// The rules of the runs.
    pub rules: SimulationRules,
    /// The scheduler's client, to whom the runs count.
    pub flow: Arc<ClientShare>,
    /// Whether bundles at `pending` rest while the feed is broken.
    pub strict_pending: bool,
}

impl<B: Bundle, L: Listener<B>> WatchTask<B, L> {
    /// Returns the snapshot on which the bundles run: the newest, or the newest sealed block. Returns `None` if they
    /// pause because the feed is broken.
    pub(super) fn stands_on(&self, published: &Chain) -> Option<Arc<Snapshot>> {
        let selector = self.watch.selector;
        if self.strict_pending && selector == Selector::Pending && published.feed().problem().is_some() {
            return None;
        }
        let selected = published.select(selector).ok()?;
        // A fallback publishes the canonical state under a new id.
        Some(if selected.state == published.newest.state { published.newest.clone() } else { selected })
    }

    /// If the client's memory does not suffice for an answer, replaces the answer with an error, and its reads with
    /// everything. `room` is the remaining memory.
    pub(super) fn within_room(
        state: &WatchState<B>,
        at: u32,
        run: StandingRun<B::Answer>,
        room: &mut usize,
    ) -> StandingRun<B::Answer> {
        let StandingRun::Answered { answer: Some(answer), reads, gained, is_long } = run else { return run };
        let bytes = state.bundles.growth(at, &answer, &reads);
        if let Some(left) = room.checked_sub(bytes) {
            *room = left;
            return StandingRun::Answered { answer: Some(answer), reads, gained, is_long };
        }
        let answer = state.bundles.bundles()[at as usize].request.failed(BundleError::NoRoom { bytes, left: *room });
        StandingRun::Answered { answer: Some(answer), reads: ReadSet::everything(), gained, is_long }
    }

    /// Adds the recorded end of a bundle's run to news that are late. An answer is added even if it is the one before,
    /// because the bundle was announced as behind. `stale` is the reason that was announced.
    pub(super) fn add_late(
        &self,
        news: &mut L::News,
        state: &WatchState<B>,
        at: u32,
        is_answer: bool,
        stale: Option<&StaleReason>,
    ) {
        let bundle = &state.bundles.bundles()[at as usize];
        if is_answer {
            let answer = bundle.announced.as_ref().and_then(|announced| announced.answer.as_ref());
            self.watch.listener.add_answer(news, &bundle.name, answer);
        }
        if bundle.is_due && (is_answer || bundle.stale.as_ref() != stale) {
            self.watch.listener.add_behind(news, state.behind_of(bundle));
        }
    }

    /// Sends the last news of a snapshot, including which bundles are behind, or late news.
    pub(super) async fn send_end(&self, news: L::News, is_late: bool) {
        {
            let mut state = self.watch.state();
            state.note_complete();
            if !is_late {
                state.bundles.announced_behind = true;
            }
        }
        let behind = |each: &mut dyn FnMut(Behind<'_>)| self.watch.state().behind().for_each(each);
        self.watch.listener.end(news, &behind).await;
        self.watch.news.send_modify(|count| *count += 1);
    }
}
