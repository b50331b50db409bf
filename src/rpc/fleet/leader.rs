//! Requests that only another node of a fleet can answer. The leader answers about its pool, sending with its accounts,
//! bundles, and blocks whose bodies this node does not have; the node that has the fleet's wallet answers the wallet's methods.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant},
};

use async_nats::{Client, HeaderMap, Subscriber, client::RequestErrorKind};
use bytes::Bytes;
use futures::{StreamExt, stream};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, watch};

use super::{
    AT_ONCE, CLIENT, LEFT, NatsDoor, PATH, Rights, ServedRequests,
    wallet::{WalletPlace, elsewhere},
    wallet_proof::{WalletDoor, prove},
};
use crate::{
    rpc::{
        catch_up::MIN_SNAPSHOT,
        dialect::STANDARD,
        error::RpcError,
        methods::{LeaderUse, MethodRoute},
        request::Request,
    },
    source::fleet::{FleetLink, NodeIdentity},
};

/// The header with the origin of the page that calls.
pub(super) const PAGE: &str = "x-presim-page";

/// A client of the leader of a node's fleet, and of the node that has the fleet's wallet.
#[derive(Debug)]
pub struct LeaderLink {
    pub(super) link: FleetLink,
    /// This node's part in publishing; `None` on a replica.
    pub(super) publishes: Option<PublishingNode>,
    permits: Semaphore,
}

/// A node that publishes, as the other nodes of its fleet know it.
#[derive(Clone, Debug)]
pub struct PublishingNode {
    /// The node's identity.
    pub identity: NodeIdentity,
    /// Whether the node leads.
    pub leads: watch::Receiver<bool>,
}

/// An answer of the leader.
#[derive(Deserialize)]
struct LeaderAnswer<'a> {
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<LeaderError>,
}

#[derive(Deserialize)]
struct LeaderError {
    code: i32,
    message: String,
    data: Option<Box<RawValue>>,
}

impl LeaderLink {
    /// Creates the client of a node of a fleet. `publishes` is its part in publishing, unless it is a replica.
    pub fn new(link: FleetLink, publishes: Option<PublishingNode>) -> Self {
        Self { link, publishes, permits: Semaphore::new(AT_ONCE) }
    }

    /// Returns whether this node leads the fleet.
    pub fn leads(&self) -> bool {
        self.publishes.as_ref().is_some_and(|own| *own.leads.borrow())
    }

    /// Returns whether this node publishes, whether it leads or stands by.
    pub const fn publishes(&self) -> bool {
        self.publishes.is_some()
    }

    /// Asks the node that can answer a request, with the time that it has left, and returns the JSON of the result.
    ///
    /// # Errors
    ///
    /// Returns the error of that node; -32000 if it is not there, which has changed nothing then; -32016 if it does not
    /// answer a write in time, so that nobody knows what it has done; -32005 if too many requests are under way.
    pub async fn ask(&self, request: &Request) -> Result<Box<RawValue>, RpcError> {
        let Ok(_permit) = self.permits.try_acquire() else {
            return Err(RpcError::limit(format!(
                "too busy: {AT_ONCE} requests wait for the leader of the fleet already"
            )));
        };
        let place = match request.method.leader {
            LeaderUse::Wallet => self.wallet().await?,
            _ => WalletPlace::Leader,
        };
        let (subject, absent) = match place {
            WalletPlace::At(owner) => (self.link.names.wallet(&owner.id), elsewhere(&owner)),
            WalletPlace::Leader | WalletPlace::Here => {
                let absent = RpcError::new(-32000, "the fleet has no leader at the moment: try again");
                (self.link.names.leader(), absent)
            }
        };
        let caller = &request.caller;
        let mut headers = HeaderMap::new();
        if std::ptr::eq(caller.dialect, &raw const STANDARD) {
            headers.insert(PATH, "/standard");
        }
        if let Some(client) = &caller.client {
            headers.insert(CLIENT, client.name());
        }
        if let Some(page) = &caller.page {
            headers.insert(PAGE, &**page);
        }
        let writes = request.method.commits;
        // The answer to a read is not older than what this node shows. A write is not rejected for that.
        if !writes && !request.published.feed().is_degraded() {
            headers.insert(MIN_SNAPSHOT, format!("{:#x}", request.published.last.0));
        }
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}","params":{}}}"#, request.method.name, request.params);
        let left = request.ticket.deadline().saturating_duration_since(Instant::now());
        headers.insert(LEFT, left.as_millis().to_string());
        if let Some(client) = caller.client.as_deref().filter(|client| client.may_sign())
            && request.method.leader == LeaderUse::Wallet
        {
            prove(client, &subject, &mut headers, body.as_bytes());
        }
        let asked = async_nats::Request::new().payload(body.into()).headers(headers).timeout(Some(left));
        let answer = self.link.client.send_request(subject, asked).await.map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => absent,
            RequestErrorKind::MaxPayloadExceeded => {
                RpcError::limit("the request is larger than NATS takes (max_payload): send it to the leader over HTTP")
            }
            _ if writes => RpcError::new(-32016, "outcome unknown: the leader of the fleet has not answered in time"),
            _ => RpcError::new(-32000, "the leader of the fleet has not answered in time: try again"),
        })?;
        let unreadable = |error: serde_json::Error| RpcError::internal(&format!("the leader's answer: {error}"));
        let LeaderAnswer { result, error } = serde_json::from_slice(&answer.payload).map_err(unreadable)?;
        match (result, error) {
            (_, Some(LeaderError { code, message, data: Some(data) })) => Err(RpcError::with_data(code, message, data)),
            (_, Some(LeaderError { code, message, data: None })) => Err(RpcError::new(code, message)),
            (result, None) => Ok(result.map_or_else(|| RawValue::NULL.to_owned(), ToOwned::to_owned)),
        }
    }
}

/// The doors of a node for requests of other nodes.
#[derive(Clone, Debug)]
pub struct NodeDoor {
    /// The door for messages.
    pub door: NatsDoor,
    /// The door of the wallet, which decides what a client of another node may use.
    pub wallet: Arc<WalletDoor>,
}

/// Answers the requests of other nodes on `subject` while `serves` is true. At other times there is no subscription, so that
/// a request which nobody can answer is rejected at once.
pub fn serve_nodes(client: Client, subject: String, door: NodeDoor, serves: watch::Receiver<bool>) -> ServedRequests {
    ServedRequests(tokio::spawn(async move {
        let arriving = stream::unfold((serves, None::<Subscriber>), |(mut serves, mut requests)| async {
            loop {
                let Some(heard) = &mut requests else {
                    drop(serves.wait_for(|serves| *serves).await.ok()?);
                    match client.subscribe(subject.clone()).await {
                        Ok(subscribed) => requests = Some(subscribed),
                        Err(error) => {
                            tracing::error!(%error, subject, "requests of other nodes cannot be heard");
                            return None;
                        }
                    }
                    continue;
                };
                // Where nobody changes it any more, it stays true.
                let ends = async {
                    if serves.wait_for(|serves| !*serves).await.is_err() {
                        std::future::pending().await
                    }
                };
                tokio::select! {
                    message = heard.next() => return Some((message?, (serves, requests))),
                    () = ends => {}
                }
                requests = None;
            }
        });
        arriving.for_each_concurrent(AT_ONCE, |message| answer(&client, &subject, &door, message)).await;
    }))
}

/// A request as another node forwards it.
#[derive(Deserialize)]
struct ForwardedCall<'a> {
    #[serde(borrow)]
    method: Cow<'a, str>,
}

/// Answers a request of another node, which has checked its client's token and rate. Whether the client may use the wallet is
/// for this node to decide.
async fn answer(client: &Client, subject: &str, NodeDoor { door, wallet }: &NodeDoor, message: async_nats::Message) {
    let arrived = Instant::now();
    // An answer goes nowhere but into the inbox of whoever asks: this node may publish to more than a replica may.
    let Some(reply) = message.reply.filter(|reply| reply.starts_with("_INBOX.")) else { return };
    let headers = message.headers.as_ref();
    let header = |name| headers?.get(name).map(|value| value.as_str());
    if let Some(name) = header(CLIENT) {
        tracing::debug!(client = name, "another node forwards a request");
    }
    let most = client.server_info().max_payload;
    let left = header(LEFT).and_then(|left| left.parse().ok()).map(Duration::from_millis);
    let of_wallet = serde_json::from_slice::<ForwardedCall<'_>>(&message.payload)
        .ok()
        .and_then(|call| MethodRoute::by_name(&call.method))
        .is_some_and(|method| method.leader == LeaderUse::Wallet);
    let proved = match of_wallet {
        true => wallet.client(&door.access, subject, headers, &message.payload),
        false => Ok(None),
    };
    let proved = match proved {
        Ok(None) if of_wallet && !wallet.is_open(&door.access) => Err(RpcError::new(
            4100,
            "unauthorized: the node that has the wallet takes no request of another node without the proof of a token of its --wallet-token-file: send it with such a token, to a node that has the same file",
        )),
        proved => proved,
    };
    let rights = proved.map(|proved| Rights {
        may_use_wallet: proved.is_some() || wallet.is_open(&door.access),
        client: proved,
        page: header(PAGE).map(Into::into),
        until: left.map(|left| arrived + left),
    });
    let answer: Bytes = door.answer(headers, message.payload.clone(), rights, most).await;
    let _ = client.publish(reply, answer).await;
}
