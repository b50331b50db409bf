//! News of standing bundles, in the form that clients receive.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use schemars::JsonSchema;
use serde_json::Value;

use super::run::NodeBundle;
use crate::{
    ledger::{Selector, SnapshotId},
    rpc::{
        api::{search::result::Found, simulate::SimulatedBlocks},
        json::{
            self, Fields, Json, Object, OrNull, Shape,
            hex::{Fixed, Quantity},
            shapes,
        },
        protocol::error::RpcError,
        run::subscriptions::Subscriptions,
    },
    watch::{self, Behind, BehindNow, Listener, SnapshotName, StandingAnswer, StandingBundle, WatchId, WatchState},
};

/// The standing bundles of a client.
pub type Watch = watch::Watch<NodeBundle, Connections>;

shapes! {
    /// The answers that changed after a snapshot.
    pub Changes['a, C: Iterator<Item = (&'a StandingBundle<Arc<NodeBundle>, Bytes>, &'a StandingAnswer<Bytes>)>]:
        (Option<WatchId>, Selector, &'a WatchState<NodeBundle>, C) => |(watch, selector, state, changed)| let {
        // An answer may be newer than the last fully reported snapshot, so each names its own.
        let changed = changed.map(|(bundle, told)| {
            (selector, &*bundle.name, state.bundles.holds_at(bundle), told.answer.as_ref())
        });
    } {
        /// The name of the bundles, in an answer to `presim_rewatch`.
        watch: Option<Fixed<16>> = watch.map(|id| id.0),
        [flatten] block: ToldBlock = (selector, state.complete_at),
        changed: Vec<ChangedAnswer> = changed,
        /// The bundles whose answers hold only up to a snapshot.
        behind: Vec<BehindBundle> = state.behind().map(|bundle| (selector, bundle)),
    }

    ToldBlock: (Selector, Option<SnapshotName>) => |(selector, name)| let {
        let built = name.filter(|_| selector == Selector::Pending);
    } {
        /// The last snapshot whose news are complete.
        id: Quantity<u64> = name.map_or(0, |name| name.id.0),
        /// The number of the block that is being built there, or of the sealed block on which the bundles run.
        blockNumber: Option<Quantity<u64>> = built.map(|name| name.number).or_else(|| sealed_number(selector, name)),
        timestamp: Option<Quantity<u64>> = built.map(|name| name.timestamp),
        baseFeePerGas: Option<Quantity<u64>> = built.and_then(|name| name.base_fee),
    }

    /// An answer that changed.
    ChangedAnswer: (Selector, &str, Option<SnapshotName>, Option<&Bytes>) => |(selector, bundle, holds_at, answer)| {
        name: String = bundle,
        /// The snapshot for which the answer holds, if it is not the last one whose news are complete.
        id: Option<Quantity<u64>> = holds_at.map(|name| name.id.0),
        blockNumber: Option<Quantity<u64>> = sealed_number(selector, holds_at),
        [flatten] answer: Answer = answer,
    }

    /// A bundle whose answer holds only up to a snapshot.
    BehindBundle: (Selector, Behind<'_>) => |(selector, bundle)| {
        name: String = bundle.name,
        /// The last snapshot for which the answer holds. Null if there is no answer.
        id: Option<Quantity<u64>> = Some(OrNull(bundle.holds_at.map(|name| name.id.0))),
        blockNumber: Option<Quantity<u64>> = sealed_number(selector, bundle.holds_at),
        /// The reason why the bundle does not run.
        stale: Option<RunError> = bundle.stale.map(|reason| Json(RpcError::from(reason.clone()).into_object())),
    }
}

#[derive(JsonSchema)]
#[expect(dead_code, reason = "one of the members is written")]
struct Answer {
    /// The result of the bundle's method.
    result: Option<WatchedResult>,
    error: Option<RunError>,
    /// Whether the objective is not above the client's minimum.
    below: Option<bool>,
}

impl Fields<Option<&Bytes>> for Answer {
    fn write_fields(object: &mut Object<'_>, answer: Option<&Bytes>) {
        object.member(answer.map_or(BELOW, |answer| answer.as_ref()));
    }
}

/// The result of `presim_simulate` or `presim_search`.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "the run writes it")]
enum WatchedResult {
    Simulated(SimulatedBlocks),
    Found(Found),
}

/// The error of a bundle that cannot run.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "the error is written")]
struct RunError {
    code: i32,
    message: String,
    data: Option<Value>,
}

/// The length of a list of answers or of names above which a notification is divided.
const NOTIFICATION: usize = 1 << 20;

/// The member for an objective that is not above the client's minimum.
const BELOW: &[u8] = b"\"below\":true";

/// Writes the answer of a poll: the changes after `id`, and the bundles that are behind. The next poll starts from the
/// last snapshot whose news are complete, so that it includes late answers.
pub fn write_results(watch: &Watch, id: SnapshotId, out: &mut Vec<u8>) {
    let state = watch.state();
    Changes::write(out, (None, watch.selector, &*state, state.bundles.changed_after(id)));
}

/// Writes the news for a client that has received the news of snapshot `id`, and the bundles that are behind.
pub fn write_rewatch(watch: &Watch, id: SnapshotId, out: &mut Vec<u8>) {
    let state = watch.state();
    Changes::write(out, (Some(watch.id), watch.selector, &*state, state.bundles.news_since(id)));
}

/// Returns the number of the sealed block on whose state bundles run, if they run on sealed blocks. The state of such
/// a block has no id of its own: the id of the snapshot selects the block then opened on it (`pending`).
fn sealed_number(selector: Selector, name: Option<SnapshotName>) -> Option<u64> {
    name.filter(|_| selector == Selector::Latest).map(|name| name.sealed)
}

/// The elements of a JSON list, divided so that each part fits into a notification.
#[derive(Default)]
struct ListParts(VecDeque<Vec<u8>>);

impl ListParts {
    /// Adds an element. Only a part of a single element may be longer than a notification.
    fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let Some(last) = self.0.back_mut() else {
            let mut first = Vec::new();
            write(&mut first);
            self.0.push_back(first);
            return;
        };
        let end = last.len();
        last.push(b',');
        write(last);
        if last.len() > NOTIFICATION {
            let next = last[end + 1..].to_vec();
            last.truncate(end);
            self.0.push_back(next);
        }
    }
}

/// The connection that receives the news of a watch, identified by its subscription.
#[derive(Debug)]
pub struct Connections {
    /// All subscriptions of the node.
    pub subscriptions: Arc<Subscriptions>,
    /// The watch.
    pub id: WatchId,
    /// The snapshots on which the bundles run.
    pub selector: Selector,
}

/// The news of a snapshot in parts, or late answers after the last part.
pub struct News {
    selector: Selector,
    /// The snapshot for which the answers hold.
    name: SnapshotName,
    /// Whether the last part of the current snapshot was sent before.
    is_late: bool,
    /// The connection that receives the parts, by its subscription, and the number of parts written.
    sent: (Option<u64>, usize),
    /// The answers to send.
    changed: ListParts,
    /// The bundles to report as behind. A snapshot's are known at its end.
    behind: ListParts,
}

impl Listener<NodeBundle> for Connections {
    type News = News;

    fn is_there(&self) -> bool {
        self.connection().is_some()
    }

    fn begin(&self, name: SnapshotName, is_late: bool) -> News {
        let (changed, behind) = (ListParts::default(), ListParts::default());
        News { selector: self.selector, name, is_late, sent: (None, 0), changed, behind }
    }

    fn add_answer(&self, news: &mut News, bundle: &str, answer: Option<&Bytes>) {
        news.changed.add(|out| ChangedAnswer::write(out, (self.selector, bundle, None, answer)));
    }

    fn add_behind(&self, news: &mut News, bundle: Behind<'_>) {
        news.behind.add(|out| BehindBundle::write(out, (self.selector, bundle)));
    }

    async fn send(&self, news: &mut News) {
        while let Some(part) = news.part(self.connection()) {
            self.notify(news, part).await;
        }
    }

    async fn end(&self, mut news: News, behind: &BehindNow<'_>) {
        let mut connection = self.connection();
        loop {
            for part in news.end(connection, behind) {
                self.notify(&news, part).await;
            }
            // A connection that takes the watch over meanwhile has the answers, but not the end of the snapshot.
            connection = self.connection();
            if connection.is_none() || connection == news.sent.0 {
                break;
            }
        }
    }

    fn close(&self) {
        self.subscriptions.end_watch(self.id);
    }
}

impl Connections {
    fn connection(&self) -> Option<u64> {
        self.subscriptions.watcher(self.id)
    }

    /// Sends news to their connection, unless another connection has taken the watch over.
    async fn notify(&self, news: &News, text: Vec<u8>) {
        if let Some(connection) = news.sent.0 {
            let text = self.subscriptions.memory().shared_text(text);
            self.subscriptions.notify_watcher(connection, &text).await;
        }
    }
}

impl News {
    /// Switches to a connection. A connection that takes the watch over counts the parts from zero.
    fn turn_to(&mut self, connection: Option<u64>) {
        if self.sent.0 != connection {
            self.sent = (connection, 0);
        }
    }

    /// Returns a part for a connection, if there is one to send.
    fn part(&mut self, connection: Option<u64>) -> Option<Vec<u8>> {
        self.turn_to(connection);
        let changed = self.changed.0.pop_front()?;
        Some(self.write(&changed, b"", false))
    }

    /// Returns the last parts for a connection, with the bundles that are behind.
    fn end(&mut self, connection: Option<u64>, behind_now: &BehindNow<'_>) -> Vec<Vec<u8>> {
        self.turn_to(connection);
        let mut parts = Vec::new();
        if self.is_late {
            while !self.changed.0.is_empty() || !self.behind.0.is_empty() {
                let [changed, behind] = [&mut self.changed, &mut self.behind].map(|list| list.0.pop_front());
                parts.push(self.write(&changed.unwrap_or_default(), &behind.unwrap_or_default(), false));
            }
            return parts;
        }
        let mut behind = ListParts::default();
        behind_now(&mut |bundle| behind.add(|out| BehindBundle::write(out, (self.selector, bundle))));
        let mut behind = behind.0;
        let first = behind.pop_front().unwrap_or_default();
        // The last answers and the first names may share a part.
        let fits = |changed: &Vec<u8>| changed.len() + first.len() <= NOTIFICATION;
        let shared = if self.changed.0.back().is_none_or(fits) { self.changed.0.pop_back() } else { None };
        parts.extend(std::iter::from_fn(|| self.part(connection)));
        parts.push(self.write(&shared.unwrap_or_default(), &first, behind.is_empty()));
        while let Some(names) = behind.pop_front() {
            parts.push(self.write(b"", &names, behind.is_empty()));
        }
        parts
    }

    fn write(&mut self, changed: &[u8], behind: &[u8], is_last: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(changed.len() + behind.len() + 192);
        let mut object = Object::new(&mut out);
        ToldBlock::write_fields(&mut object, (self.selector, Some(self.name)));
        if self.is_late {
            json::value(object.key("late"), &true);
        } else {
            json::value(object.key("part"), &self.sent.1);
            json::value(object.key("last"), &is_last);
            self.sent.1 += 1;
        }
        object.key("changed").extend_from_slice(&[b"[", changed, b"]"].concat());
        object.key("behind").extend_from_slice(&[b"[", behind, b"]"].concat());
        object.end();
        out
    }
}
