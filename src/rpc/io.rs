//! The threads that connections live on.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread::JoinHandle,
};

use tokio::{
    net::TcpStream,
    runtime::{Builder, Handle, RuntimeMetrics},
    sync::watch,
};

/// Threads with an event loop each, and connections dealt out among them.
///
/// A connection stays on its thread: what it asks is read there, run there where it is short, and answered there. So no thread wakes
/// another for it, which would cost more than many a call does.
#[derive(Debug)]
pub struct IoThreads {
    threads: Vec<IoThread>,
    stop: watch::Sender<bool>,
}

#[derive(Debug)]
struct IoThread {
    runtime: Handle,
    connections: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl IoThreads {
    /// Starts `count` threads, at least one.
    ///
    /// # Errors
    /// What the system says when it gives no threads, or no event loops.
    pub fn start(count: usize) -> io::Result<Self> {
        let (stop, stopping) = watch::channel(false);
        let threads = (0..count.max(1))
            .map(|index| {
                // What a worker has finished goes before what is yet to be read: by default it gets one turn in 31 while there is more to read,
                // and under overload waits for seconds.
                let runtime = Builder::new_current_thread().global_queue_interval(1).enable_all().build()?;
                let handle = runtime.handle().clone();
                let mut stopping = stopping.clone();
                let thread = std::thread::Builder::new().name(format!("presim-io-{index}")).spawn(move || {
                    wake_politely();
                    runtime.block_on(async move {
                        // An end without a word is one, too.
                        let _ = stopping.wait_for(|stop| *stop).await;
                    });
                })?;
                Ok(IoThread { runtime: handle, connections: Arc::default(), thread: Some(thread) })
            })
            .collect::<io::Result<_>>()?;
        Ok(Self { threads, stop })
    }

    /// What is known of each thread's event loop.
    pub fn loops(&self) -> Vec<RuntimeMetrics> {
        self.threads.iter().map(|thread| thread.runtime.metrics()).collect()
    }

    /// Runs what `task` makes on each thread, until the threads stop.
    pub fn run_on_each<F: Future<Output = ()> + Send + 'static>(&self, task: impl Fn() -> F) {
        for thread in &self.threads {
            thread.runtime.spawn(task());
        }
    }

    /// Hands `stream` to the thread with the fewest connections, which runs what `serve` makes of it to its end.
    pub fn deal<F: Future<Output = ()> + Send + 'static>(
        &self,
        stream: TcpStream,
        serve: impl FnOnce(TcpStream) -> F + Send + 'static,
    ) {
        let Some(thread) = self.threads.iter().min_by_key(|thread| thread.connections.load(Relaxed)) else { return };
        let Ok(stream) = stream.into_std() else { return };
        let seat = Seat::take(&thread.connections);
        thread.runtime.spawn(async move {
            let _seat = seat;
            // It was registered with the event loop that accepted it.
            match TcpStream::from_std(stream) {
                Ok(stream) => serve(stream).await,
                Err(error) => tracing::warn!(%error, "cannot serve a connection"),
            }
        });
    }
}

/// Has the calling thread wait, when it wakes, until whoever is on its core pauses or has had his time (`SCHED_BATCH`, sched(7)).
///
/// What wakes it is a request, and most often its core is that of a client in the midst of sending more, or of a worker. To take the core
/// from either for each request costs two switches, and each time there is one request to read where there would soon be several.
#[cfg(target_os = "linux")]
fn wake_politely() {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: it reads `param`, and changes how the calling thread is scheduled.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const param) } != 0 {
        tracing::debug!(error = %io::Error::last_os_error(), "I/O threads are scheduled as others are");
    }
}

#[cfg(not(target_os = "linux"))]
fn wake_politely() {}

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

/// A connection's place on its thread.
struct Seat(Arc<AtomicUsize>);

impl Seat {
    fn take(connections: &Arc<AtomicUsize>) -> Self {
        connections.fetch_add(1, Relaxed);
        Self(connections.clone())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
