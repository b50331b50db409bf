//! A standing bundle of parameters: its run, and its answer as JSON.

use std::sync::Arc;

use alloy_primitives::I256;
use bytes::Bytes;

use super::request::{WatchedBundle, WatchedPayload};
use crate::{
    engine::Engine,
    ledger::Snapshot,
    rpc::{
        api::{search::search_on, simulate::write_simulated},
        json,
        protocol::{dialect::Dialect, error::RpcError},
        run::Backend,
    },
    watch::{Bundle, BundleError, BundleRun, StaleReason},
};

/// A standing bundle of a client of the node.
#[derive(Debug)]
pub struct NodeBundle {
    /// The request.
    pub request: WatchedBundle,
    /// The dialect of the client.
    pub dialect: &'static Dialect,
    /// The node's data.
    pub backend: Arc<Backend>,
}

impl Bundle for NodeBundle {
    /// A member `result` or `error` of a JSON object, with its name. It is encoded once per run, on the worker:
    /// clients are notified of a change if this text has changed, and its length counts towards the client's memory on
    /// the node.
    type Answer = Bytes;

    fn every_block(&self) -> bool {
        self.request.every_block
    }

    fn run(&self, engine: &mut Engine<'_>, snapshot: &Arc<Snapshot>) -> BundleRun<Bytes> {
        let mut out = Vec::new();
        let done = match &self.request.payload {
            WatchedPayload::Simulate(request) => engine
                .simulate(snapshot, &request.simulation)
                .map_err(|error| self.dialect.simulation_error(error))
                .and_then(|simulated| {
                    write_simulated(&self.backend, self.dialect, request, &simulated, engine.overlay, &mut out)
                })
                .map(|()| (None, true)),
            WatchedPayload::Search(request) => {
                search_on(&self.backend, self.dialect, engine, snapshot, request, &mut out)
            }
        };
        match done {
            Ok((gained, complete)) => {
                let answer = self.request.shows(gained).then(|| member("result", &out));
                BundleRun { answer, gained, complete }
            }
            // An error has no objective, and is always sent.
            Err(error) => BundleRun { answer: Some(error_member(&error)), gained: None, complete: true },
        }
    }

    fn failed(&self, error: BundleError) -> Bytes {
        error_member(&match error {
            BundleError::Unexecutable(why) => RpcError::Unexecutable(why),
            BundleError::NoRoom { .. } => RpcError::limit(error.to_string()),
        })
    }
}

impl WatchedBundle {
    /// Returns whether an answer with this objective is sent.
    fn shows(&self, gained: Option<I256>) -> bool {
        self.above.is_none_or(|above| gained.is_some_and(|gained| gained > above))
    }
}

impl From<StaleReason> for RpcError {
    fn from(reason: StaleReason) -> Self {
        match reason {
            StaleReason::Task(error) => error.into(),
            StaleReason::Unfinished => Self::new(-32016, reason.to_string()),
        }
    }
}

/// Returns a member of a JSON object.
fn member(name: &str, value: &[u8]) -> Bytes {
    [b"\"", name.as_bytes(), b"\":", value].concat().into()
}

fn error_member(error: &RpcError) -> Bytes {
    let mut text = Vec::new();
    json::value(&mut text, &error.clone().into_object());
    member("error", &text)
}
