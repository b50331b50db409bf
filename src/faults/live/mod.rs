//! A simulation of the live feed: production's source of a live chain, on a clock that waits for nothing, with an
//! upstream and a stream of sub-blocks that go wrong as a script says.

pub mod following;
pub mod node;
mod replicas;
mod run;
mod script;
mod tests;
pub mod truth;
mod watch;

pub use self::{run::LiveMutant, script::LiveScript};
