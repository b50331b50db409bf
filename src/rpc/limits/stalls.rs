//! The progress of connections: which of them stall, and which may be closed for another.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
};

/// The time that the first head of a request may take from the accept of its connection.
pub const FIRST_HEAD: Duration = Duration::from_secs(5);

/// The time from the end of a request to the whole head of the next one on a connection of HTTP/1.
pub const NEXT_HEAD: Duration = Duration::from_secs(60);

/// The progress of one connection, of any transport.
///
/// A connection is closed when it stalls for [`Progress::timeout`], or for [`FIRST_HEAD`] if that is shorter, from accept to
/// the first complete head of a request, and when no further head of HTTP/1 is complete [`NEXT_HEAD`] after a request. It is closed when it
/// stalls for [`Progress::timeout`] while the socket takes none of the written bytes; while the parts of an HTTP/2 answer wait for the peer's
/// window; and while a WebSocket message is incomplete. [`Progress::problem`] reports a stall, and is called for every connection
/// at intervals, so that no request needs a timer for these bounds.
#[derive(Debug)]
pub struct Progress {
    /// The time that the connection may stall (`--io-timeout-ms`).
    pub timeout: Duration,
    opened: Instant,
    /// Whether the head of a request has arrived.
    greeted: AtomicBool,
    /// Whether the peer has sent a valid token, or a request if none is needed.
    known: AtomicBool,
    /// Milliseconds from `opened` to the end of the last request; 0 before that.
    idle_since: AtomicU64,
    /// Whether bytes that arrive while no request is in progress belong to a head. They do after the first request of
    /// HTTP/1.
    reads_heads: AtomicBool,
    /// Requests whose answer is not written to the socket yet.
    under_way: AtomicUsize,
    /// Milliseconds from `opened` to when the socket stopped accepting bytes; 0 while it accepts them.
    blocked: AtomicU64,
    /// The number of HTTP/2 answers whose parts wait for the peer's window, and the milliseconds from `opened` to when
    /// a part was last sent.
    windowed: AtomicUsize,
    window_moved: AtomicU64,
    /// Milliseconds from `opened` to the last progress of an incomplete head or message; 0 if there is none.
    piece_moved: AtomicU64,
    close: Notify,
}

/// A request in progress, until dropped.
#[derive(Debug)]
pub struct UnderWay(Arc<Progress>);

/// An answer that is sent through an HTTP/2 window, until dropped.
#[derive(Debug)]
pub struct Windowed(Arc<Progress>);

impl Progress {
    /// Creates the progress of a connection that was just accepted, and that may stall for `timeout`.
    pub fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            opened: Instant::now(),
            greeted: AtomicBool::new(false),
            known: AtomicBool::new(false),
            idle_since: AtomicU64::new(0),
            reads_heads: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            blocked: AtomicU64::new(0),
            windowed: AtomicUsize::new(0),
            window_moved: AtomicU64::new(0),
            piece_moved: AtomicU64::new(0),
            close: Notify::new(),
        }
    }

    /// Notes that the head of a request has arrived. After one of HTTP/1 that is not an upgrade, another may follow.
    pub fn on_head(&self, is_http1: bool) {
        self.greeted.store(true, Relaxed);
        self.reads_heads.store(is_http1, Relaxed);
        self.on_complete();
    }

    /// Begins a request.
    pub fn begin(self: &Arc<Self>) -> UnderWay {
        self.under_way.fetch_add(1, AcqRel);
        UnderWay(self.clone())
    }

    /// Begins an answer that is sent through an HTTP/2 window.
    pub fn open_window(self: &Arc<Self>) -> Windowed {
        self.windowed.fetch_add(1, AcqRel);
        self.window_moves();
        Windowed(self.clone())
    }

    /// Returns whether no request is in progress, so that the connection may be closed for another.
    pub fn is_idle(&self) -> bool {
        self.under_way.load(Acquire) == 0 && self.blocked.load(Relaxed) == 0
    }

    /// Notes that the peer has sent a valid token, or a request if none is needed.
    pub fn mark_known(&self) {
        self.known.store(true, Relaxed);
    }

    /// Returns whether the peer has sent a valid token, or a request if none is needed.
    pub fn is_known(&self) -> bool {
        self.known.load(Relaxed)
    }

    /// Returns the time since which no request is in progress.
    pub fn idle_since(&self) -> Instant {
        self.opened + Duration::from_millis(self.idle_since.load(Relaxed))
    }

    /// Requests that the connection's task closes it.
    pub fn close(&self) {
        self.close.notify_one();
    }

    /// Returns when the connection is to be closed.
    pub async fn closed(&self) {
        self.close.notified().await;
    }

    /// Returns the reason to close the connection, if it stalls.
    pub fn problem(&self) -> Option<&'static str> {
        let stood = |since: u64, most: Duration| self.now().saturating_sub(since) > millis(most);
        let stood_since = |since: u64| stood(since, self.timeout);
        let blocked = self.blocked.load(Relaxed);
        if blocked > 0 && stood_since(blocked) {
            Some("the peer does not read what it is sent")
        } else if self.windowed.load(Acquire) > 0 && stood_since(self.window_moved.load(Relaxed)) {
            Some("the peer opens no window for its answers")
        } else if !self.greeted.load(Relaxed) && stood(0, self.timeout.min(FIRST_HEAD)) {
            Some("the head of a first request did not come")
        } else if self.reads_heads.load(Relaxed) && self.is_idle() && stood(self.idle_since.load(Relaxed), NEXT_HEAD) {
            Some("the head of a further request did not come")
        } else {
            let piece = self.piece_moved.load(Relaxed);
            (piece > 0 && stood_since(piece)).then_some(
                "the rest of a head or a message did not come, or no room for it came free (--max-memory-io)",
            )
        }
    }

    /// Notes progress of a head or a message that is not complete yet.
    pub fn on_partial(&self) {
        self.piece_moved.store(self.now(), Relaxed);
    }

    /// Notes that no head and no message is incomplete.
    pub fn on_complete(&self) {
        self.piece_moved.store(0, Relaxed);
    }

    fn window_moves(&self) {
        self.window_moved.store(self.now(), Relaxed);
    }

    /// Returns the milliseconds since the connection was accepted, plus one, because 0 means never.
    fn now(&self) -> u64 {
        millis(self.opened.elapsed()) + 1
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX - 1)
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.idle_since.store(self.0.now(), Relaxed);
        self.0.under_way.fetch_sub(1, AcqRel);
    }
}

impl Windowed {
    /// Notes that a part of the answer was sent.
    pub fn moves(&self) {
        self.0.window_moves();
    }
}

impl Drop for Windowed {
    fn drop(&mut self) {
        self.0.window_moves();
        self.0.windowed.fetch_sub(1, AcqRel);
    }
}

/// The writing half of a connection's socket, or the whole socket, which records in its [`Progress`] when it accepts
/// no more bytes.
#[derive(Debug)]
pub struct NotedStream<S> {
    stream: S,
    progress: Arc<Progress>,
}

impl<S> NotedStream<S> {
    /// Creates the socket of a connection.
    pub const fn new(stream: S, progress: Arc<Progress>) -> Self {
        Self { stream, progress }
    }

    /// Returns the system's socket.
    pub const fn socket(&self) -> &S {
        &self.stream
    }

    fn note<T>(&self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match written {
            // The clock is read when the socket's buffer becomes full, not on each write.
            Poll::Pending if self.progress.blocked.load(Relaxed) == 0 => {
                self.progress.blocked.store(self.progress.now(), Relaxed)
            }
            Poll::Pending => {}
            Poll::Ready(_) => self.progress.blocked.store(0, Relaxed),
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for NotedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let done = Pin::new(&mut self.stream).poll_read(cx, into);
        let progress = &self.progress;
        if into.filled().len() > before && progress.reads_heads.load(Relaxed) && progress.under_way.load(Relaxed) == 0 {
            progress.on_partial();
        }
        done
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for NotedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, from);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, from);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FURTHER: Option<&str> = Some("the head of a further request did not come");

    #[test]
    fn a_connection_without_a_further_request_is_closed() {
        let opened = Instant::now().checked_sub(NEXT_HEAD * 2).expect("the clock has run for some minutes");
        let progress = Arc::new(Progress { opened, ..Progress::new(Duration::from_secs(30)) });
        progress.on_head(true);
        let under_way = progress.begin();
        assert_eq!(progress.problem(), None, "a request may take any time");
        drop(under_way);
        assert_eq!(progress.problem(), None, "its time begins with the end of the request");
        // As if the request had ended when the connection was opened.
        progress.idle_since.store(1, Relaxed);
        assert_eq!(progress.problem(), FURTHER);
        progress.on_head(false);
        assert_eq!(progress.problem(), None, "a WebSocket may be silent");
    }

    #[test]
    fn the_beginning_of_a_head_gives_no_more_time() {
        let opened = Instant::now().checked_sub(NEXT_HEAD * 2).expect("the clock has run for some minutes");
        let progress = Arc::new(Progress { opened, ..Progress::new(Duration::from_secs(30)) });
        progress.on_head(true);
        progress.idle_since.store(1, Relaxed);
        progress.on_partial();
        assert_eq!(progress.problem(), FURTHER);
    }
}
