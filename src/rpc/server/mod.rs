//! The servers: listeners, the connections of HTTP and WebSocket, who may call, and health.
//!
//! [`http`] and [`ws`] are the two transports, behind the one port of [`listen`], on which [`phases`] answers until the node has
//! started, and tells its health. [`io`] has the threads of connections, [`connection`] what belongs to one and the table of
//! them, and [`auth`] who may call. [`files`] serves the files of the page.

pub mod auth;
pub mod connection;
pub mod files;
#[cfg(feature = "fleet")]
pub mod fleet;
pub mod http;
pub mod io;
pub mod listen;
pub mod phases;
pub mod response;
pub mod settings;
pub mod ws;
