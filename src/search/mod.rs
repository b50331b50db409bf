//! Searches: one bundle with fields that vary, and the variants that optimise an objective.
//!
//! [`search_whole`] runs a search in one run and records what it reads, as standing bundles need it. A [`Searcher`] runs
//! one in parts: a beginning that runs once, then the variants side by side on the workers, then the best one with its
//! outputs. Both take a [`BundleSearch`](crate::engine::BundleSearch) and return a [`SearchOutcome`].

mod begun;
mod outcome;
mod parts;
mod rate;
mod whole;

pub use begun::BegunSearch;
pub use outcome::SearchOutcome;
pub use parts::{SearchError, Searcher};
pub use rate::RunRate;
pub use whole::search_whole;
