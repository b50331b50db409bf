//! Holding the values that were fetched for a run.

use super::{Miss, RemoteView, held::HeldValue};

/// Fetched values, by the view of their block. Until this is dropped, runs find them, even if the cache evicts them.
#[derive(Debug, Default)]
pub struct Held(Vec<(RemoteView, Vec<Miss>)>);

impl Held {
    /// Begins to hold values at the block of `view`.
    pub fn at(view: &RemoteView) -> Self {
        Self(vec![(view.clone(), Vec::new())])
    }

    /// Holds a value at the block with which it [began](Self::at). Returns false if the value is unknown.
    pub fn hold(&mut self, key: Miss) -> bool {
        let value = self.0.first().and_then(|(view, _)| view.value(&key));
        value.map(|value| self.add(key, value)).is_some()
    }

    /// Holds the known ones of these values at the block with which it [began](Self::at).
    #[must_use]
    pub fn with(mut self, wanted: impl IntoIterator<Item = Miss>) -> Self {
        for key in wanted {
            self.hold(key);
        }
        self
    }

    /// Holds the values of `other`, too.
    pub fn extend(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// Holds these values at the block of `view`.
    pub(super) fn of(view: &RemoteView, values: impl Iterator<Item = (Miss, HeldValue)>) -> Self {
        let mut held = Self::at(view);
        values.for_each(|(key, value)| held.add(key, value));
        held
    }

    fn add(&mut self, key: Miss, value: HeldValue) {
        if let Some((view, keys)) = self.0.first_mut() {
            view.held_values().add(view.hash(), key, value);
            keys.push(key);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for (view, keys) in &self.0 {
            keys.iter().for_each(|key| view.held_values().release(view.hash(), *key));
        }
    }
}
