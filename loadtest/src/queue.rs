//! The queue of an open loop, in which arrivals wait for a connection.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    time::Instant,
};

use tokio::sync::Notify;

/// Arrivals that wait for a connection.
#[derive(Default)]
pub struct Queue {
    pub waiting: RefCell<VecDeque<Instant>>,
    pub arrived: Notify,
    pub closed: Cell<bool>,
    pub in_flight: Cell<usize>,
}

impl Queue {
    /// Closes the queue, because no more requests will arrive.
    pub fn close(&self) {
        self.closed.set(true);
        self.arrived.notify_waiters();
    }

    /// Takes the arrival that has waited longest. Returns `None` when the queue is closed and empty.
    pub async fn take(&self) -> Option<Instant> {
        loop {
            let first = self.waiting.borrow_mut().pop_front();
            if first.is_some() {
                return first;
            }
            if self.closed.get() {
                return None;
            }
            self.arrived.notified().await;
        }
    }
}
