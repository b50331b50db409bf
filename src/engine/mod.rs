//! Pure simulation, from a snapshot and a request to a result. No actors, no clocks, no I/O.

mod access_list;
mod beginnings;
mod block_executor;
mod block_run;
mod bundle;
mod call;
mod console;
mod error;
mod estimate;
mod evm;
mod families;
mod fees;
mod kzg;
mod many;
mod overrides;
mod precompiles;
mod recorder;
mod replay;
mod request;
mod search;
mod shadow;
mod simulate;
mod size;
mod steps;
mod system_calls;
mod trace;
mod transfers;

pub use access_list::Accessed;
pub use beginnings::Beginnings;
pub use block_executor::{BlockProgress, ChainExecutor};
pub use block_run::{
    Applied, BlockEnd, BlockRun, InvalidTransaction, check_executable, execute_block, extend, look_ahead, next_header,
    open_block, open_block_with, run_waiting, seal, withdrawals_root,
};
pub use bundle::{BundleResult, BundleTx};
pub use call::lift_checks;
pub use console::ConsoleOutput;
pub use error::{HaltText, RunError, SimulationError, frame_error, revert_reason};
pub use estimate::Estimate;
pub use evm::{Ethereum, FamilyEvm, OpStack, RunEvm};
pub use fees::{ListedTx, encode_unsigned, market_tx};
pub use kzg::{install_kzg_verifier, kzg_settings, load_kzg_settings};
pub use precompiles::{RunPrecompiles, precompiles_of};
pub use replay::{replay, trace_block};
pub use request::{
    AccountOverride, BaseFeeRule, BlockOverrides, Call, CallFees, CallIndex, CallRequest, Conditions, Objective,
    Outputs, RequiredEnd, SimBlock, SimCall, Simulation, SimulationRules, StateOverrides, StorageOverride,
};
pub use search::{Aim, BundleSearch, SearchedValues, ValueList, Variant, VariantEnd, VariedPart, VariedTarget, golden};
pub use shadow::{Difference, DifferentParts, DivergentStep, ShadowedTx, StepKind, StepPlace, op_name, shadow_block};
pub use simulate::{
    AccountDiff, Asset, Beginning, BlockContext, BlockListing, CallOutcome, CallResult, CoinbaseIncome, ContextChange,
    NetChange, Simulated, SimulatedBlock, SimulatedTx, TokenInfo, ValueChange,
};
pub use steps::{StepOptions, Steps, TraceStep};
pub use trace::{Trace, TracedGas, Tracer};
pub use transfers::{NumberedLog, Transfer};

use crate::{
    chain::ChainSpec,
    state::{CodeCache, Overlay},
};

/// The resources of runs, besides their requests. Each kind of request is a method, in its own file.
#[derive(Debug)]
pub struct Engine<'a> {
    /// The chain's rules.
    pub spec: &'a ChainSpec,
    /// The rules of the dialect and of the node's settings.
    pub rules: &'a SimulationRules,
    /// The cache of analysed bytecode.
    pub codes: &'a CodeCache,
    /// The writes of runs, over the state of the snapshot that they run on.
    pub overlay: &'a mut Overlay,
}
