//! Arrivals of an open loop that wait for a connection.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use crate::{clock::Timer, fault::Fault, generate::Generator, schedule::Arrivals};

/// Arrivals nearer to one another than this are sent together: each wake-up of the clock costs what a request does.
const TICK: Duration = Duration::from_micros(50);

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

/// Puts arrivals into the queue when they are due.
pub async fn arrive(generator: Rc<Generator>, arrivals: Arrivals, begun: Instant, most: usize) {
    let timer = match Timer::new() {
        Ok(timer) => timer,
        Err(error) => {
            return generator.recorder.borrow_mut().fault(Fault::Dropped, &format!("there is no clock: {error}"));
        }
    };
    let mut now = Instant::now();
    for arrival in arrivals {
        let due = begun + arrival;
        if due > now {
            // Not to be woken for each when there are many.
            if timer.sleep_until(due.max(now + TICK)).await.is_err() {
                tokio::time::sleep_until(due.into()).await;
            }
            now = Instant::now();
        }
        if generator.stopped() {
            generator.queue.waiting.borrow_mut().clear();
            return;
        }
        let mut waiting = generator.queue.waiting.borrow_mut();
        if waiting.len() + generator.queue.in_flight.get() >= most {
            generator.record(due, |recorder| {
                recorder.fault(Fault::Dropped, "as many requests as --max-outstanding allows were waiting");
            });
        } else {
            waiting.push_back(due);
            generator.queue.arrived.notify_one();
        }
    }
}
