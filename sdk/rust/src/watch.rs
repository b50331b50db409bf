//! Standing bundles, whose answers arrive as a stream.

use std::fmt;

use alloy_json_rpc::ErrorPayload;
use alloy_network::{Ethereum, Network};
use alloy_primitives::FixedBytes;
use alloy_provider::RootProvider;
use alloy_transport::{TransportError, TransportErrorKind, TransportResult};
use futures::{Stream, stream};
use serde::{Deserialize, Serialize};

use crate::{
    BlockSelector, Found, PresimApi, Simulated, WatchedBundle,
    error::{PresimError, REJECTED},
};

/// The name of a watch.
pub type WatchId = FixedBytes<16>;

/// The time for which one request waits for a change, in milliseconds.
const WAIT_MS: u64 = 10_000;

/// A new watch, and the snapshot after which everything is news.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Begun {
    /// The name of the watch.
    pub watch: WatchId,
    /// The id of the snapshot.
    #[serde(with = "alloy_serde::quantity")]
    pub id: u64,
}

/// The result of a standing bundle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum WatchedResult {
    /// The result of a search.
    Found(Found),
    /// The result of a simulation.
    Simulated(Simulated),
}

/// An answer that has changed. It has one of `result`, `error` and `below`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ChangedAnswer {
    /// The name of the bundle.
    pub name: String,
    /// The id of the newest snapshot for which the answer is known to hold.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "alloy_serde::quantity::opt")]
    pub id: Option<u64>,
    /// The number of the sealed block on which the answer was computed, if the bundles run at `latest`.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "alloy_serde::quantity::opt")]
    pub block_number: Option<u64>,
    /// The result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<WatchedResult>,
    /// The error of a bundle that cannot run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorPayload>,
    /// Whether the objective is no longer above the bound of [`WatchedBundle::only_above`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<bool>,
}

/// A bundle whose answer holds only up to a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct BehindBundle {
    /// The name of the bundle.
    pub name: String,
    /// The id of the last snapshot for which the answer holds. `None` if there is no answer.
    #[serde(default, with = "alloy_serde::quantity::opt")]
    pub id: Option<u64>,
    /// The number of the sealed block on which the answer was computed, if the bundles run at `latest`.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "alloy_serde::quantity::opt")]
    pub block_number: Option<u64>,
    /// The reason why the last run of the bundle has ended without an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale: Option<ErrorPayload>,
}

/// The answers that have changed after a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Changes {
    /// The name of the watch. An answer to `presim_results` has none, but a [`Watch`] adds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watch: Option<WatchId>,
    /// The id of the last snapshot whose changes are complete.
    #[serde(with = "alloy_serde::quantity")]
    pub id: u64,
    /// The number of the block being built there, or of the sealed block on which the bundles run.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "alloy_serde::quantity::opt")]
    pub block_number: Option<u64>,
    /// The time of the block being built, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "alloy_serde::quantity::opt")]
    pub timestamp: Option<u64>,
    /// The base fee of the block being built, in wei per unit of gas.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "alloy_serde::quantity::opt")]
    pub base_fee_per_gas: Option<u64>,
    /// The answers that have changed.
    pub changed: Vec<ChangedAnswer>,
    /// The bundles whose answers hold only up to a snapshot.
    pub behind: Vec<BehindBundle>,
}

/// Standing bundles, and the changes of their answers: the result of [`PresimApi::watch`].
///
/// A watch asks for the changes after the last snapshot whose changes it has received in full (`presim_results`). The
/// request waits at the node, so an answer arrives as soon as the due bundles have run. Nothing is lost when a connection
/// breaks, over any transport: alloy repeats the request on the next connection, with the same snapshot.
///
/// If the node has forgotten the bundles, because it was restarted or the client was away for too long, the watch creates
/// them again. Then [`Changes::watch`] is another name, and every bundle has an answer in `changed` after its first run,
/// except for bundles with [`only_above`](WatchedBundle::only_above) whose objective is not above their bound.
///
/// Dropping a watch sends nothing to the node, which removes the bundles after a while. [`end`](Watch::end) removes them
/// at once.
pub struct Watch<N: Network = Ethereum> {
    provider: RootProvider<N>,
    bundles: Vec<WatchedBundle>,
    block: BlockSelector,
    begun: Begun,
}

impl<N: Network> fmt::Debug for Watch<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("begun", &self.begun).finish_non_exhaustive()
    }
}

impl<N: Network> Watch<N> {
    pub(crate) async fn begin(
        provider: RootProvider<N>,
        bundles: Vec<WatchedBundle>,
        block: BlockSelector,
    ) -> TransportResult<Self> {
        let begun = provider.presim_watch(&bundles, block).await?;
        Ok(Self { provider, bundles, block, begun })
    }

    /// Returns the name of the watch, for [`PresimApi::presim_results`] and its companions.
    pub const fn id(&self) -> WatchId {
        self.begun.watch
    }

    /// Waits until answers have changed, and returns them. A caller that stops waiting loses nothing.
    ///
    /// # Errors
    ///
    /// Returns the error of the provider. A later call continues from the same snapshot.
    pub async fn recv(&mut self) -> TransportResult<Changes> {
        loop {
            let mut changes = self.poll().await?;
            self.begun.id = changes.id;
            if !changes.changed.is_empty() {
                changes.watch = Some(self.begun.watch);
                return Ok(changes);
            }
        }
    }

    /// Turns the watch into a stream, which does not end. After an error, it continues from the same snapshot.
    pub fn into_stream(self) -> impl Stream<Item = TransportResult<Changes>> + Send + Unpin {
        Box::pin(stream::unfold(self, async |mut watch| Some((watch.recv().await, watch))))
    }

    /// Removes the bundles from the node. Returns whether the node still had them.
    ///
    /// # Errors
    ///
    /// Returns the error of the provider. The node removes the bundles after a while.
    pub async fn end(self) -> TransportResult<bool> {
        self.provider.presim_unwatch(self.begun.watch).await
    }

    async fn poll(&mut self) -> TransportResult<Changes> {
        match self.ask().await {
            Err(error) if error.presim_code() == Some(REJECTED) => {
                self.begun = self.provider.presim_watch(&self.bundles, self.block).await?;
                self.ask().await
            }
            answered => answered,
        }
    }

    async fn ask(&self) -> TransportResult<Changes> {
        let ask = || self.provider.presim_results(self.begun.watch, self.begun.id, Some(WAIT_MS));
        match ask().await {
            // A request that alloy sends while a connection breaks is lost. The next one waits for the new connection.
            Err(TransportError::Transport(TransportErrorKind::BackendGone)) => ask().await,
            answered => answered,
        }
    }
}
