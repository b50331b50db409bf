//! The answers to requests that arrive in a fleet: of its clients, or as another node forwards them.

use std::sync::Arc;

use super::{auth::tokens::Access, settings::ServerConfig};
use crate::fleet::{Answers, ArrivedRequest, WALLET_TOKEN_REJECTED, too_large};
use crate::rpc::{
    dispatch::{
        front::Dispatcher,
        service::{Message, error_answer},
    },
    limits::memory::IoMemory,
    protocol::{
        dialect::STANDARD,
        error::{Result, RpcError},
    },
    run::{
        catch_up::{min_snapshot, published_from},
        client::Client,
        request::Caller,
    },
};
use bytes::Bytes;
use bytestring::ByteString;
use futures::{FutureExt, future::BoxFuture};

/// The answers to requests that arrive in a fleet.
#[derive(Debug)]
pub struct FleetAnswers {
    front: Arc<Dispatcher>,
    access: Arc<Access>,
    memory: Arc<IoMemory>,
    server: ServerConfig,
    /// The client of requests without a token.
    anybody: Arc<Client>,
    /// The client of requests that other nodes forward. They have checked its token and its rate.
    forwarded: Arc<Client>,
}

impl FleetAnswers {
    /// Creates the answers with the limits of a server's messages.
    pub fn new(front: Arc<Dispatcher>, access: Arc<Access>, memory: Arc<IoMemory>, server: ServerConfig) -> Self {
        let anybody = Arc::new(Client::without_token(access.opens_wallet()));
        let forwarded = Arc::new(anybody.beside(false));
        Self { front, access, memory, server, anybody, forwarded }
    }

    /// Returns the client of an `Authorization`. Tokens of the wallet are rejected.
    fn client(&self, authorization: Option<&str>) -> Result<Arc<Client>> {
        let client = self.access.client(authorization.map(str::as_bytes))?.unwrap_or_else(|| self.anybody.clone());
        match client.wallet_token() {
            Some(_) => Err(RpcError::new(-32000, WALLET_TOKEN_REJECTED)),
            None => Ok(client),
        }
    }

    fn caller(&self, request: &ArrivedRequest<'_>, client: Arc<Client>) -> Arc<Caller> {
        let dialect = match request.path {
            Some("/standard" | "/standard/") => &STANDARD,
            _ => self.server.root,
        };
        let (page, until) = request.node.as_ref().map_or((None, None), |node| (node.page.map(Into::into), node.until));
        Arc::new(Caller { client, dialect, page, memory: self.memory.quota(), until })
    }

    async fn answer_request(&self, request: &ArrivedRequest<'_>) -> Bytes {
        let client = match &request.node {
            None => self.client(request.authorization),
            Some(_) => Ok(self.forwarded.clone()),
        };
        let (client, refused) = match client {
            Ok(client) => (client, None),
            Err(error) => (self.forwarded.clone(), Some(error)),
        };
        let (caller, bytes) = (self.caller(request, client), request.text.len());
        if bytes > self.server.max_body {
            let text = format!("body too large: at most {} bytes (--max-body)", self.server.max_body);
            return error_answer(&caller, "", RpcError::limit(text));
        }
        let Some(held) = caller.memory.take(bytes) else {
            return error_answer(&caller, "", self.memory.full("the body", bytes));
        };
        let body = match ByteString::try_from(request.text.clone()) {
            Ok(body) => body,
            Err(error) => {
                return error_answer(&caller, "", RpcError::parse(format!("parse error: not UTF-8: {error}")));
            }
        };
        if let Some(error) = refused {
            return error_answer(&caller, &body, error);
        }
        let published = match min_snapshot(request.min_snapshot) {
            Ok(least) => {
                published_from(&self.front.services.runner.host.snapshots, least, self.server.max_catch_up).await
            }
            Err(error) => Err(error),
        };
        let published = match published {
            Ok(published) => published,
            Err(error) => return error_answer(&caller, &body, error),
        };
        let message = Message::new(&self.front, &caller, &published, None);
        let text = message.answer(body.clone(), held).await.text;
        if text.len() <= request.max_answer {
            return text;
        }
        error_answer(&caller, &body, RpcError::limit(too_large(text.len(), request.max_answer)))
    }
}

impl Answers for FleetAnswers {
    fn answer<'a>(&'a self, request: &'a ArrivedRequest<'a>) -> BoxFuture<'a, Bytes> {
        self.answer_request(request).boxed()
    }
}
