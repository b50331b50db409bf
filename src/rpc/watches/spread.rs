//! Standing bundles that other nodes of the fleet run. The node of the client keeps what each bundle has read and answered,
//! so that nothing is told twice, and a bundle that another node does not run is run here.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use alloy_primitives::{Address, B256, I256, U256, keccak256};
use bytes::Bytes;
use bytestring::ByteString;
use quick_cache::{Weighter, sync::Cache};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{PLACE, WatchList, run::Chunk};
use crate::{
    rpc::{
        dialect::{Dialect, STANDARD},
        error::RpcError,
        fleet::{WorkPart, work_headers},
        front::{Front, RequestRunner},
        methods::{Backend, Run},
        request::Request,
        wire::{self, WatchedBundle},
    },
    state::{AccountRead, AccountReads, BlockReads, ReadSet, Selector},
    watch::StandingRun,
};

/// The time that a node gets for a chunk, half of which it may take, before the chunk is run elsewhere.
const PATIENCE: Duration = Duration::from_millis(1_600);

/// Bundles that are due, each with its index in its watch.
pub(super) type Due = VecDeque<(u32, Arc<WatchedBundle>)>;

/// The bundles of a watch as other nodes get them.
#[derive(Debug)]
pub(super) struct SpreadBundles {
    /// The JSON of each bundle with its hash, by which a node knows a bundle that it has run before.
    bundles: Vec<(ByteString, B256)>,
    /// The bundles that nodes were sent.
    sent: Mutex<BTreeMap<Arc<str>, BTreeSet<u32>>>,
}

/// The bundles that a node has run for others, by the hash of their text.
#[derive(Debug)]
pub(super) struct KnownBundles(Cache<B256, Arc<WatchedBundle>, BundleWeight>);

#[derive(Clone, Debug)]
struct BundleWeight;

/// A chunk, as one node sends it to another.
#[derive(Serialize, Deserialize)]
struct SentChunk<'a> {
    /// Whether the bundles stand on the newest sealed block, and not on the newest snapshot.
    latest: bool,
    /// The hashes of the bundles.
    hashes: Vec<B256>,
    /// The bundles themselves, as far as the node may not know them.
    #[serde(borrow)]
    bundles: Vec<(usize, &'a RawValue)>,
}

/// The answer to a chunk.
#[derive(Serialize, Deserialize)]
struct RanChunk<'a> {
    /// The bundles that the node does not know.
    unknown: Vec<usize>,
    /// The answers of the first bundles, in their order.
    #[serde(borrow)]
    runs: Vec<SentRun<'a>>,
}

/// The answer of a bundle.
#[derive(Serialize, Deserialize)]
struct SentRun<'a> {
    /// An object whose one member is the answer; `None` if its objective is not above what the client asks for.
    #[serde(borrow)]
    answer: Option<Cow<'a, RawValue>>,
    reads: SentReads,
    gained: Option<I256>,
}

/// The values that a run has read.
#[derive(Serialize, Deserialize)]
struct SentReads {
    everything: bool,
    accounts: Vec<(Address, u8, Vec<U256>)>,
    block: u16,
    hashes: Vec<u64>,
    gas: u64,
}

impl Weighter<B256, Arc<WatchedBundle>> for BundleWeight {
    fn weight(&self, _: &B256, bundle: &Arc<WatchedBundle>) -> u64 {
        bundle.size() as u64
    }
}

impl KnownBundles {
    /// Creates an empty memory of `bytes` bytes.
    pub fn new(bytes: usize) -> Self {
        // Small bundles take about a kilobyte.
        Self(Cache::with_weighter(bytes >> 10, bytes as u64, BundleWeight))
    }
}

impl SpreadBundles {
    /// Reads the texts of the bundles of a watch; `None` if they cannot be read.
    pub fn of(params: &str, dialect: &'static Dialect) -> Option<Self> {
        // The message may hold much besides.
        let params = ByteString::from(params);
        #[derive(Deserialize)]
        struct WatchTexts<'a>(
            #[serde(borrow)] Vec<&'a RawValue>,
            #[serde(default)]
            #[allow(dead_code, reason = "the rest of the parameters")]
            Option<&'a RawValue>,
        );
        let WatchTexts(texts, _) = serde_json::from_str(&params).ok()?;
        let is_standard = std::ptr::eq(dialect, &raw const STANDARD);
        let bundle = |text: &RawValue| {
            let hash = keccak256([&[is_standard.into()], text.get().as_bytes()].concat());
            (params.slice_ref(text.get()), hash)
        };
        Some(Self { bundles: texts.into_iter().map(bundle).collect(), sent: Mutex::default() })
    }

    /// Divides bundles among nodes, each of which keeps its bundles while others come and go (rendezvous hashing,
    /// Thaler and Ravishankar 1998).
    pub fn divide<'a>(&self, due: Due, nodes: impl Iterator<Item = &'a Arc<str>> + Clone) -> BTreeMap<Arc<str>, Due> {
        let mut divided = BTreeMap::<Arc<str>, Due>::new();
        for (at, bundle) in due {
            let (_, hash) = &self.bundles[at as usize];
            let weight = |node: &&Arc<str>| keccak256([node.as_bytes(), hash.as_slice()].concat());
            let node = nodes.clone().max_by_key(weight).cloned().unwrap_or_default();
            divided.entry(node).or_default().push_back((at, bundle));
        }
        divided
    }

    /// Has a node run a chunk. Returns the ends of the runs; `None` if the node does not run it.
    pub async fn ask(
        &self,
        runner: &RequestRunner,
        peer: &Arc<str>,
        request: &Request,
        selector: Selector,
        chunk: &Chunk,
    ) -> Option<Vec<(u32, StandingRun)>> {
        let spread = runner.spread.as_deref()?;
        let deadline = request.ticket.deadline().min(Instant::now() + PATIENCE);
        let hashes: Vec<B256> = chunk.bundles.iter().map(|(at, _)| self.bundles[*at as usize].1).collect();
        let mut texts = self.unsent(peer, chunk);
        // A node that has forgotten bundles gets them once more.
        for _ in 0..2 {
            let bundles = texts.iter().map(|at| Some((*at, self.text(chunk, *at)?)));
            let bundles = bundles.collect::<Option<Vec<_>>>()?;
            let sent = SentChunk { latest: selector == Selector::Latest, hashes: hashes.clone(), bundles };
            let body = serde_json::to_vec(&sent).ok()?;
            let headers = work_headers(&WorkPart::Standing, &request.caller, request.published.last, deadline);
            let answer = spread.ask(peer, headers, body.into(), deadline).await?;
            let RanChunk { unknown, runs } = serde_json::from_slice(&answer).ok()?;
            if unknown.is_empty() && runs.len() <= chunk.bundles.len() {
                self.note_sent(peer, chunk);
                return chunk.bundles.iter().zip(runs).map(|((at, _), run)| Some((*at, run.read()?))).collect();
            }
            texts = unknown;
        }
        None
    }

    /// Returns the indices in a chunk of the bundles that a node was not sent.
    fn unsent(&self, peer: &Arc<str>, chunk: &Chunk) -> Vec<usize> {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let known = sent.get(peer);
        let is_new = |at: &u32| known.is_none_or(|known| !known.contains(at));
        (0..).zip(&chunk.bundles).filter(|(_, (at, _))| is_new(at)).map(|(index, _)| index).collect()
    }

    fn note_sent(&self, peer: &Arc<str>, chunk: &Chunk) {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.entry(peer.clone()).or_default().extend(chunk.bundles.iter().map(|(at, _)| *at));
    }

    /// Forgets nodes that are gone.
    pub fn forget(&self, there: impl Fn(&str) -> bool) {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).retain(|peer, _| there(peer));
    }

    fn text(&self, chunk: &Chunk, at: usize) -> Option<&RawValue> {
        let (index, _) = chunk.bundles.get(at)?;
        serde_json::from_str(&self.bundles.get(*index as usize)?.0).ok()
    }
}

impl SentRun<'_> {
    fn of(run: StandingRun) -> Option<Self> {
        // A bundle that gave no answer is left to the node of the client.
        let StandingRun::Answered { text, reads, gained, .. } = run else { return None };
        let object = |text: Bytes| RawValue::from_string(format!("{{{}}}", String::from_utf8_lossy(&text))).ok();
        let answer = match text {
            None => None,
            Some(text) => Some(Cow::Owned(object(text)?)),
        };
        Some(SentRun { answer, reads: SentReads::of(reads), gained })
    }

    fn read(self) -> Option<StandingRun> {
        let text = match &self.answer {
            None => None,
            Some(answer) => {
                let member = answer.get().strip_prefix('{')?.strip_suffix('}')?;
                Some(Bytes::copy_from_slice(member.as_bytes()))
            }
        };
        Some(StandingRun::Answered { text, reads: self.reads.read(), gained: self.gained, is_long: false })
    }
}

impl SentReads {
    fn of(reads: ReadSet) -> Self {
        let ReadSet { everything, accounts, block, hashes, gas } = reads;
        let account = |AccountRead { address, parts, slots }| (address, parts.bits(), slots);
        Self {
            everything,
            accounts: accounts.into_iter().map(account).collect(),
            block: block.bits(),
            hashes: hashes.into_iter().collect(),
            gas,
        }
    }

    fn read(self) -> ReadSet {
        let Self { everything, accounts, block, hashes, gas } = self;
        let account =
            |(address, parts, slots)| AccountRead { address, parts: AccountReads::from_bits_truncate(parts), slots };
        ReadSet {
            everything,
            accounts: accounts.into_iter().map(account).collect(),
            block: BlockReads::from_bits_truncate(block),
            hashes: hashes.into_iter().collect(),
            gas,
        }
    }
}

impl Front {
    /// Runs a chunk of standing bundles for another node, whose parameters are the chunk.
    ///
    /// # Errors
    ///
    /// Returns -32602 if the chunk cannot be read, and the error of a run that did not begin.
    pub(in crate::rpc) async fn run_for_peer(&self, request: Request) -> Result<Vec<u8>, RpcError> {
        let list = self.watches.0.clone();
        let read = move |backend: &Backend, run: &mut Run<'_>| list.read_chunk(backend, run);
        let (known, _) = self.run_step(PLACE, request.clone(), read).await?;
        let chunk = match known {
            Ok(chunk) => Arc::new(chunk),
            Err(unknown) => return written(&RanChunk { unknown, runs: Vec::new() }),
        };
        let mut runs = Vec::new();
        while runs.len() < chunk.bundles.len() {
            let (bundles, snapshot) = (chunk.bundles[runs.len()..].to_vec(), chunk.snapshot.clone());
            let rest = Arc::new(Chunk { bundles, snapshot, rules: chunk.rules, is_long: false });
            let ended = self.watches.0.run_chunk(&self.runner, request.clone(), &rest).await?;
            let count = ended.len();
            let answered: Vec<_> = ended.into_iter().map_while(|(_, run)| SentRun::of(run)).collect();
            let is_stuck = answered.is_empty() || answered.len() < count;
            runs.extend(answered);
            if is_stuck {
                break;
            }
        }
        written(&RanChunk { unknown: Vec::new(), runs })
    }
}

impl WatchList {
    /// Reads a chunk that another node has sent. Returns the indices of the bundles that are not known here, if there are any.
    fn read_chunk(&self, backend: &Backend, run: &mut Run<'_>) -> Result<Result<Chunk, Vec<usize>>, RpcError> {
        let wrong = |error: serde_json::Error| RpcError::params(format!("a chunk of standing bundles: {error}"));
        let SentChunk { latest, hashes, bundles } = serde_json::from_str(run.params).map_err(wrong)?;
        for (at, text) in bundles {
            let Some(hash) = hashes.get(at) else { continue };
            let params = format!("[[{}], \"pending\"]", text.get());
            let watched = wire::parse_watch(&params, run.dialect, &backend.limits.shape, 1, usize::MAX)?;
            if let Some((_, bundle)) = watched.bundles.into_iter().next() {
                self.known.0.insert(*hash, Arc::new(bundle));
            }
        }
        let found: Vec<_> = hashes.iter().map(|hash| self.known.0.get(hash)).collect();
        let unknown: Vec<usize> = (0..).zip(&found).filter(|(_, found)| found.is_none()).map(|(at, _)| at).collect();
        if !unknown.is_empty() {
            return Ok(Err(unknown));
        }
        let selector = if latest { Selector::Latest } else { Selector::Pending };
        let snapshot = backend.standing_on(run.published, selector)?;
        let bundles = (0..).zip(found.into_iter().flatten()).collect();
        Ok(Ok(Chunk { bundles, snapshot, rules: backend.rules(run.dialect), is_long: false }))
    }
}

fn written(chunk: &RanChunk<'_>) -> Result<Vec<u8>, RpcError> {
    serde_json::to_vec(chunk).map_err(|error| RpcError::internal(&format!("an answer cannot be written: {error}")))
}
