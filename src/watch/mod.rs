//! Standing bundles: they run again whenever a new snapshot may have changed their answers, and listeners are notified
//! of the changes.
//!
//! [`StandingBundles`](bundles::StandingBundles) and its parts are pure bookkeeping, without clocks and I/O:
//! [`StateHistory`] holds the steps between states, [`ReadIndex`] the bundles that have read each value, and
//! [`StandingBundles`](bundles::StandingBundles) each bundle's answer, since when it holds, and which bundles are due.
//! [`Attendance`] tracks whether a client is present.
//!
//! A [`WatchTask`] follows the snapshots for the bundles of one [`Watch`], and runs the due ones on the workers of a
//! [`Host`](crate::scheduler::Host). A [`Bundle`] defines what runs and its answer, and a [`Listener`] sends the news
//! in its own format.

mod attendance;
mod bundle;
mod bundles;
mod chunk;
mod follow;
mod history;
mod id;
mod index;
mod list;
mod listener;
mod long;
mod task;
#[cfg(test)]
mod tests;

pub use bundle::{Answer, Bundle, BundleError, BundleRun, StaleReason};
pub use bundles::{SnapshotName, StandingAnswer, StandingBundle};
#[cfg(test)]
pub use bundles::{StandingBundles, StandingRun};
pub use history::{KnownStep, StateHistory};
pub use id::WatchId;
pub use list::{Watch, WatchLimits, WatchList, WatchState};
pub use listener::{Behind, BehindNow, Listener};
pub use task::WatchTask;
