//! The methods that change a devnet under test (`--testing`). The chain's source makes the changes.

use tokio::time::timeout_at;

use crate::rpc::{
    json,
    protocol::{
        dialect::Dialect,
        error::{Result, RpcError},
    },
    run::{
        MethodInfo,
        request::{Request, begin},
    },
};
use crate::source::testing::{ChainChange, ChainControl, ChangeError, ChangeOutcome};

/// The scope of the methods for testing.
#[derive(Clone, Debug)]
pub enum Testing {
    /// No method exists, because the node runs without `--testing`.
    Off,
    /// Methods that build blocks. The chain is static.
    Static,
    /// All methods, the changes through this handle.
    Devnet(ChainControl),
}

/// The type of parsers of changes.
type ParsesChange = fn(&str, &Dialect) -> Result<ChainChange>;

impl Testing {
    /// Checks that the node has the method: it lacks those for testing without `--testing`.
    ///
    /// # Errors
    ///
    /// Returns -32601 if the node lacks the method.
    pub fn check(&self, method: &MethodInfo) -> Result<()> {
        match self {
            Self::Off if method.testing => {
                Err(RpcError::new(-32601, format!("{} is for testing: start the node with --testing", method.name)))
            }
            _ => Ok(()),
        }
    }

    /// Changes the chain, if it is a devnet under test.
    ///
    /// # Errors
    ///
    /// Returns -32601 on a static chain, the error of the parameters, -32000 if the change cannot be made, -32005 if too
    /// many wait, and -32016 at the deadline.
    pub async fn change(&self, parse: ParsesChange, done: &str, request: Request) -> Result<Vec<u8>> {
        let Self::Devnet(control) = self else {
            let text = format!("{} needs a devnet: this chain is static", request.method.name);
            return Err(RpcError::new(-32601, text));
        };
        let change = parse(&request.params, request.caller.dialect)?;
        let outcome = match timeout_at(request.ticket.deadline().into(), control.make(change)).await {
            Ok(made) => made.map_err(|error| match error {
                ChangeError::Busy => RpcError::limit(error.to_string()),
                ChangeError::TooManyBlocks { .. } => RpcError::params(format!("params[0]: {error}")),
                ChangeError::Timestamp { .. } | ChangeError::TooLate(_) | ChangeError::Failed => {
                    RpcError::new(-32000, error.to_string())
                }
            })?,
            Err(_) => return Err(RpcError::new(-32016, "the change was not made in time: it may still be made")),
        };
        let mut out = begin(&request.id, "result");
        match outcome {
            ChangeOutcome::Done => out.extend_from_slice(done.as_bytes()),
            ChangeOutcome::Saved(id) => json::quantity(&mut out, id),
            ChangeOutcome::Returned(returned) => json::value(&mut out, &returned),
            ChangeOutcome::Ahead(seconds) => json::value(&mut out, &seconds),
        }
        Ok(out)
    }
}
