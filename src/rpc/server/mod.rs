//! The servers: listeners, the connections of HTTP, WebSocket and the Unix socket, who may call, and health.
//!
//! [`http`] and [`ws`] are the two transports behind the one port of [`listen`], and [`ipc`] is that of the Unix socket. A
//! connection of the latter two is a [`session`]. On the port, [`phases`] answers until the node has
//! started, and tells its health. [`io`] has the threads of connections, [`connection`] what belongs to one and the table of
//! them, and [`auth`] who may call. [`files`] serves the files of the page.

pub mod auth;
pub mod connection;
pub mod files;
pub mod fleet;
pub mod http;
pub mod io;
pub mod ipc;
pub mod listen;
pub mod phases;
pub mod response;
pub mod session;
pub mod settings;
pub mod ws;
