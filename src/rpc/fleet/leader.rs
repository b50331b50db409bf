//! Requests that only the leader of a fleet can answer: sending with its accounts, bundles, its pool, and blocks whose bodies
//! a replica does not have.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Acquire},
    },
    time::Instant,
};

use async_nats::{Client, HeaderMap, client::RequestErrorKind};
use bytes::Bytes;
use futures::StreamExt;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use super::{AT_ONCE, CLIENT, NatsDoor, PATH, Rights, ServedRequests};
use crate::rpc::{dialect::STANDARD, error::RpcError, request::Request};

/// The header that says that the client of a forwarded request may use the wallet.
const WALLET: &str = "x-presim-wallet";

/// The header with the origin of the page that calls.
const PAGE: &str = "x-presim-page";

/// The way of a replica's requests to the leader of its fleet.
#[derive(Debug)]
pub struct LeaderLink {
    client: Client,
    subject: String,
    permits: Semaphore,
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
    /// Creates the way to the leader, which answers on `subject`.
    pub fn new(client: Client, subject: String) -> Self {
        Self { client, subject, permits: Semaphore::new(AT_ONCE) }
    }

    /// Asks the leader a request, with the time that it has left, and returns the JSON of the result.
    ///
    /// # Errors
    ///
    /// Returns the leader's error; -32000 if there is no leader, which has changed nothing then; -32016 if it does not
    /// answer in time, so that nobody knows what it has done; -32005 if too many requests are under way.
    pub async fn ask(&self, request: &Request) -> Result<Box<RawValue>, RpcError> {
        let Ok(_permit) = self.permits.try_acquire() else {
            return Err(RpcError::limit(format!(
                "too busy: {AT_ONCE} requests wait for the leader of the fleet already"
            )));
        };
        let caller = &request.caller;
        let mut headers = HeaderMap::new();
        if std::ptr::eq(caller.dialect, &raw const STANDARD) {
            headers.insert(PATH, "/standard");
        }
        if let Some(client) = &caller.client {
            headers.insert(CLIENT, client.name());
        }
        if caller.may_use_wallet {
            headers.insert(WALLET, "yes");
        }
        if let Some(page) = &caller.page {
            headers.insert(PAGE, &**page);
        }
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}","params":{}}}"#, request.method.name, request.params);
        let left = request.ticket.deadline().saturating_duration_since(Instant::now());
        let asked = async_nats::Request::new().payload(body.into()).headers(headers).timeout(Some(left));
        let answer =
            self.client.send_request(self.subject.clone(), asked).await.map_err(|error| match error.kind() {
                RequestErrorKind::NoResponders => {
                    RpcError::new(-32000, "the fleet has no leader at the moment: try again")
                }
                RequestErrorKind::MaxPayloadExceeded => RpcError::limit(
                    "the request is larger than NATS takes (max_payload): send it to the leader over HTTP",
                ),
                _ => RpcError::new(-32016, "outcome unknown: the leader of the fleet has not answered in time"),
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

/// Answers the requests of replicas on `subject` while this node leads.
///
/// # Errors
///
/// Returns the error of NATS if it does not take the subscription.
pub async fn serve_leader(
    client: Client,
    subject: String,
    door: NatsDoor,
    leads: Arc<AtomicBool>,
) -> eyre::Result<ServedRequests> {
    let requests = client.subscribe(subject.clone()).await;
    let requests = requests.map_err(|error| eyre::eyre!("requests on {subject} cannot be heard: {error}"))?;
    Ok(ServedRequests(tokio::spawn(async move {
        let (client, door, leads) = (&client, &door, &leads);
        let answer = |message: async_nats::Message| async move {
            let Some(reply) = message.reply.filter(|_| leads.load(Acquire)) else { return };
            let headers = message.headers.as_ref();
            // The replica has checked the client's token and its rate.
            let may_use_wallet = headers.is_some_and(|headers| headers.get(WALLET).is_some());
            if let Some(name) = headers.and_then(|headers| headers.get(CLIENT)) {
                tracing::debug!(client = name.as_str(), "a replica forwards a request");
            }
            let most = client.server_info().max_payload;
            let page = headers.and_then(|headers| headers.get(PAGE)).map(|page| page.as_str().into());
            let rights = Ok(Rights { client: None, may_use_wallet, page });
            let answer: Bytes = door.answer(headers, message.payload.clone(), rights, most).await;
            let _ = client.publish(reply, answer).await;
        };
        requests.for_each_concurrent(AT_ONCE, answer).await;
    })))
}
