//! A simulation of a fleet: production's leader and followers on a model of their stream, which loses what a script says.

mod node;
mod run;
mod script;
mod stream;

pub use self::{
    run::{FleetCounts, run_fleet},
    script::{FleetScript, FleetStep},
    stream::FleetMutant,
};
