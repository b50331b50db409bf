//! The chain under test, in anvil's and hardhat's formats.

use std::{collections::BTreeMap, sync::Arc};

use alloy_eips::BlockNumHash;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::changes::Testing;
use crate::{
    chain::Fork,
    ledger::Chain,
    rpc::{
        api::{Example, Serve},
        json::hex::{Fixed, Number, Quantity},
        params,
        protocol::error::{Result, RpcError},
        run::{Backend, request::Request, runner::RequestRunner},
    },
    source::testing::{ChainChange, ChangeOutcome},
};

queries! {
    /// With --testing: prints the lines of `console.log`, or ends that.
    SetLogging = "1 parameter: whether lines are printed", { on: bool }, "[true]" => () = "null", |asked, backend, _| {
        if let Some(console) = &backend.console {
            console.set(asked.on);
        }
    };

    /// With --testing: sets the chain id. Transactions that wait keep theirs.
    SetChainId = "1 parameter: the chain id", { id: Number<u64> }, r#"["0x7a69"]"# => () = "null", |asked, backend, _| {
        if asked.id.0 == 0 {
            return Err(RpcError::params("params[0]: 0: expected a chain id of at least 1"));
        }
        backend.spec.set_chain_id(asked.id.0);
    };
}

/// With --testing: the newest block, and the settings of the next.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "no parameters")]
pub struct NodeInfo {}

/// The newest block, and the settings of the next.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeDescription {
    current_block_number: Quantity<u64>,
    current_block_timestamp: u64,
    current_block_hash: Fixed<32>,
    /// The fork that is active.
    hard_fork: String,
    /// The order of transactions in a block.
    #[schemars(extend("const" = "fees"))]
    transaction_order: &'static str,
    environment: Environment,
    fork_config: ForkConfig,
}

/// The settings of the next block.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Environment {
    base_fee: Quantity<u64>,
    chain_id: u64,
    gas_limit: Quantity<u64>,
    gas_price: Quantity<u128>,
}

/// The chain on which a fork builds. Null elsewhere.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ForkConfig {
    /// The URL of its node, without parts that may be secret.
    fork_url: Option<String>,
    fork_block_number: Option<u64>,
    fork_retry_backoff: (),
}

impl ForkConfig {
    fn of(runner: &RequestRunner) -> Self {
        let fork_block_number = runner.published().forked_at();
        let upstream = runner.remote.as_ref().and_then(|remote| remote.fetcher.upstream());
        let fork_url = upstream.filter(|_| fork_block_number.is_some()).map(|upstream| upstream.shown_url());
        Self { fork_url, fork_block_number, fork_retry_backoff: () }
    }
}

impl Serve for NodeInfo {
    type Part = ();
    type Answer = NodeDescription;
    const EXAMPLE: Example = Example {
        params: "[]",
        answer: r#"{"currentBlockNumber": "0x2", "currentBlockTimestamp": 1700000000, "currentBlockHash": "0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470", "hardFork": "Osaka", "transactionOrder": "fees", "environment": {"baseFee": "0x3b9aca00", "chainId": 31337, "gasLimit": "0x1c9c380", "gasPrice": "0x77359400"}, "forkConfig": {"forkUrl": null, "forkBlockNumber": null, "forkRetryBackoff": null}}"#,
    };

    async fn serve<'a>((): &'a (), runner: &'a Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        params::parse::<Self>(&request.params, request.caller.dialect)?;
        Ok(request.answer(&NodeDescription::of(&runner.backend, &request.published, ForkConfig::of(runner))))
    }
}

impl NodeDescription {
    fn of(backend: &Backend, published: &Chain, fork_config: ForkConfig) -> Self {
        let (head, next) = (published.head(), published.newest.header());
        let base_fee = next.base_fee_per_gas.unwrap_or_default();
        let gas_price = u128::from(base_fee).saturating_add(backend.wallet.fees.tip(published));
        Self {
            current_block_number: Quantity(head.number()),
            current_block_timestamp: head.header.timestamp,
            current_block_hash: Fixed(head.hash().0),
            hard_fork: match backend.spec.fork(next) {
                Fork::Ethereum(fork) => fork.to_string(),
                Fork::OpStack(fork) => format!("{fork:?}"),
            },
            transaction_order: "fees",
            environment: Environment {
                base_fee: Quantity(base_fee),
                chain_id: backend.spec.chain_id(),
                gas_limit: Quantity(next.gas_limit),
                gas_price: Quantity(gas_price),
            },
            fork_config,
        }
    }
}

/// With --testing: the software, the newest block, and the states that are saved.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "no parameters")]
pub struct Metadata {}

/// The software, the newest block, and the states that are saved.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChainMetadata {
    client_version: &'static str,
    chain_id: u64,
    /// A random name, which changes with a reset.
    instance_id: Fixed<32>,
    latest_block_number: u64,
    latest_block_hash: Fixed<32>,
    /// The block on which a fork builds. Null elsewhere.
    forked_network: Option<ForkedNetwork>,
    /// Number and hash of the head of each state, by the ids of the states.
    snapshots: BTreeMap<String, (u64, Fixed<32>)>,
}

/// The block on which a fork builds.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ForkedNetwork {
    chain_id: u64,
    fork_block_number: u64,
    fork_block_hash: Fixed<32>,
}

impl Serve for Metadata {
    type Part = Testing;
    type Answer = ChainMetadata;
    const EXAMPLE: Example = Example {
        params: "[]",
        answer: r#"{"clientVersion": "anvil/presim-v0.1.0", "chainId": 31337, "instanceId": "0x0d1b5c2f7e6a4938a0b1c2d3e4f5061728394a5b6c7d8e9f00112233445566ff", "latestBlockNumber": 2, "latestBlockHash": "0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470", "forkedNetwork": null, "snapshots": {}}"#,
    };

    async fn serve<'a>(testing: &'a Testing, runner: &'a Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        params::parse::<Self>(&request.params, request.caller.dialect)?;
        let ChangeOutcome::Description { instance, saved, .. } = testing.make(&request, ChainChange::Describe).await?
        else {
            return Err(RpcError::internal("a chain that does not describe itself"));
        };
        let (spec, published) = (&runner.backend.spec, runner.published());
        let shown =
            |&(id, BlockNumHash { number, hash }): &(u64, BlockNumHash)| (format!("{id:#x}"), (number, Fixed(hash.0)));
        Ok(request.answer(&ChainMetadata {
            client_version: runner.backend.client_version,
            chain_id: spec.chain_id(),
            instance_id: Fixed(instance.0),
            latest_block_number: published.head().number(),
            latest_block_hash: Fixed(published.head().hash().0),
            forked_network: published.forked_at().and_then(|fork_block_number| {
                let fork_block_hash = Fixed(published.sealed_block(fork_block_number)?.hash().0);
                Some(ForkedNetwork { chain_id: spec.chain_id(), fork_block_number, fork_block_hash })
            }),
            snapshots: saved.iter().map(shown).collect(),
        }))
    }
}
