//! The front: servers, methods, the two dialects, error codes and limits.
//!
//! The folders are layers, and each uses the ones below it:
//!
//! - [`server`]: the listeners, the connections of all transports, access control, and health.
//! - [`dispatch`]: from the text of a message to the text of its answer: the table of methods, and the node that
//!   answers.
//! - [`api`]: the methods, a file or a folder a feature.
//! - [`run`]: one request, and its runs on the executor, with data from other nodes.
//! - [`limits`]: the memory that connections make the node hold, the frames that are read, and the stalls that close
//!   them.
//! - [`params`]: the parameters that features share, and their conversion to the engine's types.
//! - [`json`]: the results that features share.
//! - [`protocol`]: errors and dialects.

mod api;
mod dispatch;
mod json;
mod limits;
mod params;
mod protocol;
mod run;
mod server;
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "no user writes what tests read")]
mod tests;

#[cfg(test)]
pub use api::simulate::{SimulationView, parse_presim_simulation, write_simulation};
pub use api::{
    node::{CLIENT_VERSION, TESTING_VERSION},
    simulate::parse_simulation,
    subscribe::announce,
    testing::changes::Testing,
    watch::Watches,
};
pub use dispatch::{front::Dispatcher, method::Handler, table};
pub use limits::memory::IoMemory;
pub use params::{BLOCK_ALIASES, ShapeLimits};
pub use protocol::{dialect, error::RpcError};
pub use run::{
    ExecutedBy, MethodScope,
    backend::{Attempt, Backend, RequestLimits, SyncTimeouts},
    filters::Filters,
    leader::Leader,
    past::PastStates,
    remote::{ForwardedMethods, UpstreamGateway},
    runner::{RequestRunner, Waiters},
    subscriber::SocketBounds,
    subscriptions::Subscriptions,
};
pub use server::fleet::FleetAnswers;
pub use server::{
    auth::tokens::Access,
    connection::ConnectionLimits,
    files::{ServedFile, ServedFiles},
    http::HttpService,
    io::IoThreads,
    ipc::IPC_SOCKET,
    listen::{FrontActor, Stop, serve_metrics},
    phases::starting::{StartupReason, StartupServer},
    settings::ServerConfig,
};
