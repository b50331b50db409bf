//! The outcomes of bundles that were sent (`presim_outcome`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    pool::BundleOutcome,
    rpc::{
        api::{Example, Query},
        json::hex::{Fixed, Quantity},
        protocol::error::Result,
        run::{Backend, Run},
    },
};

/// Returns the outcome of a bundle that the client has sent by `eth_sendBundle`: pending, mined, or dropped with the reason. Null for another
/// hash, and for a bundle whose outcome is forgotten: --pool-outcomes are kept of each client, in memory.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: the hash of a bundle")]
pub struct GetOutcome {
    /// The `bundleHash` that `eth_sendBundle` has returned.
    hash: Fixed<32>,
}

/// The outcome of a bundle.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    status: OutcomeStatus,
    /// The block of a bundle that was mined, which is pre-confirmed until it is sealed.
    #[serde(skip_serializing_if = "Option::is_none")]
    block_number: Option<Quantity<u64>>,
    /// The reason why a bundle was dropped, or why one that is pending did not fit when it was tried last.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Whether a bundle waits for its block, is in a block, or was dropped.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum OutcomeStatus {
    Pending,
    Mined,
    Dropped,
}

impl From<BundleOutcome> for Outcome {
    fn from(outcome: BundleOutcome) -> Self {
        let (status, block, reason) = match outcome {
            BundleOutcome::Pending { misfit } => {
                (OutcomeStatus::Pending, None, misfit.map(|misfit| misfit.to_string()))
            }
            BundleOutcome::Mined { block } => (OutcomeStatus::Mined, Some(block), None),
            BundleOutcome::Dropped(reason) => (OutcomeStatus::Dropped, None, Some(reason.to_string())),
        };
        Self { status, block_number: block.map(Quantity), reason }
    }
}

impl Query for GetOutcome {
    type Answer = Option<Outcome>;
    const EXAMPLE: Example = Example {
        params: r#"["0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"]"#,
        answer: r#"{"status": "dropped", "reason": "block 42 was sealed without it: transaction 1 of the bundle reverts or halts"}"#,
    };

    fn answer(self, backend: &Backend, run: &mut Run<'_>) -> Result<Self::Answer> {
        Ok(backend.pool.bundles.outcome(run.client, &self.hash.into()).map(Outcome::from))
    }
}
