//! Arrivals of an open loop that wait for a connection.

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
    /// Says that no more will arrive.
    pub fn close(&self) {
        self.closed.set(true);
        self.arrived.notify_waiters();
    }

    /// The arrival that has waited longest; none when no more will come.
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
