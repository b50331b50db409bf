//! The memory for the answers of an upstream.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The bytes that the answers of an upstream may have, all together, from when they are read until they are used. Compressed
/// answers count as what they are decompressed to.
#[derive(Clone, Debug)]
pub(super) struct AnswerBudget {
    bytes: Arc<Semaphore>,
    total: usize,
}

/// The permit to hold the bytes of an answer. Released on drop.
#[derive(Debug, Default)]
pub(super) struct AnswerPermit(Option<OwnedSemaphorePermit>);

impl AnswerBudget {
    /// Creates a budget of `total` bytes.
    pub fn new(total: usize) -> Self {
        let total = total.min(Semaphore::MAX_PERMITS);
        Self { bytes: Arc::new(Semaphore::new(total)), total }
    }

    /// Adds `bytes` to a permit.
    ///
    /// # Errors
    ///
    /// Returns a text if the answers would have more bytes than they may. The permit is unchanged.
    pub fn extend(&self, permit: &mut AnswerPermit, bytes: usize) -> Result<(), String> {
        let more = u32::try_from(bytes).ok().and_then(|bytes| self.bytes.clone().try_acquire_many_owned(bytes).ok());
        let Some(more) = more else {
            let text =
                format!("the answers of the upstream have more than {} bytes (--upstream-answers-mb)", self.total);
            return Err(text);
        };
        permit.merge(AnswerPermit(Some(more)));
        Ok(())
    }
}

impl AnswerPermit {
    /// Adds the bytes of another permit of the same budget.
    pub fn merge(&mut self, other: Self) {
        match (&mut self.0, other.0) {
            (Some(own), Some(other)) => own.merge(other),
            (own @ None, other) => *own = other,
            (Some(_), None) => {}
        }
    }
}
