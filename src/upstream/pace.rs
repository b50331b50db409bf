//! The pauses that an upstream asks for.

use std::time::Duration;

use crate::lock::Mutex;
use tokio::time::Instant;

/// The pace of the requests to an upstream. A pause that the upstream asks for holds up all of them.
#[derive(Debug, Default)]
pub(super) struct RequestPace(Mutex<PaceState>);

#[derive(Debug, Default)]
struct PaceState {
    /// The end of the newest pause.
    until: Option<Instant>,
    /// The answer of the upstream that began the newest pause.
    problem: String,
    /// The length of the newest pause for which the upstream named no length. Zero once a request was answered after
    /// it.
    pause: Duration,
}

impl RequestPace {
    /// The first and the longest pause if the upstream names no length. Each pause is twice as long as the previous
    /// one.
    const FIRST_PAUSE: Duration = Duration::from_millis(20);
    const MAX_PAUSE: Duration = Duration::from_secs(5);

    /// Begins a pause because of `problem`, of the length that the upstream has asked for, if it has.
    pub fn slow_down(&self, problem: &str, asked: Option<Duration>) {
        let now = Instant::now();
        let mut state = self.0.lock();
        let end = match asked {
            Some(asked) => now + asked,
            // Requests that were under way together are one reason to pause.
            None if state.until.is_some_and(|until| now < until) => return,
            None => {
                state.pause = (state.pause * 2).clamp(Self::FIRST_PAUSE, Self::MAX_PAUSE);
                now + state.pause
            }
        };
        state.until = state.until.max(Some(end));
        problem.clone_into(&mut state.problem);
    }

    /// Notes that a request was answered.
    pub fn answered(&self) {
        let mut state = self.0.lock();
        if state.until.is_some_and(|until| Instant::now() >= until) {
            *state = PaceState::default();
        }
    }

    /// Waits until the pause is over.
    ///
    /// # Errors
    ///
    /// Returns the rest of the pause, and its reason, at once if the pause does not end before `deadline`.
    pub async fn wait(&self, deadline: Instant) -> Result<(), (Duration, String)> {
        loop {
            let now = Instant::now();
            let until = {
                let state = self.0.lock();
                match state.until.filter(|until| *until > now) {
                    Some(until) if until >= deadline => return Err((until - now, state.problem.clone())),
                    Some(until) => until,
                    None => return Ok(()),
                }
            };
            tokio::time::sleep_until(until).await;
        }
    }
}
