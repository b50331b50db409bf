//! Replicas as a micro service of NATS, in one queue group: each request is answered by one of them.

use async_nats::{
    Client,
    service::{Service, ServiceExt},
};
use futures::StreamExt;

use super::{AT_ONCE, NatsDoor, ServedRequests};

/// The name of the service, as discovery (`$SRV`) shows it.
const NAME: &str = "presim";
/// The queue group of the replicas.
const GROUP: &str = "presim";

/// Answers JSON-RPC on `subject` together with the other replicas, until it is dropped.
///
/// # Errors
///
/// Returns the error of NATS if it does not take the subscription.
pub async fn serve_replica(client: Client, subject: String, door: NatsDoor) -> eyre::Result<ServedRequests> {
    let failed = |error: async_nats::Error| eyre::eyre!("the service {subject} cannot be offered: {error}");
    let builder = client.service_builder().description("Simulations on the pre-confirmed state of a chain");
    let service: Service = builder.start(NAME, env!("CARGO_PKG_VERSION")).await.map_err(failed)?;
    let endpoint = service.endpoint_builder().name("rpc").queue_group(GROUP).add(subject.clone()).await;
    let endpoint = endpoint.map_err(failed)?;
    Ok(ServedRequests(tokio::spawn(async move {
        // The service answers discovery for as long as it is there.
        let _service = service;
        let (client, door) = (&client, &door);
        let answer = |request: async_nats::service::Request| async move {
            let most = client.server_info().max_payload;
            let headers = request.message.headers.as_ref();
            let answer = door.answer(headers, request.message.payload.clone(), door.rights(headers), most).await;
            // A client that is gone reads no answer.
            let _ = request.respond(Ok(answer)).await;
        };
        endpoint.for_each_concurrent(AT_ONCE, answer).await;
    })))
}
