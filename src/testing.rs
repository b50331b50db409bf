//! Items that the tests and benches of the project use in addition to [`Node`](crate::Node) and [`Config`](crate::Config). Not an interface for others: it
//! changes with the code behind it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    meter::Meter,
    rpc::{ExecutedBy, Handler, Run, dialect::PRESIM, table},
    store::Commit,
};

pub mod chain {
    pub use crate::chain::{
        Attributes, BASE_FEE_VAULT, BASE_TIME, BlockBody, BlockGas, BlockHashes, BlockKeeper, BlockTotals,
        ChainReceipt, ChainSpec, ChainTx, DEPLOYMENT_PROXY, DEPLOYMENT_PROXY_CODE, Family, Fork, ForkName, ForkTime,
        GasRefunds, InvalidPostExec, L1_BLOCK, L1_FEE_VAULT, OPERATOR_FEE_VAULT, OpFork, OpTx, SealedBlock,
        TradingWorld, genesis_block, ordered_roots, receipts_root_and_bloom, set_forks, transactions_root,
    };
}
pub mod command {
    pub use crate::command::Command;
    pub mod wallet {
        pub use crate::command::wallet::{ClientError, WalletTask, run};
    }
}
pub mod config {
    pub use crate::config::{ApprovalPolicy, RevertPolicy, UpgradePolicy};
}
pub mod engine {
    pub use crate::engine::{
        AccountDiff, AccountOverride, BaseFeeRule, Beginnings, BlockContext, BlockEnd, BlockOverrides, BlockRun, Call,
        CallFees, CallOutcome, CallRequest, CallResult, ChainExecutor, ContextChange, DifferentParts, Engine,
        FamilyEvm, OpStack, Outputs, RunEvm, RunPrecompiles, ShadowedTx, SimBlock, SimCall, Simulation,
        SimulationError, SimulationRules, StorageOverride, TokenInfo, execute_block, load_kzg_settings, open_block,
        open_block_with, seal, shadow_block, withdrawals_root,
    };
}
pub mod ledger {
    pub use crate::ledger::{
        Block, Chain, FeedLag, FeedProblem, FeedState, Included, OpenBlock, Record, Retention, Selector, Snapshot,
        SnapshotId, Snapshots, frames, join,
    };
}
pub mod meter {
    pub use crate::meter::{Meter, Stopped};
}
pub mod node {
    pub use crate::node::VitalsError;
}
pub mod pool {
    pub use crate::pool::{Pool, Settings};
}
pub mod rpc {
    pub use crate::rpc::{
        Access, AnswerFacts, AnswerRoom, Caller, Client, Dispatcher, ForwardedMethods, IoMemory, PastStates, Request,
        RequestRunner, RpcError, ShapeLimits, SimulationView, Subscriptions, Testing, UpstreamGateway, Waiters,
        Watches, parse_presim_simulation, parse_simulation, write_simulation,
    };
    pub mod dialect {
        pub use crate::rpc::dialect::PRESIM;
    }
    pub mod table {
        pub use crate::rpc::table::by_name;
    }
}
pub mod scheduler {
    pub use crate::scheduler::{ClientShare, Executor, ExecutorConfig, LaneName, RunTarget, Task};
}
pub mod source {
    pub use crate::source::{Feed, FeedSource};
    pub mod chain_file {
        pub use crate::source::chain_file::import_bytes;
    }
    pub mod devnet {
        pub mod world {
            pub use crate::source::devnet::world::{
                TradingPair, add_contracts_of_forks, build, dev_genesis, dev_signers, traffic_signers,
            };
        }
    }
    pub mod live {
        pub use crate::source::live::{FlashblockSource, LiveLimits, LiveSource, canonical_snapshot};
        pub mod flashblocks {
            pub use crate::source::live::flashblocks::{Event, Events, FlashblockSequence, Settings, open};
        }
    }
    pub mod sub_block {
        pub use crate::source::sub_block::extend;
    }
    pub mod testing {
        pub mod state_file {
            pub use crate::source::testing::state_file::StateFile;
        }
    }
}
pub mod state {
    pub use crate::state::{
        Account, AccountChange, AccountReads, BlockReads, Code, CodeCache, Fetched, LocalWorld, Overlay, ReadSet,
        RemoteSettings, RemoteState, RemoteView, Touched, World, listed_changes,
    };
}
pub mod store {
    pub use crate::store::{DataDir, FORMAT, Store, StoredImage, UPSTREAM_FILE, read_image};
}
pub mod telemetry {
    pub use crate::telemetry::{Metrics, PUBLISH_SECONDS};
}
pub mod upstream {
    pub use crate::upstream::{
        AnnouncedReceipts, Fetcher, FetcherConfig, Heads, Upstream, UpstreamBlock, UpstreamConfig, UpstreamState,
        http_client, recover,
    };
    pub mod link {
        pub use crate::upstream::link::{LinkError, LinkSettings};
    }
}
pub mod wallet {
    pub use crate::wallet::{BatchExecutor, ReadCall, SOCKET, TypedMessage, WordReader, ether};
    pub mod keys {
        pub use crate::wallet::keys::load;
    }
}
pub mod watch {
    pub use crate::watch::{StaleReason, StandingBundles, StandingRun, StateHistory, WatchLimits};
}

/// Answers a request as a worker of the node does, on the caller's thread: parses the parameters, runs, and encodes. The result is in `out`.
///
/// # Errors
///
/// Returns the error that answers the request instead, and -32601 if the method is not a single run.
pub fn answer(
    node: &crate::Node,
    method: &str,
    params: &str,
    overlay: &mut state::Overlay,
    out: &mut Vec<u8>,
) -> Result<(), rpc::RpcError> {
    let Some(Handler::Run(run_handler)) = table::by_name(method).map(|route| route.handler) else {
        return Err(table::unknown(method));
    };
    out.clear();
    let mut run = Run {
        params,
        published: &node.snapshots().load(),
        dialect: &PRESIM,
        client: None,
        may_use_wallet: false,
        page: None,
        overlay,
        meter: Meter::until(Instant::now() + Duration::from_secs(60), Arc::default(), None),
        out: std::mem::take(out),
        by: ExecutedBy::Node,
        commit: Commit::done(),
    };
    let done = run_handler(&node.runner().backend, &mut run);
    *out = run.out;
    done.map(drop)
}
