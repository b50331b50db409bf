//! The nodes of a fleet: production's state machines on the model of the stream.

use std::{num::NonZeroUsize, sync::Arc};

use presim::{
    config::Config,
    ledger::{FeedState, SnapshotId, Snapshots, StateImage, epoch},
    node::{self, OwnChain},
    rpc::StartupReason,
    source::{
        Feed,
        devnet::DevnetSource,
        publishing::StreamWriter,
        replica::{Applier, FollowError, StreamReading},
    },
    state::CodeCache,
    store::Store,
    telemetry::Metrics,
};

use super::{
    super::life::SimClock,
    stream::{FleetMutant, ModelImage, ModelPort, SharedStream, lock},
};

/// Bytes of the cache of bytecode.
const CODES: usize = 1 << 20;

/// A follower of the stream, and what it shows.
pub struct SimFollower {
    index: usize,
    model: SharedStream,
    codes: Arc<CodeCache>,
    config: Config,
    pub snapshots: Arc<Snapshots>,
    /// The state as far as the stream was read, with the id of its origin; `None` while it begins anew.
    pub reading: Option<(StreamReading, SnapshotId)>,
    /// The id of the image after which the stream has a gap.
    useless: Option<SnapshotId>,
}

impl SimFollower {
    /// Creates a follower that goes on from `snapshots`, whose last change is the part at `sequence`.
    fn from(index: usize, model: &SharedStream, config: &Config, snapshots: Arc<Snapshots>, sequence: u64) -> Self {
        let codes = Arc::new(CodeCache::new(CODES));
        let reading = StreamReading::from(Applier::new(snapshots.mirror(), codes.clone()), sequence);
        let origin = snapshots.load().last;
        let (model, config) = (model.clone(), config.clone());
        Self { index, model, codes, config, snapshots, reading: Some((reading, origin)), useless: None }
    }

    /// Creates a follower that begins with the image; `None` if there is none.
    pub fn of_image(index: usize, model: &SharedStream, config: &Config) -> Option<Self> {
        let ModelImage { sequence, bytes, .. } = lock(model).image.clone()?;
        let codes = CodeCache::new(CODES);
        let state = state_of(&bytes, &codes, config);
        Some(Self::from(index, model, config, Arc::new(state), sequence))
    }

    /// Reads at most `count` parts. Returns whether there was any.
    pub fn read(&mut self, count: usize) -> bool {
        if lock(&self.model).links[self.index].cut > 0 {
            lock(&self.model).links[self.index].cut -= 1;
            return false;
        }
        if self.reading.is_none() && !self.begin_anew() {
            return false;
        }
        let mut has_read = false;
        for _ in 0..count {
            let Some((reading, origin)) = &mut self.reading else { break };
            let next = lock(&self.model).next(reading.read());
            let Some((sequence, part)) = next else { break };
            has_read = true;
            match reading.arrive(sequence, Some(part), None) {
                Ok(()) => {
                    let reached = reading.state().load();
                    if reached.last > self.snapshots.load().last {
                        self.snapshots.replace_all(reached);
                    }
                }
                Err(FollowError::Fleet(error)) => panic!("no server is asked: {error}"),
                Err(FollowError::Gap(_) | FollowError::Mismatch(_)) => {
                    self.useless = Some(*origin);
                    self.reading = None;
                }
            }
        }
        has_read
    }

    /// Asks for the parts again from the last message on, the last of which come twice.
    pub fn ask_again(&mut self) {
        if let Some((reading, _)) = &mut self.reading {
            let again = lock(&self.model).next(reading.sequence().saturating_sub(2));
            reading.begin_again();
            if let Some((sequence, part)) = again {
                // A part that was read already changes nothing. The others come with the next parts.
                let before = reading.sequence();
                if sequence <= before {
                    assert!(reading.arrive(sequence, Some(part), None).is_ok(), "a part that was read is ignored");
                }
            }
        }
    }

    /// Begins anew with the image, if it helps. Returns whether it does.
    fn begin_anew(&mut self) -> bool {
        let image = lock(&self.model).image.clone();
        let image = image.filter(|image| self.useless.is_none_or(|useless| image.id > useless));
        let Some(ModelImage { id, sequence, bytes }) = image else { return false };
        let state = state_of(&bytes, &self.codes, &self.config);
        if state.load().last > self.snapshots.load().last {
            self.snapshots.replace_all(state.load());
        }
        self.reading = Some((StreamReading::from(Applier::new(state, self.codes.clone()), sequence), id));
        true
    }
}

/// Returns the state of an image of a devnet.
fn state_of(bytes: &[u8], codes: &CodeCache, config: &Config) -> Snapshots {
    StateImage::read(bytes, codes, config.retention(), 0).expect("the image can be read")
}

/// A node that publishes.
pub struct SimIngester {
    pub follower: SimFollower,
    pub feed: Feed,
    devnet: DevnetSource,
    clock: Arc<SimClock>,
}

impl SimIngester {
    /// Starts a node with its own chain, or with the image if there is one.
    pub fn start(index: usize, model: &SharedStream, config: &Config, clock: Arc<SimClock>) -> eyre::Result<Self> {
        let metrics = Metrics::default();
        let (store, codes) = (Store::in_memory(&metrics)?, Arc::new(CodeCache::new(CODES)));
        let chain = OwnChain::begin(config, &codes, &store, &StartupReason::default(), clock.clone())?;
        let snapshots = Arc::new(chain.snapshots);
        let follower = match SimFollower::of_image(index, model, config) {
            Some(follower) => follower,
            None => SimFollower::from(index, model, config, snapshots, 0),
        };
        let pool = node::pool(config, &chain.spec, &follower.snapshots, &store, None)?;
        let devnet = chain.devnet.ok_or_else(|| eyre::eyre!("the chain stands still"))?;
        let feed = Feed::new(follower.snapshots.clone(), pool, &metrics);
        Ok(Self { follower, feed, devnet, clock })
    }

    /// Returns whether the node leads, as far as it knows.
    pub const fn leads(&self) -> bool {
        self.feed.stream.is_some()
    }

    /// Builds and publishes the next sub-block. Follows from here on if another node leads.
    pub async fn tick(&mut self) {
        let Some(stream) = &self.feed.stream else { return };
        let (sequence, _) = stream.end();
        self.devnet.go_on(&mut self.feed).await;
        if !self.leads() {
            let SimFollower { index, model, config, snapshots, .. } = &self.follower;
            self.follower = SimFollower::from(*index, model, config, snapshots.clone(), sequence);
        }
    }

    /// Takes over, if the stream lets it: what it has read must be all that the stream has.
    pub async fn lead(&mut self, max_part: NonZeroUsize, mutant: FleetMutant) {
        let Some((reading, _)) = &self.follower.reading else { return };
        let (sequence, model) = (reading.read(), self.follower.model.clone());
        let follows = self.feed.snapshots.load().last;
        if reading.last() != follows {
            return;
        }
        let taken = {
            let mut model = lock(&model);
            let known = model.epoch.max(follows.epoch());
            model.epoch = epoch::after(known, presim::clock::Clock::unix(&*self.clock));
            model.epoch
        };
        let node = self.follower.index;
        let port = Box::new(ModelPort { model, node, max_part, mutant, skipped: 0.into() });
        let led = StreamWriter::lead(port, sequence, follows, SnapshotId::begin(taken), "a node").await;
        if let Ok(stream) = led {
            self.feed.snapshots.update(|chain| chain.begin_epoch(taken));
            self.feed.stream = Some(stream);
            self.feed.publish_state(FeedState::Live { every_ms: 200 }).await;
        }
    }

    /// Writes an image, if what is published is what the stream ends with. Returns whether it did.
    pub fn image(&mut self) -> bool {
        let Some(stream) = &mut self.feed.stream else { return false };
        let (published, (sequence, id)) = (self.feed.snapshots.load(), stream.end());
        if published.last != id {
            return false;
        }
        let Some(image) = StateImage::of(&published) else { return false };
        let image = ModelImage { id, sequence, bytes: image.write() };
        stream.imaged();
        let mut model = lock(&self.follower.model);
        if model.image.as_ref().is_none_or(|newest| newest.id < id) {
            model.image = Some(image);
        }
        true
    }
}
