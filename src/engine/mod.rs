//! Simulation, pure: a snapshot and a request in, a result out. No actors, no clocks of its own, no I/O.

mod access_list;
mod block_executor;
mod bundle;
mod call;
mod error;
mod estimate;
mod evm;
mod fees;
mod many;
mod overrides;
mod precompiles;
mod recorder;
mod replay;
mod request;
mod simulate;
mod steps;
mod trace;
mod transfers;

pub use access_list::{Accessed, create_access_list};
pub use block_executor::{BlockResult, ChainExecutor};
pub use bundle::{BundleError, BundleResult, BundleTx, call_bundle};
pub use call::{call, lift_checks};
pub use error::{HaltText, SimulationError, frame_error, revert_reason};
pub use estimate::{Estimate, estimate_gas};
pub use evm::{Ethereum, FamilyEvm, OpStack, RunEvm};
pub use fees::market_tx;
pub use many::{ManyError, call_many, trace_many};
pub use precompiles::RunPrecompiles;
pub use replay::{replay, transaction_count};
pub use request::{
    AccountOverride, BaseFeeRule, BlockOverrides, Bundle, Bundles, Call, CallFees, CallRequest, Rules, SignedBundle,
    SimBlock, Simulation, StateOverrides, StorageOverride,
};
pub use simulate::{CallOutcome, CallResult, SimulatedBlock, SimulatedTx, simulate};
pub use steps::{Slot, Step, StepOptions, Steps};
pub use trace::{Trace, TraceBudget, Tracer};
pub use transfers::NumberedLog;
