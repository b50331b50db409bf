//! Items that the tests and benches of the project use. Not an interface for others: it changes with the code behind it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    meter::Meter,
    rpc::{Attempt, ExecutedBy, Handler, dialect::PRESIM, table},
    store::Commit,
};

pub use crate::{config::Config, node::Node};

pub mod chain {
    pub use crate::chain::{
        Attributes, BlockBody, BlockHashes, BlockKeeper, ChainReceipt, ChainSpec, ChainTx, ForkTime, GasRefunds,
        InvalidPostExec, SealedBlock, genesis_block, ordered_roots, receipts_root_and_bloom, set_forks,
    };
}
pub mod command {
    pub use crate::command::Command;
}
pub mod engine {
    pub use crate::engine::{
        Beginnings, BlockEnd, ChainExecutor, FamilyEvm, OpStack, Outputs, RunEvm, RunPrecompiles, Simulation,
        execute_block, open_block, open_block_with, seal, shadow_block,
    };
}
pub mod ledger {
    pub use crate::ledger::{
        Block, Chain, FeedLag, FeedProblem, FeedState, Record, Selector, Snapshot, SnapshotId, Snapshots, frames, join,
    };
}
pub mod meter {
    pub use crate::meter::Meter;
}
pub mod rpc {
    pub use crate::rpc::{RpcError, parse_simulation};
    pub mod dialect {
        pub use crate::rpc::dialect::PRESIM;
    }
}
pub mod scheduler {
    pub use crate::scheduler::{ClientShare, LaneName, RunTarget, Task};
}
pub mod source {
    pub mod chain_file {
        pub use crate::source::chain_file::import_bytes;
    }
    pub mod devnet {
        pub mod world {
            pub use crate::source::devnet::world::{
                add_contracts_of_forks, build, dev_genesis, dev_signers, traffic_signers,
            };
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
        Account, AccountChange, Code, CodeCache, LocalWorld, Overlay, RemoteSettings, RemoteState, World,
        listed_changes,
    };
}
pub mod store {
    pub use crate::store::Store;
}
pub mod telemetry {
    pub use crate::telemetry::{Metrics, PUBLISH_SECONDS};
}
pub mod upstream {
    pub use crate::upstream::recover;
}
pub mod wallet {
    pub use crate::wallet::{BatchExecutor, ether};
}

/// Answers a request as a worker of the node does, on the caller's thread: parses the parameters, runs, and encodes. The result is in `out`.
///
/// # Errors
///
/// Returns the error that answers the request instead, and -32601 if the method is not a single run.
pub fn answer(
    node: &Node,
    method: &str,
    params: &str,
    overlay: &mut state::Overlay,
    out: &mut Vec<u8>,
) -> Result<(), rpc::RpcError> {
    let Some(Handler::Run(run_handler)) = table::by_name(method).map(|route| route.handler) else {
        return Err(table::unknown(method));
    };
    out.clear();
    let mut run = Attempt {
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

/// Returns the channel on which an embedded node tells of what it publishes.
pub fn changes(node: &crate::Node) -> tokio::sync::watch::Receiver<ledger::SnapshotId> {
    node.snapshots().changes()
}
