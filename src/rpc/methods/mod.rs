//! The methods: their table and their handlers. `src/rpc/README.md` has the steps to add one.

mod backend;
mod bundle;
mod filter;
mod log;
mod many;
mod mev;
mod node;
mod send;
mod signature;
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

use std::sync::LazyLock;

use alloy_primitives::map::HashMap;

use super::{
    api::{
        Method, block, call,
        document::{Describe, describe, document},
        fee, simulate, state,
    },
    dialect::Dialect,
    encode::{self, Lookup},
    error::{Result, RpcError},
    wire::{self, HashParam, SelectorParam},
};
use crate::{
    nearest::nearest,
    scheduler::{LaneName, RunPlace},
    shown::cut,
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
    /// The method's part of the document; `None` while that is written by hand.
    pub describe: Option<Describe>,
}

/// A handler that is one run, from the parameters to the JSON of the result.
pub type RunHandler = fn(&Backend, &mut Run<'_>) -> Result<Lookup>;

/// The handler of a method.
#[derive(Clone, Copy, Debug)]
pub enum Handler {
    /// One run.
    Run(RunHandler),
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
    Change(fn(&str, &Dialect) -> Result<ChainChange>, &'static str),
    /// A run that admits a batch and sends it. If the policy requires approval, a second run sends it after approval.
    SendCalls,
    /// The same for a transaction, which needs approval only if it is from an account of the wallet.
    SendTransaction,
    /// A run that signs the parsed message. If the policy requires approval, a second run signs it after approval.
    SignMessage(fn(&str, &Dialect) -> Result<SignatureRequest>),
}

/// A method of the standing bundles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchMethod {
    /// Bundles begin to stand.
    Begin,
    /// A connection takes standing bundles over.
    Rewatch,
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
#[derive(Clone, Copy, Debug)]
pub enum LeaderUse {
    /// The leader answers what an upstream would be asked, if the replica does not know it.
    IfUnknown,
    /// The leader answers these parameters, because the answer depends on its pool.
    If(fn(&str, &Dialect) -> bool),
    /// The leader answers, because it has the pool, the bundles, the accounts, and the word of the chain's source.
    Always,
    /// The node that has the wallet of the fleet answers, because that has the ids of the batches and the keys.
    Wallet,
}

/// The name and the version of the program, as clients are told them.
pub const CLIENT_VERSION: &str = concat!("presim/v", env!("CARGO_PKG_VERSION"));

use LaneName::{Bundle, Read, Short};
use RunPlace::{Inline, InlineThen, On};

/// Builds a row whose handler is one run: a method of [`Backend`], and the function of [`wire`] that parses its
/// parameters. A `limited` parser also takes the limits on the shape of a request. A result without parameters may be
/// written in the row.
macro_rules! run {
    ($name:literal, $place:expr, limited $parse:ident, $handler:ident) => {
        MethodRoute::new(
            $name,
            $place,
            Handler::Run(|backend, run| {
                let params = wire::$parse(run.params, run.dialect, &backend.limits.shape)?;
                backend.$handler(run, params).map(Lookup::from)
            }),
        )
    };
    ($name:literal, $place:expr, |$backend:pat_param, $run:ident| $write:expr) => {
        MethodRoute::new(
            $name,
            $place,
            Handler::Run(|$backend, $run| {
                wire::parse_none($run.params, $run.dialect)?;
                $write;
                Ok(Lookup::Found)
            }),
        )
    };
    ($name:literal, $place:expr, $parse:ident $(::<$block:ty>)?, $handler:ident) => {
        MethodRoute::new(
            $name,
            $place,
            Handler::Run(|backend, run| {
                let params = wire::$parse $(::<$block>)?(run.params, run.dialect)?;
                backend.$handler(run, params).map(Lookup::from)
            }),
        )
    };
}

impl MethodRoute {
    /// All methods.
    pub const ALL: &[Self] = &numbered([
        // Calls and bundles. A small simulation ends sooner than it could be handed over to a worker.
        Self::run::<call::EthCall>("eth_call", InlineThen(Short)),
        Self::run::<simulate::SimulateV1>("eth_simulateV1", InlineThen(Bundle)),
        Self::run::<simulate::Simulate>("presim_simulate", InlineThen(Bundle)),
        Self::new("presim_search", On(Bundle), Handler::Search),
        // Bundles that stand.
        Self::new("presim_watch", On(Bundle), Handler::Watch(WatchMethod::Begin)),
        Self::new("presim_rewatch", Inline, Handler::Watch(WatchMethod::Rewatch)),
        Self::new("presim_results", Inline, Handler::Watch(WatchMethod::Results)),
        Self::new("presim_unwatch", Inline, Handler::Watch(WatchMethod::End)),
        // These run calls many times. Waiting short calls may run between two of them.
        Self::run::<call::EstimateGas>("eth_estimateGas", On(Bundle)),
        Self::run::<call::CreateAccessList>("eth_createAccessList", On(Bundle)),
        run!("eth_callBundle", On(Bundle), limited parse_bundle, call_bundle),
        run!("mev_simBundle", On(Bundle), limited parse_sim_bundle, sim_bundle),
        run!("eth_callMany", On(Bundle), limited parse_call_many, call_many),
        run!("debug_traceCall", On(Bundle), parse_trace_call, trace_call),
        run!("debug_traceCallMany", On(Bundle), limited parse_trace_many, trace_call_many),
        // Blocks of the past, run again.
        run!("debug_traceBlockByNumber", On(Bundle), parse_trace_block::<SelectorParam>, trace_block),
        run!("debug_traceBlockByHash", On(Bundle), parse_trace_block::<HashParam>, trace_block),
        run!("debug_traceTransaction", On(Bundle), parse_trace_transaction, trace_transaction),
        run!("debug_storageRangeAt", On(Bundle), parse_storage_range, storage_range),
        // Parity's traces.
        run!("trace_call", On(Bundle), parse_parity_call, trace_call),
        run!("trace_callMany", On(Bundle), limited parse_parity_call_many, parity_call_many),
        run!("trace_block", On(Bundle), parse_one_block::<SelectorParam>, parity_block),
        run!("trace_transaction", On(Bundle), parse_hash, parity_transaction),
        run!("trace_get", On(Bundle), parse_trace_get, parity_get),
        run!("trace_filter", On(Bundle), parse_trace_filter, parity_filter),
        run!("trace_replayBlockTransactions", On(Bundle), parse_replay_block, replay_block),
        run!("trace_replayTransaction", On(Bundle), parse_replay_transaction, replay_transaction),
        // State.
        Self::run::<state::GetBalance>("eth_getBalance", Inline),
        Self::run::<state::GetStorageAt>("eth_getStorageAt", Inline),
        Self::run::<state::GetStorageValues>("eth_getStorageValues", Inline),
        Self::run::<state::GetTransactionCount>("eth_getTransactionCount", Inline).by_leader_if(state::counts_pool),
        Self::run::<state::GetCode>("eth_getCode", Inline),
        // A proof hashes the parts of the trie that are not hashed yet.
        Self::run::<state::GetProof>("eth_getProof", On(Read)).upstream(UpstreamUse::Proves),
        // Blocks and their contents. Responses are long, and the first request for the block being built hashes it.
        run!("eth_blockNumber", Inline, |_, run| encode::quantity(&mut run.out, run.published.head().number())),
        Self::history::<block::GetBlock<SelectorParam>>("eth_getBlockByNumber"),
        Self::history::<block::GetBlock<HashParam>>("eth_getBlockByHash"),
        Self::history::<block::GetTransactionCountOfBlock<SelectorParam>>("eth_getBlockTransactionCountByNumber"),
        Self::history::<block::GetTransactionCountOfBlock<HashParam>>("eth_getBlockTransactionCountByHash"),
        Self::history::<block::GetUncleCount<SelectorParam>>("eth_getUncleCountByBlockNumber"),
        Self::history::<block::GetUncleCount<HashParam>>("eth_getUncleCountByBlockHash"),
        Self::history::<block::GetBlockReceipts<SelectorParam>>("eth_getBlockReceipts")
            .waits(WaitingPart::BlockReceipts),
        Self::history::<block::GetTransaction>("eth_getTransactionByHash").waits(WaitingPart::Place),
        Self::history::<block::GetTransactionAt<SelectorParam>>("eth_getTransactionByBlockNumberAndIndex"),
        Self::history::<block::GetTransactionAt<HashParam>>("eth_getTransactionByBlockHashAndIndex"),
        Self::history::<block::GetTransactionReceipt>("eth_getTransactionReceipt").waits(WaitingPart::Receipt),
        run!("eth_getLogs", On(Read), parse_logs, get_logs).upstream(UpstreamUse::IfUnknown),
        Self::history::<block::GetHeader<SelectorParam>>("eth_getHeaderByNumber"),
        Self::history::<block::GetHeader<HashParam>>("eth_getHeaderByHash"),
        // The same in raw bytes.
        Self::history::<block::GetRawHeader>("debug_getRawHeader"),
        Self::history::<block::GetRawBlock>("debug_getRawBlock"),
        Self::history::<block::GetRawReceipts>("debug_getRawReceipts"),
        Self::history::<block::GetRawTransaction>("debug_getRawTransaction"),
        Self::history::<block::GetBlockAccessList>("eth_getBlockAccessList"),
        Self::history::<block::GetRawBlockAccessList>("debug_getRawBlockAccessList"),
        Self::history::<block::GetRawTransaction>("eth_getRawTransactionByHash"),
        Self::history::<block::GetRawTransactionAt<SelectorParam>>("eth_getRawTransactionByBlockNumberAndIndex"),
        Self::history::<block::GetRawTransactionAt<HashParam>>("eth_getRawTransactionByBlockHashAndIndex"),
        // Fees.
        Self::run::<fee::GasPrice>("eth_gasPrice", On(Read)),
        Self::run::<fee::MaxPriorityFee>("eth_maxPriorityFeePerGas", On(Read)),
        Self::run::<fee::BaseFee>("eth_baseFee", Inline),
        Self::run::<fee::BlobBaseFee>("eth_blobBaseFee", Inline),
        Self::history::<fee::GetFeeHistory>("eth_feeHistory"),
        // Filters, for clients that cannot subscribe.
        run!("eth_newFilter", Inline, parse_logs, new_filter),
        run!("eth_newBlockFilter", Inline, parse_none, new_block_filter),
        run!("eth_newPendingTransactionFilter", Inline, parse_none, new_pending_filter),
        run!("eth_getFilterChanges", On(Read), parse_id, get_filter_changes),
        run!("eth_getFilterLogs", On(Read), parse_id, get_filter_logs),
        run!("eth_uninstallFilter", Inline, parse_id, uninstall_filter),
        // Subscriptions.
        Self::new("eth_subscribe", Inline, Handler::Subscribe),
        Self::new("eth_unsubscribe", Inline, Handler::Unsubscribe),
        // Sending. Computing signatures and blob proofs takes long.
        run!("eth_sendRawTransaction", On(Read), parse_raw, send_raw).upstream(UpstreamUse::Sends).commits(),
        Self::new("eth_sendRawTransactionSync", On(Read), Handler::SendAndWait).upstream(UpstreamUse::Sends).commits(),
        Self::new("eth_sendTransaction", On(Read), Handler::SendTransaction).commits().by_leader(),
        run!("eth_sendBundle", On(Read), parse_sent_bundle, send_bundle).commits().by_leader(),
        run!("eth_cancelBundle", Inline, parse_cancelled_bundle, cancel_bundle).commits().by_leader(),
        run!("eth_accounts", Inline, parse_none, accounts).by_leader(),
        // The pool.
        run!("txpool_status", On(Read), parse_none, pool_status).by_leader(),
        run!("txpool_content", On(Read), parse_none, pool_content).by_leader(),
        run!("txpool_contentFrom", On(Read), parse_address, pool_content_from).by_leader(),
        run!("txpool_inspect", On(Read), parse_none, pool_inspect).by_leader(),
        // The wallet. A batch is simulated, and may have many calls.
        Self::new("wallet_sendCalls", On(Bundle), Handler::SendCalls).commits().by_wallet(),
        run!("wallet_getCallsStatus", On(Read), parse_batch_id, get_calls_status).by_wallet(),
        run!("wallet_showCallsStatus", On(Read), parse_batch_id, show_calls_status).by_wallet(),
        run!("wallet_getCapabilities", On(Read), parse_capabilities, get_capabilities).by_wallet(),
        run!("presim_approvals", On(Read), parse_none, waiting_approvals).by_wallet(),
        // The wallet as pages know it from browsers.
        run!("eth_requestAccounts", Inline, parse_none, request_accounts).by_wallet(),
        run!("wallet_getPermissions", Inline, parse_none, get_permissions).by_wallet(),
        run!("wallet_requestPermissions", Inline, parse_permissions, request_permissions).by_wallet(),
        run!("wallet_switchEthereumChain", Inline, parse_switch, switch_chain),
        Self::new("personal_sign", On(Read), Handler::SignMessage(wire::parse_personal)).by_wallet(),
        Self::new("eth_signTypedData_v4", On(Read), Handler::SignMessage(wire::parse_typed_data)).by_wallet(),
        // The node and its chain.
        run!("eth_chainId", Inline, |backend, run| encode::quantity(&mut run.out, backend.spec.chain_id())),
        run!("net_version", Inline, |backend, run| encode::string(&mut run.out, &backend.spec.chain_id().to_string())),
        run!("net_listening", Inline, |_, run| encode::value(&mut run.out, &true)),
        // presim follows a feed and has no peers.
        run!("net_peerCount", Inline, |_, run| encode::quantity(&mut run.out, 0)),
        run!("eth_syncing", Inline, |_, run| encode::value(&mut run.out, &false)),
        run!("eth_config", Inline, parse_none, fork_config),
        run!("eth_capabilities", Inline, parse_none, capabilities),
        run!("web3_clientVersion", Inline, |_, run| encode::string(&mut run.out, CLIENT_VERSION)),
        run!("web3_sha3", On(Read), parse_bytes, sha3),
        run!("presim_snapshot", Inline, parse_none, snapshot),
        run!("presim_divergences", Inline, parse_none, divergences).by_leader(),
        Self::new("presim_status", Inline, Handler::Status),
        run!("rpc.discover", On(Read), parse_none, discover),
        // Testing, under the names that anvil, hardhat and ganache have given.
        run!("testing_buildBlockV1", On(Bundle), limited parse_build_block, build_block).testing(),
        run!("anvil_impersonateAccount", Inline, parse_address, impersonate).testing(),
        run!("hardhat_impersonateAccount", Inline, parse_address, impersonate).testing(),
        run!("anvil_stopImpersonatingAccount", Inline, parse_address, stop_impersonating).testing(),
        run!("hardhat_stopImpersonatingAccount", Inline, parse_address, stop_impersonating).testing(),
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

    /// Returns the document of all methods in a dialect, as JSON. It is made once.
    pub fn document(dialect: &'static Dialect) -> &'static str {
        dialect.document.get_or_init(|| {
            let methods = Self::ALL.iter().map(|method| (method.name, method.describe));
            document(dialect, methods).to_string()
        })
    }

    /// Returns -32601: there is no such method.
    pub fn unknown(name: &str) -> RpcError {
        let shown = cut(name, 80);
        let meant = nearest(name, Self::ALL.iter().map(|method| method.name));
        let meant = meant.map_or_else(String::new, |near| format!("did you mean {near}? "));
        RpcError::new(-32601, format!("method {shown:?} does not exist: {meant}rpc.discover lists those that do"))
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
            describe: None,
        }
    }

    /// Builds the row of a method that is one run.
    const fn run<M: Method>(name: &'static str, place: RunPlace) -> Self {
        let handler = Handler::Run(|backend, run| wire::parse::<M>(run.params, run.dialect)?.run(backend, run));
        Self { describe: Some(describe::<M>), ..Self::new(name, place, handler) }
    }

    /// Builds the row of a method that reads blocks or their contents, which an upstream may know if the node does not.
    const fn history<M: Method>(name: &'static str) -> Self {
        Self::run::<M>(name, On(Read)).upstream(UpstreamUse::IfUnknown)
    }

    /// Builds the row of a method that changes the chain, whose result is `done` if the change has no other.
    const fn change(name: &'static str, parse: fn(&str, &Dialect) -> Result<ChainChange>, done: &'static str) -> Self {
        Self::new(name, Inline, Handler::Change(parse, done)).commits().testing()
    }

    const fn upstream(self, upstream: UpstreamUse) -> Self {
        Self { upstream, ..self }
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

    const fn by_leader_if(self, has_part: fn(&str, &Dialect) -> bool) -> Self {
        Self { leader: LeaderUse::If(has_part), ..self }
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
