//! State that runs needed and the cache did not have.

use alloy_primitives::{Address, U256, map::HashSet};

use super::RemoteView;

/// A piece of the upstream's state that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Miss {
    /// An account: balance, nonce and code.
    Account(Address),
    /// A storage slot.
    Slot(Address, U256),
    /// The hash of the block of this number.
    BlockHash(u64),
}

/// The misses of runs, without repetition, by the block that the runs read.
#[derive(Clone, Debug, Default)]
pub struct Missed(Vec<(RemoteView, HashSet<Miss>)>);

impl Missed {
    /// Notes a miss. Returns the number of misses now.
    pub(crate) fn push(&mut self, view: &RemoteView, miss: Miss) -> usize {
        match self.0.iter_mut().find(|(known, _)| known == view) {
            Some((_, misses)) => drop(misses.insert(miss)),
            None => self.0.push((view.clone(), HashSet::from_iter([miss]))),
        }
        self.len()
    }

    /// Adds the misses of another run.
    pub fn extend(&mut self, other: Self) {
        for (view, misses) in other.0 {
            match self.0.iter_mut().find(|(known, _)| *known == view) {
                Some((_, known)) => known.extend(misses),
                None => self.0.push((view, misses)),
            }
        }
    }

    /// Returns the number of misses.
    pub fn len(&self) -> usize {
        self.0.iter().map(|(_, misses)| misses.len()).sum()
    }

    /// Returns whether nothing was missed, so that the results are valid.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the misses at each block.
    pub fn by_view(&self) -> impl Iterator<Item = (&RemoteView, &HashSet<Miss>)> {
        self.0.iter().map(|(view, misses)| (view, misses))
    }
}
