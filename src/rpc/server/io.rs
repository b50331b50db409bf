//! The threads of connections.

use std::{io, sync::Arc, thread::JoinHandle};

use tokio::{
    runtime::{Builder, Handle},
    sync::{oneshot, watch},
};

/// Threads with an event loop each, among which connections are distributed.
///
/// A connection stays on its thread: its requests are read there, run there if they are short, and answered there. So
/// no thread wakes another for them, which would cost more than many calls do.
#[derive(Debug)]
pub struct IoThreads {
    threads: Vec<IoThread>,
    stop: watch::Sender<bool>,
}

#[derive(Debug)]
struct IoThread {
    runtime: Handle,
    /// Held by each connection of the thread. The other references count its connections.
    connections: Arc<()>,
    thread: Option<JoinHandle<()>>,
}

impl IoThreads {
    /// Starts `count` threads, at least one.
    ///
    /// # Errors
    ///
    /// Returns the system's error if it gives no threads, or no event loops.
    pub fn start(count: usize) -> io::Result<Self> {
        let (stop, stopping) = watch::channel(false);
        let threads = (0..count.max(1))
            .map(|index| {
                // Workers' results take precedence over unread requests. By default tokio polls them once in 31 turns,
                // so under overload they would wait for seconds.
                let runtime = Builder::new_current_thread().global_queue_interval(1).enable_all().build()?;
                let handle = runtime.handle().clone();
                let mut stopping = stopping.clone();
                let thread = std::thread::Builder::new().name(format!("presim-io-{index}")).spawn(move || {
                    use_batch_scheduling();
                    runtime.block_on(async move {
                        // A dropped sender ends the thread, too.
                        let _ = stopping.wait_for(|stop| *stop).await;
                    });
                })?;
                Ok(IoThread { runtime: handle, connections: Arc::default(), thread: Some(thread) })
            })
            .collect::<io::Result<_>>()?;
        Ok(Self { threads, stop })
    }

    /// Runs the future of `task` on each thread, until the threads stop.
    pub fn run_on_each<F: Future<Output = ()> + Send + 'static>(&self, task: impl Fn() -> F) {
        for thread in &self.threads {
            thread.runtime.spawn(task());
        }
    }

    /// Returns a receiver for each thread, which gets a message when the thread's event loop next runs.
    pub fn pulse(&self) -> Vec<oneshot::Receiver<()>> {
        let pulses = self.threads.iter().map(|thread| {
            let (tell, told) = oneshot::channel();
            thread.runtime.spawn(async move { tell.send(()) });
            told
        });
        pulses.collect()
    }

    /// Gives a connection to the thread with the fewest connections. There, `register` registers its stream with the
    /// thread's event loop, and the future of `serve` runs to its end.
    pub fn assign<S: Send + 'static, F: Future<Output = ()> + Send>(
        &self,
        register: impl FnOnce() -> io::Result<S> + Send + 'static,
        serve: impl FnOnce(S) -> F + Send + 'static,
    ) {
        let Some(thread) = self.threads.iter().min_by_key(|thread| Arc::strong_count(&thread.connections)) else {
            return;
        };
        let counted = thread.connections.clone();
        thread.runtime.spawn(async move {
            let _counted = counted;
            match register() {
                Ok(stream) => serve(stream).await,
                Err(error) => tracing::warn!(%error, "cannot serve a connection"),
            }
        });
    }
}

/// Makes the calling thread wait, on wake-up, until the current thread of its core pauses or its time slice ends
/// (`SCHED_BATCH`, sched(7)).
///
/// Requests wake the thread, and its core usually runs a worker, or a client that is sending more. Preempting either
/// for each request costs two switches, and finds one request to read where there would soon be several.
#[cfg(target_os = "linux")]
fn use_batch_scheduling() {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads `param`, and changes how the calling thread is scheduled.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const param) } != 0 {
        tracing::debug!(error = %io::Error::last_os_error(), "I/O threads are scheduled like other threads");
    }
}

#[cfg(not(target_os = "linux"))]
fn use_batch_scheduling() {}

impl Drop for IoThreads {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        for thread in &mut self.threads {
            if let Some(thread) = thread.thread.take() {
                let _ = thread.join();
            }
        }
    }
}
