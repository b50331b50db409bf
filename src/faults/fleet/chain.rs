//! The chain that a fleet follows: an upstream, and a builder that sends its sub-blocks to each node that listens.

use std::{sync::Mutex, time::Duration};

use crate::{ledger::Retention, source::live::flashblocks::Event, telemetry::Metrics};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use super::super::live::{
    following::SimFollowing,
    node::SimNode as SimUpstream,
    truth::{Truth, flashblock},
};

/// The time between two sub-blocks.
const SUB_BLOCK: Duration = Duration::from_millis(200);

/// The chain.
#[derive(Debug)]
pub struct SimChain {
    pub truth: Truth,
    upstream: SimUpstream,
    streams: Mutex<Vec<mpsc::Sender<Event>>>,
    seed: u64,
}

impl SimChain {
    pub fn new(seed: u64) -> Self {
        let truth = Truth::new();
        let upstream = SimUpstream::new(truth.genesis.clone(), false);
        Self { truth, upstream, streams: Mutex::default(), seed }
    }

    /// Returns the source of a node that begins with the newest block.
    pub async fn follow(&self, kept: Retention, metrics: &Metrics) -> SimFollowing {
        let head = self.upstream.state().head().clone();
        let following = SimFollowing::begin(&self.truth.spec, &self.upstream, &head, kept, self.seed, metrics).await;
        following.stream.try_send(Event::Connected).expect("there is room");
        self.streams.lock().expect("the simulation has one thread").push(following.stream.clone());
        following
    }

    /// Builds blocks of so many sub-blocks, each of at most `traffic` transactions.
    pub async fn go_on(&self, sub_blocks: usize, traffic: usize) {
        let mut rng = SmallRng::seed_from_u64(self.seed ^ 0xc4a1);
        loop {
            let parent = self.upstream.state().head().clone();
            let parts: Vec<usize> = (0..sub_blocks).map(|_| rng.random_range(0..=traffic)).collect();
            let block = self.truth.build(&parent, &parts, rng.random_range(1..1 << 40));
            for part in &block.parts {
                sleep(SUB_BLOCK).await;
                let flashblock = flashblock(&part.payload, part.post_exec.as_ref());
                let received = Instant::now();
                let mut streams = self.streams.lock().expect("the simulation has one thread");
                // A node that was killed listens no more.
                streams.retain(|stream| {
                    stream.try_send(Event::Flashblock { flashblock: flashblock.clone(), received }).is_ok()
                });
            }
            sleep(SUB_BLOCK / 2).await;
            self.upstream.state().put(vec![block]);
        }
    }
}
