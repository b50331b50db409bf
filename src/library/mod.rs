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
///
/// A [`Simulation`](simulation::Simulation) has blocks, and a [`SimBlock`](simulation::SimBlock) has overrides and calls.
/// Here, a block has a contract that the chain does not have, and runs an hour later:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use alloy_primitives::{U256, address, bytes};
/// use presim::{Config, Node, simulation::{
///     AccountOverride, BlockOverrides, Call, SimBlock, Simulated, Simulation, StateOverrides, StorageOverride,
/// }};
///
/// let node = Node::start(Config::default()).await?;
/// let contract = address!("00000000000000000000000000000000000000c0");
/// let state: StateOverrides = vec![(contract, AccountOverride {
///     // Returns the slot 0 and the time of the block.
///     code: Some(bytes!("5f545f524260205260405ff3")),
///     storage: StorageOverride::Diff(vec![(U256::ZERO, U256::from(7))]),
///     ..AccountOverride::default()
/// })];
/// let time = node.snapshot().header().timestamp + 3_600;
/// let block = BlockOverrides { time: Some(time), ..BlockOverrides::default() };
/// let block = SimBlock { state, block, ..SimBlock::of([Call::to(contract)]) };
/// let simulated: Simulated = node.simulate(&Simulation::of([block])).await?;
/// let (slot, seen) = simulated.blocks[0].calls[0].return_data.split_at(32);
/// assert_eq!((U256::from_be_slice(slot), U256::from_be_slice(seen)), (U256::from(7), U256::from(time)));
/// # Ok(node.stop().await) }
/// ```
pub mod simulation {
    pub use crate::engine::{
        AccountDiff, AccountOverride, Aim, Asset, BlockListing, BlockOverrides, BundleSearch, Call, CallFees,
        CallIndex, CallOutcome, CallRequest, CallResult, CoinbaseIncome, Conditions, ListedTx, NetChange, NumberedLog,
        Objective, Outputs, RequiredEnd, SearchedValues, SimBlock, SimCall, Simulated, SimulatedBlock, SimulatedTx,
        Simulation, SimulationError, StateOverrides, StorageOverride, TokenInfo, Trace, TracedGas, Transfer,
        ValueChange, ValueList, Variant, VariantEnd, VariedPart, VariedTarget,
    };
    pub use crate::{meter::Stopped, search::SearchOutcome};
}
