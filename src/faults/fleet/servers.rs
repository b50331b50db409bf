//! A model of the servers of a fleet: what NATS keeps for presim, and the ways to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{
    fleet::servers::{
        ACK_TIMEOUT, Arrivals, ArrivedPart, Bucket, BucketEntry, FleetError, FleetPort, ImageKey, PartAck,
        REPLY_TIMEOUT, REQUEST_TIMEOUT, ShortMessage, StreamEnds, StreamEntry, Topic,
    },
    ledger::{
        Frame, SnapshotId, StreamMessage,
        codec::{MAX_STREAM_BYTES, StreamChanges},
        frames, join,
    },
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream, stream::BoxStream};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

/// A message of each so many is treated wrongly by a mutant.
const OF: u64 = 7;
/// The bytes of a part beside its content.
const STORED: usize = 200;

/// All nodes of a script: those that publish, and replicas.
pub const NODES: usize = 4;

/// A fault of the way to the stream, which the simulation must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetMutant {
    /// No fault.
    None,
    /// A message counts as taken that never comes to the stream.
    Dropped,
    /// A message comes to the stream after the next one.
    Swapped,
    /// A message comes to the stream twice.
    Repeated,
    /// A node leads without telling its epoch.
    NoEpoch,
    /// The stream takes a message whatever it was to follow.
    NoExpectation,
}

/// The way of a node to the servers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Way {
    /// The moment until which nothing goes through.
    pub cut: Option<Instant>,
    /// The moment until which nothing of the buckets goes through.
    pub keyless: Option<Instant>,
    /// The moment until which the stream takes nothing from the node.
    pub refused: Option<Instant>,
    /// The time that a message takes, and the moment until which it does.
    pub delay: Option<(Duration, Instant)>,
    /// The acknowledgements that are lost.
    pub lost_acks: u32,
}

/// A fault of the content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corruption {
    /// Bytes that cannot be read.
    Unreadable,
    /// A change before it that nobody knows, so that it can be read and not applied. One of several parts cannot be read.
    Unfit,
}

impl Corruption {
    fn of(self, frame: &Frame) -> alloy_primitives::Bytes {
        let message = join(std::slice::from_ref(&frame.bytes), MAX_STREAM_BYTES).ok();
        let read = message.filter(|_| self == Self::Unfit).and_then(|message| StreamMessage::read(&message).ok());
        let Some((dated, StreamMessage::Changes(change))) = read else { return vec![0; 3].into() };
        let StreamChanges { entries, codes, forgets, .. } = change;
        let written = StreamChanges::write(dated, Some(SnapshotId(1)), &entries, codes, forgets);
        frames(&written, NonZeroUsize::MAX).swap_remove(0).bytes
    }
}

/// A part as it is stored; `None` is a message that is none of presim's.
#[derive(Clone, Debug)]
struct StoredPart {
    part: Option<(SnapshotId, Frame)>,
    at: Instant,
}

/// The content of the servers, and their faults.
#[derive(Debug)]
pub struct Servers {
    parts: BTreeMap<u64, StoredPart>,
    last: u64,
    /// The number of streams that were deleted.
    deleted: u64,
    is_missing: bool,
    /// The names of parts.
    names: BTreeSet<(SnapshotId, u32)>,
    buckets: BTreeMap<Bucket, BTreeMap<String, BucketEntry>>,
    revision: u64,
    images: BTreeMap<String, Vec<u8>>,
    /// The bytes that failed writes of images have left.
    orphans: usize,
    pub ways: [Way; NODES],
    /// The bytes of the stream and of all that is stored.
    pub bounds: (usize, usize),
    /// The moment until which nothing is stored.
    pub full: Option<Instant>,
    /// The images that fail, and the time that one takes.
    pub failing_images: u32,
    pub image_time: Duration,
    /// The fault of the next message's content.
    pub corrupts: Option<Corruption>,
    /// Whether messages were lost that only some nodes have read.
    pub has_lost: bool,
    subscribers: Vec<(Topic, mpsc::UnboundedSender<(Instant, ShortMessage)>)>,
    replies: BTreeMap<String, oneshot::Sender<(Instant, Bytes)>>,
    changed: watch::Sender<u64>,
    /// The ids of the messages that the stream has had whole.
    pub whole: BTreeSet<SnapshotId>,
    /// The last of them.
    last_whole: Option<SnapshotId>,
    /// The parts of the last message that have come.
    coming: Option<(SnapshotId, u32)>,
    /// A rule that the messages have broken.
    pub broken: Option<String>,
    /// The number of messages, for mutants.
    sent: u64,
    /// The message that a mutant holds back.
    held_back: Option<(SnapshotId, Vec<Frame>)>,
}

/// The servers as their users share them.
pub type SharedServers = Arc<Mutex<Servers>>;

/// Locks the servers. A panic of the simulation ends it.
pub fn lock(servers: &SharedServers) -> MutexGuard<'_, Servers> {
    servers.lock().expect("the simulation has one thread")
}

impl Servers {
    /// Creates servers whose stream has so many bytes, and that store so many in all.
    pub fn new(bounds: (usize, usize)) -> SharedServers {
        Arc::new(Mutex::new(Self {
            parts: BTreeMap::new(),
            last: 0,
            deleted: 0,
            is_missing: false,
            names: BTreeSet::new(),
            buckets: BTreeMap::new(),
            revision: 0,
            images: BTreeMap::new(),
            orphans: 0,
            ways: Default::default(),
            bounds,
            full: None,
            failing_images: 0,
            image_time: Duration::ZERO,
            corrupts: None,
            has_lost: false,
            subscribers: Vec::new(),
            replies: BTreeMap::new(),
            changed: watch::Sender::new(0),
            whole: BTreeSet::new(),
            last_whole: None,
            coming: None,
            broken: None,
            sent: 0,
            held_back: None,
        }))
    }

    /// Deletes all but the newest parts.
    pub fn purge(&mut self, keep: u64) {
        self.has_lost = true;
        self.parts = self.parts.split_off(&(self.last.saturating_sub(keep) + 1));
    }

    /// Deletes the stream, and creates it again if nobody else is to.
    pub fn delete_stream(&mut self, is_created: bool) {
        (self.parts, self.names, self.last) = Default::default();
        self.has_lost = true;
        self.deleted += 1;
        self.is_missing = !is_created;
        self.changed.send_modify(|changes| *changes += 1);
    }

    /// Forgets the names of parts, as servers do after a time.
    pub fn forget_names(&mut self) {
        self.names.clear();
    }

    /// Loses a bucket.
    pub fn lose_bucket(&mut self, bucket: Bucket) {
        self.buckets.remove(&bucket);
    }

    /// Loses a key.
    pub fn lose_fact(&mut self, key: &str) {
        self.buckets.entry(Bucket::Facts).or_default().remove(key);
    }

    /// Loses the images.
    pub fn lose_images(&mut self) {
        self.images.clear();
    }

    fn stored(&self) -> usize {
        let parts = self.parts.values().filter_map(|stored| stored.part.as_ref());
        parts.map(|(_, frame)| frame.bytes.len() + STORED).sum()
    }

    /// Returns whether there is room for so many bytes.
    fn has_room(&self, bytes: usize) -> bool {
        let images: usize = self.images.values().map(Vec::len).sum();
        let is_full = self.full.is_some_and(|until| Instant::now() < until);
        !is_full && self.stored() + images + self.orphans + bytes <= self.bounds.1
    }

    /// Stores a part, or a message that is none of presim's.
    pub fn insert(&mut self, part: Option<(SnapshotId, Frame)>) {
        self.last += 1;
        self.parts.insert(self.last, StoredPart { part, at: Instant::now() });
        while self.stored() > self.bounds.0 {
            self.parts.pop_first();
        }
        self.changed.send_modify(|changes| *changes += 1);
    }

    fn send(&mut self, node: usize, id: SnapshotId, frame: &Frame, expected: i64, is_checked: bool) -> PartAck {
        let way = &self.ways[node];
        let is_refused = way.refused.is_some_and(|until| Instant::now() < until);
        if is_refused || self.is_missing || !self.has_room(frame.bytes.len() + STORED) {
            return PartAck::Unknown;
        }
        if !self.names.contains(&(id, frame.index)) {
            if is_checked && expected != i64::try_from(self.last).expect("it is small") {
                return PartAck::OutOfSequence;
            }
            self.store(id, frame);
        }
        let way = &mut self.ways[node];
        if way.lost_acks > 0 {
            way.lost_acks -= 1;
            return PartAck::Unknown;
        }
        PartAck::Taken
    }

    fn store(&mut self, id: SnapshotId, frame: &Frame) {
        let mut stored = frame.clone();
        if let Some(corruption) = self.corrupts.take() {
            self.has_lost = true;
            stored.bytes = corruption.of(frame);
        }
        self.insert(Some((id, stored)));
        self.names.insert((id, frame.index));
        let begun = match self.coming.take() {
            Some((coming, next)) if (coming, next) == (id, frame.index) => Some(next),
            _ => (frame.index == 0).then_some(0),
        };
        let Some(index) = begun else { return };
        if index + 1 < frame.count {
            self.coming = Some((id, index + 1));
            return;
        }
        // The first message of a stream may be that of the one before whose acknowledgement was lost with it.
        let is_sent_again = self.last == u64::from(frame.count) && self.last_whole == Some(id);
        let follows = match self.last_whole {
            Some(last) if last.epoch() == id.epoch() => id == last.next(),
            last => id == SnapshotId::begin(id.epoch()) && last.is_none_or(|last| last < id),
        };
        if !(is_sent_again || follows && self.whole.insert(id)) {
            let text = format!("{:#x} follows {:#x}", id.0, self.last_whole.unwrap_or_default().0);
            self.broken.get_or_insert(text);
        }
        self.last_whole = Some(id);
    }

    fn delay(&self, node: usize) -> Duration {
        let now = Instant::now();
        self.ways[node].delay.filter(|(_, until)| now < *until).map_or(Duration::ZERO, |(delay, _)| delay)
    }
}

/// The servers as a node of the simulation reaches them.
#[derive(Clone, Debug)]
pub struct ModelPort {
    pub servers: SharedServers,
    pub node: usize,
    pub max_part: NonZeroUsize,
    pub mutant: FleetMutant,
    /// The parts that count as taken and were not stored, less those that were stored beyond.
    pub skipped: Arc<AtomicI64>,
}

fn lost(what: &'static str) -> FleetError {
    FleetError::nats(what, "it was lost")
}

impl ModelPort {
    fn is_open(&self, key: bool) -> Result<(), Instant> {
        let (way, now) = (lock(&self.servers).ways[self.node], Instant::now());
        let closed = [way.cut, way.keyless.filter(|_| key)];
        closed.into_iter().flatten().filter(|until| now < *until).max().map_or(Ok(()), Err)
    }

    /// Waits for a message to pass between the node and the servers.
    async fn pass(&self, key: bool) {
        while let Err(until) = self.is_open(key) {
            sleep_until(until).await;
        }
        let delay = lock(&self.servers).delay(self.node);
        if !delay.is_zero() {
            sleep(delay).await;
        }
    }

    /// Has the servers do something, within the time that they have.
    async fn ask<T>(
        &self,
        key: bool,
        act: impl AsyncFnOnce(&SharedServers) -> Result<T, FleetError>,
    ) -> Result<T, FleetError> {
        let asked = async {
            self.pass(key).await;
            let done = act(&self.servers).await;
            self.pass(key).await;
            done
        };
        timeout(REQUEST_TIMEOUT, asked).await.unwrap_or_else(|_| Err(lost("the servers do not answer")))
    }

    fn send_now(&self, id: SnapshotId, parts: &[Frame], expected: u64) -> Vec<PartAck> {
        let mut servers = lock(&self.servers);
        let count = i64::try_from(parts.len()).expect("it is small");
        let is_whole = parts.first().is_some_and(|part| part.index == 0);
        let is_epoch = id == SnapshotId::begin(id.epoch());
        servers.sent += 1;
        let is_wrong = is_whole && !is_epoch && servers.sent.is_multiple_of(OF);
        let skips = self.mutant == FleetMutant::NoEpoch && is_epoch
            || self.mutant == FleetMutant::Dropped && is_wrong
            || self.mutant == FleetMutant::Swapped && is_wrong && servers.held_back.is_none();
        if skips {
            self.skipped.fetch_add(count, Relaxed);
            if self.mutant == FleetMutant::Swapped {
                servers.held_back = Some((id, parts.to_vec()));
            }
            return vec![PartAck::Taken; parts.len()];
        }
        let is_checked = self.mutant != FleetMutant::NoExpectation;
        let first = i64::try_from(expected).expect("it is small") - self.skipped.load(Relaxed);
        let sent = (first..).zip(parts);
        let acks: Vec<_> =
            sent.map(|(expected, part)| servers.send(self.node, id, part, expected, is_checked)).collect();
        if acks.iter().all(|ack| *ack == PartAck::Taken) {
            if let Some((id, parts)) = servers.held_back.take() {
                parts.iter().for_each(|part| servers.store(id, part));
                self.skipped.fetch_sub(i64::try_from(parts.len()).expect("it is small"), Relaxed);
            }
            if self.mutant == FleetMutant::Repeated && is_wrong {
                parts.iter().for_each(|part| servers.store(id, part));
                self.skipped.fetch_sub(count, Relaxed);
            }
        }
        acks
    }

    /// Waits for the next part from a sequence on, of the stream that there was when it was asked for.
    async fn next_part(
        &self,
        from: u64,
        deleted: u64,
        since: Instant,
    ) -> Result<(u64, Option<ArrivedPart>), FleetError> {
        let mut changes = lock(&self.servers).changed.subscribe();
        let (sequence, stored, delay) = loop {
            {
                let servers = lock(&self.servers);
                if servers.deleted != deleted {
                    return Err(lost("the stream was deleted"));
                }
                if let Some((sequence, stored)) = servers.parts.range(from..).next() {
                    break (*sequence, stored.clone(), servers.delay(self.node));
                }
            }
            if changes.changed().await.is_err() {
                return Err(lost("the simulation ends"));
            }
        };
        sleep_until(stored.at.max(since) + delay).await;
        while let Err(until) = self.is_open(false) {
            sleep_until(until).await;
        }
        let part = stored.part.map(|(id, Frame { index, count, bytes })| ArrivedPart { id, index, count, bytes });
        Ok((sequence, part))
    }
}

#[async_trait]
impl FleetPort for ModelPort {
    fn fleet(&self) -> &str {
        "simulated"
    }

    fn is_connected(&self) -> bool {
        self.is_open(false).is_ok()
    }

    async fn repair(&self) -> Result<(), FleetError> {
        let repair = async |servers: &SharedServers| {
            lock(servers).is_missing = false;
            Ok(())
        };
        self.ask(false, repair).await
    }

    async fn purge(&self) -> Result<(), FleetError> {
        let purge = async |servers: &SharedServers| {
            lock(servers).purge(0);
            Ok(())
        };
        self.ask(false, purge).await
    }

    fn max_part(&self) -> NonZeroUsize {
        self.max_part
    }

    async fn ends(&self) -> Result<StreamEnds, FleetError> {
        let ends = async |servers: &SharedServers| {
            let servers = lock(servers);
            if servers.is_missing {
                return Err(lost("there is no stream"));
            }
            let first = servers.parts.keys().next().copied().unwrap_or(servers.last + 1);
            let (messages, bytes) = (servers.parts.len() as u64, servers.stored() as u64);
            Ok(StreamEnds { first, last: servers.last, messages, bytes })
        };
        self.ask(false, ends).await
    }

    async fn read(&self, from: u64) -> Result<Arrivals, FleetError> {
        let port = self.clone();
        let read = async move |servers: &SharedServers| {
            let Servers { is_missing, deleted, .. } = *lock(servers);
            if is_missing {
                return Err(lost("there is no stream"));
            }
            let begun = (port, from, deleted, Instant::now());
            let arrivals = stream::unfold(Some(begun), async |state| {
                let (port, from, deleted, since) = state?;
                match port.next_part(from, deleted, since).await {
                    Ok((sequence, part)) => Some((Ok((sequence, part)), Some((port, sequence + 1, deleted, since)))),
                    Err(error) => Some((Err(error), None)),
                }
            });
            Ok(arrivals.boxed())
        };
        self.ask(false, read).await
    }

    async fn at(&self, sequence: u64) -> Result<StreamEntry, FleetError> {
        let at = async move |servers: &SharedServers| {
            let servers = lock(servers);
            if servers.is_missing {
                return Err(lost("there is no stream"));
            }
            let sequence = sequence.saturating_add_signed(-self.skipped.load(Relaxed));
            Ok(match servers.parts.get(&sequence).map(|stored| &stored.part) {
                Some(Some((id, frame))) => StreamEntry::Part { id: *id, index: frame.index },
                None if sequence > servers.last => StreamEntry::Empty,
                _ => StreamEntry::Foreign,
            })
        };
        self.ask(false, at).await
    }

    async fn send(&self, id: SnapshotId, parts: &[Frame], expected: u64) -> Vec<PartAck> {
        let sent = async {
            self.pass(false).await;
            let acks = self.send_now(id, parts, expected);
            self.pass(false).await;
            acks
        };
        let acks = timeout(ACK_TIMEOUT, sent).await;
        acks.unwrap_or_else(|_| vec![PartAck::Unknown; parts.len()])
    }

    async fn entry(&self, bucket: Bucket, key: &str) -> Result<Option<BucketEntry>, FleetError> {
        let entry = async move |servers: &SharedServers| {
            Ok(lock(servers).buckets.get(&bucket).and_then(|keys| keys.get(key)).cloned())
        };
        self.ask(true, entry).await
    }

    async fn update(&self, bucket: Bucket, key: &str, value: Bytes, revision: u64) -> Result<Option<u64>, FleetError> {
        let update = async move |servers: &SharedServers| {
            let mut servers = lock(servers);
            if !servers.has_room(0) {
                return Err(lost("the disk is full"));
            }
            servers.revision += 1;
            let next = servers.revision;
            let keys = servers.buckets.entry(bucket).or_default();
            if keys.get(key).map_or(0, |entry| entry.revision) != revision {
                return Ok(None);
            }
            keys.insert(key.to_owned(), BucketEntry { value, revision: next });
            Ok(Some(next))
        };
        self.ask(true, update).await
    }

    async fn put_image(&self, name: &str, bytes: &[u8]) -> Result<(), FleetError> {
        let time = lock(&self.servers).image_time;
        sleep(time).await;
        let put = async move |servers: &SharedServers| {
            let mut servers = lock(servers);
            let fails = servers.failing_images > 0;
            servers.failing_images = servers.failing_images.saturating_sub(1);
            if fails || !servers.has_room(bytes.len()) {
                // The parts that were written stay.
                let images: usize = servers.images.values().map(Vec::len).sum();
                let room = servers.bounds.1.saturating_sub(servers.stored() + images + servers.orphans);
                servers.orphans += room.min(bytes.len());
                return Err(lost("an image cannot be written"));
            }
            servers.images.insert(name.to_owned(), bytes.to_vec());
            Ok(())
        };
        self.ask(false, put).await
    }

    async fn image(&self, key: &ImageKey) -> Result<Vec<u8>, FleetError> {
        let image = async move |servers: &SharedServers| {
            let bytes = lock(servers).images.get(&key.name).cloned().ok_or_else(|| lost("there is no such image"))?;
            match bytes.len() as u64 == key.bytes {
                true => Ok(bytes),
                false => Err(FleetError::Image("it has another size".to_owned())),
            }
        };
        self.ask(false, image).await
    }

    async fn images(&self) -> Result<Vec<String>, FleetError> {
        self.ask(false, async |servers: &SharedServers| Ok(lock(servers).images.keys().cloned().collect())).await
    }

    async fn retain_images(&self, kept: &[String]) -> Result<(), FleetError> {
        let retain = async move |servers: &SharedServers| {
            let mut servers = lock(servers);
            servers.orphans = 0;
            servers.images.retain(|name, _| kept.contains(name));
            Ok(())
        };
        self.ask(false, retain).await
    }

    async fn publish(&self, topic: Topic, payload: Bytes) {
        self.say(topic, ShortMessage { payload, reply: None });
    }

    async fn subscribe(&self, topic: Topic) -> Result<BoxStream<'static, ShortMessage>, FleetError> {
        let port = self.clone();
        let subscribe = async move |servers: &SharedServers| {
            let (sender, receiver) = mpsc::unbounded_channel();
            lock(servers).subscribers.push((topic, sender));
            let messages = stream::unfold((port, receiver), async |(port, mut receiver)| {
                loop {
                    let (due, message): (Instant, ShortMessage) = receiver.recv().await?;
                    let delay = lock(&port.servers).delay(port.node);
                    sleep_until(due + delay).await;
                    // A message that comes while the way is cut is lost.
                    if port.is_open(false).is_ok() {
                        return Some((message, (port, receiver)));
                    }
                }
            });
            Ok(messages.boxed())
        };
        self.ask(false, subscribe).await
    }

    async fn request(&self, topic: Topic) -> Option<Bytes> {
        let (sender, receiver) = oneshot::channel();
        let reply = {
            let mut servers = lock(&self.servers);
            servers.revision += 1;
            let reply = servers.revision.to_string();
            servers.replies.insert(reply.clone(), sender);
            reply
        };
        self.say(topic, ShortMessage { payload: Bytes::new(), reply: Some(reply.clone()) });
        let replied = async {
            let (due, payload) = receiver.await.ok()?;
            let delay = lock(&self.servers).delay(self.node);
            sleep_until(due + delay).await;
            self.is_open(false).is_ok().then_some(payload)
        };
        let replied = timeout(REPLY_TIMEOUT, replied).await.ok().flatten();
        lock(&self.servers).replies.remove(&reply);
        replied
    }

    async fn reply(&self, to: String, payload: Bytes) {
        if self.is_open(false).is_ok() {
            let mut servers = lock(&self.servers);
            let due = Instant::now() + servers.delay(self.node);
            if let Some(sender) = servers.replies.remove(&to) {
                let _ = sender.send((due, payload));
            }
        }
    }
}

impl ModelPort {
    fn say(&self, topic: Topic, message: ShortMessage) {
        if self.is_open(false).is_err() {
            return;
        }
        let mut servers = lock(&self.servers);
        let due = Instant::now() + servers.delay(self.node);
        servers.subscribers.retain(|(of, sender)| *of != topic || sender.send((due, message.clone())).is_ok());
    }
}
