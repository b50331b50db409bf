//! A client for what is asked beside the load: the target's world, reference answers, how fresh it is.

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
    #[error("no JSON: {0}")]
    NotJson(#[from] serde_json::Error),
    #[error("{0}")]
    Answered(Value),
}

/// A connection that is made when it is needed, and made anew when it has ended.
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
    /// There was no answer, or it is an error.
    pub async fn call(&mut self, method: &str, params: Value) -> Result<Value, RpcError> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let mut answer: Value = self.send(body.into()).await?;
        match answer.get_mut("result") {
            Some(result) => Ok(result.take()),
            None => Err(RpcError::Answered(answer.get_mut("error").map_or(Value::Null, Value::take))),
        }
    }

    /// Sends a body, and returns the answer's.
    ///
    /// # Errors
    /// There was no answer, or it is no JSON.
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
