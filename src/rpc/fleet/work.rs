//! Work of other nodes of the fleet, pinned to what was published under one id: parts of batches, searches and watches.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_nats::{Client, HeaderMap};
use bytes::Bytes;
use bytestring::ByteString;
use futures::StreamExt;
use jsonrpsee::types::Id;
use tokio::task::JoinHandle;

use super::{
    AT_ONCE, CLIENT, LEFT, NatsDoor, PATH, Rights, ServedRequests,
    peers::{PeerBeats, PeerIdentity, tell_not_done},
};
use crate::{
    feed::fleet::FleetNames,
    rpc::{
        catch_up::{MIN_SNAPSHOT, min_snapshot},
        dialect::STANDARD,
        memory::AnswerRoom,
        methods::MethodRoute,
        request::{Caller, Request},
    },
    state::{Published, SnapshotId, Snapshots},
};

/// The header that says which part of which work is to be done.
const PART: &str = "x-presim-part";
/// The number of publications that a replica remembers, for nodes that are a little behind it.
const RECENT: usize = 64;

/// A part of a work, for another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkPart {
    /// Entries of a batch, as a batch.
    Entries,
    /// The variants of a search in this range, in the order in which they are listed.
    Variants(Range<usize>),
    /// Standing bundles that are due.
    Standing,
}

impl WorkPart {
    fn write(&self) -> String {
        match self {
            Self::Entries => "entries".to_owned(),
            Self::Standing => "standing".to_owned(),
            Self::Variants(range) => format!("variants {}-{}", range.start, range.end),
        }
    }

    fn read(text: &str) -> Option<Self> {
        match text {
            "entries" => return Some(Self::Entries),
            "standing" => return Some(Self::Standing),
            _ => {}
        }
        let (from, to) = text.strip_prefix("variants ")?.split_once('-')?;
        Some(Self::Variants(from.parse().ok()?..to.parse().ok()?))
    }
}

/// Returns the headers of a part of a caller's work on what was published under `at`, to be done until `deadline`.
pub fn work_headers(part: &WorkPart, caller: &Caller, at: SnapshotId, deadline: Instant) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(PART, part.write());
    headers.insert(MIN_SNAPSHOT, format!("{:#x}", at.0));
    let left = deadline.saturating_duration_since(Instant::now()).as_millis();
    headers.insert(LEFT, left.to_string());
    if std::ptr::eq(caller.dialect, &raw const STANDARD) {
        headers.insert(PATH, "/standard");
    }
    if let Some(client) = &caller.client {
        headers.insert(CLIENT, client.name());
    }
    headers
}

/// The last publications of a node, so that it can answer from one that another node has still as its newest.
#[derive(Debug)]
struct RecentlyPublished {
    recent: Arc<Mutex<VecDeque<Arc<Published>>>>,
    remembering: JoinHandle<()>,
}

impl RecentlyPublished {
    fn begin(snapshots: Arc<Snapshots>) -> Self {
        let recent = Arc::new(Mutex::new(VecDeque::with_capacity(RECENT)));
        let kept = recent.clone();
        let remembering = tokio::spawn(async move {
            let mut changes = snapshots.changes();
            loop {
                changes.borrow_and_update();
                let published = snapshots.load();
                {
                    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                    kept.truncate(RECENT - 1);
                    kept.push_front(published);
                }
                if changes.changed().await.is_err() {
                    return;
                }
            }
        });
        Self { recent, remembering }
    }

    /// Returns what was published when `last` was the last change, if that is remembered.
    fn find(&self, last: SnapshotId) -> Option<Arc<Published>> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.iter().find(|published| published.last == last && !published.feed().is_degraded()).cloned()
    }
}

impl Drop for RecentlyPublished {
    fn drop(&mut self) {
        self.remembering.abort();
    }
}

/// Says that this replica is there, and does the work that other nodes of the fleet send it.
///
/// # Errors
///
/// Returns the error of NATS if it does not take the subscription.
pub async fn serve_peers(
    client: Client,
    names: &FleetNames,
    door: NatsDoor,
    own: &PeerIdentity,
) -> eyre::Result<ServedRequests> {
    let subject = names.peer(&own.name);
    let work = client.subscribe(subject.clone()).await;
    let work = work.map_err(|error| eyre::eyre!("work on {subject} cannot be heard: {error}"))?;
    let recent = RecentlyPublished::begin(door.front.snapshots.clone());
    let beats = PeerBeats::begin(client.clone(), names.peers(), own)?;
    Ok(ServedRequests(tokio::spawn(async move {
        let _beats = beats;
        let (client, door, recent) = (&client, &door, &recent);
        let answer = |message: async_nats::Message| async move {
            let Some(reply) = message.reply else { return };
            let done = match &message.headers {
                Some(headers) => door.do_part(headers, message.payload, recent).await,
                None => Err("it has no headers"),
            };
            let most = client.server_info().max_payload;
            match done.and_then(|done| if done.len() <= most { Ok(done) } else { Err("the answer is too large") }) {
                Ok(done) => drop(client.publish(reply, done).await),
                Err(reason) => tell_not_done(client, reply, reason).await,
            }
        };
        work.for_each_concurrent(AT_ONCE, answer).await;
    })))
}

impl NatsDoor {
    /// Does a part of another node's work, or says why not. The client's rate was counted there.
    async fn do_part(
        &self,
        headers: &HeaderMap,
        payload: Bytes,
        recent: &RecentlyPublished,
    ) -> Result<Bytes, &'static str> {
        let header = |name| headers.get(name).map(|value| value.as_str());
        let arrived = Instant::now();
        let part = header(PART).and_then(WorkPart::read).ok_or("it names no part")?;
        let at = min_snapshot(header(MIN_SNAPSHOT)).ok().flatten().ok_or("it names no snapshot")?;
        let left = header(LEFT).and_then(|left| left.parse().ok()).map(Duration::from_millis);
        let deadline = arrived + left.ok_or("it names no time")?;
        let body = ByteString::try_from(payload).map_err(|_| "it is not UTF-8")?;
        let published = self.front.published_from(at, self.max_catch_up).await.map_err(|_| "it is not here yet")?;
        let published = match published.last == at && !published.feed().is_degraded() {
            true => published,
            false => recent.find(at).ok_or("it is not here any more")?,
        };
        let rights = Rights { client: None, may_use_wallet: false, page: None, until: Some(deadline) };
        let flow = header(CLIENT).and_then(|name| self.access.flow_of(name)).unwrap_or_else(|| self.flow.clone());
        let session = self.session(headers.get(PATH).map(|path| path.as_str()), rights, flow);
        let held = session.caller.share.take(body.len()).ok_or("it has no memory left")?;
        let method = match part {
            WorkPart::Entries => return Ok(session.answer(body, held, &published, None).await.text),
            WorkPart::Variants(_) => "presim_search",
            WorkPart::Standing => "presim_watch",
        };
        let method = MethodRoute::by_name(method).ok_or("it is of no method")?;
        let ticket = self.front.ticket(&session.caller).until(deadline);
        let (caller, room) = (session.caller, AnswerRoom::of(held));
        let request = Request { id: Id::Null, method, params: body, caller, published, ticket, starting: None, room };
        let done = match part {
            WorkPart::Variants(range) => self.front.try_range(request, range, deadline).await,
            _ => self.front.run_for_peer(request).await,
        };
        done.map(Bytes::from).map_err(|error| {
            tracing::debug!(?error, "a part of the work of another node cannot be done");
            "it could not be run"
        })
    }
}
