//! Simulation, pure: a snapshot and a request in, a result out. No actors, no clocks of its own, no I/O.

mod access_list;
mod bundle;
mod call;
mod error;
mod estimate;
mod evm;
mod fees;
mod overrides;
mod precompiles;
mod request;
mod simulate;
mod transfers;

pub use access_list::{Accessed, create_access_list};
pub use bundle::{BundleError, BundleResult, BundleTx, call_bundle};
pub use call::{call, lift_checks};
pub use error::{HaltText, SimulationError};
pub use estimate::{Estimate, estimate_gas};
pub use evm::new_evm;
pub use precompiles::RunPrecompiles;
pub use request::{
    AccountOverride, BaseFeeRule, BlockOverrides, Bundle, Call, CallFees, CallRequest, Rules, SimBlock, Simulation,
    StateOverrides, StorageOverride,
};
pub use simulate::{CallOutcome, CallResult, SimulatedBlock, SimulatedTx, simulate};
pub use transfers::NumberedLog;
