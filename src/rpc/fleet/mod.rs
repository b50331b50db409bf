//! JSON-RPC over NATS: replicas as a micro service, and requests that only the leader of a fleet can answer.
//!
//! A message is a body as over HTTP, and its answer is the one that HTTP would give. The headers of a message are those of
//! HTTP too: `Authorization`, `x-presim-min-snapshot`, and `x-presim-path` for the dialect.

mod leader;
mod service;
mod wallet;
mod wallet_proof;

pub use self::{
    leader::{LeaderLink, NodeDoor, PublishingNode, serve_nodes},
    service::serve_replica,
    wallet_proof::WalletDoor,
};

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_nats::HeaderMap;
use bytes::Bytes;
use bytestring::ByteString;
use tokio::task::JoinHandle;

use super::{
    access::{Access, Client},
    catch_up::{MIN_SNAPSHOT, min_snapshot},
    dialect::{Dialect, STANDARD},
    error::RpcError,
    front::Front,
    memory::IoMemory,
    request::Caller,
    server::ServerConfig,
    service::{ReplyLimits, Session},
};
use crate::executor::Flow;

/// The header with the path that a request would have over HTTP.
const PATH: &str = "x-presim-path";
/// The header with the name of the token of another node's client, for the leader's log.
const CLIENT: &str = "x-presim-client";
/// The header with the milliseconds that are left for a request of another node.
const LEFT: &str = "x-presim-left-ms";
/// Requests over NATS that may be under way at once. More wait in the connection, as in a socket.
const AT_ONCE: usize = 1_024;

/// The answering of requests over NATS, which ends when dropped.
#[derive(Debug)]
pub struct ServedRequests(JoinHandle<()>);

impl Drop for ServedRequests {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The door for messages of NATS.
#[derive(Clone, Debug)]
pub struct NatsDoor {
    /// The handler of requests.
    pub front: Arc<Front>,
    /// The clients and their rights.
    pub access: Arc<Access>,
    /// The memory of bodies and answers.
    pub memory: Arc<IoMemory>,
    /// The limits of a message.
    pub limits: ReplyLimits,
    /// The dialect of `/`.
    pub root: &'static Dialect,
    /// The time that a request waits for the snapshot that it asks for at least.
    pub max_catch_up: Duration,
    /// The scheduler's client of requests without a token.
    pub flow: Arc<Flow>,
}

/// The rights of a message's client.
struct Rights {
    client: Option<Arc<Client>>,
    may_use_wallet: bool,
    /// The origin of the page that calls, as the replica that forwards the request knows it.
    page: Option<Box<str>>,
    /// The time by which another node that forwards the request wants the answer.
    until: Option<Instant>,
}

impl NatsDoor {
    /// Creates a door with the limits of a server's messages, and a scheduler's client of its own.
    pub fn new(front: Arc<Front>, access: Arc<Access>, memory: Arc<IoMemory>, server: &ServerConfig) -> Self {
        let (limits, root, max_catch_up) = server.messages();
        Self { front, access, memory, limits, root, max_catch_up, flow: Flow::new() }
    }

    /// Returns the rights of the client that a message's `Authorization` names. Tokens of the wallet are rejected, because
    /// whoever hears what goes over NATS could use them, and any replica may get the message.
    fn rights(&self, headers: Option<&HeaderMap>) -> Result<Rights, RpcError> {
        let authorization =
            headers.and_then(|headers| headers.get("Authorization")).map(|value| value.as_str().as_bytes());
        let client = self.access.client(authorization)?;
        if client.as_deref().is_some_and(Client::may_sign) {
            let text = "unauthorized: a token of --wallet-token-file is not taken over NATS, where others hear it: send the request over HTTP, and replace the token";
            return Err(RpcError::new(-32000, text));
        }
        let may_use_wallet = self.access.may_use_wallet(None);
        Ok(Rights { client, may_use_wallet, page: None, until: None })
    }

    /// Returns the session of a client with these rights, on this path.
    fn session(&self, path: Option<&str>, rights: Rights) -> Session {
        let flow = rights.client.as_deref().map_or(&self.flow, Client::flow).clone();
        let dialect = match path {
            Some("/standard" | "/standard/") => &STANDARD,
            _ => self.root,
        };
        let Rights { client, may_use_wallet, page, until } = rights;
        let caller = Caller { dialect, client, may_use_wallet, page, share: self.memory.share(), flow, until };
        Session { front: self.front.clone(), caller: Arc::new(caller), limits: self.limits }
    }

    /// Answers a message, in at most `most` bytes.
    async fn answer(
        &self,
        headers: Option<&HeaderMap>,
        payload: Bytes,
        rights: Result<Rights, RpcError>,
        most: usize,
    ) -> Bytes {
        let (rights, refused) = match rights {
            Ok(rights) => (rights, None),
            Err(error) => (Rights { client: None, may_use_wallet: false, page: None, until: None }, Some(error)),
        };
        let path = headers.and_then(|headers| headers.get(PATH)).map(|path| path.as_str());
        let session = self.session(path, rights);
        if payload.len() > self.limits.max_body {
            let text = format!("body too large: at most {} bytes (--max-body)", self.limits.max_body);
            return session.refuse(RpcError::limit(text));
        }
        let Some(held) = session.caller.share.take(payload.len()) else {
            return session.refuse(self.memory.full("the body", payload.len()));
        };
        let body = match ByteString::try_from(payload) {
            Ok(body) => body,
            Err(error) => return session.refuse(RpcError::parse(format!("parse error: not UTF-8: {error}"))),
        };
        if let Some(error) = refused {
            return session.reject(&body, error);
        }
        let published =
            match min_snapshot(headers.and_then(|headers| headers.get(MIN_SNAPSHOT)).map(|value| value.as_str())) {
                Ok(None) => Ok(self.front.published()),
                Ok(Some(least)) => self.front.published_from(least, self.max_catch_up).await,
                Err(error) => Err(error),
            };
        let published = match published {
            Ok(published) => published,
            Err(error) => return session.reject(&body, error),
        };
        let text = session.answer(body.clone(), held, &published, None).await.text;
        if text.len() <= most {
            return text;
        }
        let problem = format!(
            "the answer has {} bytes, and NATS takes {most} (max_payload): ask for less, or over HTTP",
            text.len()
        );
        session.reject(&body, RpcError::limit(problem))
    }
}
