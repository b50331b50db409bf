//! The memory for the answers of an upstream.

use std::sync::Arc;

use alloy_transport::{TransportErrorKind, TransportResult};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The total bytes that the answers of an upstream may have, from when they are read until they are used. Compressed
/// answers count with their decompressed size.
#[derive(Clone, Debug)]
pub(super) struct AnswerBudget {
    bytes: Arc<Semaphore>,
    total: usize,
}

/// The permit to hold the bytes of an answer, released on drop. `None` if they are not counted.
pub(super) type AnswerPermit = Option<OwnedSemaphorePermit>;

impl AnswerBudget {
    /// Creates a budget of `total` bytes.
    pub fn new(total: usize) -> Self {
        let total = total.min(Semaphore::MAX_PERMITS);
        Self { bytes: Arc::new(Semaphore::new(total)), total }
    }

    /// Takes `bytes` from the budget, until the permit is dropped.
    ///
    /// # Errors
    ///
    /// Returns an error if the answers would have more bytes than they may.
    pub fn take(&self, bytes: usize) -> TransportResult<OwnedSemaphorePermit> {
        let permit = u32::try_from(bytes).ok().and_then(|bytes| self.bytes.clone().try_acquire_many_owned(bytes).ok());
        permit.ok_or_else(|| {
            let most = self.total;
            let text = format!("the answers of the upstream have more than {most} bytes (--upstream-answers-mb)");
            TransportErrorKind::non_retryable_str(&text)
        })
    }
}
