//! Answers requests over NATS: as one of the replicas, or for other nodes of the fleet.

use std::sync::Arc;

use async_nats::{
    Client, Message, Subscriber,
    service::{Service, ServiceExt},
};
use futures::{StreamExt, stream};
use tokio::{sync::watch, task::JoinSet};

use super::{
    AT_ONCE, CLIENT, Membership,
    arriving::{Answers, ArrivedRequest},
};
use crate::fleet::servers::Topic;

/// The name of the service, as discovery (`$SRV`) shows it.
const NAME: &str = "presim";
/// The queue group of the replicas.
const GROUP: &str = "presim";

impl Membership {
    /// Answers requests until the returned task is dropped. A replica joins the service that clients of NATS ask; a
    /// publishing node answers the replicas while it leads.
    ///
    /// # Errors
    ///
    /// Returns the error of NATS if it does not take the subscription of a replica.
    pub async fn serve(&self, answers: Arc<dyn Answers>) -> eyre::Result<JoinSet<()>> {
        let (client, names) = (self.link.client.clone(), &self.link.names);
        let mut serving = JoinSet::new();
        match &self.leads {
            None => serving.spawn(serve_replica(client, names.subject(Topic::Rpc), answers).await?),
            Some(leads) => serving.spawn(serve_nodes(client, names.subject(Topic::Leader), answers, leads.clone())),
        };
        Ok(serving)
    }
}

/// Answers JSON-RPC on `subject` together with the other replicas: each request is answered by one of them.
async fn serve_replica(
    client: Client,
    subject: String,
    answers: Arc<dyn Answers>,
) -> eyre::Result<impl Future<Output = ()>> {
    let failed = |error: async_nats::Error| eyre::eyre!("the service {subject} cannot be offered: {error}");
    let builder = client.service_builder().description("Simulations on the pre-confirmed state of a chain");
    let service: Service = builder.start(NAME, env!("CARGO_PKG_VERSION")).await.map_err(failed)?;
    let endpoint = service.endpoint_builder().name("rpc").queue_group(GROUP).add(subject.clone()).await;
    let endpoint = endpoint.map_err(failed)?;
    Ok(async move {
        // The service answers discovery until it is dropped.
        let _service = service;
        let (client, answers) = (&client, &answers);
        let answer = |request: async_nats::service::Request| async move {
            let Message { payload, headers, .. } = &request.message;
            let most = client.server_info().max_payload;
            let answer = answers.answer(&ArrivedRequest::read(payload, headers.as_ref(), most, false)).await;
            // A client that has disconnected reads no answer.
            let _ = request.respond(Ok(answer)).await;
        };
        endpoint.for_each_concurrent(AT_ONCE, answer).await;
    })
}

/// Answers the requests of other nodes on `subject` while `serves` is true. At other times there is no subscription, so
/// that requests are rejected at once.
async fn serve_nodes(client: Client, subject: String, answers: Arc<dyn Answers>, serves: watch::Receiver<bool>) {
    let arriving = stream::unfold((serves, None::<Subscriber>), |(mut serves, mut requests)| async {
        loop {
            let Some(heard) = &mut requests else {
                drop(serves.wait_for(|serves| *serves).await.ok()?);
                match client.subscribe(subject.clone()).await {
                    Ok(subscribed) => requests = Some(subscribed),
                    Err(error) => {
                        tracing::error!(%error, subject, "cannot receive requests of other nodes");
                        return None;
                    }
                }
                continue;
            };
            // If the sender is dropped, the value stays true.
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
    let (client, _subject, answers) = (&client, &subject, &answers);
    let answer = |Message { payload, headers, reply, .. }: Message| async move {
        // Answers only to inboxes, because this node may publish to more subjects than a replica may.
        let Some(reply) = reply.filter(|reply| reply.starts_with("_INBOX.")) else { return };
        let headers = headers.as_ref();
        if let Some(name) = headers.and_then(|headers| headers.get(CLIENT)) {
            tracing::debug!(client = name.as_str(), "another node forwards a request");
        }
        let most = client.server_info().max_payload;
        let answer = answers.answer(&ArrivedRequest::read(&payload, headers, most, true)).await;
        let _ = client.publish(reply, answer).await;
    };
    arriving.for_each_concurrent(AT_ONCE, answer).await;
}
