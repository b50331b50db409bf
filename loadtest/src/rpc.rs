//! A client for requests beside the load, about a target's world, reference answers and freshness.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::{
    connection::{Connection, ConnectionError},
    target::Target,
};

/// Why a method has no result.
#[derive(Debug, thiserror::Error)]
pub enum RpcError {
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("HTTP status {0}")]
    Status(u16),
    #[error("the answer is not JSON: {0}")]
    NotJson(#[from] serde_json::Error),
    #[error("the target answered an error: {0}")]
    Answered(Value),
}

/// A connection that is opened when it is needed, and again when it has ended.
pub struct Rpc {
    target: Target,
    timeout: Duration,
    connection: Option<Connection>,
}

impl Rpc {
    pub fn new(target: &Target, timeout: Duration) -> Self {
        Self { target: target.clone(), timeout, connection: None }
    }

    /// Calls a method, and returns its result.
    ///
    /// # Errors
    ///
    /// Returns an error if no answer arrives in time, or if the answer is an error.
    pub async fn call(&mut self, method: &str, params: Value) -> Result<Value, RpcError> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let mut answer: Value = self.send(body.into()).await?;
        match answer.get_mut("result") {
            Some(result) => Ok(result.take()),
            None => Err(RpcError::Answered(answer.get_mut("error").map_or(Value::Null, Value::take))),
        }
    }

    /// Sends a body, and returns the body of the answer.
    ///
    /// # Errors
    ///
    /// Returns an error if no answer arrives in time, or if the answer's status is not 200 or its body is not JSON.
    pub async fn send(&mut self, body: Bytes) -> Result<Value, RpcError> {
        let send = async {
            let mut connection = match self.connection.take() {
                Some(connection) => connection,
                None => Connection::open(&self.target).await?,
            };
            if !connection.ready().await {
                connection = Connection::open(&self.target).await?;
            }
            let answer = connection.call(body).await?;
            self.connection = Some(connection);
            Ok::<_, RpcError>(answer)
        };
        let answer = tokio::time::timeout(self.timeout, send).await.map_err(|_| RpcError::Timeout(self.timeout))??;
        if answer.status != 200 {
            return Err(RpcError::Status(answer.status));
        }
        Ok(serde_json::from_slice(&answer.body)?)
    }
}
