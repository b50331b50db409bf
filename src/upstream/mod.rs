//! The client of an upstream node, and the fetcher that loads the node's state into the cache.

mod answer_budget;
mod ask;
pub mod block;
mod block_error;
pub mod client;
pub mod fetch;
pub mod heads;
mod hints;
mod http;
mod json_frames;
pub mod link;
mod message;
mod name;
mod pace;
mod predict;
mod prestate;
mod proof;
mod refusal;
mod socket;
mod transaction;
mod wave;

pub use ask::{Ask, UpstreamError};
pub use block::{AnnouncedReceipts, UpstreamBlock, recover};
pub use block_error::BlockError;
pub use client::{Upstream, UpstreamConfig, UpstreamState, patiently};
pub use fetch::{Fetcher, FetcherConfig};
pub use heads::Heads;
pub use hints::Hints;
pub use http::http_client;
pub use name::{BlockName, named_header};
pub use prestate::Prestate;
pub use refusal::Refusal;
