//! A simulation of the live feed: production's source of a live chain, on a clock that waits for nothing, with an
//! upstream and a stream of sub-blocks that go wrong as a script says.

mod node;
#[cfg(feature = "fleet")]
mod replicas;
mod run;
mod script;
mod truth;
mod watch;

pub use self::{
    run::{LiveCounts, LiveMutant, run_live},
    script::{LiveScript, LiveStep},
};
