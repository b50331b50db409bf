//! The host of a node's runs: the workers, the chain and the source of missed state.

use std::sync::Arc;

use super::{submit::Executor, task::FetchMissed};
use crate::{chain::ChainSpec, ledger::Snapshots, state::CodeCache};

/// The workers that run simulations on a chain, and what each run needs besides its request.
#[derive(Clone, Debug)]
pub struct Host {
    /// The workers.
    pub executor: Executor,
    /// The source of the state that runs miss.
    pub source: Arc<dyn FetchMissed>,
    /// The published snapshots.
    pub snapshots: Arc<Snapshots>,
    /// The chain's rules.
    pub spec: Arc<ChainSpec>,
    /// The cache of analysed bytecode.
    pub codes: Arc<CodeCache>,
}
