//! A source that follows the simulated upstream and the builder's stream, as a node has it.

use std::{sync::Arc, time::Duration};

use crate::{
    chain::ChainSpec,
    ledger::{FeedProblem, FeedState, Retention, Snapshots},
    source::live::{
        FlashblockSource, LiveLimits, LiveSource, canonical_snapshot,
        flashblocks::{Event, Events, FlashblockSequence},
    },
    state::{CodeCache, RemoteSettings, RemoteState},
    telemetry::Metrics,
    upstream::{AnnouncedReceipts, Fetcher, FetcherConfig, Heads, Upstream, UpstreamBlock, UpstreamConfig},
};
use alloy_rpc_client::ClientBuilder;
use tokio::sync::mpsc;

use super::{node::SimNode, truth::TrueBlock};

/// A source with what it begins with, and the end of the stream that its builder writes.
pub struct SimFollowing {
    pub snapshots: Arc<Snapshots>,
    pub source: LiveSource,
    pub stream: mpsc::Sender<Event>,
}

impl SimFollowing {
    /// Begins with the block `first` of `node`, whose chain has these rules.
    pub async fn begin(
        spec: &ChainSpec,
        node: &SimNode,
        first: &TrueBlock,
        kept: Retention,
        seed: u64,
        metrics: &Metrics,
    ) -> Self {
        let codes = Arc::new(CodeCache::new(1 << 20));
        let config = UpstreamConfig {
            url: "simulated".to_owned(),
            timeout: Duration::from_secs(2),
            concurrency: 8,
            batch: 100,
            max_response: 1 << 24,
            jitter_seed: Some(seed),
        };
        let client = ClientBuilder::default().transport(node.clone(), true);
        let upstream = Arc::new(Upstream::over(client, config, metrics));
        let head = UpstreamBlock::read(&first.json.to_string(), spec.family(), |_, _| None).await.expect("a block");
        let view = RemoteState::begin(RemoteSettings::of_bytes(1 << 24), first.number, first.hash);
        let begun = canonical_snapshot(view, head, AnnouncedReceipts::Whole(Vec::new()));
        let snapshots = Arc::new(Snapshots::new(begun, FeedState::Degraded(FeedProblem::Connecting), kept));
        let fetch =
            FetcherConfig { wave_timeout: Duration::from_secs(10), verify_proofs: false, max_in_flight: 1 << 16 };
        let heads = Heads::follow(upstream.clone(), first.hash, Duration::from_millis(200));
        let (stream, receiver) = mpsc::channel(256);
        let source = LiveSource {
            spec: spec.clone(),
            upstream: upstream.clone(),
            fetcher: Arc::new(Fetcher::new(upstream, codes, fetch, metrics)),
            heads,
            flashblocks: Some(FlashblockSource {
                events: Events::from_receiver(receiver),
                rules: FlashblockSequence::new(8, 1 << 24),
            }),
            limits: LiveLimits {
                wait: Duration::from_secs(4),
                execute: Duration::from_secs(2),
                sub_block: Duration::from_millis(200),
                silent: Duration::from_secs(2),
                max_lag: None,
                held: 1 << 24,
                verify: false,
                lookahead: 6,
                gap: 16,
                late: Duration::from_secs(30),
            },
        };
        Self { snapshots, source, stream }
    }
}
