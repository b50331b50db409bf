//! The phases of a node as its port shows them: starting, and serving in good health or not.

pub mod health;
pub mod starting;
