//! The assignment of processor cores to threads.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Some of the machine's cores.
pub struct Cores(Vec<usize>);

impl Cores {
    /// Returns the cores that the calling thread may use.
    pub fn of_thread() -> Self {
        let set = sched_getaffinity(None).expect("the system tells them");
        Self((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
    }

    pub const fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the first and the second half, or all cores twice if there is only one.
    pub fn halves(&self) -> [Self; 2] {
        match self.0.split_at(self.count() / 2) {
            ([], all) => [Self(all.to_vec()), Self(all.to_vec())],
            (first, second) => [Self(first.to_vec()), Self(second.to_vec())],
        }
    }

    /// Restricts the calling thread, and the threads and processes that it starts, to these cores.
    pub fn hold(&self) {
        let mut set = CpuSet::new();
        self.0.iter().for_each(|core| set.set(*core));
        sched_setaffinity(None, &set).expect("they are this process's");
    }
}
