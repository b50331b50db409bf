//! Whether a node works: each of its actors, the threads of connections, and the workers.

use std::time::Duration;

use actix::{Actor, Addr, Handler};
use futures::future::join_all;
use tokio::time::timeout;

use crate::{rpc::FrontActor, scheduler::WorkerActor, source::StateFeed, telemetry::Pulse};

/// The parts of a node that must work. Works from any thread, and on any event loop.
#[derive(Clone, Debug)]
pub struct Vitals {
    pub(super) front: Option<Addr<FrontActor>>,
    pub(super) workers: Vec<Addr<WorkerActor>>,
    pub(super) feed: Addr<StateFeed>,
}

/// The reason why a node does not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VitalsError {
    /// A part hangs, or has ended.
    #[error("the {part} does not answer (waited {} ms)", waited.as_millis())]
    Silent { part: String, waited: Duration },
    /// A part has panicked and does nothing any more, or a worker is stalled.
    #[error("the {part} has failed")]
    Failed { part: String },
}

impl Vitals {
    /// Checks every part, and waits for the answers. The workers may be busy with requests, so their actors answer for
    /// them, according to their progress.
    ///
    /// # Errors
    ///
    /// Returns [`VitalsError::Silent`] if an actor or a thread of connections does not answer within `timeout_after`;
    /// and [`VitalsError::Failed`] if the feed has panicked, or a worker has made no progress for `--worker-stall-ms` while
    /// requests waited.
    pub async fn check(&self, timeout_after: Duration) -> Result<(), VitalsError> {
        let workers = self.workers.iter().enumerate();
        let workers = join_all(
            workers.map(|(index, worker)| async move { ask(worker, &format!("worker {index}"), timeout_after).await }),
        );
        let front = async {
            match &self.front {
                Some(front) => ask(front, "front", timeout_after).await,
                None => Ok(()),
            }
        };
        let (front, feed, workers) = tokio::join!(front, ask(&self.feed, "feed", timeout_after), workers);
        [front, feed].into_iter().chain(workers).collect()
    }
}

/// Asks an actor.
async fn ask<A: Actor + Handler<Pulse>>(actor: &Addr<A>, part: &str, timeout_after: Duration) -> Result<(), VitalsError>
where
    A::Context: actix::dev::ToEnvelope<A, Pulse>,
{
    match timeout(timeout_after, actor.send(Pulse)).await {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err(VitalsError::Failed { part: part.to_owned() }),
        Ok(Err(_)) | Err(_) => Err(VitalsError::Silent { part: part.to_owned(), waited: timeout_after }),
    }
}
