//! The front: servers, methods, the two dialects, error codes, limits.
//!
//! [`service`] makes the text of an answer of the text of a message, by jsonrpsee; parameters become the engine's types in [`wire`], results
//! become bytes in [`encode`]. [`front`] takes each through routing, lanes and metrics, [`wait`] lets
//! one wait for its receipt, [`approve`] for whoever approves it, and [`remote`] for state that an upstream has; [`http`] and [`ws`] are the two
//! doors, behind [`server`]'s one port, which [`startup`] answers on until the node has started; [`io`] has the threads that connections live
//! on, [`connections`] the table of them, [`link`] what is known of each, [`inbox`] what a WebSocket reads, [`memory`] the bytes that they hold,
//! [`origin`] the pages that may call. [`subscriptions`] tells connections what is
//! new, [`filters`] tells it to those who ask again and again.

mod access;
mod approve;
mod awake;
mod connections;
pub mod dialect;
mod discover;
mod encode;
mod error;
mod filters;
mod front;
mod hex;
mod http;
mod in_place;
mod inbox;
mod io;
mod link;
mod memory;
mod methods;
mod origin;
mod remote;
mod server;
mod service;
mod startup;
mod subscriptions;
mod wait;
mod wire;
mod ws;

pub use access::{Access, AccessConfig, AccessError};
pub use awake::{Awake, CPU_DMA_LATENCY};
pub use encode::simulation as encode_simulation;
pub use error::RpcError;
pub use filters::Filters;
pub use front::{AnswerRoom, Front, Job};
pub use io::IoThreads;
pub use memory::IoMemory;
pub use methods::{Asked, Backend, GasCounter, Method, RequestLimits, SyncTimeouts};
pub use remote::Remote;
pub use server::{FrontActor, MetricsAccess, Serve, ServerConfig, Stop, serve_metrics};
pub use startup::{StartupReason, StartupServer};
pub use subscriptions::{Subscriptions, announce};
pub use wait::Waiters;
pub use wire::{ShapeLimits, parse_call, parse_simulation};
