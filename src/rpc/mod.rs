//! The front: servers, methods, the two dialects, error codes, limits.
//!
//! A body becomes requests in [`envelope`], parameters become the engine's types in [`wire`], results become bytes in [`encode`].
//! [`front`] takes a request through routing, lanes and metrics; [`http`] and [`ws`] are its two doors, behind [`server`]'s one port.

mod access;
pub mod dialect;
mod discover;
mod encode;
mod envelope;
mod error;
mod front;
mod hex;
mod http;
mod methods;
mod server;
mod wire;
mod ws;

pub use access::{Access, AccessError};
pub use error::RpcError;
pub use front::Front;
pub use methods::{Asked, Backend, GasCounter, Method, SimulationLimits};
pub use server::{FrontActor, Serve, ServerConfig, Stop, serve_metrics};
pub use wire::ShapeLimits;
