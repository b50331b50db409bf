//! The runs of an embedded node, on the executor that the requests of clients use.

use std::sync::Arc;

use crate::{
    engine::{Engine, SimulationError, SimulationRules},
    ledger::{Selector, Snapshot},
    meter::Meter,
    rpc::Backend,
    scheduler::{Host, RunTarget, Task, TaskError, TaskName},
    search::SearchError,
    state::Overlay,
};

/// The reason why there is no result.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use alloy_primitives::{Address, U256};
/// use presim::{Config, Error, Node, simulation::{Call, SimBlock, Simulation, SimulationError, Stopped}};
///
/// let node = Node::start(Config::default()).await?;
/// let poor = Call::to(Address::ZERO).with_from(Address::repeat_byte(9)).with_value(U256::from(1));
/// match node.simulate(&Simulation::of([SimBlock::of([poor])])).await {
///     Ok(simulated) => println!("gas {}", simulated.gas_used),
///     // The bundle names its call, and the reason has the error code of JSON-RPC.
///     Err(Error::Simulation(SimulationError::InCall { index, error })) => {
///         assert_eq!((index.block, index.call, error.code()), (0, 0, -38014));
///     }
///     Err(Error::Simulation(SimulationError::Stopped(Stopped::Deadline))) => println!("expected a shorter bundle"),
///     Err(Error::Simulation(refused)) => println!("refused: {refused}"),
///     Err(Error::NotRun(reason)) => println!("try again: {reason}"),
///     Err(other) => println!("{other}"),
/// }
/// # Ok(node.stop().await) }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The chain's rules or the node's limits refuse the simulation, or its deadline has passed.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
    /// The simulation did not run: the node is overloaded or stopping, state could not be fetched from the upstream in time,
    /// or the chain has something that presim does not execute.
    #[error("{0}")]
    NotRun(String),
}

impl From<TaskError> for Error {
    fn from(error: TaskError) -> Self {
        Self::NotRun(error.to_string())
    }
}

impl From<SearchError> for Error {
    fn from(error: SearchError) -> Self {
        match error {
            SearchError::Simulation(error) => error.into(),
            SearchError::Task(error) => error.into(),
        }
    }
}

/// A run on a snapshot.
pub(super) struct Run<W> {
    pub host: Arc<Host>,
    pub backend: Arc<Backend>,
    pub rules: SimulationRules,
    pub snapshot: Arc<Snapshot>,
    /// Whether it runs on a newer snapshot if the block of this one was removed by a reorg.
    pub follows: bool,
    pub name: TaskName,
    pub target: RunTarget,
    pub work: W,
}

impl<T, W> Task for Run<W>
where
    T: Send + 'static,
    W: Fn(&Backend, &mut Engine<'_>, &Arc<Snapshot>) -> Result<T, SimulationError> + Clone + Send + Sync + 'static,
{
    type Answer = Result<T, SimulationError>;

    fn name(&self) -> TaskName {
        self.name
    }

    fn target(&self) -> RunTarget {
        self.target
    }

    fn run(&self, overlay: &mut Overlay, meter: Meter) -> Self::Answer {
        let Self { host, backend, rules, snapshot, .. } = self;
        overlay.reset(snapshot.world.clone(), snapshot.hashes.clone(), meter);
        let mut engine = Engine { spec: &host.spec, rules, codes: &host.codes, overlay };
        (self.work)(backend, &mut engine, snapshot)
    }

    async fn on_newer(&self) -> Option<Self> {
        let newest = self.host.snapshots.load().select(Selector::Pending).ok()?;
        if !self.follows || newest.id == self.snapshot.id {
            return None;
        }
        Some(Self {
            host: self.host.clone(),
            backend: self.backend.clone(),
            rules: self.rules,
            snapshot: newest,
            follows: true,
            name: self.name,
            target: self.target,
            work: self.work.clone(),
        })
    }
}
