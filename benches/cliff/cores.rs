//! Which cores run what.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Some of the machine's cores.
pub struct Cores(Vec<usize>);

impl Cores {
    /// Those that the calling thread may use.
    pub fn of_thread() -> Self {
        let set = sched_getaffinity(None).expect("the system tells them");
        Self((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
    }

    /// How many they are.
    pub const fn count(&self) -> usize {
        self.0.len()
    }

    /// The first half and the second; all of them twice where there is one.
    pub fn halves(&self) -> [Self; 2] {
        match self.0.split_at(self.count() / 2) {
            ([], all) => [Self(all.to_vec()), Self(all.to_vec())],
            (first, second) => [Self(first.to_vec()), Self(second.to_vec())],
        }
    }

    /// From now on the calling thread runs on these, and what it starts.
    pub fn hold(&self) {
        let mut set = CpuSet::new();
        self.0.iter().for_each(|core| set.set(*core));
        sched_setaffinity(None, &set).expect("they are this process's");
    }
}
