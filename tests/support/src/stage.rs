//! A live chain on a stage: a node, the upstream and the stream that it follows, and blocks that are played to it as a
//! builder and its chain do.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use alloy_primitives::{Address, B256, Bytes};
use presim::testing::{
    chain::ChainTx,
    ledger::{FeedProblem, SnapshotId},
};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::built::{Built, OP_CHAIN, chase, sent_by, token};
use crate::{
    BOUND, TestNode,
    upstream::{FlashblocksServer, SmallUpstream, UpstreamChain},
};

/// The time between two sub-blocks of a builder.
pub const EVERY: Duration = Duration::from_millis(200);

/// A node, and the servers that it follows.
pub struct LiveStage {
    pub upstream: SmallUpstream,
    pub server: FlashblocksServer,
    pub node: TestNode,
    pub first: Built,
}

impl LiveStage {
    /// Starts a node on a chain that begins with `first`. `url` is that of the upstream.
    pub async fn new(first: Built, url: impl Fn(&SmallUpstream) -> String, flags: &[&str]) -> Self {
        let upstream = serve(&[&first]).await;
        let server = FlashblocksServer::start().await;
        let stream = server.url();
        let all = [&["--flashblocks", stream.as_str()], flags].concat();
        let node = launch(&url(&upstream), Some(&first.config), &all).await;
        let node = node.unwrap_or_else(|error| panic!("the node did not start: {error:#}"));
        server.connected(1).await;
        Self { upstream, server, node, first }
    }

    /// Sends blocks as a builder does, cut into sub-blocks of `split` transactions, one each `every`. A block becomes
    /// canonical when the first sub-block of the next has been sent. Returns the time from each sub-block's sending to its
    /// snapshot, in order.
    ///
    /// All sub-blocks have to be applied.
    pub async fn play(&self, blocks: &[Built], split: &[usize], every: Duration) -> Vec<Duration> {
        self.play_encoded(blocks, &encode(blocks, split), every).await
    }

    /// Does what [`play`](Self::play) does with blocks that [`encode`] has cut and encoded, which takes time of its own.
    pub async fn play_encoded(&self, blocks: &[Built], encoded: &[Vec<Message>], every: Duration) -> Vec<Duration> {
        let before = self.applied();
        let snapshots = self.node.node.snapshots().clone();
        let last_index = encoded.last().expect("a block").len() as u64 - 1;
        let last = (blocks.last().expect("a block").number(), last_index);
        let seen = tokio::spawn(async move {
            let (mut changes, mut seen, mut at) = (snapshots.changes(), BTreeMap::new(), SnapshotId::default());
            while !seen.contains_key(&last) {
                let published = snapshots.load();
                for snapshot in published.snapshots_after(at) {
                    // A canonical block has what all of its sub-blocks have done.
                    let index = snapshot.open.as_ref().map_or(u64::MAX, |_| u64::from(snapshot.index()));
                    seen.entry((snapshot.header().number, index)).or_insert_with(Instant::now);
                    at = snapshot.id;
                }
                drop(published);
                if !seen.contains_key(&last) {
                    changes.changed().await.expect("the node publishes");
                }
            }
            seen
        });
        let (mut sent, mut clock) = (BTreeMap::new(), tokio::time::interval(every));
        for (at, (block, messages)) in blocks.iter().zip(encoded).enumerate() {
            for (index, message) in messages.iter().cloned().enumerate() {
                clock.tick().await;
                sent.insert((block.number(), index as u64), Instant::now());
                self.server.send_message(message);
                if index == 0 && at > 0 {
                    self.upstream.push(blocks[at - 1].block.clone());
                }
            }
        }
        let Ok(seen) = tokio::time::timeout(BOUND, seen).await else {
            let published = self.node.node.snapshots().load();
            let newest = (published.newest.header().number, published.newest.index());
            panic!("{last:?} is not applied in time: the newest is {newest:?}, the feed is {:?}", published.feed());
        };
        let seen = seen.expect("no panic");
        assert_eq!(self.applied() - before, sent.len() as f64, "the sub-blocks that are applied");
        // A sub-block whose block became canonical at once may not be seen. What comes after it is.
        let seen_by = |place| *seen.range(place..).next().expect("the last one is seen").1;
        sent.into_iter().map(|(place, sent)| seen_by(place).saturating_duration_since(sent)).collect()
    }

    /// Returns the number of sub-blocks that were applied.
    pub fn applied(&self) -> f64 {
        self.node.metric("presim_flashblocks_total{outcome=\"applied\"}")
    }

    /// Checks that nothing was dropped since the start.
    pub fn never_fell(&self) {
        for problem in FeedProblem::ALL.iter().copied().filter(|problem| *problem != FeedProblem::Connecting) {
            let name = format!("presim_feed_fallbacks_total{{reason=\"{}\"}}", problem.as_str());
            assert_eq!(self.node.metric(&name), 0.0, "{problem:?}");
        }
    }
}

/// Returns the sub-blocks of each block as messages of a stream.
pub fn encode(blocks: &[Built], split: &[usize]) -> Vec<Vec<Message>> {
    let text = |payload| Message::text(serde_json::to_string(&payload).expect("a payload is JSON"));
    blocks.iter().map(|block| block.flashblocks(split).into_iter().map(text).collect()).collect()
}

/// Starts an upstream that has these blocks.
pub async fn serve(blocks: &[&Built]) -> SmallUpstream {
    let chain = UpstreamChain::new(blocks.iter().map(|built| built.block.clone()).collect());
    SmallUpstream::start(blocks[0].spec.chain_id(), chain).await
}

/// Returns a genesis file with this `config`, for a chain that a node knows by its upstream.
pub fn genesis_of(config: &Value) -> Value {
    json!({
        "config": config, "alloc": {}, "difficulty": "0x0", "gasLimit": "0x1c9c380", "nonce": "0x0",
        "timestamp": "0x0", "extraData": "0x", "mixHash": B256::ZERO, "coinbase": Address::ZERO,
    })
}

/// Starts a node with this upstream, whose chain has this `config`.
///
/// # Errors
///
/// Returns the node's error if it rejects the flags or the upstream.
pub async fn launch(upstream: &str, config: Option<&Value>, flags: &[&str]) -> eyre::Result<TestNode> {
    launch_by(upstream, config, flags, TestNode::try_start).await
}

/// Starts a node as [`launch`] does, by a function that takes the flags.
///
/// # Errors
///
/// Returns the function's error.
pub async fn launch_by<T: Send + 'static>(
    upstream: &str,
    config: Option<&Value>,
    flags: &[&str],
    start: impl FnOnce(&[&str]) -> eyre::Result<T> + Send + 'static,
) -> eyre::Result<T> {
    let genesis = config.map(genesis_of);
    let mut all: Vec<String> = [&["--upstream", upstream], flags].concat().iter().map(ToString::to_string).collect();
    // A node starts a runtime of its own, which is not possible on a thread of another one.
    let starting = tokio::task::spawn_blocking(move || {
        let folder = tempfile::tempdir()?;
        if let Some(genesis) = genesis {
            let file = folder.path().join("genesis.json");
            std::fs::write(&file, genesis.to_string())?;
            all.extend(["--genesis".to_owned(), file.display().to_string()]);
        }
        let flags: Vec<&str> = all.iter().map(String::as_str).collect();
        start(&flags)
    });
    tokio::time::timeout(BOUND * 2, starting).await.expect("it starts, or says why not, in time").expect("no panic")
}

/// Builds blocks on `first` that follow a trail of slots in each of `subs` sub-blocks, each by an account's next nonce.
pub fn chases(first: &Built, contract: Address, subs: usize, count: usize) -> Vec<Built> {
    chain_of(first, count, |block| {
        let at = |sub| (block * subs + sub) as u64;
        (0..subs).map(|sub| chase(0, OP_CHAIN, at(sub), contract, at(sub))).collect()
    })
}

/// Builds `count` blocks on `first`, of the transactions that `transactions` gives for each.
pub fn chain_of(first: &Built, count: usize, mut transactions: impl FnMut(usize) -> Vec<ChainTx>) -> Vec<Built> {
    let mut blocks: Vec<Built> = Vec::new();
    for block in 0..count {
        let next = blocks.last().unwrap_or(first).next(transactions(block), 1);
        blocks.push(next);
    }
    blocks
}

/// The accounts that send the transactions of [`busy`].
const BUSY_SENDERS: usize = 10;

/// Builds blocks on `first` of `subs` times 100 transfers and token calls, by ten accounts to 37 recipients.
pub fn busy(first: &Built, subs: usize, count: usize) -> Vec<Built> {
    let mut nonces = [0; BUSY_SENDERS];
    chain_of(first, count, |_| busy_transactions(&mut nonces, subs * 100))
}

/// Returns `count` transfers and token calls, and counts the nonces of their senders.
pub fn busy_transactions(nonces: &mut [u64; BUSY_SENDERS], count: usize) -> Vec<ChainTx> {
    let one = |at: usize| {
        let who = at % BUSY_SENDERS;
        nonces[who] += 1;
        let (nonce, to) = (nonces[who] - 1, Address::repeat_byte(0x20 + (at % 37) as u8));
        match at / BUSY_SENDERS % 2 {
            0 => sent_by(who, OP_CHAIN, nonce, to, 1, Bytes::new()),
            _ => token(who, OP_CHAIN, nonce, to, 3),
        }
    };
    (0..count).map(one).collect()
}
