//! From the text of a message to the text of its answer.
//!
//! [`service`] parses a message by jsonrpsee, and [`batch`] runs its entries. Each request is of a method in the [`table`]; [`front`] has
//! it answered, and [`route`] decides which node answers: on a fork, `forked` splits the past.

pub mod batch;
mod forked;
pub mod front;
pub mod method;
pub mod route;
pub mod service;
pub mod services;
pub mod table;
