//! A simulation of a fleet: production's nodes, from their joining on, over a model of their servers, which lose what a script
//! says. They follow the upstream of the simulation of live chains.

mod chain;
mod node;
mod run;
mod script;
mod servers;

pub use self::{script::FleetScript, servers::FleetMutant};
