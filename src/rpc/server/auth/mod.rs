//! Access: clients by their [`tokens`], and pages by their [`origins`].

pub mod origins;
pub mod tokens;
