//! A simulation of a fleet: production's nodes, from their joining on, over a model of their servers, which lose what a script
//! says.

mod node;
mod run;
mod script;
mod servers;

pub use self::{
    run::{FleetCounts, run_fleet},
    script::{FleetScript, FleetStep},
    servers::FleetMutant,
};
