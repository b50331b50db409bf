//! The servers: listeners, the connections of HTTP and WebSocket, who may call, and health.
//!
//! [`http`] and [`ws`] are the two transports, behind the one port of [`listen`], on which [`startup`] answers until the node has
//! started, and [`health`] has its health. [`io`] has the threads of connections, [`connections`] the table of them, [`link`] the state
//! of each, [`inbox`] the bytes that a WebSocket connection reads, and [`origin`] the pages that may call. [`files`] serves the files of
//! the page.

pub mod connections;
pub mod files;
#[cfg(feature = "fleet")]
pub mod fleet;
pub mod health;
pub mod http;
pub mod inbox;
pub mod io;
pub mod link;
pub mod listen;
pub mod origin;
pub mod response;
pub mod settings;
pub mod startup;
pub mod ws;
