//! Standing bundles: they run again whenever a new snapshot may have changed their answers, and listeners are notified of
//! what changed.
//!
//! [`StandingBundles`](bundles::StandingBundles) and what it is made of is pure bookkeeping, without clocks and I/O: [`StateHistory`] knows the steps
//! between states, [`ReadIndex`] the bundles that have read each value, and [`StandingBundles`](bundles::StandingBundles) what each bundle has
//! answered, since when, and what is due. [`Attendance`] knows whether a client is there for whom they run.
//!
//! A [`WatchTask`] follows the snapshots for the bundles of one [`Watch`], and runs on the workers of a [`Host`](crate::scheduler::Host) what is
//! due. A [`Bundle`] defines what runs and what the answer is, and a [`Listener`] sends the news in a form of its own.

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
