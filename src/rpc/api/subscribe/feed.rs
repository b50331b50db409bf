//! `presim_feed`: the state of the feed, told on each change.

use alloy_primitives::map::HashSet;

use super::round::Round;
use crate::rpc::run::subscriptions::Subscription;
use crate::{
    ledger::{Chain, FeedProblem, Verified},
    rpc::{json, params::Subject},
};

/// The state of the feed that was told last, and the subscriptions that were told one.
#[derive(Debug, Default)]
pub struct FeedAnnouncer {
    announced: Option<(&'static str, Option<FeedProblem>, Verified)>,
    started: HashSet<u64>,
}

impl FeedAnnouncer {
    /// Tells the state of the feed to all of its subscriptions if it has changed, otherwise to the new ones. Another lag
    /// alone is no change.
    pub fn announce(&mut self, published: &Chain, round: &mut Round<'_>) {
        let list = round.list();
        self.started.retain(|id| list.iter().any(|one| one.id == *id));
        let feed = published.feed();
        let state = Some((feed.as_str(), feed.cause(), published.newest.verified));
        let has_changed = self.announced != state;
        self.announced = state;
        let mut text = None;
        for one in list.iter().filter(|one| one.has_begun && one.is_about_feed()) {
            if self.started.insert(one.id) || has_changed {
                let text = text.get_or_insert_with(|| round.encoded(|out| json::feed(out, published)));
                round.send(one, text.clone());
            }
        }
    }
}

impl Subscription {
    pub const fn is_about_feed(&self) -> bool {
        matches!(self.subject, Subject::Feed)
    }
}
