//! The methods: their table and their handlers. `src/rpc/README.md` has the steps to add one.

mod access_list;
mod backend;
mod block;
mod bundle;
mod call;
mod estimate;
mod fee;
mod filter;
mod log;
mod many;
mod mev;
mod node;
mod raw;
mod send;
mod signature;
mod state;
mod testing;
mod trace;
mod txpool;
mod waiting;
mod wallet;

pub use backend::{Backend, RequestLimits, Run, SyncTimeouts};
pub use send::Awaited;
pub use signature::AdmittedSignature;
pub use testing::BuiltBlock;
pub use waiting::WaitingPart;
pub use wallet::Admitted;

use std::{fmt, sync::LazyLock};

use alloy_primitives::map::HashMap;

use super::{
    dialect::Dialect,
    error::RpcError,
    wire::{self, HashParam, SelectorParam},
};
use crate::{
    executor::{LaneName, RunPlace},
    source::testing::ChainChange,
    wallet::SignatureRequest,
};

/// A row of the table of methods.
#[derive(Clone, Copy, Debug)]
pub struct MethodRoute {
    /// The method's name on the wire.
    pub name: &'static str,
    /// The row's index in [`MethodRoute::ALL`].
    pub index: usize,
    /// The place where the method runs.
    pub place: RunPlace,
    /// The handler that answers the method.
    pub handler: Handler,
    /// The upstream's part in answering, if the state is an upstream's.
    pub upstream: UpstreamUse,
    /// Whether the method commits something, so that its response must not be lost.
    pub commits: bool,
    /// Whether the method exists only with `--testing`.
    pub testing: bool,
    /// The part of the answer that waits until `latest` has its block, where the dialect says so.
    pub waits: WaitingPart,
    /// The part of the fleet's leader, or of the node that has its wallet, in answering.
    pub leader: LeaderUse,
}

/// The handler of a method.
#[derive(Clone, Copy)]
pub enum Handler {
    /// One run, from the parameters to the JSON of the result.
    Run(fn(&Backend, &mut Run<'_>) -> Result<(), RpcError>),
    /// The node, about its load.
    Status,
    /// The connection, which is notified from now on.
    Subscribe,
    /// The connection, which is no longer notified.
    Unsubscribe,
    /// Runs of many variants of a bundle.
    Search,
    /// The standing bundles.
    Watch(WatchMethod),
    /// A run that sends a transaction, then a wait for the snapshot that has its receipt.
    SendAndWait,
    /// The chain's source, which makes the parsed change. The text is the result of a change that has no other.
    Change(fn(&str, &Dialect) -> Result<ChainChange, RpcError>, &'static str),
    /// A run that admits a batch and sends it. If the policy requires approval, a second run sends it after approval.
    SendCalls,
    /// The same for a transaction, which needs approval only if it is from an account of the wallet.
    SendTransaction,
    /// A run that signs the parsed message. If the policy requires approval, a second run signs it after approval.
    SignMessage(fn(&str, &Dialect) -> Result<SignatureRequest, RpcError>),
}

/// A method of the standing bundles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchMethod {
    /// Bundles begin to stand.
    Begin,
    /// A connection takes standing bundles over.
    Again,
    /// A client polls for what changed.
    Results,
    /// Bundles no longer stand.
    End,
}

/// The upstream's part in answering a request, if the state is an upstream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamUse {
    /// The node answers the request itself.
    Unasked,
    /// The node answers, or forwards the request if it does not know the block or the transaction.
    IfUnknown,
    /// The request is forwarded, because a proof requires the whole state.
    Proves,
    /// The transaction is forwarded.
    Sends,
}

/// The part of another node of the fleet in answering a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaderUse {
    /// The leader answers what an upstream would be asked, if the replica does not know it.
    IfUnknown,
    /// The leader answers at `pending`, because the answer depends on its pool.
    AtPending,
    /// The leader answers, because it has the pool, the bundles, the accounts, and the word of the chain's source.
    Always,
    /// The node that has the wallet of the fleet answers, because that has the ids of the batches and the keys.
    Wallet,
}

use LaneName::{Bundle, Read, Short};
use RunPlace::{Inline, InlineThen, On};

/// Builds a row whose handler is one run. A `limited` parser also takes the limits on the shape of a request.
macro_rules! run {
    ($name:literal, $place:expr, limited $parse:path, $handler:path) => {
        MethodRoute::new(
            $name,
            $place,
            Handler::Run(|backend, run| {
                let params = $parse(run.params, run.dialect, &backend.limits.shape)?;
                $handler(backend, run, params)
            }),
        )
    };
    ($name:literal, $place:expr, $parse:path, $handler:path) => {
        MethodRoute::new(
            $name,
            $place,
            Handler::Run(|backend, run| {
                let params = $parse(run.params, run.dialect)?;
                $handler(backend, run, params)
            }),
        )
    };
}

impl MethodRoute {
    /// All methods.
    pub const ALL: &[Self] = &numbered([
        // Calls and bundles. A small simulation ends sooner than it could be handed over to a worker.
        run!("eth_call", InlineThen(Short), wire::parse_call, Backend::call),
        run!("eth_simulateV1", InlineThen(Bundle), limited wire::parse_simulation, Backend::simulate),
        run!("presim_simulate", InlineThen(Bundle), limited wire::parse_presim_simulation, Backend::simulate),
        Self::new("presim_search", On(Bundle), Handler::Search),
        // Bundles that stand.
        Self::new("presim_watch", On(Bundle), Handler::Watch(WatchMethod::Begin)),
        Self::new("presim_rewatch", Inline, Handler::Watch(WatchMethod::Again)),
        Self::new("presim_results", Inline, Handler::Watch(WatchMethod::Results)),
        Self::new("presim_unwatch", Inline, Handler::Watch(WatchMethod::End)),
        // These run calls many times. Waiting short calls may run between two of them.
        run!("eth_estimateGas", On(Bundle), wire::parse_estimate, Backend::estimate_gas),
        run!("eth_createAccessList", On(Bundle), wire::parse_access_list, Backend::create_access_list),
        run!("eth_callBundle", On(Bundle), limited wire::parse_bundle, Backend::call_bundle),
        run!("mev_simBundle", On(Bundle), limited wire::parse_sim_bundle, Backend::sim_bundle),
        run!("eth_callMany", On(Bundle), limited wire::parse_call_many, Backend::call_many),
        run!("debug_traceCall", On(Bundle), wire::parse_trace_call, Backend::trace_call),
        run!("debug_traceCallMany", On(Bundle), limited wire::parse_trace_many, Backend::trace_call_many),
        // Blocks of the past, run again.
        run!("debug_traceBlockByNumber", On(Bundle), wire::parse_trace_block::<SelectorParam>, Backend::trace_block),
        run!("debug_traceBlockByHash", On(Bundle), wire::parse_trace_block::<HashParam>, Backend::trace_block),
        run!("debug_traceTransaction", On(Bundle), wire::parse_trace_transaction, Backend::trace_transaction),
        run!("debug_storageRangeAt", On(Bundle), wire::parse_storage_range, Backend::storage_range),
        // Parity's traces.
        run!("trace_call", On(Bundle), wire::parse_parity_call, Backend::trace_call),
        run!("trace_callMany", On(Bundle), limited wire::parse_parity_call_many, Backend::parity_call_many),
        run!("trace_block", On(Bundle), wire::parse_one_block::<SelectorParam>, Backend::parity_block),
        run!("trace_transaction", On(Bundle), wire::parse_hash, Backend::parity_transaction),
        run!("trace_get", On(Bundle), wire::parse_trace_get, Backend::parity_get),
        run!("trace_filter", On(Bundle), wire::parse_trace_filter, Backend::parity_filter),
        run!("trace_replayBlockTransactions", On(Bundle), wire::parse_replay_block, Backend::replay_block),
        run!("trace_replayTransaction", On(Bundle), wire::parse_replay_transaction, Backend::replay_transaction),
        // State.
        run!("eth_getBalance", Inline, wire::parse_account, Backend::get_balance),
        run!("eth_getStorageAt", Inline, wire::parse_slot, Backend::get_storage_at),
        run!("eth_getStorageValues", Inline, wire::parse_slots, Backend::get_storage_values),
        run!("eth_getTransactionCount", Inline, wire::parse_account, Backend::get_transaction_count)
            .pending_by_leader(),
        run!("eth_getCode", Inline, wire::parse_code, Backend::get_code),
        // A proof hashes the parts of the trie that are not hashed yet.
        run!("eth_getProof", On(Read), wire::parse_proof, Backend::get_proof).upstream(UpstreamUse::Proves),
        // Blocks and their contents. Responses are long, and the first request for the block being built hashes it.
        run!("eth_blockNumber", Inline, wire::parse_none, Backend::block_number),
        run!("eth_getBlockByNumber", On(Read), wire::parse_block::<SelectorParam>, Backend::get_block).history(),
        run!("eth_getBlockByHash", On(Read), wire::parse_block::<HashParam>, Backend::get_block).history(),
        run!(
            "eth_getBlockTransactionCountByNumber",
            On(Read),
            wire::parse_one_block::<SelectorParam>,
            Backend::get_transaction_count_of_block
        )
        .history(),
        run!(
            "eth_getBlockTransactionCountByHash",
            On(Read),
            wire::parse_one_block::<HashParam>,
            Backend::get_transaction_count_of_block
        )
        .history(),
        run!(
            "eth_getUncleCountByBlockNumber",
            On(Read),
            wire::parse_one_block::<SelectorParam>,
            Backend::get_uncle_count
        )
        .history(),
        run!("eth_getUncleCountByBlockHash", On(Read), wire::parse_one_block::<HashParam>, Backend::get_uncle_count)
            .history(),
        run!("eth_getBlockReceipts", On(Read), wire::parse_one_block::<SelectorParam>, Backend::get_block_receipts)
            .history()
            .waits(WaitingPart::BlockReceipts),
        run!("eth_getTransactionByHash", On(Read), wire::parse_hash, Backend::get_transaction)
            .history()
            .waits(WaitingPart::Place),
        run!(
            "eth_getTransactionByBlockNumberAndIndex",
            On(Read),
            wire::parse_place::<SelectorParam>,
            Backend::get_transaction_at
        )
        .history(),
        run!(
            "eth_getTransactionByBlockHashAndIndex",
            On(Read),
            wire::parse_place::<HashParam>,
            Backend::get_transaction_at
        )
        .history(),
        run!("eth_getTransactionReceipt", On(Read), wire::parse_hash, Backend::get_transaction_receipt)
            .history()
            .waits(WaitingPart::Receipt),
        run!("eth_getLogs", On(Read), wire::parse_logs, Backend::get_logs).history(),
        run!("eth_getHeaderByNumber", On(Read), wire::parse_one_block::<SelectorParam>, Backend::get_header).history(),
        run!("eth_getHeaderByHash", On(Read), wire::parse_one_block::<HashParam>, Backend::get_header).history(),
        // The same in raw bytes.
        run!("debug_getRawHeader", On(Read), wire::parse_one_block::<SelectorParam>, Backend::get_raw_header).history(),
        run!("debug_getRawBlock", On(Read), wire::parse_one_block::<SelectorParam>, Backend::get_raw_block).history(),
        run!("debug_getRawReceipts", On(Read), wire::parse_one_block::<SelectorParam>, Backend::get_raw_receipts)
            .history(),
        run!("debug_getRawTransaction", On(Read), wire::parse_hash, Backend::get_raw_transaction).history(),
        run!(
            "eth_getBlockAccessList",
            On(Read),
            wire::parse_one_block::<SelectorParam>,
            Backend::get_block_access_list
        )
        .history(),
        run!(
            "debug_getRawBlockAccessList",
            On(Read),
            wire::parse_one_block::<SelectorParam>,
            Backend::get_raw_block_access_list
        )
        .history(),
        run!("eth_getRawTransactionByHash", On(Read), wire::parse_hash, Backend::get_raw_transaction).history(),
        run!(
            "eth_getRawTransactionByBlockNumberAndIndex",
            On(Read),
            wire::parse_place::<SelectorParam>,
            Backend::get_raw_transaction_at
        )
        .history(),
        run!(
            "eth_getRawTransactionByBlockHashAndIndex",
            On(Read),
            wire::parse_place::<HashParam>,
            Backend::get_raw_transaction_at
        )
        .history(),
        // Fees.
        run!("eth_gasPrice", On(Read), wire::parse_none, Backend::gas_price),
        run!("eth_maxPriorityFeePerGas", On(Read), wire::parse_none, Backend::max_priority_fee),
        run!("eth_baseFee", Inline, wire::parse_none, Backend::base_fee),
        run!("eth_blobBaseFee", Inline, wire::parse_none, Backend::blob_base_fee),
        run!("eth_feeHistory", On(Read), wire::parse_fee_history, Backend::fee_history).history(),
        // Filters, for clients that cannot subscribe.
        run!("eth_newFilter", Inline, wire::parse_logs, Backend::new_filter),
        run!("eth_newBlockFilter", Inline, wire::parse_none, Backend::new_block_filter),
        run!("eth_newPendingTransactionFilter", Inline, wire::parse_none, Backend::new_pending_filter),
        run!("eth_getFilterChanges", On(Read), wire::parse_id, Backend::get_filter_changes),
        run!("eth_getFilterLogs", On(Read), wire::parse_id, Backend::get_filter_logs),
        run!("eth_uninstallFilter", Inline, wire::parse_id, Backend::uninstall_filter),
        // Subscriptions.
        Self::new("eth_subscribe", Inline, Handler::Subscribe),
        Self::new("eth_unsubscribe", Inline, Handler::Unsubscribe),
        // Sending. Computing signatures and blob proofs takes long.
        run!("eth_sendRawTransaction", On(Read), wire::parse_raw, Backend::send_raw)
            .upstream(UpstreamUse::Sends)
            .commits(),
        Self::new("eth_sendRawTransactionSync", On(Read), Handler::SendAndWait).upstream(UpstreamUse::Sends).commits(),
        Self::new("eth_sendTransaction", On(Read), Handler::SendTransaction).commits().by_leader(),
        run!("eth_sendBundle", On(Read), wire::parse_sent_bundle, Backend::send_bundle).commits().by_leader(),
        run!("eth_cancelBundle", Inline, wire::parse_cancelled_bundle, Backend::cancel_bundle).commits().by_leader(),
        run!("eth_accounts", Inline, wire::parse_none, Backend::accounts).by_leader(),
        // The pool.
        run!("txpool_status", On(Read), wire::parse_none, Backend::pool_status).by_leader(),
        run!("txpool_content", On(Read), wire::parse_none, Backend::pool_content).by_leader(),
        run!("txpool_contentFrom", On(Read), wire::parse_address, Backend::pool_content_from).by_leader(),
        run!("txpool_inspect", On(Read), wire::parse_none, Backend::pool_inspect).by_leader(),
        // The wallet. A batch is simulated, and may have many calls.
        Self::new("wallet_sendCalls", On(Bundle), Handler::SendCalls).commits().by_wallet(),
        run!("wallet_getCallsStatus", On(Read), wire::parse_batch_id, Backend::get_calls_status).by_wallet(),
        run!("wallet_showCallsStatus", On(Read), wire::parse_batch_id, Backend::show_calls_status).by_wallet(),
        run!("wallet_getCapabilities", On(Read), wire::parse_capabilities, Backend::get_capabilities).by_wallet(),
        run!("presim_approvals", On(Read), wire::parse_none, Backend::waiting_approvals).by_wallet(),
        // The wallet as pages know it from browsers.
        run!("eth_requestAccounts", Inline, wire::parse_none, Backend::request_accounts).by_wallet(),
        run!("wallet_getPermissions", Inline, wire::parse_none, Backend::get_permissions).by_wallet(),
        run!("wallet_requestPermissions", Inline, wire::parse_permissions, Backend::request_permissions).by_wallet(),
        run!("wallet_switchEthereumChain", Inline, wire::parse_switch, Backend::switch_chain),
        Self::new("personal_sign", On(Read), Handler::SignMessage(wire::parse_personal)).by_wallet(),
        Self::new("eth_signTypedData_v4", On(Read), Handler::SignMessage(wire::parse_typed_data)).by_wallet(),
        // The node and its chain.
        run!("eth_chainId", Inline, wire::parse_none, Backend::chain_id),
        run!("net_version", Inline, wire::parse_none, Backend::net_version),
        run!("net_listening", Inline, wire::parse_none, Backend::net_listening),
        run!("net_peerCount", Inline, wire::parse_none, Backend::net_peer_count),
        run!("eth_syncing", Inline, wire::parse_none, Backend::syncing),
        run!("eth_config", Inline, wire::parse_none, Backend::fork_config),
        run!("eth_capabilities", Inline, wire::parse_none, Backend::capabilities),
        run!("web3_clientVersion", Inline, wire::parse_none, Backend::client_version),
        run!("web3_sha3", On(Read), wire::parse_bytes, Backend::sha3),
        run!("presim_snapshot", Inline, wire::parse_none, Backend::snapshot),
        run!("presim_divergences", Inline, wire::parse_none, Backend::divergences).by_leader(),
        Self::new("presim_status", Inline, Handler::Status),
        run!("rpc.discover", Inline, wire::parse_none, Backend::discover),
        // Testing, under the names that anvil, hardhat and ganache have given.
        run!("testing_buildBlockV1", On(Bundle), limited wire::parse_build_block, Backend::build_block).testing(),
        run!("anvil_impersonateAccount", Inline, wire::parse_address, Backend::impersonate).testing(),
        run!("hardhat_impersonateAccount", Inline, wire::parse_address, Backend::impersonate).testing(),
        run!("anvil_stopImpersonatingAccount", Inline, wire::parse_address, Backend::stop_impersonating).testing(),
        run!("hardhat_stopImpersonatingAccount", Inline, wire::parse_address, Backend::stop_impersonating).testing(),
        Self::change("anvil_mine", wire::parse_mine, "null"),
        Self::change("hardhat_mine", wire::parse_mine, "true"),
        Self::change("evm_mine", wire::parse_evm_mine, "\"0x0\""),
        Self::change("anvil_setBalance", wire::parse_balance, "null"),
        Self::change("hardhat_setBalance", wire::parse_balance, "true"),
        Self::change("anvil_setCode", wire::parse_set_code, "null"),
        Self::change("hardhat_setCode", wire::parse_set_code, "true"),
        Self::change("anvil_setStorageAt", wire::parse_set_storage, "true"),
        Self::change("hardhat_setStorageAt", wire::parse_set_storage, "true"),
        Self::change("anvil_setNonce", wire::parse_nonce, "null"),
        Self::change("hardhat_setNonce", wire::parse_nonce, "true"),
        Self::change("evm_setAccountNonce", wire::parse_nonce, "true"),
        Self::change("anvil_snapshot", wire::parse_save, "null"),
        Self::change("evm_snapshot", wire::parse_save, "null"),
        Self::change("anvil_revert", wire::parse_return, "null"),
        Self::change("evm_revert", wire::parse_return, "null"),
        Self::change("anvil_increaseTime", wire::parse_seconds, "null"),
        Self::change("evm_increaseTime", wire::parse_seconds, "null"),
        Self::change("anvil_setNextBlockTimestamp", wire::parse_timestamp, "null"),
        Self::change("evm_setNextBlockTimestamp", wire::parse_timestamp, "null"),
    ]);

    /// Returns the method called `name`.
    pub fn by_name(name: &str) -> Option<&'static Self> {
        static BY_NAME: LazyLock<HashMap<&str, &MethodRoute>> =
            LazyLock::new(|| MethodRoute::ALL.iter().map(|method| (method.name, method)).collect());
        BY_NAME.get(name).copied()
    }

    const fn new(name: &'static str, place: RunPlace, handler: Handler) -> Self {
        Self {
            name,
            index: 0,
            place,
            handler,
            upstream: UpstreamUse::Unasked,
            commits: false,
            testing: false,
            waits: WaitingPart::Nothing,
            leader: LeaderUse::IfUnknown,
        }
    }

    /// Builds the row of a method that changes the chain, whose result is `done` if the change has no other.
    const fn change(
        name: &'static str,
        parse: fn(&str, &Dialect) -> Result<ChainChange, RpcError>,
        done: &'static str,
    ) -> Self {
        Self::new(name, Inline, Handler::Change(parse, done)).commits().testing()
    }

    const fn upstream(self, upstream: UpstreamUse) -> Self {
        Self { upstream, ..self }
    }

    /// Marks a method that reads blocks or their contents, which an upstream may know if the node does not.
    const fn history(self) -> Self {
        self.upstream(UpstreamUse::IfUnknown)
    }

    const fn waits(self, waits: WaitingPart) -> Self {
        Self { waits, ..self }
    }

    const fn by_leader(self) -> Self {
        Self { leader: LeaderUse::Always, ..self }
    }

    const fn by_wallet(self) -> Self {
        Self { leader: LeaderUse::Wallet, ..self }
    }

    /// Marks a method that counts what waits in the pool, at `pending`.
    const fn pending_by_leader(self) -> Self {
        Self { leader: LeaderUse::AtPending, ..self }
    }

    const fn testing(self) -> Self {
        Self { testing: true, ..self }
    }

    const fn commits(self) -> Self {
        Self { commits: true, ..self }
    }
}

/// Sets the index of each row.
const fn numbered<const N: usize>(mut rows: [MethodRoute; N]) -> [MethodRoute; N] {
    let mut index = 0;
    while index < N {
        rows[index].index = index;
        index += 1;
    }
    rows
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Run(_) => "Run",
            Self::Status => "Status",
            Self::Subscribe => "Subscribe",
            Self::Unsubscribe => "Unsubscribe",
            Self::Search => "Search",
            Self::Watch(_) => "Watch",
            Self::SendAndWait => "SendAndWait",
            Self::Change(..) => "Change",
            Self::SendCalls => "SendCalls",
            Self::SendTransaction => "SendTransaction",
            Self::SignMessage(_) => "SignMessage",
        })
    }
}
