//! The answers to requests that arrive in a fleet: of its clients, or as another node forwards them.

mod proofs;

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use bytestring::ByteString;
use futures::{FutureExt, future::BoxFuture};
use serde::Deserialize;

use self::proofs::WalletProofs;
use super::settings::ServerConfig;
use crate::rpc::{
    dispatch::{front::Front, service::Session, table},
    protocol::{
        dialect::STANDARD,
        error::{Result, RpcError},
    },
    run::{
        LeaderUse,
        access::{Access, Client},
        catch_up::{min_snapshot, published_from},
        memory::IoMemory,
        request::Caller,
    },
};
use crate::{
    fleet::{Answers, ArrivedRequest, ForwardingNode, WALLET_TOKEN_REFUSED, too_large},
    scheduler::Flow,
};

/// The answers to requests that arrive in a fleet.
#[derive(Debug)]
pub struct FleetAnswers {
    front: Arc<Front>,
    access: Arc<Access>,
    memory: Arc<IoMemory>,
    server: ServerConfig,
    /// The scheduler's client of requests without a token.
    flow: Arc<Flow>,
    /// Decides which clients of other nodes may use the wallet.
    proofs: WalletProofs,
}

/// The client of a request, and whether it may use the wallet.
type Rights = (Option<Arc<Client>>, bool);

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
        Self { front, access, memory, server, flow: Flow::new(), proofs }
    }

    /// Returns the rights of a client by its `Authorization`. Tokens of the wallet are rejected.
    fn rights(&self, authorization: Option<&str>) -> Result<Rights> {
        let client = self.access.client(authorization.map(str::as_bytes))?;
        if client.as_deref().is_some_and(Client::may_sign) {
            return Err(RpcError::new(-32000, WALLET_TOKEN_REFUSED));
        }
        Ok((client, self.access.may_use_wallet(None)))
    }

    /// Returns the rights of another node's client. That node has checked the client's token and rate; whether the client may
    /// use the wallet is for this node to decide.
    fn rights_of_forwarded(&self, node: &ForwardingNode<'_>, text: &[u8]) -> Result<Rights> {
        #[derive(Deserialize)]
        struct ForwardedCall<'a> {
            #[serde(borrow)]
            method: Cow<'a, str>,
        }
        let call = serde_json::from_slice::<ForwardedCall<'_>>(text).ok();
        let method = call.and_then(|call| table::by_name(&call.method));
        let is_of_wallet = method.is_some_and(|method| matches!(method.info.leader, LeaderUse::Wallet));
        let is_open = self.proofs.is_open(&self.access);
        match node.proof.as_ref().filter(|_| is_of_wallet) {
            Some(proof) => Ok((Some(self.proofs.client(&self.access, proof)?), true)),
            None if is_of_wallet && !is_open => Err(RpcError::new(
                4100,
                "unauthorized: the node that has the wallet takes no request of another node without the proof of a token of its --wallet-token-file: send it with such a token, to a node that has the same file",
            )),
            None => Ok((None, is_open)),
        }
    }

    /// Returns the session of the caller with these rights.
    fn session(&self, request: &ArrivedRequest<'_>, (client, may_use_wallet): Rights) -> Session {
        let flow = client.as_deref().map_or(&self.flow, Client::flow).clone();
        let dialect = match request.path {
            Some("/standard" | "/standard/") => &STANDARD,
            _ => self.server.root,
        };
        let (page, until) = request.node.as_ref().map_or((None, None), |node| (node.page.map(Into::into), node.until));
        let caller = Caller { dialect, client, may_use_wallet, page, share: self.memory.share(), flow, until };
        Session { front: self.front.clone(), caller: Arc::new(caller), limits: self.server.limits }
    }

    async fn answer_request(&self, request: &ArrivedRequest<'_>) -> Bytes {
        let rights = match &request.node {
            None => self.rights(request.authorization),
            Some(node) => self.rights_of_forwarded(node, &request.text),
        };
        let (rights, refused) = match rights {
            Ok(rights) => (rights, None),
            Err(error) => ((None, false), Some(error)),
        };
        let (session, bytes) = (self.session(request, rights), request.text.len());
        if bytes > self.server.limits.max_body {
            let text = format!("body too large: at most {} bytes (--max-body)", self.server.limits.max_body);
            return session.refuse(RpcError::limit(text));
        }
        let Some(held) = session.caller.share.take(bytes) else {
            return session.refuse(self.memory.full("the body", bytes));
        };
        let body = match ByteString::try_from(request.text.clone()) {
            Ok(body) => body,
            Err(error) => return session.refuse(RpcError::parse(format!("parse error: not UTF-8: {error}"))),
        };
        if let Some(error) = refused {
            return session.reject(&body, error);
        }
        let published = match min_snapshot(request.min_snapshot) {
            Ok(least) => published_from(&self.front.services.runner.snapshots, least, self.server.max_catch_up).await,
            Err(error) => Err(error),
        };
        let published = match published {
            Ok(published) => published,
            Err(error) => return session.reject(&body, error),
        };
        let text = session.answer(body.clone(), held, &published, None).await.text;
        if text.len() <= request.max_answer {
            return text;
        }
        session.reject(&body, RpcError::limit(too_large(text.len(), request.max_answer)))
    }
}

impl Answers for FleetAnswers {
    fn answer<'a>(&'a self, request: &'a ArrivedRequest<'a>) -> BoxFuture<'a, Bytes> {
        self.answer_request(request).boxed()
    }
}
