//! News of standing bundles, as clients are told it.

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
            self, Object,
            hex::{Fixed, Quantity},
        },
        protocol::error::RpcError,
        run::subscriptions::Subscriptions,
    },
    watch::{self, Behind, BehindNow, Listener, SnapshotName, StandingAnswer, StandingBundle, WatchId, WatchState},
};

/// The bundles that a client lets stand.
pub type Watch = watch::Watch<NodeBundle, Connections>;

/// The answers that changed after a snapshot.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "the functions below write it")]
pub struct Changes {
    /// The name of the bundles, in an answer to `presim_rewatch`.
    watch: Option<Fixed<16>>,
    /// The last snapshot of which all is told.
    id: Quantity<u64>,
    /// The number of the block that is being built there, or of the sealed block on which the bundles stand.
    block_number: Option<Quantity<u64>>,
    timestamp: Option<Quantity<u64>>,
    base_fee_per_gas: Option<Quantity<u64>>,
    changed: Vec<ChangedAnswer>,
    /// The bundles whose answers hold only up to a snapshot.
    behind: Vec<BehindBundle>,
}

/// An answer that changed.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "the functions below write it")]
struct ChangedAnswer {
    name: String,
    /// The snapshot for which the answer holds, if it is not the last one of which all is told.
    id: Option<Quantity<u64>>,
    block_number: Option<Quantity<u64>>,
    /// The result of the bundle's method.
    result: Option<WatchedResult>,
    error: Option<RunError>,
    /// Whether the objective is not above the one that is asked for.
    below: Option<bool>,
}

/// The result of `presim_simulate` or `presim_search`.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "the functions below write it")]
enum WatchedResult {
    Simulated(SimulatedBlocks),
    Found(Found),
}

/// The error of a bundle that cannot run.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "the functions below write it")]
struct RunError {
    code: i32,
    message: String,
    data: Option<Value>,
}

/// A bundle whose answer holds only up to a snapshot.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "the functions below write it")]
struct BehindBundle {
    name: String,
    /// The last snapshot for which the answer holds. Null if there is no answer.
    id: Option<Quantity<u64>>,
    block_number: Option<Quantity<u64>>,
    /// The reason why the bundle does not run.
    stale: Option<RunError>,
}

/// The length of a list of answers or of names above which a notification is divided.
const NOTIFICATION: usize = 1 << 20;

/// The member that tells that the objective of a bundle is not above what the client asks for.
const BELOW: &[u8] = b"\"below\":true";

/// Writes the answer of a poll: what changed after `id`, and what is behind. The next poll is from the last snapshot of
/// which nothing more will be told, so that it tells what comes late.
pub fn write_results(watch: &Watch, id: SnapshotId, out: &mut Vec<u8>) {
    let state = watch.state();
    let object = Object::new(out);
    write_changes(object, watch.selector, state.bundles.changed_after(id), &state);
}

/// Writes what a client lacks that was told the news of snapshot `id`, and what is behind.
pub fn write_rewatch(watch: &Watch, id: SnapshotId, out: &mut Vec<u8>) {
    let state = watch.state();
    let mut object = Object::new(out);
    json::string(object.key("watch"), &watch.id.to_string());
    write_changes(object, watch.selector, state.bundles.news_since(id), &state);
}

fn write_changes<'a>(
    mut object: Object<'_>,
    selector: Selector,
    changed: impl Iterator<Item = (&'a StandingBundle<Arc<NodeBundle>, Bytes>, &'a StandingAnswer<Bytes>)>,
    state: &WatchState<NodeBundle>,
) {
    match state.complete_at {
        Some(complete_at) => write_block(&mut object, selector, complete_at),
        None => _ = object.quantity("id", 0),
    }
    // An answer may be newer than the snapshot of which all is told, so each names its own.
    json::list(object.key("changed"), changed, |out, (bundle, told)| {
        let name = state.bundles.holds_at(bundle);
        write_answer(out, selector, &bundle.name, name, told.answer.as_ref());
    });
    json::list(object.key("behind"), state.behind(), |out, bundle| write_behind(out, selector, bundle));
    object.end();
}

/// Writes the names of a snapshot: its id, and the sealed block on whose state bundles run if they stand on sealed
/// blocks. Such a block's state has no id of its own: the id selects what `pending` was, the block opened on it.
fn write_name(object: &mut Object<'_>, selector: Selector, name: SnapshotName) {
    object.quantity("id", name.id.0);
    if selector == Selector::Latest {
        object.quantity("blockNumber", name.sealed);
    }
}

/// Writes the names of a snapshot and of the block that is being built there, if bundles stand on it.
fn write_block(object: &mut Object<'_>, selector: Selector, name: SnapshotName) {
    write_name(object, selector, name);
    if selector == Selector::Pending {
        object.quantity("blockNumber", name.number).quantity("timestamp", name.timestamp);
        object.optional_quantity("baseFeePerGas", name.base_fee);
    }
}

/// Writes an answer, and the snapshot for which it holds if that is not the one of the whole notification.
fn write_answer(
    out: &mut Vec<u8>,
    selector: Selector,
    bundle: &str,
    name: Option<SnapshotName>,
    answer: Option<&Bytes>,
) {
    let mut object = Object::new(out);
    json::string(object.key("name"), bundle);
    if let Some(name) = name {
        write_name(&mut object, selector, name);
    }
    object.member(answer.map_or(BELOW, |answer| answer.as_ref()));
    object.end();
}

fn write_behind(out: &mut Vec<u8>, selector: Selector, bundle: Behind<'_>) {
    let mut object = Object::new(out);
    json::string(object.key("name"), bundle.name);
    match bundle.holds_at {
        Some(name) => write_name(&mut object, selector, name),
        None => object.key("id").extend_from_slice(b"null"),
    }
    if let Some(reason) = bundle.stale {
        json::value(object.key("stale"), &RpcError::from(reason.clone()).into_object());
    }
    object.end();
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

/// The connection that is told of a watch, by its subscription.
#[derive(Debug)]
pub struct Connections {
    /// All subscriptions of the node.
    pub subscriptions: Arc<Subscriptions>,
    /// The watch.
    pub id: WatchId,
    /// The snapshots on which the bundles stand.
    pub selector: Selector,
}

/// The news of a snapshot in parts, or what comes after the last of them.
pub struct News {
    selector: Selector,
    /// The snapshot for which the answers hold.
    name: SnapshotName,
    /// Whether the last part of the current snapshot was told before.
    is_late: bool,
    /// The connection that the parts are for, by its subscription, and the number of those written.
    sent: (Option<u64>, usize),
    /// The answers that are to be told.
    changed: ListParts,
    /// The bundles that are to be told as behind. Those of a snapshot are known at its end.
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
        news.changed.add(|out| write_answer(out, self.selector, bundle, None, answer));
    }

    fn add_behind(&self, news: &mut News, bundle: Behind<'_>) {
        news.behind.add(|out| write_behind(out, self.selector, bundle));
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

    /// Tells news to the connection that they are for, unless another has taken the watch over.
    async fn notify(&self, news: &News, text: Vec<u8>) {
        if let Some(connection) = news.sent.0 {
            let text = self.subscriptions.memory().shared_text(text);
            self.subscriptions.notify_watcher(connection, &text).await;
        }
    }
}

impl News {
    /// Turns to a connection. One that takes the watch over counts the parts that it is told.
    fn turn_to(&mut self, connection: Option<u64>) {
        if self.sent.0 != connection {
            self.sent = (connection, 0);
        }
    }

    /// Returns a part for a connection, if there is one to tell.
    fn part(&mut self, connection: Option<u64>) -> Option<Vec<u8>> {
        self.turn_to(connection);
        let changed = self.changed.0.pop_front()?;
        Some(self.write(&changed, b"", false))
    }

    /// Returns the last parts for a connection, with what is behind.
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
        behind_now(&mut |bundle| behind.add(|out| write_behind(out, self.selector, bundle)));
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
        write_block(&mut object, self.selector, self.name);
        if self.is_late {
            json::value(object.key("late"), &true);
        } else {
            object.number("part", self.sent.1);
            json::value(object.key("last"), &is_last);
            self.sent.1 += 1;
        }
        object.key("changed").extend_from_slice(&[b"[", changed, b"]"].concat());
        object.key("behind").extend_from_slice(&[b"[", behind, b"]"].concat());
        object.end();
        out
    }
}
