//! The front: servers, methods, the two dialects, error codes, limits.
//!
//! [`http`] and [`ws`] are the two doors, behind [`server`]'s one port, which [`startup`] answers on until the node has started. [`service`] makes
//! the text of an answer of the text of a message, by jsonrpsee; each request in it is a [`Request`], which [`front`] has run by the table of
//! [`methods`]. Parameters become the engine's types in [`wire`], results become bytes in [`encode`]. [`wait`] lets a request wait for its
//! receipt, [`approve`] for whoever approves it, and [`remote`] for state that an upstream has.
//!
//! [`io`] has the threads that connections live on, [`connections`] the table of them, [`link`] what is known of each, [`inbox`] what a WebSocket
//! reads, [`memory`] the bytes that they hold, [`origin`] the pages that may call. [`subscriptions`] sends connections what is new, [`filters`]
//! answers those who ask for it again and again.

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
mod inbox;
mod io;
mod link;
mod memory;
mod methods;
mod origin;
mod remote;
mod request;
mod response;
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
pub use front::{Front, Waiters};
pub use io::IoThreads;
pub use memory::{AnswerRoom, IoMemory};
pub use methods::{Backend, Handler, MethodRoute, RequestLimits, Run, SyncTimeouts};
pub use remote::StateCompletion;
pub use request::{Caller, Request};
pub use server::{FrontActor, MetricsAccess, Serve, ServerConfig, Stop, serve_metrics};
pub use service::{Reply, ReplyLimits, Session};
pub use startup::{StartupReason, StartupServer};
pub use subscriptions::{Subscriptions, announce};

pub use wire::{ShapeLimits, parse_call, parse_simulation};
