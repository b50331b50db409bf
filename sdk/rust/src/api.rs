//! The trait that adds presim's methods to providers.

use alloy_network::{Ethereum, Network};
use alloy_primitives::{B256, U64};
use alloy_provider::Provider;
use alloy_pubsub::Subscription;
use alloy_transport::TransportResult;

use crate::{
    Approvals, Begun, BlockSelector, ChangeFilter, Changes, Divergence, FeedChange, Found, NewestSnapshot, NodeStatus,
    Outcome, PublishedSnapshot, Search, Simulated, Simulation, StateChanges, Watch, WatchId, WatchedBundle,
};

/// The methods of presim, for every provider of alloy.
///
/// Each method of the node has one by its name. [`watch`](PresimApi::watch) and the `presim_subscribe_*` methods build on
/// them. All return the provider's error: see [`PresimError`](crate::PresimError).
#[async_trait::async_trait]
pub trait PresimApi<N: Network = Ethereum>: Send + Sync {
    /// Runs a bundle on a state, and returns the outputs that the bundle names.
    async fn presim_simulate(&self, bundle: &Simulation, block: BlockSelector) -> TransportResult<Simulated>;

    /// Runs a bundle with many values of one or two fields, and returns the values that optimise an objective.
    async fn presim_search(&self, search: &Search, block: BlockSelector) -> TransportResult<Found>;

    /// Returns the newest snapshot, and the state of its feed.
    async fn presim_snapshot(&self) -> TransportResult<NewestSnapshot>;

    /// Returns the load of the node in the last seconds.
    async fn presim_status(&self) -> TransportResult<NodeStatus>;

    /// Returns the last hundred differences between pre-confirmed results and the producer's data or the canonical block,
    /// newest first.
    async fn presim_divergences(&self) -> TransportResult<Vec<Divergence>>;

    /// Returns the outcome of a bundle of `eth_sendBundle`, or `None` if the client has not sent it or it is forgotten.
    async fn presim_outcome(&self, bundle_hash: B256) -> TransportResult<Option<Outcome>>;

    /// Returns the batches and messages that wait for an approver. The client needs the right to use the wallet.
    async fn presim_approvals(&self) -> TransportResult<Approvals>;

    /// Creates standing bundles at [`BlockSelector::PENDING`] or [`BlockSelector::LATEST`].
    ///
    /// [`watch`](PresimApi::watch) does the same, and receives their answers.
    async fn presim_watch(&self, bundles: &[WatchedBundle], block: BlockSelector) -> TransportResult<Begun>;

    /// Returns the answers of standing bundles that have changed after the snapshot `id`. Waits for some milliseconds
    /// until one has.
    async fn presim_results(&self, watch: WatchId, id: u64, wait_ms: Option<u64>) -> TransportResult<Changes>;

    /// Returns the changes since the snapshot `id`, and has the node send all later ones to this connection of a WebSocket.
    ///
    /// alloy drops these notifications, because it knows only the subscriptions of `eth_subscribe`. Use
    /// [`watch`](PresimApi::watch), unless a layer of your own reads them.
    async fn presim_rewatch(&self, watch: WatchId, id: u64) -> TransportResult<Changes>;

    /// Ends standing bundles. Returns whether the node still had them.
    async fn presim_unwatch(&self, watch: WatchId) -> TransportResult<bool>;

    /// Creates standing bundles, and receives the changes of their answers, over any transport and across reconnects.
    async fn watch(&self, bundles: Vec<WatchedBundle>, block: BlockSelector) -> TransportResult<Watch<N>>;

    /// Subscribes to the snapshots, over a WebSocket or a Unix socket.
    ///
    /// alloy subscribes again after a reconnect. Snapshots that were published in between are missing, and so are the oldest
    /// ones if the program reads too slowly: alloy keeps the newest 16 unread ones, and [`Subscription::recv`] reports the
    /// number of lost ones. [`Subscription::into_stream`] makes a stream.
    async fn presim_subscribe_snapshots(&self) -> TransportResult<Subscription<PublishedSnapshot>>;

    /// Subscribes to the changes of the state with each snapshot, over a WebSocket or a Unix socket.
    ///
    /// After a reconnect or a lost notification, changes are missing: begin again, with the last snapshot as
    /// [`ChangeFilter::from`].
    async fn presim_subscribe_state_changes(
        &self,
        filter: &ChangeFilter,
    ) -> TransportResult<Subscription<StateChanges>>;

    /// Subscribes to the state of the feed, over a WebSocket or a Unix socket. The first notification has the current state.
    async fn presim_subscribe_feed(&self) -> TransportResult<Subscription<FeedChange>>;
}

#[async_trait::async_trait]
impl<P: Provider<N>, N: Network> PresimApi<N> for P {
    async fn presim_simulate(&self, bundle: &Simulation, block: BlockSelector) -> TransportResult<Simulated> {
        self.client().request("presim_simulate", (bundle, block)).await
    }

    async fn presim_search(&self, search: &Search, block: BlockSelector) -> TransportResult<Found> {
        self.client().request("presim_search", (search, block)).await
    }

    async fn presim_snapshot(&self) -> TransportResult<NewestSnapshot> {
        self.client().request_noparams("presim_snapshot").await
    }

    async fn presim_status(&self) -> TransportResult<NodeStatus> {
        self.client().request_noparams("presim_status").await
    }

    async fn presim_divergences(&self) -> TransportResult<Vec<Divergence>> {
        self.client().request_noparams("presim_divergences").await
    }

    async fn presim_outcome(&self, bundle_hash: B256) -> TransportResult<Option<Outcome>> {
        self.client().request("presim_outcome", (bundle_hash,)).await
    }

    async fn presim_approvals(&self) -> TransportResult<Approvals> {
        self.client().request_noparams("presim_approvals").await
    }

    async fn presim_watch(&self, bundles: &[WatchedBundle], block: BlockSelector) -> TransportResult<Begun> {
        self.client().request("presim_watch", (bundles, block)).await
    }

    async fn presim_results(&self, watch: WatchId, id: u64, wait_ms: Option<u64>) -> TransportResult<Changes> {
        self.client().request("presim_results", (watch, U64::from(id), wait_ms)).await
    }

    async fn presim_rewatch(&self, watch: WatchId, id: u64) -> TransportResult<Changes> {
        self.client().request("presim_rewatch", (watch, U64::from(id))).await
    }

    async fn presim_unwatch(&self, watch: WatchId) -> TransportResult<bool> {
        self.client().request("presim_unwatch", (watch,)).await
    }

    async fn watch(&self, bundles: Vec<WatchedBundle>, block: BlockSelector) -> TransportResult<Watch<N>> {
        Watch::begin(self.root().clone(), bundles, block).await
    }

    async fn presim_subscribe_snapshots(&self) -> TransportResult<Subscription<PublishedSnapshot>> {
        self.root().subscribe(("presim_snapshots",)).await
    }

    async fn presim_subscribe_state_changes(
        &self,
        filter: &ChangeFilter,
    ) -> TransportResult<Subscription<StateChanges>> {
        self.root().subscribe(("presim_stateChanges", filter.clone())).await
    }

    async fn presim_subscribe_feed(&self) -> TransportResult<Subscription<FeedChange>> {
        self.root().subscribe(("presim_feed",)).await
    }
}
