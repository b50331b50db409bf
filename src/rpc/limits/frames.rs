//! Reads a WebSocket connection only as far as the node has room.
//!
//! tungstenite allocates a whole frame as soon as it has its head, even if little of the frame has arrived. So each
//! head is read here first, and passed on when the node has room for its frame. Until then the connection is not read.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncBufRead, AsyncRead, AsyncWrite, BufReader, ReadBuf},
    time::{Sleep, sleep},
};

use super::{memory::IoMemory, message::MessageBytes};

/// The stream of a connection, read frame by frame.
pub struct FrameReader<S> {
    stream: BufReader<S>,
    bytes: Arc<MessageBytes>,
    head: FrameHead,
    /// Bytes of the current frame's payload that were not passed on yet.
    left: usize,
    /// The pause before the next try, if there is no room.
    retry: Option<Pin<Box<Sleep>>>,
}

/// The part of a frame's head that has arrived (RFC 6455, 5.2).
#[derive(Default)]
struct FrameHead {
    bytes: [u8; 14],
    read: usize,
    handed_on: usize,
    /// Whether the node has room for the frame.
    has_room: bool,
}

impl FrameHead {
    /// Returns the length of the head in bytes, as far as it is known.
    fn length(&self) -> usize {
        if self.read < 2 {
            return 2;
        }
        let mask = if self.bytes[1] & 0x80 == 0 { 0 } else { 4 };
        2 + mask + self.extended()
    }

    /// Returns the number of bytes that hold the length of the payload, in addition to the seven bits.
    const fn extended(&self) -> usize {
        match self.bytes[1] & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        }
    }

    /// Returns the length of the payload in bytes. The head must be complete.
    fn payload(&self) -> usize {
        let short = usize::from(self.bytes[1] & 0x7f);
        let extended = &self.bytes[2..2 + self.extended()];
        let long = || extended.iter().fold(0, |long: usize, byte| long.saturating_mul(256) | usize::from(*byte));
        if extended.is_empty() { short } else { long() }
    }
}

impl<S: AsyncRead + Unpin> FrameReader<S> {
    /// The number of bytes that are read ahead.
    const AHEAD: usize = 8 << 10;

    /// Creates a reader of `stream`, counted in `bytes`.
    pub fn new(stream: S, bytes: Arc<MessageBytes>) -> Self {
        let stream = BufReader::with_capacity(Self::AHEAD, stream);
        Self { stream, bytes, head: FrameHead::default(), left: 0, retry: None }
    }

    /// Returns the stream, to be read without being counted.
    pub fn uncounted(&mut self) -> &mut S {
        self.stream.get_mut()
    }

    /// Reads the head of the next frame. Returns false if the stream ends before it.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        while self.head.read < self.head.length() {
            let ahead = ready!(Pin::new(&mut self.stream).poll_fill_buf(cx))?;
            if ahead.is_empty() {
                return Poll::Ready(Ok(false));
            }
            let more = (self.head.length() - self.head.read).min(ahead.len());
            self.head.bytes[self.head.read..self.head.read + more].copy_from_slice(&ahead[..more]);
            self.head.read += more;
            Pin::new(&mut self.stream).consume(more);
            self.bytes.moves();
        }
        Poll::Ready(Ok(true))
    }

    /// Waits until there is room for the frame whose head has arrived, and takes it.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind `FileTooLarge` if a connection can never hold as much.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let payload = self.head.payload();
        loop {
            if let Some(retry) = &mut self.retry {
                ready!(retry.as_mut().poll(cx));
            }
            if self.bytes.grow(payload)? {
                self.retry = None;
                return Poll::Ready(Ok(()));
            }
            self.retry = Some(Box::pin(sleep(IoMemory::RETRY)));
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FrameReader<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.left == 0 && this.head.handed_on == this.head.read {
            // The next frame begins.
            if this.head.handed_on > 0 {
                this.head = FrameHead::default();
            }
        }
        if !this.head.has_room {
            if !ready!(this.poll_head(cx))? {
                return Poll::Ready(Ok(()));
            }
            ready!(this.poll_room(cx))?;
            this.head.has_room = true;
            this.left = this.head.payload();
        }
        if this.head.handed_on < this.head.read {
            let more = (this.head.read - this.head.handed_on).min(into.remaining());
            into.put_slice(&this.head.bytes[this.head.handed_on..this.head.handed_on + more]);
            this.head.handed_on += more;
            return Poll::Ready(Ok(()));
        }
        let ahead = ready!(Pin::new(&mut this.stream).poll_fill_buf(cx))?;
        let more = ahead.len().min(this.left).min(into.remaining());
        into.put_slice(&ahead[..more]);
        Pin::new(&mut this.stream).consume(more);
        this.left -= more;
        this.bytes.moves();
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for FrameReader<S> {
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
