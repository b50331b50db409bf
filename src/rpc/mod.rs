//! The front: servers, methods, the two dialects, error codes and limits.
//!
//! [`http`] and [`ws`] are the two transports, behind the one port of [`server`], on which [`startup`] answers until
//! the node has started, and [`health`] has its health. [`service`] turns the text of a message into the text of its answer, by jsonrpsee, and [`batch`] runs its entries. Each
//! request in a message is a [`Request`] of a method in the table of [`methods`], which [`front`] answers: [`route`] decides
//! which node does, and [`runner`] runs it on the executor. [`api`] has the methods by feature, [`wire`] parses parameters into the engine's types, and
//! [`encode`] writes results. [`wait`] lets a request wait for its receipt, [`approve`] for an approval, and [`remote`] for
//! state of an upstream.
//!
//! [`io`] has the threads of connections, [`connections`] the table of them, [`link`] the state of each, [`inbox`] the
//! bytes that a WebSocket connection reads, [`memory`] the bytes that they hold, and [`origin`] the pages that may call.
//! [`files`] serves the files of the page, and [`status`] the load that it shows. [`subscriptions`] notifies connections of
//! news, and [`filters`] answers clients that poll.

mod access;
mod api;
mod approve;
mod batch;
mod catch_up;
mod connections;
pub mod dialect;
mod encode;
mod error;
mod files;
mod filters;
#[cfg(feature = "fleet")]
mod fleet;
mod front;
mod health;
mod hex;
mod http;
mod inbox;
mod io;
mod leader;
mod link;
mod memory;
mod methods;
mod origin;
mod remote;
mod request;
mod response;
mod route;
mod runner;
mod search;
mod server;
mod service;
mod settings;
mod startup;
mod status;
mod subscriptions;
mod testing;
mod wait;
mod watches;
mod wire;
mod ws;

pub use access::{Access, AccessConfig, AccessError};
pub use api::call::parse_call;
pub use api::simulate::{SimulationView, parse_presim_simulation, parse_simulation, write_simulation};
pub use connections::ConnectionLimits;
pub use error::RpcError;
pub use files::{ServedFile, ServedFiles};
pub use filters::Filters;
#[cfg(feature = "fleet")]
pub use fleet::FleetAnswers;
pub use front::Front;
pub use io::IoThreads;
pub use leader::Leader;
pub use memory::{AnswerRoom, IoMemory};
pub use methods::{Backend, Handler, LeaderUse, MethodRoute, RequestLimits, Run, SyncTimeouts};
pub use remote::{ForwardedMethods, StateCompletion};
pub use request::{Caller, Request};
pub use runner::{RequestRunner, Waiters};
pub use server::{FrontActor, MetricsAccess, Serve, Stop, serve_metrics};
pub use service::{Reply, ReplyLimits, Session};
pub use settings::ServerConfig;
pub use startup::{StartupReason, StartupServer};
pub use status::StatusBoard;
pub use subscriptions::{Subscriptions, announce};
pub use testing::Testing;
pub use watches::{WatchLimits, Watches};

pub use wire::ShapeLimits;
pub use ws::SocketBounds;
