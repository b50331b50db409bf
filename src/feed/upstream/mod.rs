//! An upstream node: the client that asks it, and the fetcher that brings its state into the cache.

pub mod client;
pub mod fetch;
mod hints;
mod http;
mod proof;
mod wave;

pub use client::{Ask, Upstream, UpstreamConfig, UpstreamError, UpstreamState};
pub use fetch::{FetchError, Fetcher, FetcherConfig};
pub use hints::Hints;
