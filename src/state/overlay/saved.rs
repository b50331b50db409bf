//! The changes of runs, saved so that several runs continue from them.

use alloy_primitives::U256;

use super::{AccessList, Overlay, OverlayEntry};
use crate::{
    chain::BlockHashes,
    state::{LogNumbers, reads::ReadRecord},
};

/// The changes of runs, saved by [`Overlay::save`].
#[derive(Clone, Debug)]
pub struct SavedOverlay {
    hashes: BlockHashes,
    first_pushed: Option<u64>,
    entries: Vec<OverlayEntry>,
    reads: ReadRecord,
    log_numbers: LogNumbers,
    access_list: Option<Box<AccessList>>,
}

impl SavedOverlay {
    /// Returns about how many bytes it takes.
    pub fn size(&self) -> usize {
        let slots = |entry: &OverlayEntry| entry.now.slots.capacity() + entry.written_before.capacity();
        let slots: usize = self.entries.iter().map(slots).sum();
        self.entries.len() * size_of::<OverlayEntry>()
            + (slots + self.reads.slots.capacity()) * (size_of::<(U256, U256)>() + 1)
    }
}

impl Overlay {
    /// Returns the changes of the runs so far with all that later runs depend on, to continue from by
    /// [`Overlay::restore`]. State that was missed is not saved.
    pub fn save(&self) -> SavedOverlay {
        SavedOverlay {
            hashes: self.hashes.clone(),
            first_pushed: self.first_pushed,
            entries: self.entries[..self.ids.len()].to_vec(),
            reads: self.reads.clone(),
            log_numbers: self.log_numbers.clone(),
            access_list: self.access_list.clone(),
        }
    }

    /// Drops all changes and continues from `saved`, which was saved over the same base, in the same memory and under
    /// the overlay's own meter. The reads of earlier runs stay in [`Overlay::reads`].
    pub fn restore(&mut self, saved: &SavedOverlay) {
        let (base, meter) = (self.base.clone(), std::mem::take(&mut self.meter));
        let passed = self.reads.on.then(|| Box::new(self.reads()));
        self.reset(base, saved.hashes.clone(), meter);
        self.first_pushed = saved.first_pushed;
        for (id, entry) in saved.entries.iter().enumerate() {
            self.ids.insert(entry.now.address, id);
            match self.entries.get_mut(id) {
                Some(place) => place.clone_from(entry),
                None => self.entries.push(entry.clone()),
            }
        }
        self.reads.clone_from(&saved.reads);
        self.reads.passed = passed;
        self.log_numbers.clone_from(&saved.log_numbers);
        self.access_list.clone_from(&saved.access_list);
    }
}
