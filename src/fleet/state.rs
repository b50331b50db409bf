//! State of an upstream within a fleet: the leader fetches it once for all following nodes.

use std::{sync::Arc, time::Duration};

use alloy_primitives::{Address, B256, U256};
use alloy_rlp::{RlpDecodable, RlpEncodable};
use async_nats::client::RequestErrorKind;
use async_trait::async_trait;
use futures::StreamExt;
use tokio::{task::JoinSet, time::Instant};

use super::servers::{FleetLink, Topic};
use crate::{
    ledger::{Snapshots, codec},
    state::{CodeCache, FetchError, Held, Miss, Missed, RemoteImage, RemoteView, StateSource},
    store::encode,
    upstream::Fetcher,
};

/// The most pieces of state in one question.
const MAX_PIECES: usize = 4_096;
/// The most bytes of a question: a slot with its address takes 55.
const MAX_QUESTION_BYTES: usize = MAX_PIECES * 64;
/// The most bytes of an answer before compression, unless the server takes longer messages: a single piece has to fit.
const MAX_REPLY_BYTES: usize = 1 << 20;
/// The questions that the leader answers at once.
const UNDER_WAY: usize = 1_024;
/// The time after which an unanswered question is sent again: its leader may have stopped.
const ANSWERED: Duration = Duration::from_secs(2);
/// The pause before a question that no node could answer is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The number of retries for a block that the leader does not retain: the leader may be behind this node.
const MAX_RETRIES: usize = 10;
/// The time that the leader gives its upstream.
const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(10);

/// A question for state at one block.
#[derive(RlpEncodable, RlpDecodable)]
struct StateQuestion {
    number: u64,
    hash: B256,
    accounts: Vec<Address>,
    slots: Vec<WantedSlot>,
    hashes: Vec<u64>,
}

#[derive(RlpEncodable, RlpDecodable)]
struct WantedSlot {
    address: Address,
    slot: U256,
}

/// An answer: the state, or else the problem, which is empty if the leader does not keep the block.
#[derive(RlpEncodable, RlpDecodable)]
struct StateReply {
    state: Vec<RemoteImage>,
    problem: String,
}

impl StateQuestion {
    fn of(view: &RemoteView, misses: &[Miss]) -> Self {
        let (mut accounts, mut slots, mut hashes) = (Vec::new(), Vec::new(), Vec::new());
        for miss in misses {
            match *miss {
                Miss::Account(address) => accounts.push(address),
                Miss::Slot(address, slot) => slots.push(WantedSlot { address, slot }),
                Miss::BlockHash(number) => hashes.push(number),
            }
        }
        Self { number: view.number(), hash: view.hash(), accounts, slots, hashes }
    }

    fn misses(&self) -> impl Iterator<Item = Miss> {
        let accounts = self.accounts.iter().map(|address| Miss::Account(*address));
        let slots = self.slots.iter().map(|wanted| Miss::Slot(wanted.address, wanted.slot));
        accounts.chain(slots).chain(self.hashes.iter().map(|number| Miss::BlockHash(*number)))
    }
}

/// A client of the leader, by which a node that follows gets the state that its leader has or fetches.
#[derive(Clone, Debug)]
pub struct FleetState {
    link: FleetLink,
    codes: Arc<CodeCache>,
    /// Whether to ask again while no node leads, because this node has no upstream to ask instead.
    is_patient: bool,
}

impl FleetState {
    /// Creates a client with a cache of code. A node with an upstream `has_other` source of state.
    pub const fn new(link: FleetLink, codes: Arc<CodeCache>, has_other: bool) -> Self {
        Self { link, codes, is_patient: !has_other }
    }

    async fn ask(&self, view: &RemoteView, misses: &[Miss], deadline: Instant) -> Result<Vec<RemoteImage>, FetchError> {
        let question = codec::write(&StateQuestion::of(view, misses));
        let most = self.link.client.server_info().max_payload.max(MAX_REPLY_BYTES);
        let unread = |problem| fleet_error(format!("the leader's answer cannot be read: {problem}"));
        let mut looks = 0;
        loop {
            let asked = async_nats::Request::new().payload(question.clone().into()).timeout(Some(ANSWERED));
            let problem = match self.link.client.send_request(self.link.names.subject(Topic::State), asked).await {
                Ok(message) => match codec::read(&message.payload, most).map_err(unread)? {
                    StateReply { state, .. } if !state.is_empty() => return Ok(state),
                    StateReply { problem, .. } if !problem.is_empty() => return Err(fleet_error(problem)),
                    _ if looks == MAX_RETRIES || !self.is_patient => {
                        return Err(FetchError::NotKept { number: view.number(), hash: view.hash() });
                    }
                    _ => {
                        looks += 1;
                        "the leader does not have the block".to_owned()
                    }
                },
                Err(error) if !self.is_patient => return Err(fleet_error(error.to_string())),
                Err(error) => match error.kind() {
                    RequestErrorKind::NoResponders => "nobody leads the fleet".to_owned(),
                    _ => error.to_string(),
                },
            };
            if view.is_abandoned() {
                return Err(FetchError::Abandoned { number: view.number(), hash: view.hash(), problem });
            }
            if Instant::now() + RETRY_PAUSE >= deadline {
                return Err(fleet_error(problem));
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

#[async_trait]
impl StateSource for FleetState {
    async fn fetch(&self, view: &RemoteView, missed: &[Miss], deadline: Instant) -> Result<Held, FetchError> {
        let mut held = Held::default();
        for some in missed.chunks(MAX_PIECES) {
            let mut rest = some.to_vec();
            while !rest.is_empty() {
                let state = self.ask(view, &rest, deadline).await?;
                let known = state.into_iter().filter(|known| known.is_of(view));
                held.extend(view.insert_held(known.flat_map(|known| known.into_values(&self.codes))));
                let before = rest.len();
                rest.retain(|miss| !view.knows(miss));
                // An answer has as much as a message can, so the rest is asked for.
                if rest.len() == before {
                    return Err(fleet_error("the leader returns less than was asked for".to_owned()));
                }
            }
        }
        Ok(held)
    }
}

/// Returns the error of a fleet that does not provide state.
fn fleet_error(problem: String) -> FetchError {
    FetchError::Unavailable(format!("the state cannot be had from the fleet: {problem}"))
}

/// Answers questions for state while this node leads, until the returned task is dropped. `chains` are the chain that
/// this node and its fleet show, and the executed one, which may be ahead. `fetcher` fetches values that their caches
/// lack, once for all nodes that ask.
#[must_use]
pub fn serve(link: FleetLink, fetcher: Arc<Fetcher>, chains: [Arc<Snapshots>; 2]) -> JoinSet<()> {
    let runtime = fetcher.runtime().clone();
    let answering = async move {
        loop {
            match link.client.subscribe(link.names.subject(Topic::State)).await {
                Ok(questions) => {
                    let answer = |message: async_nats::Message| {
                        let (link, fetcher, chains) = (&link, &fetcher, &chains);
                        async move {
                            let Some(reply) = message.reply else { return };
                            let most = link.client.server_info().max_payload;
                            let answer = reply_to(&message.payload, fetcher, chains, most).await;
                            let _ = link.client.publish(reply, answer.into()).await;
                        }
                    };
                    questions.for_each_concurrent(UNDER_WAY, answer).await;
                }
                Err(error) => tracing::debug!(%error, "questions for state cannot be heard"),
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    };
    let mut tasks = JoinSet::new();
    tasks.spawn_on(answering, &runtime);
    tasks
}

/// Returns the answer to a question, in at most `most` bytes.
async fn reply_to(payload: &[u8], fetcher: &Arc<Fetcher>, chains: &[Arc<Snapshots>], most: usize) -> Vec<u8> {
    let failed = |problem: String| StateReply { state: Vec::new(), problem };
    let reply = match codec::read::<StateQuestion>(payload, MAX_QUESTION_BYTES) {
        Ok(question) => known(&question, fetcher, chains, most).await.unwrap_or_else(|error| match error {
            FetchError::Abandoned { .. } | FetchError::NotKept { .. } => failed(String::new()),
            error => failed(error.to_string()),
        }),
        Err(error) => failed(format!("the question: {error}")),
    };
    codec::write(&reply)
}

async fn known(
    question: &StateQuestion,
    fetcher: &Arc<Fetcher>,
    chains: &[Arc<Snapshots>],
    most: usize,
) -> Result<StateReply, FetchError> {
    let (number, hash) = (question.number, question.hash);
    let view = chains.iter().find_map(|chain| view_of(chain, number, hash));
    let view = view.ok_or(FetchError::NotKept { number, hash })?;
    let wanted: Vec<Miss> = question.misses().take(MAX_PIECES).collect();
    let deadline = Instant::now() + UPSTREAM_TIMEOUT;
    let missed = Missed::at(&view, wanted.iter().copied().filter(|miss| !view.knows(miss)));
    let _held = if missed.is_empty() { Held::default() } else { fetcher.fetch(&missed, None, deadline).await? };
    // Codes are large, so the first half of the requested values may fit where all of them do not.
    let mut count = wanted.len();
    loop {
        let some = wanted.iter().copied().take(count);
        let reply = StateReply { state: vec![view.export_some(some)], problem: String::new() };
        if count <= 1 || encode(&reply).len() <= most - most / 64 {
            return Ok(reply);
        }
        count /= 2;
    }
}

/// Returns the state after the canonical block of this number and hash, if a chain retains it.
fn view_of(chain: &Snapshots, number: u64, hash: B256) -> Option<RemoteView> {
    let published = chain.load();
    let view = published.state_after(number)?.world.remote()?;
    (view.hash() == hash).then(|| view.clone())
}
