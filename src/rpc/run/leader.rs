//! Requests that only another node of a fleet can answer.

use bytes::Bytes;
use futures::future::BoxFuture;
use jsonrpsee::types::{Response, ResponsePayload};
use serde_json::value::RawValue;

use super::request::Request;
use crate::{
    objects,
    rpc::protocol::error::{Result, RpcError},
};

/// The other nodes of a node's fleet.
pub trait Leader: std::fmt::Debug + Send + Sync {
    /// Returns whether this node publishes, whether it leads or stands by. Then it asks no leader, because it reads the same source.
    fn publishes(&self) -> bool;

    /// Checks that this node has the wallet of the fleet.
    ///
    /// # Errors
    ///
    /// Returns -32000 with the name of the node that has the wallet, if it is another one.
    fn ensure_wallet(&self) -> BoxFuture<'_, Result<()>>;

    /// Sends a request to the leader, with the time that it has left, and returns the JSON of the answer.
    ///
    /// # Errors
    ///
    /// Returns -32000 if no node leads, and nothing has changed then; -32016 if a write is not answered in time, so that its outcome is
    /// unknown; -32005 if too many requests are under way.
    fn forward<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Bytes>>;
}

/// Returns the JSON of the result that another node gives.
///
/// # Errors
///
/// Returns the error of that node, and those of [`Leader::forward`].
pub async fn ask(leader: &dyn Leader, request: &Request) -> Result<Box<RawValue>> {
    let answer = leader.forward(request).await?;
    let unreadable = |error: serde_json::Error| RpcError::internal(&format!("the leader's answer: {error}"));
    let answer: Response<'_, Box<RawValue>> = objects::from_slice(&answer).map_err(unreadable)?;
    match answer.payload {
        ResponsePayload::Success(result) => Ok(result.into_owned()),
        ResponsePayload::Error(error) => Err(RpcError::Answer(error.into_owned())),
    }
}
