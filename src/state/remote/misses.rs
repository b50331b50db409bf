//! State that runs needed and the cache did not have.

use alloy_primitives::map::HashSet;

use super::{Miss, RemoteView};
use crate::chain::Unexecutable;

/// The misses of runs, without repetition, by the block that the runs read.
#[derive(Clone, Debug, Default)]
pub struct Missed {
    views: Vec<(RemoteView, HashSet<Miss>)>,
    /// The reason why a run cannot be executed here.
    unexecutable: Option<Unexecutable>,
}

impl Missed {
    /// Returns these misses at the block of `view`.
    pub fn at(view: &RemoteView, misses: impl IntoIterator<Item = Miss>) -> Self {
        let misses: HashSet<Miss> = misses.into_iter().collect();
        let views = if misses.is_empty() { Vec::new() } else { vec![(view.clone(), misses)] };
        Self { views, unexecutable: None }
    }

    /// Notes a miss. Returns the number of misses now.
    pub(crate) fn push(&mut self, view: &RemoteView, miss: Miss) -> usize {
        match self.views.iter_mut().find(|(known, _)| known == view) {
            Some((_, misses)) => drop(misses.insert(miss)),
            None => self.views.push((view.clone(), HashSet::from_iter([miss]))),
        }
        self.len()
    }

    /// Adds the misses of another run.
    pub fn extend(&mut self, other: Self) {
        self.unexecutable = self.unexecutable.or(other.unexecutable);
        for (view, misses) in other.views {
            match self.views.iter_mut().find(|(known, _)| *known == view) {
                Some((_, known)) => known.extend(misses),
                None => self.views.push((view, misses)),
            }
        }
    }

    /// Returns the number of misses.
    pub fn len(&self) -> usize {
        self.views.iter().map(|(_, misses)| misses.len()).sum()
    }

    /// Returns whether nothing was missed, so that the results are valid.
    pub const fn is_empty(&self) -> bool {
        self.views.is_empty() && self.unexecutable.is_none()
    }

    /// Returns the reason why a run cannot be executed here. `None` if state was missed too, because the run continued
    /// with zeros, and may not reach a native contract once the state is known.
    pub const fn unexecutable(&self) -> Option<Unexecutable> {
        if self.views.is_empty() { self.unexecutable } else { None }
    }

    /// Notes that a run cannot be executed here.
    pub(crate) const fn reach(&mut self, why: Unexecutable) {
        self.unexecutable = Some(why);
    }

    /// Returns the state alone, for runs that only look for it.
    #[must_use]
    pub fn state(self) -> Self {
        Self { unexecutable: None, ..self }
    }

    /// Returns the misses at each block.
    pub fn by_view(&self) -> impl Iterator<Item = (&RemoteView, &HashSet<Miss>)> {
        self.views.iter().map(|(view, misses)| (view, misses))
    }
}
