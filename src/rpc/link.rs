//! A connection as both doors see it: what it holds, whether it moves, and whether it may be closed for another.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::Notify,
    time::{Sleep, sleep},
};

use super::memory::{HeldBytes, IoMemory, MemoryShare};

/// One connection.
///
/// It is closed when it stands still for [`Link::timeout`]: from accept to the first whole head of a request, while the socket takes none of
/// the bytes that are written, while the parts of an HTTP/2 answer wait for the peer's window, and while a WebSocket message waits for its rest.
/// [`Link::problem`] tells that, and is asked for every connection now and then.
#[derive(Debug)]
pub struct Link {
    share: Arc<MemoryShare>,
    timeout: Duration,
    opened: Instant,
    /// Whether the head of a request has come.
    greeted: AtomicBool,
    /// Whether bytes that come while nothing is under way are those of a head: after the first of HTTP/1.
    reads_heads: AtomicBool,
    /// Requests whose answer is not handed to the socket.
    under_way: AtomicUsize,
    /// Milliseconds from `opened` to when the socket took no more; 0 while it takes what is written.
    blocked: AtomicU64,
    /// HTTP/2 answers of which parts wait for the peer's window, and milliseconds from `opened` to when a part last went.
    windowed: AtomicUsize,
    window_moved: AtomicU64,
    /// Milliseconds from `opened` to when a head or a message that is not whole yet last moved; 0 where there is none.
    piece_moved: AtomicU64,
    close: Notify,
}

/// A request that is under way, until dropped.
#[derive(Debug)]
pub struct UnderWay(Arc<Link>);

/// An answer that goes out by an HTTP/2 window, until dropped.
#[derive(Debug)]
pub struct Windowed(Arc<Link>);

impl Link {
    /// A connection that was accepted just now.
    pub fn new(share: Arc<MemoryShare>, timeout: Duration) -> Self {
        Self {
            share,
            timeout,
            opened: Instant::now(),
            greeted: AtomicBool::new(false),
            reads_heads: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            blocked: AtomicU64::new(0),
            windowed: AtomicUsize::new(0),
            window_moved: AtomicU64::new(0),
            piece_moved: AtomicU64::new(0),
            close: Notify::new(),
        }
    }

    /// The bytes that the connection makes the node hold.
    pub const fn share(&self) -> &Arc<MemoryShare> {
        &self.share
    }

    /// How long the connection may stand still (`--io-timeout-ms`).
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Notes that the head of a request has come; after one of HTTP/1 that is no upgrade, another may come.
    pub fn greet(&self, is_http1: bool) {
        self.greeted.store(true, Relaxed);
        self.reads_heads.store(is_http1, Relaxed);
        self.piece_moved.store(0, Relaxed);
    }

    /// Begins a request.
    pub fn begin(self: &Arc<Self>) -> UnderWay {
        self.under_way.fetch_add(1, AcqRel);
        UnderWay(self.clone())
    }

    /// Begins an answer that goes out by an HTTP/2 window.
    pub fn open_window(self: &Arc<Self>) -> Windowed {
        self.windowed.fetch_add(1, AcqRel);
        self.window_moves();
        Windowed(self.clone())
    }

    /// Whether nothing is under way, so that the connection may be closed for another.
    pub fn is_idle(&self) -> bool {
        self.under_way.load(Acquire) == 0 && self.blocked.load(Relaxed) == 0
    }

    /// Has the connection closed by the task that runs it.
    pub fn close(&self) {
        self.close.notify_one();
    }

    /// Returns when the connection is to be closed.
    pub async fn closed(&self) {
        self.close.notified().await;
    }

    /// Why the connection must end, if it stands still.
    pub fn problem(&self) -> Option<&'static str> {
        let stood_since = |since: u64| self.now().saturating_sub(since) > millis(self.timeout);
        let blocked = self.blocked.load(Relaxed);
        if blocked > 0 && stood_since(blocked) {
            Some("the peer does not read what it is sent")
        } else if self.windowed.load(Acquire) > 0 && stood_since(self.window_moved.load(Relaxed)) {
            Some("the peer opens no window for its answers")
        } else if !self.greeted.load(Relaxed) && stood_since(0) {
            Some("the head of a first request did not come")
        } else {
            let piece = self.piece_moved.load(Relaxed);
            (piece > 0 && stood_since(piece)).then_some(
                "the rest of a head or a message did not come, or no room for it came free (--max-memory-io)",
            )
        }
    }

    fn window_moves(&self) {
        self.window_moved.store(self.now(), Relaxed);
    }

    /// Milliseconds since the connection was accepted, and one: 0 stands for never.
    fn now(&self) -> u64 {
        millis(self.opened.elapsed()) + 1
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX - 1)
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, AcqRel);
    }
}

impl Windowed {
    /// A part of the answer went.
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

/// A connection's socket, which tells its [`Link`] when it takes no more.
#[derive(Debug)]
pub struct LinkedStream {
    stream: TcpStream,
    link: Arc<Link>,
}

impl LinkedStream {
    /// The socket of `link`.
    pub const fn new(stream: TcpStream, link: Arc<Link>) -> Self {
        Self { stream, link }
    }

    fn note<T>(&self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match written {
            // The clock is read when the socket begins to be full, not at each write.
            Poll::Pending if self.link.blocked.load(Relaxed) == 0 => self.link.blocked.store(self.link.now(), Relaxed),
            Poll::Pending => {}
            Poll::Ready(_) => self.link.blocked.store(0, Relaxed),
        }
        written
    }
}

impl AsyncRead for LinkedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let done = Pin::new(&mut self.stream).poll_read(cx, into);
        let link = &self.link;
        if into.filled().len() > before && link.reads_heads.load(Relaxed) && link.under_way.load(Relaxed) == 0 {
            link.piece_moved.store(link.now(), Relaxed);
        }
        done
    }
}

impl AsyncWrite for LinkedStream {
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

/// What a WebSocket connection reads, as far as the node has room for it.
///
/// Bytes of a message that has not come whole are held for the connection. Where it may hold no more, nothing is read until bytes are given back.
pub struct Inbox<S> {
    stream: S,
    pieces: Arc<Pieces>,
    /// The wait before there is another look, where there is no room.
    retry: Option<Pin<Box<Sleep>>>,
}

/// What has been read of a WebSocket connection and is not a whole message yet.
#[derive(Debug)]
pub struct Pieces {
    link: Arc<Link>,
    read: AtomicUsize,
    /// What these bytes count for. Locked by the one task that reads the connection.
    held: Mutex<HeldBytes>,
}

/// What bytes of a message that is not whole yet count for. tungstenite takes memory for a whole frame at once; where that is much, the system
/// gives it in pages of 2 MiB, of which the first may begin before it.
const fn counted(bytes: usize) -> usize {
    const LARGE_PAGE: usize = 2 << 20;
    if bytes <= LARGE_PAGE / 16 { bytes } else { (bytes / LARGE_PAGE + 1) * LARGE_PAGE }
}

impl Pieces {
    /// Bytes that are read at once.
    const READ: usize = 16 << 10;

    /// Nothing read yet.
    pub fn new(link: Arc<Link>) -> Self {
        let held = Mutex::new(link.share.clone().nothing());
        Self { link, read: AtomicUsize::new(0), held }
    }

    /// The bytes of a message that has come whole.
    pub fn message(&self) -> HeldBytes {
        self.link.piece_moved.store(0, Relaxed);
        self.read.store(0, Relaxed);
        std::mem::replace(&mut *self.held(), self.link.share.clone().nothing())
    }

    /// Gives back the bytes of a control frame, which may stand between the pieces of a message (RFC 6455, 5.4).
    pub fn control_frame(&self, payload: usize) {
        /// Bytes before the payload of a control frame from a client: two, and its mask.
        const HEADER: usize = 6;
        let frame = (payload + HEADER).min(self.bytes());
        let read = self.read.fetch_sub(frame, Relaxed) - frame;
        let mut held = self.held();
        let less = held.bytes().saturating_sub(counted(read));
        held.shrink(less);
        if read == 0 {
            self.link.piece_moved.store(0, Relaxed);
        }
    }

    /// Whoever panicked while it held the count left it right: each change is one step.
    fn held(&self) -> MutexGuard<'_, HeldBytes> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the message that is not whole yet.
    pub fn bytes(&self) -> usize {
        self.read.load(Relaxed)
    }

    /// How many bytes may be read now.
    fn room(&self) -> usize {
        let (read, held) = (self.bytes(), self.held());
        let more = counted(read + Self::READ).saturating_sub(held.bytes());
        match held.room(more) {
            room if room == more => Self::READ,
            small => small.min(Self::READ),
        }
    }

    fn can_ever_hold_more(&self) -> bool {
        self.link.share.can_ever_hold(counted(self.bytes() + Self::READ))
    }

    fn add(&self, bytes: usize) {
        let read = self.read.fetch_add(bytes, Relaxed) + bytes;
        let mut held = self.held();
        let more = counted(read).saturating_sub(held.bytes());
        held.grow_always(more);
        drop(held);
        self.moved();
    }

    fn moved(&self) {
        self.link.piece_moved.store(self.link.now(), Relaxed);
    }
}

impl<S> Inbox<S> {
    /// What `stream` brings, counted in `pieces`.
    pub const fn new(stream: S, pieces: Arc<Pieces>) -> Self {
        Self { stream, pieces, retry: None }
    }

    /// The stream, to be read without being counted.
    pub const fn uncounted(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Waits until there is room, and says for how many bytes.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        loop {
            if let Some(retry) = &mut self.retry {
                ready!(retry.as_mut().poll(cx));
            }
            let room = self.pieces.room();
            if room > 0 {
                self.retry = None;
                return Poll::Ready(room);
            }
            if self.retry.is_none() {
                // From now on it stands still.
                self.pieces.moved();
            }
            self.retry = Some(Box::pin(sleep(IoMemory::RETRY)));
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Inbox<S> {
    /// # Errors
    /// Returns an error of the kind `FileTooLarge` if a message is longer than a connection can ever hold.
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.pieces.can_ever_hold_more() {
            return Poll::Ready(Err(io::ErrorKind::FileTooLarge.into()));
        }
        let room = ready!(self.poll_room(cx));
        let most = into.remaining().min(room);
        let mut part = ReadBuf::new(into.initialize_unfilled_to(most));
        let done = Pin::new(&mut self.stream).poll_read(cx, &mut part);
        let filled = part.filled().len();
        into.advance(filled);
        if filled > 0 {
            self.pieces.add(filled);
        }
        done
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Inbox<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
