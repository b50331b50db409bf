//! A model of the stream of a fleet, with its lease, its epoch and its image: what NATS keeps for presim.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
};

use futures::{FutureExt, future::BoxFuture};
use presim::{
    ledger::{Frame, SnapshotId},
    source::{
        fleet::ArrivedPart,
        publishing::{PartAck, PlaceInStream, StreamPort},
    },
};

use super::script::{INGESTERS, NODES};

/// A message of each so many is treated wrongly by a mutant.
const OF: u64 = 7;

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

/// The way of a node to the stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    /// The tries that fail yet.
    pub cut: u32,
    /// Whether another node takes the lease meanwhile.
    pub loses_lease: bool,
    /// The answers that are lost.
    pub lost_acks: u32,
}

/// An image of the published state.
#[derive(Clone, Debug)]
pub struct ModelImage {
    pub id: SnapshotId,
    pub sequence: u64,
    pub bytes: Vec<u8>,
}

/// A part as it is stored.
#[derive(Clone, Debug)]
struct StoredPart {
    id: SnapshotId,
    frame: Frame,
}

/// The stream, and what the servers keep beside it.
#[derive(Debug, Default)]
pub struct StreamModel {
    parts: BTreeMap<u64, StoredPart>,
    last: u64,
    /// The names of parts, each with its place.
    names: BTreeMap<(SnapshotId, u32), u64>,
    /// The holder of the lease.
    pub lease: Option<usize>,
    pub epoch: u64,
    pub image: Option<ModelImage>,
    pub links: [Link; NODES],
    /// The parts that are refused, because the disk is full.
    pub refusals: u32,
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

/// The model as its users share it.
pub type SharedStream = Arc<Mutex<StreamModel>>;

/// Locks the model. A panic of the simulation ends it.
pub fn lock(model: &SharedStream) -> MutexGuard<'_, StreamModel> {
    model.lock().expect("the simulation has one thread")
}

impl StreamModel {
    /// Returns the next part after a place, with its own.
    pub fn next(&self, after: u64) -> Option<(u64, ArrivedPart)> {
        let (sequence, StoredPart { id, frame }) = self.parts.range(after + 1..).next()?;
        let Frame { index, count, bytes } = frame.clone();
        Some((*sequence, ArrivedPart { id: *id, index, count, bytes }))
    }

    /// Deletes all but the newest parts.
    pub fn purge(&mut self, keep: u64) {
        let from = self.last.saturating_sub(keep) + 1;
        self.parts = self.parts.split_off(&from);
    }

    /// Forgets the names of parts, as servers do after a time.
    pub fn forget_names(&mut self) {
        self.names.clear();
    }

    fn publish(&mut self, node: usize, id: SnapshotId, frame: &Frame, expected: i64, is_checked: bool) -> PartAck {
        let link = &mut self.links[node];
        if link.cut > 0 {
            link.cut -= 1;
            if link.cut == 0 && std::mem::take(&mut link.loses_lease) {
                self.lease = Some((node + 1) % INGESTERS);
            }
            return PartAck::Unknown;
        }
        if self.refusals > 0 {
            self.refusals -= 1;
            return PartAck::Unknown;
        }
        if !self.names.contains_key(&(id, frame.index)) {
            if is_checked && expected != i64::try_from(self.last).expect("it is small") {
                return PartAck::OutOfPlace;
            }
            self.store(id, frame);
        }
        let link = &mut self.links[node];
        if link.lost_acks > 0 {
            link.lost_acks -= 1;
            return PartAck::Unknown;
        }
        PartAck::Taken
    }

    fn store(&mut self, id: SnapshotId, frame: &Frame) {
        self.last += 1;
        self.parts.insert(self.last, StoredPart { id, frame: frame.clone() });
        self.names.insert((id, frame.index), self.last);
        let begun = match self.coming.take() {
            Some((coming, next)) if (coming, next) == (id, frame.index) => Some(next),
            _ => (frame.index == 0).then_some(0),
        };
        let Some(index) = begun else { return };
        if index + 1 < frame.count {
            self.coming = Some((id, index + 1));
            return;
        }
        let follows = match self.last_whole {
            Some(last) if last.epoch() == id.epoch() => id == last.next(),
            last => id == SnapshotId::begin(id.epoch()) && last.is_none_or(|last| last < id),
        };
        if !follows || !self.whole.insert(id) {
            let text = format!("{:#x} follows {:#x}", id.0, self.last_whole.unwrap_or_default().0);
            self.broken.get_or_insert(text);
        }
        self.last_whole = Some(id);
    }
}

/// The stream as a leader of the simulation writes it.
#[derive(Debug)]
pub struct ModelPort {
    pub model: SharedStream,
    pub node: usize,
    pub max_part: NonZeroUsize,
    pub mutant: FleetMutant,
    /// The parts that count as taken and were not stored, less those that were stored beyond.
    pub skipped: AtomicI64,
}

impl ModelPort {
    fn send_now(&self, id: SnapshotId, parts: &[Frame], expected: u64) -> Vec<PartAck> {
        let mut model = lock(&self.model);
        let count = i64::try_from(parts.len()).expect("it is small");
        let is_whole = parts.first().is_some_and(|part| part.index == 0);
        let is_epoch = id == SnapshotId::begin(id.epoch());
        model.sent += 1;
        let is_wrong = is_whole && !is_epoch && model.sent.is_multiple_of(OF);
        let skips = self.mutant == FleetMutant::NoEpoch && is_epoch
            || self.mutant == FleetMutant::Dropped && is_wrong
            || self.mutant == FleetMutant::Swapped && is_wrong && model.held_back.is_none();
        if skips {
            self.skipped.fetch_add(count, Relaxed);
            if self.mutant == FleetMutant::Swapped {
                model.held_back = Some((id, parts.to_vec()));
            }
            return vec![PartAck::Taken; parts.len()];
        }
        let is_checked = self.mutant != FleetMutant::NoExpectation;
        let first = i64::try_from(expected).expect("it is small") - self.skipped.load(Relaxed);
        let acks: Vec<PartAck> = (first..)
            .zip(parts)
            .map(|(expected, part)| model.publish(self.node, id, part, expected, is_checked))
            .collect();
        if acks.iter().all(|ack| *ack == PartAck::Taken) {
            if let Some((id, parts)) = model.held_back.take() {
                parts.iter().for_each(|part| model.store(id, part));
                self.skipped.fetch_sub(i64::try_from(parts.len()).expect("it is small"), Relaxed);
            }
            if self.mutant == FleetMutant::Repeated && is_wrong {
                parts.iter().for_each(|part| model.store(id, part));
                self.skipped.fetch_sub(count, Relaxed);
            }
        }
        acks
    }
}

impl StreamPort for ModelPort {
    fn max_part(&self) -> NonZeroUsize {
        self.max_part
    }

    fn send<'a>(&'a self, id: SnapshotId, parts: &'a [Frame], expected: u64) -> BoxFuture<'a, Vec<PartAck>> {
        std::future::ready(self.send_now(id, parts, expected)).boxed()
    }

    fn at(&self, sequence: u64) -> BoxFuture<'_, PlaceInStream> {
        let model = lock(&self.model);
        let sequence = sequence.saturating_add_signed(-self.skipped.load(Relaxed));
        let place = match model.parts.get(&sequence) {
            _ if model.links[self.node].cut > 0 => PlaceInStream::Unknown,
            Some(part) => PlaceInStream::Part(part.id, part.frame.index),
            None if sequence <= model.last => PlaceInStream::Foreign,
            None => PlaceInStream::Empty,
        };
        std::future::ready(place).boxed()
    }

    fn is_held(&self) -> bool {
        lock(&self.model).lease == Some(self.node)
    }
}
