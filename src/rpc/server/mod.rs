//! The servers: listeners, the connections of HTTP, WebSocket and the Unix socket, access control, and health.
//!
//! [`http`] and [`ws`] are the two transports behind the one port of [`listen`], and [`ipc`] is the Unix socket's
//! transport. A connection of the latter two is a [`session`]. On the port, [`phases`] answers until the node has
//! started, and reports its health. [`io`] has the threads of connections, [`connection`] the data of each connection
//! and the table of them, and [`auth`] access control. [`files`] serves the files of the page.

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
