//! The encoded form of the health of a feed, and of the extent to which a snapshot was verified.

use std::time::{Duration, Instant};

use alloy_rlp::{RlpDecodable, RlpEncodable};

use crate::{
    ledger::{FeedLag, FeedState, Verified},
    store::corrupted,
};

/// The encoded form of a [`FeedState`].
#[derive(Default, RlpEncodable, RlpDecodable)]
pub struct FeedFields {
    state: String,
    problem: String,
    every_ms: u64,
    lag_ms: u64,
    waiting: u32,
}

impl From<FeedState> for FeedFields {
    fn from(state: FeedState) -> Self {
        let named = Self { state: state.as_str().to_owned(), ..Self::default() };
        match state {
            FeedState::Live { every_ms } => Self { every_ms, ..named },
            FeedState::Static => named,
            FeedState::Degraded(problem) => Self { problem: problem.as_str().to_owned(), ..named },
            FeedState::Lagging(lag) => Self {
                problem: lag.cause.as_str().to_owned(),
                every_ms: lag.every_ms,
                lag_ms: u64::try_from(lag.ms()).unwrap_or(u64::MAX),
                waiting: lag.waiting,
                ..named
            },
        }
    }
}

impl FeedFields {
    /// Reads the health of a feed.
    ///
    /// # Errors
    ///
    /// Returns [`redb::Error::Corrupted`] if the state or the problem is unknown.
    pub fn read(self) -> Result<FeedState, redb::Error> {
        let Self { state, problem, every_ms, lag_ms, waiting } = self;
        let problem =
            || problem.parse().map_err(|_| corrupted(format!("the problem `{problem}` of a feed is unknown")));
        Ok(match state.as_str() {
            "live" => FeedState::Live { every_ms },
            "static" => FeedState::Static,
            "degraded" => FeedState::Degraded(problem()?),
            "lagging" => {
                let now = Instant::now();
                let since = now.checked_sub(Duration::from_millis(lag_ms)).unwrap_or(now);
                FeedState::Lagging(FeedLag { since, waiting, cause: problem()?, every_ms })
            }
            _ => return Err(corrupted(format!("the state `{state}` of a feed is unknown"))),
        })
    }
}

/// Reads the extent to which a snapshot was compared with its producer's word.
pub fn read_verified(verified: u8) -> Result<Verified, redb::Error> {
    let known = [Verified::None, Verified::Partial, Verified::Full, Verified::List];
    let verified = known.into_iter().find(|known| *known as u8 == verified);
    verified.ok_or_else(|| corrupted("its extent of verification is unknown"))
}
