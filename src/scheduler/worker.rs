//! The threads that run tasks: the workers of the pool, and the threads of connections.

use std::{
    cell::{Cell, OnceCell, RefCell},
    io,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Instant,
};

use super::{
    inline::ThreadQueue,
    pulse::{RunningJob, WorkerPulse},
};
use crate::state::Overlay;

/// A worker whose thread has not started.
#[derive(Debug)]
pub struct NewWorker {
    thread: rayon::ThreadBuilder,
    /// The pulse of the worker.
    pub pulse: Arc<WorkerPulse>,
}

impl NewWorker {
    /// Creates a worker from a thread of the pool.
    pub fn new(thread: rayon::ThreadBuilder) -> Self {
        let pulse = Arc::new(WorkerPulse::new(thread.index()));
        Self { thread, pulse }
    }

    /// Starts the thread, which ends when the pool is dropped.
    ///
    /// # Errors
    ///
    /// Returns the system's error if it gives no thread.
    pub fn start(self) -> io::Result<JoinHandle<()>> {
        let Self { thread, pulse } = self;
        thread::Builder::new().name(format!("presim-worker-{}", pulse.index)).spawn(move || {
            pulse.progress.count_checks();
            WORKER.with(|worker| _ = worker.pulse.set(pulse));
            thread.run();
        })
    }
}

/// All that belongs to one thread that runs tasks.
#[derive(Default)]
pub struct Worker {
    /// Set if the thread is a worker's.
    pulse: OnceCell<Arc<WorkerPulse>>,
    /// Overlays for reuse: one for the thread's own run, one for a job that runs in its pause.
    overlays: RefCell<Vec<Overlay>>,
    /// When the thread's run may next pause for another job; `None` while it is paused, or must not pause.
    next_pause: Cell<Option<Instant>>,
    /// The inline requests of the thread. Their permits hold it too, because a permit may be dropped on another thread.
    queue: Arc<ThreadQueue>,
}

thread_local! {
    static WORKER: Worker = Worker::default();
}

impl Worker {
    /// Calls `with` with the inline requests of the calling thread.
    pub fn with_queue<T>(with: impl FnOnce(&Arc<ThreadQueue>) -> T) -> T {
        WORKER.with(|worker| with(&worker.queue))
    }

    /// Calls `run` with an overlay of the calling thread.
    pub fn with_overlay<T>(run: impl FnOnce(&mut Overlay) -> T) -> T {
        WORKER.with(|worker| {
            let mut overlay = worker.overlays.borrow_mut().pop().unwrap_or_else(Overlay::of_thread);
            let result = run(&mut overlay);
            overlay.shrink();
            worker.overlays.borrow_mut().push(overlay);
            result
        })
    }

    /// Calls `run`, and shows it as `job` in the pulse of the calling thread, if the thread is a worker's.
    pub fn run_job<T>(job: RunningJob, run: impl FnOnce() -> T) -> T {
        WORKER.with(|worker| match worker.pulse.get() {
            Some(pulse) => pulse.run(job, run),
            None => run(),
        })
    }

    /// Calls `run`, which may pause for other jobs.
    pub fn with_pauses(run: impl FnOnce()) {
        WORKER.with(|worker| {
            worker.next_pause.set(Some(Instant::now()));
            run();
            worker.next_pause.set(None);
        });
    }

    /// Calls `meanwhile` if the run of the calling thread may pause now. The run then gets as much time as that took, so
    /// that a stream of other jobs has half of the worker, and the run the other half.
    pub fn pause(meanwhile: impl FnOnce()) {
        WORKER.with(|worker| {
            let Some(mut next) = worker.next_pause.take() else { return };
            let began = Instant::now();
            if began >= next {
                meanwhile();
                next = Instant::now() + began.elapsed();
            }
            worker.next_pause.set(Some(next));
        });
    }
}
