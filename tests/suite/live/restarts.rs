//! A source of which a task has ended: it is started again, and says so.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use alloy_json_rpc::{RequestPacket, ResponsePacket};
use alloy_primitives::B256;
use alloy_rpc_client::ClientBuilder;
use alloy_transport::{TransportError, TransportFut};
use alloy_transport_http::{Http, reqwest::Client};
use presim::testing::{
    chain::BlockHashes,
    ledger::{Chain, FeedProblem, FeedState, Retention, Snapshots},
    pool::{self, Pool},
    source::{
        Feed, FeedSource,
        live::{
            FlashblockSource, LiveLimits, LiveSource, canonical_snapshot,
            flashblocks::{self, FlashblockSequence},
        },
    },
    state::{CodeCache, RemoteSettings, RemoteState},
    telemetry::Metrics,
    upstream::{AnnouncedReceipts, Fetcher, FetcherConfig, Heads, Upstream, UpstreamBlock, UpstreamConfig},
};
use tokio::time::timeout;
use tower::Service;

use super::{
    built::{Built, OP_CHAIN, transfer},
    serve,
};
use crate::{
    support::{BOUND, http},
    upstream::{FlashblocksServer, SmallUpstream},
};

/// A transport whose caller panics when it polls the newest block, once it is told to.
#[derive(Clone, Debug)]
struct PanickingTransport {
    inner: Http<Client>,
    panics: Arc<AtomicBool>,
}

impl Service<RequestPacket> for PanickingTransport {
    type Response = ResponsePacket;
    type Error = TransportError;
    type Future = TransportFut<'static>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: RequestPacket) -> Self::Future {
        let polls =
            request.as_single().is_some_and(|request| request.serialized().get().contains(r#"["latest",false]"#));
        if polls && self.panics.swap(false, SeqCst) {
            panic!("a fault in the task that follows the newest block");
        }
        self.inner.call(request)
    }
}

/// A source on its own, without a node around it.
struct SourceStage {
    upstream: SmallUpstream,
    snapshots: Arc<Snapshots>,
    metrics: Metrics,
    panics: Arc<AtomicBool>,
    feed: Feed,
    source: LiveSource,
}

impl SourceStage {
    async fn new(first: &Built, stream: Option<flashblocks::Settings>) -> Self {
        let upstream = serve(&[first]).await;
        let (metrics, codes, panics) = (Metrics::default(), Arc::new(CodeCache::new(1 << 20)), Arc::default());
        let inner = Http::with_client(http(), upstream.url().parse().expect("a URL"));
        let transport = PanickingTransport { inner, panics: Arc::clone(&panics) };
        let config = UpstreamConfig {
            url: upstream.url(),
            timeout: BOUND,
            concurrency: 8,
            batch: 100,
            max_response: 1 << 24,
            jitter_seed: None,
        };
        let client = Arc::new(Upstream::over(ClientBuilder::default().transport(transport, true), config, &metrics));
        let json = first.block.json(true).to_string();
        let head = UpstreamBlock::read(&json, first.spec.family(), |_, _| None).await.expect("the first block");
        let view = RemoteState::begin(RemoteSettings::of_bytes(1 << 24), first.number(), first.hash());
        let mut hashes = BlockHashes::default();
        hashes.push(first.number(), first.hash());
        let begun = canonical_snapshot(view, head, AnnouncedReceipts::Whole(Vec::new()), hashes);
        let kept = Retention { blocks: 32, snapshots: 32, history: 32, history_bytes: u64::MAX };
        let snapshots = Arc::new(Snapshots::new(begun, FeedState::Degraded(FeedProblem::Connecting), kept));
        let pool = Arc::new(Pool::new(first.spec.clone(), pool::Settings::default(), snapshots.clone(), None));
        let fetch = FetcherConfig { wave_timeout: BOUND, verify_proofs: false, max_in_flight: 1 << 16 };
        let source = LiveSource {
            spec: first.spec.clone(),
            heads: Heads::follow(client.clone(), first.hash(), Duration::from_millis(20)),
            fetcher: Arc::new(Fetcher::new(client.clone(), codes, fetch, &metrics)),
            upstream: client,
            flashblocks: stream.map(|settings| FlashblockSource {
                events: flashblocks::open(settings),
                rules: FlashblockSequence::new(8, 1 << 24),
            }),
            limits: LiveLimits {
                wait: BOUND,
                execute: BOUND,
                sub_block: Duration::from_millis(200),
                silent: BOUND,
                max_lag: None,
                held: 1 << 24,
                verify: false,
                lookahead: 6,
                gap: 16,
                late: BOUND,
            },
        };
        let feed = Feed::new(snapshots.clone(), None, pool, &metrics);
        Self { upstream, snapshots, metrics, panics, feed, source }
    }

    /// Runs the source while `play` does.
    async fn play(self, play: impl AsyncFnOnce(&SmallUpstream, &Arc<Snapshots>, &AtomicBool)) -> f64 {
        let Self { upstream, snapshots, metrics, panics, feed, source } = self;
        tokio::select! {
            () = Box::new(source).run(feed) => panic!("the source goes on for as long as it is polled"),
            () = play(&upstream, &snapshots, panics.as_ref()) => {}
        }
        let text = metrics.render();
        let line = text.lines().find_map(|line| line.strip_prefix("presim_source_restarts_total "));
        line.expect("the restarts are counted").parse().expect("a number")
    }
}

async fn until(snapshots: &Snapshots, what: &str, is_so: impl Fn(&Chain) -> bool) {
    let mut changes = snapshots.changes();
    let reached = async {
        while !is_so(&snapshots.load()) {
            changes.changed().await.expect("the cell is there");
        }
    };
    timeout(BOUND, reached).await.unwrap_or_else(|_| panic!("{what}: not so in time: {:?}", snapshots.load().feed()));
}

async fn head(snapshots: &Snapshots, hash: B256) {
    until(snapshots, "the head", |published| published.head().hash() == hash).await;
}

#[tokio::test]
async fn a_source_whose_heads_are_no_longer_followed_is_started_again() {
    let first = Built::op_stack();
    let one = first.next(vec![transfer(OP_CHAIN, 0, 5)], 1);
    let two = one.next(vec![transfer(OP_CHAIN, 1, 6)], 1);
    let stage = SourceStage::new(&first, None).await;
    let restarts = stage.play(async |upstream, snapshots, panics| {
        upstream.push(one.block.clone());
        head(snapshots, one.hash()).await;
        until(snapshots, "live", |published| published.feed().problem().is_none()).await;
        panics.store(true, SeqCst);
        until(snapshots, "it says so", |published| published.feed().problem() == Some(FeedProblem::Connecting)).await;
        upstream.push(two.block.clone());
        head(snapshots, two.hash()).await;
        until(snapshots, "live", |published| published.feed().problem().is_none()).await;
    });
    assert_eq!(restarts.await, 1.0);
}

#[tokio::test]
async fn a_source_whose_stream_is_no_longer_read_is_started_again() {
    let first = Built::op_stack();
    let one = first.next(vec![transfer(OP_CHAIN, 0, 5)], 1);
    let server = FlashblocksServer::start().await;
    let url = server.url().parse().expect("a URL");
    // No moment is so late, so that the task panics on each connection.
    let mut settings = flashblocks::Settings::new(url);
    settings.link.idle_timeout = Duration::MAX;
    let stage = SourceStage::new(&first, Some(settings)).await;
    let restarts = stage.play(async |upstream, snapshots, _| {
        server.connected(2).await;
        until(snapshots, "it says so", |published| published.feed().problem() == Some(FeedProblem::Connecting)).await;
        // Without a connection nothing panics, and the upstream's blocks are followed.
        server.refuse(true);
        upstream.push(one.block.clone());
        head(snapshots, one.hash()).await;
    });
    assert!(restarts.await >= 1.0);
}
