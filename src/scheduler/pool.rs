//! The queues of the workers, and the order in which jobs are taken from them.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use super::{
    constants::PAUSE_STRIDES,
    flow::{ClientShare, FairQueue, Job, LaneName, QueueName},
    lane::{ExecutorConfig, Lane},
    worker::Worker,
};
use crate::{meter::Pause, telemetry::Metrics};

/// The lanes, and the queues from which the workers take their jobs.
#[derive(Debug)]
pub struct WorkQueues {
    pub lanes: [Arc<Lane>; LaneName::ALL.len()],
    queues: [FairQueue; QueueName::ALL.len()],
    turns: AtomicUsize,
    /// Called whenever a run pauses.
    pause: Pause,
    /// Number of threads that run a request inline or are about to.
    pub busy_inline: AtomicUsize,
}

impl WorkQueues {
    pub fn new(config: &ExecutorConfig, metrics: &Metrics) -> Arc<Self> {
        Arc::new_cyclic(|pool: &Weak<Self>| {
            let pool = pool.clone();
            Self {
                lanes: LaneName::ALL.map(|name| Arc::new(Lane::new(name, config, metrics))),
                queues: Default::default(),
                turns: AtomicUsize::new(0),
                pause: Pause::new(move || {
                    if let Some(pool) = pool.upgrade() {
                        pool.run_one_while_paused();
                    }
                }),
                busy_inline: AtomicUsize::new(0),
            }
        })
    }

    pub fn push(&self, queue: QueueName, flow: &Arc<ClientShare>, job: Job) {
        self.queues[queue.index()].push(queue, flow, job);
    }

    fn pop(&self, queue: QueueName) -> Option<(Arc<ClientShare>, Job)> {
        self.queues[queue.index()].pop(queue, self.lanes[queue.lane as usize].cost.mean())
    }

    /// Returns the number of jobs that wait in these queues.
    pub fn waiting(&self, queues: impl IntoIterator<Item = QueueName>) -> usize {
        queues.into_iter().map(|queue| self.queues[queue.index()].waiting()).sum()
    }

    /// Runs one job: the first of the highest queue that has one. Some turns begin with a lower queue.
    pub fn turn(&self) {
        let first = QueueName::FIRST[self.turns.fetch_add(1, Relaxed) % QueueName::FIRST.len()];
        let mut job = loop {
            if let Some((_, job)) = [first].into_iter().chain(QueueName::ALL).find_map(|queue| self.pop(queue)) {
                break job;
            }
            if self.waiting(QueueName::ALL) == 0 {
                return;
            }
            // Another worker has taken the waiting job's client off the list, for as long as it takes to pop one job.
            std::thread::yield_now();
        };
        Worker::with_pauses(|| {
            job.work.run(Some(&self.pause), None);
        });
    }

    /// Runs one job in the pause of another, with a small bound.
    fn run_one_while_paused(self: &Arc<Self>) {
        if self.waiting(QueueName::PASSING) == 0 {
            return;
        }
        Worker::pause(|| {
            let found = QueueName::PASSING.into_iter().find_map(|queue| Some((queue, self.pop(queue)?)));
            let Some((queue, (flow, mut job))) = found else { return };
            if !job.work.run(None, Some(PAUSE_STRIDES)) {
                self.push(QueueName::of(queue.lane, true), &flow, job);
                // The turn spawned for this job may have run meanwhile and found nothing.
                let pool = self.clone();
                rayon::spawn(move || pool.turn());
            }
        });
    }
}
