//! One request, from its text to its answer.

use std::{num::NonZeroU32, sync::Arc, time::Instant};

use bytestring::ByteString;
use jsonrpsee::types::Id;

use super::{MethodInfo, client::Client, subscriptions::PendingSubscriptions};
use crate::rpc::{
    json::{self, Shape},
    limits::memory::{AnswerRoom, MemoryQuota},
    protocol::{dialect::Dialect, error::Result},
};
use crate::{
    ledger::Chain,
    scheduler::{LaneName, RunTarget, Ticket},
};

/// The sender of a request: a client, and how it speaks over its connection.
#[derive(Debug)]
pub struct Caller {
    /// The client.
    pub client: Arc<Client>,
    /// The dialect.
    pub dialect: &'static Dialect,
    /// The origin of the page that calls, if its browser names it.
    pub page: Option<Box<str>>,
    /// The memory of the connection.
    pub memory: Arc<MemoryQuota>,
    /// The deadline that another node of the fleet has set, if it forwards the client's request.
    pub until: Option<Instant>,
}

impl Caller {
    /// Counts a request against the client's rate.
    ///
    /// # Errors
    ///
    /// Returns -32005 if the client asks more often than it may.
    pub fn admit(&self) -> Result<()> {
        self.client.admit(NonZeroU32::MIN)
    }
}

/// A request: a method, its parameters, and the snapshot it runs on. It can run any number of times.
#[derive(Clone, Debug)]
pub struct Request {
    /// The id of the answer.
    pub id: Id<'static>,
    /// The method.
    pub method: &'static MethodInfo,
    /// The parameters as JSON.
    pub params: ByteString,
    /// The client.
    pub caller: Arc<Caller>,
    /// The publication at the time of the message's arrival.
    pub published: Arc<Chain>,
    /// The deadline, and the batch that the request is an entry of.
    pub ticket: Ticket,
    /// The subscriptions that the message starts; `None` over HTTP.
    pub starting: Option<Arc<PendingSubscriptions>>,
    /// The memory that the answer takes.
    pub room: AnswerRoom,
}

impl Request {
    /// Returns where the request runs. Requests at older blocks wait behind current ones.
    pub fn target(&self) -> RunTarget {
        if self.published.older() > 0 { RunTarget::On(LaneName::Past) } else { self.method.target }
    }

    /// Returns the answer with a result.
    pub fn answer<A: Shape<V>, V>(&self, result: V) -> Vec<u8> {
        let mut out = open_answer(&self.id);
        A::write(&mut out, result);
        out
    }

    /// Returns the JSON of the request, with another id.
    pub fn text(&self) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}","params":{}}}"#, self.method.name, self.params)
    }
}

/// Returns an answer up to the value of its `result`.
pub fn open_answer(id: &Id<'_>) -> Vec<u8> {
    open(id, "result")
}

/// Returns whether an answer up to the end of its result says that there is none: the result is null, or of a raw method no bytes.
pub fn has_no_result(answer: &[u8]) -> bool {
    answer.ends_with(b":null") || answer.ends_with(b":\"0x\"")
}

/// Returns an answer up to the value of its `error`.
pub fn open_error(id: &Id<'_>) -> Vec<u8> {
    open(id, "error")
}

fn open(id: &Id<'_>, member: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    match id {
        Id::Null => out.extend_from_slice(b"null"),
        Id::Number(number) => out.extend_from_slice(itoa::Buffer::new().format(*number).as_bytes()),
        Id::Str(text) => json::string(&mut out, text),
    }
    out.extend_from_slice(b",\"");
    out.extend_from_slice(member.as_bytes());
    out.extend_from_slice(b"\":");
    out
}
