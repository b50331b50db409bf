//! The answers to requests that arrive in a fleet: of its clients, or as another node forwards them.

mod proofs;

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use bytestring::ByteString;
use futures::{FutureExt, future::BoxFuture};
use serde::Deserialize;

use self::proofs::WalletProofs;
use super::{auth::tokens::Access, settings::ServerConfig};
use crate::fleet::{Answers, ArrivedRequest, ForwardingNode, WALLET_TOKEN_REFUSED, too_large};
use crate::objects;
use crate::rpc::{
    dispatch::{
        front::Front,
        service::{Message, refuse, reject},
        table,
    },
    limits::memory::IoMemory,
    protocol::{
        dialect::STANDARD,
        error::{Result, RpcError},
    },
    run::{
        LeaderUse,
        catch_up::{min_snapshot, published_from},
        client::Client,
        request::Caller,
    },
};

/// The answers to requests that arrive in a fleet.
#[derive(Debug)]
pub struct FleetAnswers {
    front: Arc<Front>,
    access: Arc<Access>,
    memory: Arc<IoMemory>,
    server: ServerConfig,
    /// The client of requests without a token.
    anybody: Arc<Client>,
    /// The client of requests that other nodes forward without a proof.
    forwarded: Arc<Client>,
    /// Decides which clients of other nodes may use the wallet.
    proofs: WalletProofs,
}

impl FleetAnswers {
    /// Creates the answers with the limits of a server's messages, for a wallet that has keys of its own or not. At most
    /// `max_proofs` proofs of tokens of the wallet are remembered.
    pub fn new(
        front: Arc<Front>,
        access: Arc<Access>,
        memory: Arc<IoMemory>,
        server: ServerConfig,
        has_keys: bool,
        max_proofs: usize,
    ) -> Self {
        let proofs = WalletProofs::new(has_keys, max_proofs);
        let anybody = Arc::new(Client::without_token(access.opens_wallet()));
        let forwarded = Arc::new(anybody.beside(proofs.is_open(&access)));
        Self { front, access, memory, server, anybody, forwarded, proofs }
    }

    /// Returns the client of an `Authorization`. Tokens of the wallet are rejected.
    fn client(&self, authorization: Option<&str>) -> Result<Arc<Client>> {
        let client = self.access.client(authorization.map(str::as_bytes))?.unwrap_or_else(|| self.anybody.clone());
        match client.wallet_token() {
            Some(_) => Err(RpcError::new(-32000, WALLET_TOKEN_REFUSED)),
            None => Ok(client),
        }
    }

    /// Returns another node's client. That node has checked the client's token and rate; whether the client may use the
    /// wallet is for this node to decide.
    fn client_of(&self, node: &ForwardingNode<'_>, text: &[u8]) -> Result<Arc<Client>> {
        #[derive(Deserialize)]
        struct ForwardedCall<'a> {
            #[serde(borrow)]
            method: Cow<'a, str>,
        }
        let call = objects::from_slice::<ForwardedCall<'_>>(text).ok();
        let method = call.and_then(|call| table::by_name(&call.method));
        let is_of_wallet = method.is_some_and(|method| matches!(method.info.leader, LeaderUse::Wallet));
        match node.proof.as_ref().filter(|_| is_of_wallet) {
            Some(proof) => self.proofs.client(&self.access, proof),
            None if is_of_wallet && !self.forwarded.may_use_wallet() => Err(RpcError::new(
                4100,
                "unauthorized: the node that has the wallet takes no request of another node without the proof of a token of its --wallet-token-file: send it with such a token, to a node that has the same file",
            )),
            None => Ok(self.forwarded.clone()),
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
            Some(node) => self.client_of(node, &request.text),
        };
        let (client, refused) = match client {
            Ok(client) => (client, None),
            Err(error) => (self.forwarded.clone(), Some(error)),
        };
        let (caller, bytes) = (self.caller(request, client), request.text.len());
        if bytes > self.server.max_body {
            let text = format!("body too large: at most {} bytes (--max-body)", self.server.max_body);
            return refuse(&caller, RpcError::limit(text));
        }
        let Some(held) = caller.memory.take(bytes) else {
            return refuse(&caller, self.memory.full("the body", bytes));
        };
        let body = match ByteString::try_from(request.text.clone()) {
            Ok(body) => body,
            Err(error) => return refuse(&caller, RpcError::parse(format!("parse error: not UTF-8: {error}"))),
        };
        if let Some(error) = refused {
            return reject(&caller, &body, error);
        }
        let published = match min_snapshot(request.min_snapshot) {
            Ok(least) => {
                published_from(&self.front.services.runner.host.snapshots, least, self.server.max_catch_up).await
            }
            Err(error) => Err(error),
        };
        let published = match published {
            Ok(published) => published,
            Err(error) => return reject(&caller, &body, error),
        };
        let message = Message::new(&self.front, &caller, &published, None);
        let text = message.answer(body.clone(), held).await.text;
        if text.len() <= request.max_answer {
            return text;
        }
        reject(&caller, &body, RpcError::limit(too_large(text.len(), request.max_answer)))
    }
}

impl Answers for FleetAnswers {
    fn answer<'a>(&'a self, request: &'a ArrivedRequest<'a>) -> BoxFuture<'a, Bytes> {
        self.answer_request(request).boxed()
    }
}
