//! One request on its way, from the text that asked for it to its answer.

use std::sync::Arc;

use bytestring::ByteString;
use jsonrpsee::types::Id;

use super::{
    access::Client,
    dialect::Dialect,
    encode,
    memory::{AnswerRoom, MemoryShare},
    methods::{Backend, MethodRoute, Run},
    subscriptions::Starting,
};
use crate::{
    executor::{Flow, Ticket},
    meter::Meter,
    state::{Overlay, Published},
    store::Commit,
};

/// The client of a connection: how it speaks, and what it may.
#[derive(Debug)]
pub struct Caller {
    /// How it speaks.
    pub dialect: &'static Dialect,
    /// Which client it is, where clients have tokens.
    pub client: Option<Arc<Client>>,
    /// Whether it may use the wallet.
    pub may_use_wallet: bool,
    /// The bytes that its connection makes the node hold.
    pub share: Arc<MemoryShare>,
    /// The client as the scheduler sees it: its token's, or its connection's.
    pub flow: Arc<Flow>,
}

/// A request: a method, its parameters, and the snapshot it is about. It can be run any number of times.
#[derive(Clone, Debug)]
pub struct Request {
    /// The id that its answer bears.
    pub id: Id<'static>,
    /// The method.
    pub method: &'static MethodRoute,
    /// The parameters, as JSON.
    pub params: ByteString,
    /// Who asks.
    pub caller: Arc<Caller>,
    /// The chain as it was when the message arrived.
    pub published: Arc<Published>,
    /// Its deadline, and the batch that it is an entry of.
    pub ticket: Ticket,
    /// Where it may subscribe: `None` over HTTP.
    pub starting: Option<Arc<Starting>>,
    /// The memory that its answer takes.
    pub room: AnswerRoom,
}

impl Request {
    /// Runs the request once, in `overlay`, as long as `meter` lets it. `work` is a handler, or a step of one.
    pub fn run<'a, T>(
        &'a self,
        overlay: &'a mut Overlay,
        meter: Meter,
        backend: &Backend,
        work: impl FnOnce(&Backend, &mut Run<'_>) -> T,
    ) -> (T, Vec<u8>, Commit) {
        let mut run = Run {
            params: &self.params,
            published: &self.published,
            dialect: self.caller.dialect,
            client: self.caller.client.as_deref().map(Client::name),
            may_use_wallet: self.caller.may_use_wallet,
            overlay,
            meter,
            out: begin(&self.id, "result"),
            commit: Commit::done(),
        };
        let done = work(backend, &mut run);
        (done, run.out, run.commit)
    }
}

/// An answer up to the value of its `result` or its `error`.
pub fn begin(id: &Id<'_>, member: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    match id {
        Id::Null => out.extend_from_slice(b"null"),
        Id::Number(number) => out.extend_from_slice(itoa::Buffer::new().format(*number).as_bytes()),
        Id::Str(text) => encode::string(&mut out, text),
    }
    out.extend_from_slice(b",\"");
    out.extend_from_slice(member.as_bytes());
    out.extend_from_slice(b"\":");
    out
}
