//! A node inside of another program: its settings, its requests and its results, as Rust types without HTTP and JSON.

mod config;
mod feeder;
mod node;
mod requests;
mod run;
mod watch;

pub use self::{
    config::Config,
    feeder::Feeder,
    node::Node,
    requests::{Account, CallOutput, Search, Snapshot},
    run::Error,
    watch::Watch,
};
pub use crate::node::StartError;

/// The types of simulations and searches, and of their results.
pub mod simulation {
    pub use crate::engine::{
        AccountDiff, AccountOverride, Aim, Asset, BlockListing, BlockOverrides, BundleSearch, Call, CallFees,
        CallIndex, CallOutcome, CallRequest, CallResult, CoinbaseIncome, Conditions, ListedTx, NetChange, NumberedLog,
        Objective, Outputs, RequiredEnd, SearchedValues, SimBlock, SimCall, Simulated, SimulatedBlock, SimulatedTx,
        Simulation, SimulationError, StateOverrides, StorageOverride, TokenInfo, Trace, Transfer, ValueChange,
        ValueList, Variant, VariantEnd, VariedPart, VariedTarget,
    };
    pub use crate::search::SearchOutcome;
}
