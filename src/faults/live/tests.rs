//! A source of which a task has ended: it is started again, and says so. The state of a block that a reorg has removed.

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
use support::upstream::FlashblocksServer;
use tokio::time::{Instant, timeout};
use tower::Service;

use super::{following::SimFollowing, node::SimNode, truth::Truth};
use crate::{
    ledger::{Chain, FeedProblem, Retention, Snapshots},
    pool::{self, Pool},
    source::{
        Feed, FeedSource,
        live::{
            FlashblockSource,
            flashblocks::{self, FlashblockSequence},
        },
    },
    state::{Miss, Missed, RemoteSettings, RemoteState},
    telemetry::Metrics,
    upstream::{Heads, Upstream, UpstreamConfig},
};

/// A test that waits for longer than this hangs.
const BOUND: Duration = Duration::from_secs(120);

/// A transport whose caller panics when it polls the newest block, once it is told to.
#[derive(Clone, Debug)]
struct PanickingTransport {
    inner: SimNode,
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

/// Runs a source while `play` does, and returns how often it was started again. It reads `stream`, or the simulated builder's.
async fn restarts(
    stream: Option<flashblocks::Settings>,
    play: impl AsyncFnOnce(&Truth, &SimNode, &Snapshots, &AtomicBool),
) -> f64 {
    let (truth, metrics) = (Truth::new(), Metrics::default());
    let first = truth.genesis.clone();
    let node = SimNode::new(first.clone(), false);
    let kept = Retention { blocks: 32, snapshots: 32, history: 32, history_bytes: u64::MAX };
    let SimFollowing { snapshots, mut source, stream: _builder } =
        SimFollowing::begin(&truth.spec, &node, &first, kept, 0, &metrics).await;
    let panics = Arc::<AtomicBool>::default();
    let transport = PanickingTransport { inner: node.clone(), panics: panics.clone() };
    let config = UpstreamConfig {
        url: "simulated".to_owned(),
        timeout: BOUND,
        concurrency: 8,
        batch: 100,
        max_response: 1 << 24,
        jitter_seed: None,
    };
    source.upstream = Arc::new(Upstream::over(ClientBuilder::default().transport(transport, true), config, &metrics));
    source.heads = Heads::follow(source.upstream.clone(), first.hash, Duration::from_millis(20));
    source.flashblocks = stream.map(|settings| FlashblockSource {
        events: flashblocks::open(settings),
        rules: FlashblockSequence::new(8, 1 << 24),
    });
    let pool = Pool::new(truth.spec.clone(), pool::Settings::default(), snapshots.clone(), None);
    let feed = Feed::new(snapshots.clone(), None, Arc::new(pool), &metrics);
    tokio::select! {
        () = Box::new(source).run(feed) => panic!("the source goes on for as long as it is polled"),
        () = play(&truth, &node, snapshots.as_ref(), panics.as_ref()) => {}
    }
    let text = metrics.render();
    let line = text.lines().find_map(|line| line.strip_prefix("presim_source_restarts_total "));
    line.expect("the restarts are counted").parse().expect("a number")
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
    let restarts = restarts(None, async |truth, node, snapshots, panics| {
        let one = truth.build(&truth.genesis, &[1], 1);
        let two = truth.build(&one, &[1], 2);
        node.state().put(vec![one.clone()]);
        head(snapshots, one.hash).await;
        until(snapshots, "live", |published| published.feed().problem().is_none()).await;
        panics.store(true, SeqCst);
        until(snapshots, "it says so", |published| published.feed().problem() == Some(FeedProblem::Connecting)).await;
        node.state().put(vec![two.clone()]);
        head(snapshots, two.hash).await;
        until(snapshots, "live", |published| published.feed().problem().is_none()).await;
    });
    assert_eq!(restarts.await, 1.0);
}

#[tokio::test]
async fn a_source_whose_stream_is_no_longer_read_is_started_again() {
    let server = FlashblocksServer::start().await;
    let url = server.url().parse().expect("a URL");
    // No moment is so late, so that the task panics on each connection.
    let mut settings = flashblocks::Settings::new(url);
    settings.link.idle_timeout = Duration::MAX;
    let restarts = restarts(Some(settings), async |truth, node, snapshots, _| {
        server.connected(2).await;
        until(snapshots, "it says so", |published| published.feed().problem() == Some(FeedProblem::Connecting)).await;
        // Without a connection nothing panics, and the upstream's blocks are followed.
        server.refuse(true);
        let one = truth.build(&truth.genesis, &[1], 1);
        node.state().put(vec![one.clone()]);
        head(snapshots, one.hash).await;
    });
    assert!(restarts.await >= 1.0);
}

#[tokio::test]
async fn the_state_of_a_block_that_a_reorg_has_removed_is_fetched_by_its_hash() {
    let (truth, metrics) = (Truth::new(), Metrics::default());
    let [first, other] = [1, 2].map(|salt| truth.build(&truth.genesis, &[2], salt));
    let node = SimNode::new(truth.genesis.clone(), false);
    node.state().put(vec![first.clone()]);
    let kept = Retention { blocks: 32, snapshots: 32, history: 32, history_bytes: u64::MAX };
    let source = SimFollowing::begin(&truth.spec, &node, &first, kept, 0, &metrics).await.source;
    let view = RemoteState::begin(RemoteSettings::of_bytes(1 << 24), first.number, first.hash);
    node.state().put(vec![other.clone()]);
    let _other = view.begin_anew(other.number, other.hash);
    assert!(view.is_abandoned());
    let sender = truth.senders()[0];
    let missed = Missed::at(&view, [Miss::Account(sender)]);
    let _held = source.fetcher.fetch(&missed, None, Instant::now() + BOUND).await.expect("it is fetched");
    let fetched = view.account(&sender).expect("it is cached").expect("an account");
    let truth = first.sealed.world.account(&sender).expect("a sender");
    assert_eq!((fetched.balance, fetched.nonce), (truth.balance, truth.nonce));
}
