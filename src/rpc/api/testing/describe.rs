//! The chain under test, in anvil's and hardhat's formats.

use std::{collections::BTreeMap, sync::Arc};

use alloy_eips::BlockNumHash;
use alloy_primitives::B256;
use schemars::JsonSchema;
use serde::Deserialize;

use super::changes::Testing;
use crate::{
    chain::Fork,
    ledger::Chain,
    rpc::{
        api::{Example, Serve},
        json::{
            Json, OrNull,
            hex::{Fixed, Number, Quantity},
            shapes,
        },
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

shapes! {
    /// The newest block, and the settings of the next.
    pub NodeDescription: (&RequestRunner, &Chain) => |(runner, published)| let {
        let (head, next) = (published.head(), published.newest.header());
        let fork = match runner.backend.spec.fork(next) {
            Fork::Ethereum(fork) => fork.to_string(),
            Fork::OpStack(fork) => format!("{fork:?}"),
        };
    } {
        currentBlockNumber: Quantity<u64> = head.number(),
        currentBlockTimestamp: u64 = head.header.timestamp,
        currentBlockHash: Fixed<32> = head.hash(),
        /// The fork that is active.
        hardFork: String = fork,
        /// The order of transactions in a block.
        #[schemars(extend("const" = "fees"))]
        transactionOrder: String = "fees",
        environment: Environment = (&*runner.backend, published),
        forkConfig: ForkConfig = runner,
    }

    /// The settings of the next block.
    Environment: (&Backend, &Chain) => |(backend, published)| let {
        let next = published.newest.header();
        let base_fee = next.base_fee_per_gas.unwrap_or_default();
    } {
        baseFee: Quantity<u64> = base_fee,
        chainId: u64 = backend.spec.chain_id(),
        gasLimit: Quantity<u64> = next.gas_limit,
        gasPrice: Quantity<u128> = u128::from(base_fee).saturating_add(backend.wallet.fees.tip(published)),
    }

    /// The chain on which a fork builds. Null elsewhere.
    ForkConfig: &RequestRunner => |runner| let {
        let number = runner.published().forked_at();
        let upstream = runner.remote.as_ref().and_then(|remote| remote.fetcher.upstream());
        let url = upstream.filter(|_| number.is_some()).map(|upstream| upstream.shown_url());
    } {
        /// The URL of its node, without parts that may be secret.
        forkUrl: Option<String> = Some(OrNull(url)),
        forkBlockNumber: Option<u64> = Some(OrNull(number)),
        forkRetryBackoff: () = (),
    }

    /// The software, the newest block, and the states that are saved.
    pub ChainMetadata: (&Backend, &Chain, B256, Vec<(u64, BlockNumHash)>) => |(backend, published, instance, saved)| let {
        let (head, chain_id) = (published.head(), backend.spec.chain_id());
        let forked = published.forked_at().and_then(|number| Some((chain_id, published.sealed_block(number)?.id())));
        let saved = saved.into_iter().map(|(id, head)| (format!("{id:#x}"), (head.number, head.hash)));
    } {
        clientVersion: String = backend.client_version,
        chainId: u64 = chain_id,
        /// A random name, which changes with a reset.
        instanceId: Fixed<32> = instance,
        latestBlockNumber: u64 = head.number(),
        latestBlockHash: Fixed<32> = head.hash(),
        /// The block on which a fork builds. Null elsewhere.
        forkedNetwork: Option<ForkedNetwork> = Some(OrNull(forked)),
        /// Number and hash of the head of each state, by the ids of the states.
        snapshots: BTreeMap<String, (u64, Fixed<32>)> = Json(saved.collect::<BTreeMap<_, _>>()),
    }

    /// The block on which a fork builds.
    ForkedNetwork: (u64, BlockNumHash) => |(chain_id, block)| {
        chainId: u64 = chain_id,
        forkBlockNumber: u64 = block.number,
        forkBlockHash: Fixed<32> = block.hash,
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
        Ok(request.answer::<NodeDescription, _>((&**runner, &*request.published)))
    }
}

/// With --testing: the software, the newest block, and the states that are saved.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "no parameters")]
pub struct Metadata {}

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
        let published = runner.published();
        Ok(request.answer::<ChainMetadata, _>((&*runner.backend, &*published, instance, saved)))
    }
}
