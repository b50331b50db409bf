//! Whether a node works: each of its actors, the threads of connections, and the workers.

use std::time::{Duration, Instant};

use actix::{Actor, Addr, Handler};
use futures::future::join_all;
use tokio::{sync::oneshot, time::timeout};

use crate::{
    rpc::FrontActor,
    scheduler::{Executor, LaneActor, LaneName},
    source::StateFeed,
    telemetry::Pulse,
};

/// The parts of a node that must work. Works from any thread, and on any event loop.
#[derive(Debug)]
pub struct Vitals {
    front: Addr<FrontActor>,
    lanes: [Addr<LaneActor>; LaneName::ALL.len()],
    feed: Addr<StateFeed>,
    executor: Executor,
    /// A question that the workers have not answered yet, and when it was asked.
    asked: Option<(Instant, oneshot::Receiver<()>)>,
}

impl Clone for Vitals {
    fn clone(&self) -> Self {
        Self::new(self.front.clone(), self.lanes.clone(), self.feed.clone(), self.executor.clone())
    }
}

/// The reason why a node does not work.
#[expect(missing_docs, reason = "the names of the fields say what they hold")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VitalsError {
    /// A part hangs, or has ended.
    #[error("the {part} does not answer (waited {} ms)", waited.as_millis())]
    Silent { part: String, waited: Duration },
    /// A part has panicked, and does nothing any more.
    #[error("the {part} has failed")]
    Failed { part: String },
}

impl Vitals {
    pub(super) const fn new(
        front: Addr<FrontActor>,
        lanes: [Addr<LaneActor>; LaneName::ALL.len()],
        feed: Addr<StateFeed>,
        executor: Executor,
    ) -> Self {
        Self { front, lanes, feed, executor, asked: None }
    }

    /// Asks every part, and waits for the answers. The workers may be busy with requests until their deadlines, so
    /// their answer may also come in a later check.
    ///
    /// # Errors
    ///
    /// Returns [`VitalsError::Silent`] if an actor or a thread of connections does not answer within `timeout_after`, or the
    /// workers do not within that and `--deadline-ms`; and [`VitalsError::Failed`] if the feed has panicked.
    pub async fn check(&mut self, timeout_after: Duration) -> Result<(), VitalsError> {
        let lanes = join_all(
            self.lanes
                .iter()
                .zip(LaneName::ALL)
                .map(|(lane, name)| async move { ask(lane, &format!("{name} lane"), timeout_after).await }),
        );
        let (front, feed, lanes) =
            tokio::join!(ask(&self.front, "front", timeout_after), ask(&self.feed, "feed", timeout_after), lanes);
        [front, feed].into_iter().chain(lanes).collect::<Result<(), _>>()?;
        let (since, mut answer) = self.asked.take().unwrap_or_else(|| (Instant::now(), self.executor.pulse()));
        let silent = |waited| Err(VitalsError::Silent { part: "pool of workers".to_owned(), waited });
        match timeout(timeout_after, &mut answer).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(_)) => return silent(since.elapsed()),
            Err(_) => self.asked = Some((since, answer)),
        }
        let waited = since.elapsed();
        if waited > self.executor.deadline() + timeout_after { silent(waited) } else { Ok(()) }
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
