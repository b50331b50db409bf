//! The bytes of the message that a connection is reading.

use std::{io, sync::Arc};

use super::{
    memory::{HeldBytes, IoMemory, MemoryQuota},
    stalls::Progress,
};
use crate::lock::Mutex;

/// The bytes of the message being read: for a WebSocket message, of all its frames whose heads have arrived.
#[derive(Debug)]
pub struct MessageBytes {
    memory: Arc<MemoryQuota>,
    progress: Arc<Progress>,
    /// Only locked by the one task that reads the connection.
    held: Mutex<HeldBytes>,
}

impl MessageBytes {
    /// Creates an empty count.
    pub fn new(memory: Arc<MemoryQuota>, progress: Arc<Progress>) -> Self {
        let held = Mutex::new(memory.clone().empty());
        Self { memory, progress, held }
    }

    /// Takes room for `bytes` more of the message, if there is room now. Returns whether there was.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind `FileTooLarge` if a connection can never hold as much.
    pub fn grow(&self, bytes: usize) -> io::Result<bool> {
        let mut held = self.held.lock();
        if !self.memory.can_ever_hold(held.bytes().saturating_add(bytes)) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(held.grow(bytes))
    }

    /// Takes room for `bytes` more of the message, and waits for it if necessary.
    ///
    /// # Errors
    ///
    /// Returns an error as [`grow`](Self::grow) does.
    pub async fn wait_to_grow(&self, bytes: usize) -> io::Result<()> {
        while !self.grow(bytes)? {
            tokio::time::sleep(IoMemory::RETRY).await;
        }
        Ok(())
    }

    /// Notes that a part of the message has arrived.
    pub fn moves(&self) {
        self.progress.on_partial();
    }

    /// Returns the bytes of a message that has fully arrived.
    pub fn message(&self) -> HeldBytes {
        self.progress.on_complete();
        std::mem::replace(&mut *self.held.lock(), self.memory.clone().empty())
    }

    /// Releases the bytes of a control frame, which may arrive between the frames of a message (RFC 6455, 5.4).
    pub fn control_frame(&self, payload: usize) {
        let mut held = self.held.lock();
        held.shrink(payload);
        if held.bytes() == 0 {
            self.progress.on_complete();
        }
    }

    /// Returns the number of bytes.
    pub fn count(&self) -> usize {
        self.held.lock().bytes()
    }
}
