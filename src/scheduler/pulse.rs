//! The pulse of a worker: what it runs, since when, and whether it makes progress.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::{Duration, Instant},
};

use crossbeam::atomic::AtomicCell;

use super::{cost::nanos, flow::LaneName};
use crate::meter::Progress;

/// The name of a task, for logs. It is a thin reference, which a worker can publish by one atomic store.
pub type TaskName = &'static &'static str;

// Otherwise a worker would take a lock for each job.
const _: () = assert!(AtomicCell::<Option<TaskName>>::is_lock_free() && AtomicCell::<Option<LaneName>>::is_lock_free());

/// The signs of life of a worker, which it writes as a job begins and ends and at each check of a meter. Any thread may read
/// them.
///
/// The fields are written one after the other, so a reader may see the lane of one job with the name of the next.
#[derive(Debug)]
pub struct WorkerPulse {
    /// The number of the worker.
    pub index: usize,
    /// Jobs that have begun or ended, and checks of meters.
    pub progress: Arc<Progress>,
    /// The lane of the job that runs; `None` while the worker is idle.
    lane: AtomicCell<Option<LaneName>>,
    name: AtomicCell<Option<TaskName>>,
    /// When the job began, in nanoseconds from `origin`.
    since: AtomicU64,
    origin: Instant,
    /// Written by the worker's actor.
    is_stalled: AtomicBool,
}

/// A job that a worker runs.
#[derive(Clone, Copy, Debug)]
pub struct RunningJob {
    /// The lane of the job.
    pub lane: LaneName,
    /// The name of its task.
    pub name: TaskName,
    /// When it began.
    pub since: Instant,
}

/// A worker that makes no progress although jobs wait.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    /// The number of the worker.
    pub worker: usize,
    /// The job that it runs. `None` if it is idle, and takes none of the waiting jobs.
    pub job: Option<RunningJob>,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.job {
            Some(RunningJob { lane, name, since }) => write!(
                f,
                "worker {} makes no progress while requests wait: it has run {name} of the {lane} lane for {} ms",
                self.worker,
                since.elapsed().as_millis()
            ),
            None => write!(f, "worker {} is idle while requests wait for it", self.worker),
        }
    }
}

impl WorkerPulse {
    /// Creates the pulse of an idle worker.
    pub fn new(index: usize) -> Self {
        Self {
            index,
            progress: Arc::default(),
            lane: AtomicCell::new(None),
            name: AtomicCell::new(None),
            since: AtomicU64::new(0),
            origin: Instant::now(),
            is_stalled: AtomicBool::new(false),
        }
    }

    /// Returns the job that the worker runs: of a job that runs in the pause of another, that one.
    pub fn job(&self) -> Option<RunningJob> {
        let (lane, name) = self.lane.load().zip(self.name.load())?;
        Some(RunningJob { lane, name, since: self.origin + Duration::from_nanos(self.since.load(Relaxed)) })
    }

    /// Runs a job on the worker's own thread. Afterwards shows the previous job again, in whose pause it may have run.
    pub fn run<T>(&self, job: RunningJob, run: impl FnOnce() -> T) -> T {
        let before = self.job();
        self.set(Some(job));
        self.progress.advance();
        let result = run();
        self.progress.advance();
        self.set(before);
        result
    }

    fn set(&self, job: Option<RunningJob>) {
        if let Some(job) = job {
            self.name.store(Some(job.name));
            self.since.store(nanos(job.since.saturating_duration_since(self.origin)), Relaxed);
        }
        self.lane.store(job.map(|job| job.lane));
    }

    /// Sets whether the worker is stalled.
    pub fn set_stalled(&self, is_stalled: bool) {
        self.is_stalled.store(is_stalled, SeqCst);
    }

    /// Returns the stall of the worker, if it is stalled.
    pub fn stall(&self) -> Option<Stall> {
        self.is_stalled.load(SeqCst).then(|| Stall { worker: self.index, job: self.job() })
    }
}

/// Decides whether a worker is stalled, from looks at it at regular intervals. Looks are counted rather than the time
/// between them, because a process that was stopped for a while has seen no worker stall.
#[derive(Debug)]
pub struct StallWatch {
    /// The progress at the last look.
    steps: u64,
    /// The looks since then that found the same.
    looks: u32,
    is_stalled: bool,
}

impl StallWatch {
    /// The looks without progress after which a worker is stalled.
    pub const LOOKS: u32 = 8;

    /// Creates the watch of a worker that has not begun.
    pub const fn new() -> Self {
        Self { steps: 0, looks: 0, is_stalled: false }
    }

    /// Looks at a worker that has made `steps` steps: `runs` is whether it runs a job, `waits` whether a job waits. Returns
    /// whether it is stalled. A stall begins while jobs wait, and ends when the worker makes progress.
    pub const fn look(&mut self, steps: u64, runs: bool, waits: bool) -> bool {
        if steps != self.steps || !(runs || waits) {
            *self = Self { steps, looks: 0, is_stalled: false };
        } else {
            self.looks = self.looks.saturating_add(1);
            self.is_stalled |= waits && self.looks >= Self::LOOKS;
        }
        self.is_stalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks often enough for a stall. Returns whether there is one at the end.
    fn watch(watch: &mut StallWatch, mut steps: impl FnMut() -> u64, runs: bool, waits: bool) -> bool {
        (0..2 * StallWatch::LOOKS).fold(false, |_, _| watch.look(steps(), runs, waits))
    }

    #[test]
    fn a_worker_stalls_only_without_progress_while_jobs_wait() {
        let mut steps = 0..;
        assert!(!watch(&mut StallWatch::new(), || steps.next().unwrap_or(0), true, true), "a long run makes progress");
        assert!(!watch(&mut StallWatch::new(), || 0, false, false), "an idle worker");
        assert!(watch(&mut StallWatch::new(), || 0, false, true), "an idle worker that takes no job");
        assert!(watch(&mut StallWatch::new(), || 7, true, true));
        let mut hung = StallWatch::new();
        assert!(!watch(&mut hung, || 7, true, false), "nobody waits");
        assert!(hung.look(7, true, true), "it has hung for long when a job begins to wait");
        assert!(hung.look(7, true, false), "it hangs, whether the job waits on or not");
        assert!(!hung.look(8, true, true), "it goes on");
    }

    #[test]
    fn the_job_of_a_pause_is_shown_until_it_ends() {
        let pulse = WorkerPulse::new(3);
        let job = |lane, name| RunningJob { lane, name, since: Instant::now() };
        let shown = || pulse.job().map(|job| (job.lane, *job.name));
        pulse.run(job(LaneName::Bundle, &"a bundle"), || {
            pulse.run(job(LaneName::Read, &"a read"), || assert_eq!(shown(), Some((LaneName::Read, "a read"))));
            assert_eq!(shown(), Some((LaneName::Bundle, "a bundle")));
        });
        assert_eq!((shown(), pulse.progress.steps()), (None, 4));
    }
}
