//! A redb backend that holds writes back in memory until the store has been checked.

use std::{
    io,
    ops::Bound,
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
};

use crate::lock::{Mutex, MutexGuard};
use redb::{BackendError, StorageBackend};

/// A backend that buffers all writes until [`let_through`](Self::let_through) applies them to the backend beneath. redb
/// repairs a database on opening if its last user was killed, and an integrity check may roll it back to its last sound
/// state, but neither may change a file that is damaged beyond repair, or that this node is not to serve. Reads see
/// these writes.
#[derive(Debug)]
pub struct Guarded<B> {
    inner: Arc<GuardState<B>>,
}

impl<B> Clone for Guarded<B> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

#[derive(Debug)]
struct GuardState<B> {
    beneath: B,
    through: AtomicBool,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// Length of the backend in bytes once `steps` are applied.
    len: u64,
    steps: Vec<DiskStep>,
}

#[derive(Debug)]
enum DiskStep {
    Write { offset: u64, data: Vec<u8> },
    SetLen(u64),
    Sync,
}

impl<B: StorageBackend> Guarded<B> {
    pub fn new(beneath: B) -> Self {
        let held = Held { len: beneath.len().unwrap_or_default(), steps: Vec::new() };
        Self { inner: Arc::new(GuardState { beneath, through: AtomicBool::new(false), held: Mutex::new(held) }) }
    }

    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.inner.beneath.len()? == 0)
    }

    /// Applies the buffered writes in order, and stops buffering.
    pub fn let_through(&self) -> io::Result<()> {
        let inner = &*self.inner;
        let Some(mut held) = inner.held() else { return Ok(()) };
        for step in &held.steps {
            match step {
                DiskStep::Write { offset, data } => inner.beneath.write(*offset, data)?,
                DiskStep::SetLen(len) => inner.beneath.set_len(*len)?,
                DiskStep::Sync => inner.beneath.sync_data()?,
            }
        }
        held.steps = Vec::new();
        inner.through.store(true, Release);
        Ok(())
    }
}

impl<B> GuardState<B> {
    /// Returns the buffered writes, or `None` once buffering has stopped.
    fn held(&self) -> Option<MutexGuard<'_, Held>> {
        if self.through.load(Acquire) {
            return None;
        }
        let held = self.held.lock();
        // `let_through` may have run while this call waited for the lock.
        (!self.through.load(Acquire)).then_some(held)
    }
}

impl<B: StorageBackend> StorageBackend for Guarded<B> {
    fn len(&self) -> io::Result<u64> {
        self.inner.held().map_or_else(|| self.inner.beneath.len(), |held| Ok(held.len))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let beneath = &self.inner.beneath;
        let Some(held) = self.inner.held() else { return beneath.read(offset, out) };
        let end = offset + out.len() as u64;
        if end > held.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let there = beneath.len()?.saturating_sub(offset).min(out.len() as u64) as usize;
        out.fill(0);
        beneath.read(offset, &mut out[..there])?;
        for step in &held.steps {
            match step {
                DiskStep::Write { offset: at, data } => {
                    let (from, to) = (offset.max(*at), end.min(at + data.len() as u64));
                    if from < to {
                        let part = &data[(from - at) as usize..(to - at) as usize];
                        out[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
                    }
                }
                // Bytes that were cut off read as zero when the file grows again.
                DiskStep::SetLen(len) if *len < end => out[len.saturating_sub(offset) as usize..].fill(0),
                DiskStep::SetLen(_) | DiskStep::Sync => {}
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let Some(mut held) = self.inner.held() else { return self.inner.beneath.set_len(len) };
        held.len = len;
        held.steps.push(DiskStep::SetLen(len));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let Some(mut held) = self.inner.held() else { return self.inner.beneath.sync_data() };
        held.steps.push(DiskStep::Sync);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let Some(mut held) = self.inner.held() else { return self.inner.beneath.write(offset, data) };
        held.len = held.len.max(offset + data.len() as u64);
        held.steps.push(DiskStep::Write { offset, data: data.to_vec() });
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.inner.beneath.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.beneath.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.beneath.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.beneath.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.beneath.lock_shared_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.beneath.query_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.beneath.unlock_range(start, end)
    }
}
