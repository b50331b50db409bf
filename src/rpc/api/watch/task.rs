//! The task of a watch: what it needs, and what it tells.

use std::sync::Arc;

use bytestring::ByteString;
use jsonrpsee::types::Id;

use super::{
    Watch, WatchList, WatchState,
    news::News,
    run::{Chunk, member, text_of},
};
use crate::{
    engine::SimulationRules,
    ledger::Chain,
    rpc::{
        limits::memory::AnswerRoom,
        protocol::error::RpcError,
        run::{
            MethodInfo,
            request::{Caller, Request},
            runner::RequestRunner,
        },
    },
    scheduler::Ticket,
    state::ReadSet,
    watch::StandingRun,
};

/// The task that keeps the answers of a watch up to date.
pub struct WatchTask {
    pub list: Arc<WatchList>,
    pub runner: Arc<RequestRunner>,
    pub rules: SimulationRules,
    /// The bytes of the requests.
    pub requests: usize,
    pub watch: Arc<Watch>,
    /// The client.
    pub caller: Arc<Caller>,
    /// The method that began the watch.
    pub method: &'static MethodInfo,
}

impl WatchTask {
    /// Returns the connection that is told of the bundles, by its subscription.
    pub fn connection(&self) -> Option<u64> {
        self.list.subscriptions.watcher(self.watch.id)
    }

    /// Tells the last news of a snapshot, with what is behind, or news that is late.
    pub async fn send_end(&self, mut news: News) {
        {
            let mut state = self.watch.state();
            state.note_complete();
            if !news.is_late() {
                state.bundles.announce_behind();
            }
        }
        let mut connection = self.connection();
        loop {
            for part in news.end(connection) {
                self.send(&news, part).await;
            }
            // A connection that takes the watch over meanwhile has the answers, but not the end of the snapshot.
            connection = self.connection();
            if connection.is_none() || connection == news.connection() {
                break;
            }
        }
        self.watch.news.send_modify(|count| *count += 1);
    }

    /// Returns a request for a run.
    pub fn request(&self, published: Arc<Chain>, ticket: Ticket) -> Request {
        let caller = self.caller.clone();
        let (params, room) = (ByteString::new(), AnswerRoom::of(caller.memory.clone().nothing()));
        Request { id: Id::Null, method: self.method, params, caller, published, ticket, starting: None, room }
    }

    /// Replaces an answer for which the client's memory does not suffice by an error, and what it has read by
    /// everything. `room` is the memory that is left.
    pub fn within_room(state: &WatchState, at: u32, run: StandingRun, room: &mut usize) -> StandingRun {
        let StandingRun::Answered { text: Some(text), reads, gained, is_long } = run else { return run };
        let grows = state.bundles.growth(at, &text, &reads);
        if let Some(left) = room.checked_sub(grows) {
            *room = left;
            return StandingRun::Answered { text: Some(text), reads, gained, is_long };
        }
        let error = format!("the answer and its reads take {grows} bytes more, and {room} are left (--watch-mb)");
        let text = member("error", &text_of(&RpcError::limit(error)));
        StandingRun::Answered { text: Some(text), reads: ReadSet::everything(), gained, is_long }
    }

    /// Tells news to the connection that it is for, unless another has taken the watch over.
    pub async fn send(&self, news: &News, text: Vec<u8>) {
        if let Some(connection) = news.connection() {
            let text = self.list.subscriptions.memory().shared_text(text);
            self.list.subscriptions.notify_watcher(connection, &text).await;
        }
    }
}

/// Returns the ends of the runs of a chunk that no worker has taken.
pub fn stale_by(chunk: &Chunk, error: &RpcError) -> Vec<(u32, StandingRun)> {
    chunk.bundles.iter().map(|(at, _)| (*at, StandingRun::Stale(text_of(error)))).collect()
}
