//! A disk that can lose power, can be full and can fail.

use std::{
    fmt::{self, Debug, Formatter},
    io,
    ops::Bound,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use rand::{Rng, rngs::SmallRng};
use redb::{BackendError, StorageBackend};
use tokio::sync::oneshot;

/// The bytes that a disk writes atomically.
const SECTOR: usize = 512;
/// The error codes `ENOSPC` and `EIO`.
const NO_SPACE: i32 = 28;
const IO: i32 = 5;

/// A test that waits for longer than this for a power cut hangs.
const BOUND: Duration = Duration::from_secs(120);

/// A disk. It remembers the writes since the last sync, any of which a power cut may lose.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    plates: Arc<Mutex<Plates>>,
    /// The bytes that were read.
    read: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Plates {
    synced: Vec<u8>,
    /// The writes since the last sync, in order.
    steps: Vec<Step>,
    /// The content that readers see, with all writes.
    seen: Vec<u8>,
    /// The number of writes and syncs before the disk is full.
    full: Option<usize>,
    /// The number of writes and syncs before one that fails.
    failure: Option<usize>,
    cut: Option<Cut>,
}

/// A scheduled power cut.
struct Cut {
    /// The number of writes and syncs before the cut.
    after: usize,
    leaves: Leaves,
    rng: SmallRng,
    /// Called right before the cut.
    before: Box<dyn FnOnce() + Send>,
    /// Called with a disk with the surviving content, and whether there were unsynced writes.
    done: Box<dyn FnOnce(Disk, bool) + Send>,
}

impl Debug for Cut {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} after {}", self.leaves, self.after)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write { offset: usize, data: Vec<u8> },
    SetLen(usize),
}

/// The unsynced writes that survive a power cut.
#[derive(Clone, Copy, Debug)]
pub enum Leaves {
    Nothing,
    /// The writes up to a random one.
    First,
    /// A random selection of the writes.
    Some,
    /// A random selection of the sectors of the writes.
    Torn,
    All,
}

impl Leaves {
    pub const ALL: [Self; 5] = [Self::Nothing, Self::First, Self::Some, Self::Torn, Self::All];
}

impl Disk {
    /// Creates a disk with this content.
    pub fn with(content: Vec<u8>) -> Self {
        let plates = Plates { synced: content.clone(), seen: content, ..Plates::default() };
        Self { plates: Arc::new(Mutex::new(plates)), ..Self::default() }
    }

    fn plates(&self) -> MutexGuard<'_, Plates> {
        self.plates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the power after `after` more writes and syncs, right after a call of `before`. Returns a disk with the
    /// surviving content, and whether there were unsynced writes.
    pub async fn cut(
        &self,
        after: usize,
        leaves: Leaves,
        rng: SmallRng,
        before: impl FnOnce() + Send + 'static,
    ) -> (Self, bool) {
        let (done, cut) = oneshot::channel();
        self.cut_then(after, leaves, rng, before, move |left, unsynced| drop(done.send((left, unsynced))));
        tokio::time::timeout(BOUND, cut).await.expect("the disk is written to").expect("the power fails")
    }

    /// Cuts the power like [`cut`](Self::cut), and calls `done` with its outcome.
    pub fn cut_then(
        &self,
        after: usize,
        leaves: Leaves,
        rng: SmallRng,
        before: impl FnOnce() + Send + 'static,
        done: impl FnOnce(Self, bool) + Send + 'static,
    ) {
        self.plates().cut = Some(Cut { after, leaves, rng, before: Box::new(before), done: Box::new(done) });
    }

    /// Returns a disk with the content that survives if the power fails now.
    pub fn left(&self, leaves: Leaves, mut rng: SmallRng) -> Self {
        Self::with(self.plates().left(leaves, &mut rng))
    }

    /// Returns the size in bytes that readers see.
    pub fn size(&self) -> usize {
        self.plates().seen.len()
    }

    /// Returns the number of bytes that were read.
    pub fn read_bytes(&self) -> usize {
        self.read.load(Relaxed)
    }

    /// Returns another disk with everything that was written to this one.
    pub fn copy(&self) -> Self {
        Self::with(self.plates().seen.clone())
    }

    /// Fails all later writes.
    pub fn fill(&self) {
        self.fill_after(0);
    }

    /// Fails all writes and syncs after `after` more.
    pub fn fill_after(&self, after: usize) {
        self.plates().full = Some(after);
    }

    /// Fails a single write or sync, after `after` more.
    pub fn fail_after(&self, after: usize) {
        self.plates().failure = Some(after);
    }
}

impl Plates {
    /// Called before each write and sync.
    fn step(&mut self) -> io::Result<()> {
        if let Some(mut cut) = self.cut.take() {
            if cut.after == 0 {
                (cut.before)();
                let left = Disk::with(self.left(cut.leaves, &mut cut.rng));
                (cut.done)(left, !self.steps.is_empty());
            } else {
                cut.after -= 1;
                self.cut = Some(cut);
            }
        }
        if let Some(after) = self.failure {
            self.failure = after.checked_sub(1);
            if after == 0 {
                return Err(io::Error::from_raw_os_error(IO));
            }
        }
        match &mut self.full {
            Some(0) => return Err(io::Error::from_raw_os_error(NO_SPACE)),
            Some(after) => *after -= 1,
            None => {}
        }
        Ok(())
    }

    /// Returns the content that would survive if the power failed now.
    fn left(&self, leaves: Leaves, rng: &mut SmallRng) -> Vec<u8> {
        let mut content = self.synced.clone();
        let last = rng.random_range(0..=self.steps.len());
        // File systems keep the length apart from the content, and in order.
        let mut lengths = self.steps.iter().filter(|step| matches!(step, Step::SetLen(_))).count();
        lengths = match leaves {
            Leaves::Nothing => 0,
            Leaves::First | Leaves::All => lengths,
            Leaves::Some | Leaves::Torn => rng.random_range(0..=lengths),
        };
        for (index, step) in self.steps.iter().enumerate() {
            match step {
                Step::SetLen(len) => {
                    if lengths > 0 && (index < last || !matches!(leaves, Leaves::First)) {
                        lengths -= 1;
                        set_len(&mut content, *len);
                    }
                }
                Step::Write { offset, data } => {
                    let keeps: &mut dyn FnMut() -> bool = match leaves {
                        Leaves::Nothing => &mut || false,
                        Leaves::First => &mut || index < last,
                        Leaves::Some if rng.random() => &mut || true,
                        Leaves::Some => &mut || false,
                        Leaves::Torn => &mut || rng.random(),
                        Leaves::All => &mut || true,
                    };
                    for (sector, bytes) in data.chunks(SECTOR).enumerate() {
                        let at = offset + sector * SECTOR;
                        if keeps() && at < content.len() {
                            let end = content.len().min(at + bytes.len());
                            content[at..end].copy_from_slice(&bytes[..end - at]);
                        }
                    }
                }
            }
        }
        content
    }
}

/// Cuts the content, or extends it by zeros: in one piece, because `resize` takes long in an unoptimised build.
fn set_len(content: &mut Vec<u8>, len: usize) {
    content.truncate(len);
    content.append(&mut vec![0; len - content.len()]);
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.plates().seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (plates, offset) = (self.plates(), offset as usize);
        let bytes = plates.seen.get(offset..offset + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        self.read.fetch_add(out.len(), Relaxed);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut plates = self.plates();
        plates.step()?;
        set_len(&mut plates.seen, len as usize);
        plates.steps.push(Step::SetLen(len as usize));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut plates = self.plates();
        plates.step()?;
        for step in std::mem::take(&mut plates.steps) {
            match step {
                Step::Write { offset, data } => plates.synced[offset..offset + data.len()].copy_from_slice(&data),
                Step::SetLen(len) => set_len(&mut plates.synced, len),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let (mut plates, offset) = (self.plates(), offset as usize);
        plates.step()?;
        let end = offset + data.len();
        if end > plates.seen.len() {
            set_len(&mut plates.seen, end);
            plates.steps.push(Step::SetLen(end));
        }
        plates.seen[offset..end].copy_from_slice(data);
        plates.steps.push(Step::Write { offset, data: data.to_vec() });
        Ok(())
    }

    fn try_lock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn try_lock_shared_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn unlock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }
}
