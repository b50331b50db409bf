#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

mod api;
pub mod error;
mod node;
mod notification;
mod request;
mod result;
mod watch;

pub use self::{api::*, error::PresimError, node::*, notification::*, request::*, result::*, watch::*};
