//! `presim_feed`: the state of the feed, sent on each change.

use alloy_primitives::map::HashSet;
use serde::Serialize;

use super::round::Round;
use crate::{
    ledger::{Chain, FeedProblem, Verified},
    rpc::{
        json,
        run::subscriptions::{Subject, Subscription},
    },
};

/// The state of the feed, its cause and its lag if there are any, and how far the newest snapshot is verified.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FeedNotification {
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lag_ms: Option<u128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lag_sub_blocks: Option<u32>,
    verified: &'static str,
}

/// The state of the feed that was announced last, and the subscriptions that have received one.
#[derive(Debug, Default)]
pub struct FeedAnnouncer {
    announced: Option<(&'static str, Option<FeedProblem>, Verified)>,
    started: HashSet<u64>,
}

impl FeedAnnouncer {
    /// Sends the state of the feed to all of its subscriptions if it has changed, otherwise to the new ones. A changed
    /// lag alone does not count.
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
                let notification = || FeedNotification {
                    state: feed.as_str(),
                    cause: feed.cause().map(FeedProblem::as_str),
                    lag_ms: feed.lag().map(|lag| lag.ms()),
                    lag_sub_blocks: feed.lag().map(|lag| lag.waiting),
                    verified: published.newest.verified.as_str(),
                };
                let text = text.get_or_insert_with(|| round.encoded(|out| json::value(out, &notification())));
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
