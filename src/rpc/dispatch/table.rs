//! The methods: their table and their handlers. `src/rpc/README.md` has the steps to add one.

use std::sync::LazyLock;

use alloy_primitives::map::HashMap;

use super::method::{Handler, MethodRoute};
use crate::rpc::{
    api::{
        block, call, document, fee, log, node::CLIENT_VERSION, simulate, state, subscribe, trace,
        watch::serve::WatchMethod,
    },
    json::{self, Lookup},
    params::{self, HashParam, SelectorParam},
    protocol::{dialect::Dialect, error::RpcError},
    run::{UpstreamUse, WaitingPart},
};
use crate::{
    nearest::nearest,
    scheduler::{LaneName, RunPlace},
    shown::cut,
};

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
                let params = params::$parse(run.params, run.dialect, &backend.limits.shape)?;
                backend.$handler(run, params).map(Lookup::from)
            }),
        )
    };
    ($name:literal, $place:expr, |$backend:pat_param, $run:ident| $write:expr) => {
        MethodRoute::new(
            $name,
            $place,
            Handler::Run(|$backend, $run| {
                params::parse_none($run.params, $run.dialect)?;
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
                let params = params::$parse $(::<$block>)?(run.params, run.dialect)?;
                backend.$handler(run, params).map(Lookup::from)
            }),
        )
    };
}

/// All methods.
pub const ALL: &[MethodRoute] = &numbered([
    // Calls and bundles. A small simulation ends sooner than it could be handed over to a worker.
    MethodRoute::run::<call::EthCall>("eth_call", InlineThen(Short)),
    MethodRoute::run::<simulate::SimulateV1>("eth_simulateV1", InlineThen(Bundle)),
    MethodRoute::run::<simulate::Simulate>("presim_simulate", InlineThen(Bundle)),
    MethodRoute::new(
        "presim_search",
        On(Bundle),
        Handler::Serve(|node, request| Box::pin(node.runner.search(request))),
    ),
    // Bundles that stand.
    MethodRoute::new(
        "presim_watch",
        On(Bundle),
        Handler::Serve(|node, request| Box::pin(node.watches.answer(WatchMethod::Begin, request, &node.runner))),
    ),
    MethodRoute::new(
        "presim_rewatch",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.watches.answer(WatchMethod::Rewatch, request, &node.runner))),
    ),
    MethodRoute::new(
        "presim_results",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.watches.answer(WatchMethod::Results, request, &node.runner))),
    ),
    MethodRoute::new(
        "presim_unwatch",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.watches.answer(WatchMethod::End, request, &node.runner))),
    ),
    // These run calls many times. Waiting short calls may run between two of them.
    MethodRoute::run::<call::EstimateGas>("eth_estimateGas", On(Bundle)),
    MethodRoute::run::<call::CreateAccessList>("eth_createAccessList", On(Bundle)),
    run!("eth_callBundle", On(Bundle), limited parse_bundle, call_bundle),
    run!("mev_simBundle", On(Bundle), limited parse_sim_bundle, sim_bundle),
    run!("eth_callMany", On(Bundle), limited parse_call_many, call_many),
    MethodRoute::run::<trace::geth::Call>("debug_traceCall", On(Bundle)),
    MethodRoute::run::<trace::geth::CallMany>("debug_traceCallMany", On(Bundle)),
    // Blocks of the past, run again.
    MethodRoute::run::<trace::geth::Block<SelectorParam>>("debug_traceBlockByNumber", On(Bundle)),
    MethodRoute::run::<trace::geth::Block<HashParam>>("debug_traceBlockByHash", On(Bundle)),
    MethodRoute::run::<trace::geth::Transaction>("debug_traceTransaction", On(Bundle)),
    MethodRoute::run::<trace::StorageRange>("debug_storageRangeAt", On(Bundle)),
    // Parity's traces.
    MethodRoute::run::<trace::parity::Call>("trace_call", On(Bundle)),
    MethodRoute::run::<trace::parity::CallMany>("trace_callMany", On(Bundle)),
    MethodRoute::run::<trace::frames::Block>("trace_block", On(Bundle)),
    MethodRoute::run::<trace::frames::Transaction>("trace_transaction", On(Bundle)),
    MethodRoute::run::<trace::frames::Get>("trace_get", On(Bundle)),
    MethodRoute::run::<trace::frames::Filter>("trace_filter", On(Bundle)),
    MethodRoute::run::<trace::parity::ReplayBlock>("trace_replayBlockTransactions", On(Bundle)),
    MethodRoute::run::<trace::parity::ReplayTransaction>("trace_replayTransaction", On(Bundle)),
    // State.
    MethodRoute::run::<state::GetBalance>("eth_getBalance", Inline),
    MethodRoute::run::<state::GetStorageAt>("eth_getStorageAt", Inline),
    MethodRoute::run::<state::GetStorageValues>("eth_getStorageValues", Inline),
    MethodRoute::run::<state::GetTransactionCount>("eth_getTransactionCount", Inline).by_leader_if(state::counts_pool),
    MethodRoute::run::<state::GetCode>("eth_getCode", Inline),
    // A proof hashes the parts of the trie that are not hashed yet.
    MethodRoute::run::<state::GetProof>("eth_getProof", On(Read)).upstream(UpstreamUse::Proves),
    // Blocks and their contents. Responses are long, and the first request for the block being built hashes it.
    run!("eth_blockNumber", Inline, |_, run| json::quantity(&mut run.out, run.published.head().number())),
    MethodRoute::history::<block::GetBlock<SelectorParam>>("eth_getBlockByNumber"),
    MethodRoute::history::<block::GetBlock<HashParam>>("eth_getBlockByHash"),
    MethodRoute::history::<block::GetTransactionCountOfBlock<SelectorParam>>("eth_getBlockTransactionCountByNumber"),
    MethodRoute::history::<block::GetTransactionCountOfBlock<HashParam>>("eth_getBlockTransactionCountByHash"),
    MethodRoute::history::<block::GetUncleCount<SelectorParam>>("eth_getUncleCountByBlockNumber"),
    MethodRoute::history::<block::GetUncleCount<HashParam>>("eth_getUncleCountByBlockHash"),
    MethodRoute::history::<block::GetBlockReceipts<SelectorParam>>("eth_getBlockReceipts")
        .waits(WaitingPart::BlockReceipts),
    MethodRoute::history::<block::GetTransaction>("eth_getTransactionByHash").waits(WaitingPart::Place),
    MethodRoute::history::<block::GetTransactionAt<SelectorParam>>("eth_getTransactionByBlockNumberAndIndex"),
    MethodRoute::history::<block::GetTransactionAt<HashParam>>("eth_getTransactionByBlockHashAndIndex"),
    MethodRoute::history::<block::GetTransactionReceipt>("eth_getTransactionReceipt").waits(WaitingPart::Receipt),
    MethodRoute::history::<log::GetLogs>("eth_getLogs"),
    MethodRoute::history::<block::GetHeader<SelectorParam>>("eth_getHeaderByNumber"),
    MethodRoute::history::<block::GetHeader<HashParam>>("eth_getHeaderByHash"),
    // The same in raw bytes.
    MethodRoute::history::<block::GetRawHeader>("debug_getRawHeader"),
    MethodRoute::history::<block::GetRawBlock>("debug_getRawBlock"),
    MethodRoute::history::<block::GetRawReceipts>("debug_getRawReceipts"),
    MethodRoute::history::<block::GetRawTransaction>("debug_getRawTransaction"),
    MethodRoute::history::<block::GetBlockAccessList>("eth_getBlockAccessList"),
    MethodRoute::history::<block::GetRawBlockAccessList>("debug_getRawBlockAccessList"),
    MethodRoute::history::<block::GetRawTransaction>("eth_getRawTransactionByHash"),
    MethodRoute::history::<block::GetRawTransactionAt<SelectorParam>>("eth_getRawTransactionByBlockNumberAndIndex"),
    MethodRoute::history::<block::GetRawTransactionAt<HashParam>>("eth_getRawTransactionByBlockHashAndIndex"),
    // Fees.
    MethodRoute::run::<fee::GasPrice>("eth_gasPrice", On(Read)),
    MethodRoute::run::<fee::MaxPriorityFee>("eth_maxPriorityFeePerGas", On(Read)),
    MethodRoute::run::<fee::BaseFee>("eth_baseFee", Inline),
    MethodRoute::run::<fee::BlobBaseFee>("eth_blobBaseFee", Inline),
    MethodRoute::history::<fee::GetFeeHistory>("eth_feeHistory"),
    // Filters, for clients that cannot subscribe.
    MethodRoute::run::<log::NewFilter>("eth_newFilter", Inline),
    MethodRoute::run::<log::NewBlockFilter>("eth_newBlockFilter", Inline),
    MethodRoute::run::<log::NewPendingTransactionFilter>("eth_newPendingTransactionFilter", Inline),
    MethodRoute::run::<log::GetFilterChanges>("eth_getFilterChanges", On(Read)),
    MethodRoute::run::<log::GetFilterLogs>("eth_getFilterLogs", On(Read)),
    MethodRoute::run::<log::UninstallFilter>("eth_uninstallFilter", Inline),
    // Subscriptions.
    MethodRoute::new(
        "eth_subscribe",
        Inline,
        Handler::Serve(|_, request| Box::pin(async move { subscribe::subscribe(&request) })),
    ),
    MethodRoute::new(
        "eth_unsubscribe",
        Inline,
        Handler::Serve(|_, request| Box::pin(async move { subscribe::unsubscribe(&request) })),
    ),
    // Sending. Computing signatures and blob proofs takes long.
    run!("eth_sendRawTransaction", On(Read), parse_raw, send_raw).upstream(UpstreamUse::Sends).commits(),
    MethodRoute::new(
        "eth_sendRawTransactionSync",
        On(Read),
        Handler::Serve(|node, request| Box::pin(node.runner.send_and_wait(request))),
    )
    .upstream(UpstreamUse::Sends)
    .commits(),
    MethodRoute::new(
        "eth_sendTransaction",
        On(Read),
        Handler::Serve(|node, request| Box::pin(node.runner.send_transaction(request))),
    )
    .commits()
    .by_leader(),
    run!("eth_sendBundle", On(Read), parse_sent_bundle, send_bundle).commits().by_leader(),
    run!("eth_cancelBundle", Inline, parse_cancelled_bundle, cancel_bundle).commits().by_leader(),
    run!("eth_accounts", Inline, parse_none, accounts).by_leader(),
    // The pool.
    run!("txpool_status", On(Read), parse_none, pool_status).by_leader(),
    run!("txpool_content", On(Read), parse_none, pool_content).by_leader(),
    run!("txpool_contentFrom", On(Read), parse_address, pool_content_from).by_leader(),
    run!("txpool_inspect", On(Read), parse_none, pool_inspect).by_leader(),
    // The wallet. A batch is simulated, and may have many calls.
    MethodRoute::new(
        "wallet_sendCalls",
        On(Bundle),
        Handler::Serve(|node, request| Box::pin(node.runner.send_calls(request))),
    )
    .commits()
    .by_wallet(),
    run!("wallet_getCallsStatus", On(Read), parse_batch_id, get_calls_status).by_wallet(),
    run!("wallet_showCallsStatus", On(Read), parse_batch_id, show_calls_status).by_wallet(),
    run!("wallet_getCapabilities", On(Read), parse_capabilities, get_capabilities).by_wallet(),
    run!("presim_approvals", On(Read), parse_none, waiting_approvals).by_wallet(),
    // The wallet as pages know it from browsers.
    run!("eth_requestAccounts", Inline, parse_none, request_accounts).by_wallet(),
    run!("wallet_getPermissions", Inline, parse_none, get_permissions).by_wallet(),
    run!("wallet_requestPermissions", Inline, parse_permissions, request_permissions).by_wallet(),
    run!("wallet_switchEthereumChain", Inline, parse_switch, switch_chain),
    MethodRoute::new(
        "personal_sign",
        On(Read),
        Handler::Serve(|node, request| Box::pin(node.runner.sign_message(params::parse_personal, request))),
    )
    .by_wallet(),
    MethodRoute::new(
        "eth_signTypedData_v4",
        On(Read),
        Handler::Serve(|node, request| Box::pin(node.runner.sign_message(params::parse_typed_data, request))),
    )
    .by_wallet(),
    // The node and its chain.
    run!("eth_chainId", Inline, |backend, run| json::quantity(&mut run.out, backend.spec.chain_id())),
    run!("net_version", Inline, |backend, run| json::string(&mut run.out, &backend.spec.chain_id().to_string())),
    run!("net_listening", Inline, |_, run| json::value(&mut run.out, &true)),
    // presim follows a feed and has no peers.
    run!("net_peerCount", Inline, |_, run| json::quantity(&mut run.out, 0)),
    run!("eth_syncing", Inline, |_, run| json::value(&mut run.out, &false)),
    run!("eth_config", Inline, parse_none, fork_config),
    run!("eth_capabilities", Inline, parse_none, capabilities),
    run!("web3_clientVersion", Inline, |_, run| json::string(&mut run.out, CLIENT_VERSION)),
    run!("web3_sha3", On(Read), parse_bytes, sha3),
    run!("presim_snapshot", Inline, parse_none, snapshot),
    run!("presim_divergences", Inline, parse_none, divergences).by_leader(),
    MethodRoute::new(
        "presim_status",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.board.answer(request, &node.runner))),
    ),
    run!("rpc.discover", On(Read), |_, run| run.out.extend_from_slice(document(run.dialect).as_bytes())),
    // Testing, under the names that anvil, hardhat and ganache have given.
    run!("testing_buildBlockV1", On(Bundle), limited parse_build_block, build_block).testing(),
    run!("anvil_impersonateAccount", Inline, parse_address, impersonate).testing(),
    run!("hardhat_impersonateAccount", Inline, parse_address, impersonate).testing(),
    run!("anvil_stopImpersonatingAccount", Inline, parse_address, stop_impersonating).testing(),
    run!("hardhat_stopImpersonatingAccount", Inline, parse_address, stop_impersonating).testing(),
    MethodRoute::new(
        "anvil_mine",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.testing.change(params::parse_mine, "null", request))),
    )
    .commits()
    .testing(),
    MethodRoute::new(
        "hardhat_mine",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.testing.change(params::parse_mine, "true", request))),
    )
    .commits()
    .testing(),
    MethodRoute::new(
        "evm_mine",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.testing.change(params::parse_evm_mine, "\"0x0\"", request))),
    )
    .commits()
    .testing(),
    MethodRoute::new(
        "anvil_setBalance",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.testing.change(params::parse_balance, "null", request))),
    )
    .commits()
    .testing(),
    MethodRoute::new(
        "hardhat_setBalance",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.testing.change(params::parse_balance, "true", request))),
    )
    .commits()
    .testing(),
    MethodRoute::new(
        "anvil_setCode",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.testing.change(params::parse_set_code, "null", request))),
    )
    .commits()
    .testing(),
    MethodRoute::new(
        "hardhat_setCode",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.testing.change(params::parse_set_code, "true", request))),
    )
    .commits()
    .testing(),
    MethodRoute::new(
        "anvil_setStorageAt",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.testing.change(params::parse_set_storage, "true", request))),
    )
    .commits()
    .testing(),
    MethodRoute::new(
        "hardhat_setStorageAt",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.testing.change(params::parse_set_storage, "true", request))),
    )
    .commits()
    .testing(),
    MethodRoute::new(
        "anvil_setNonce",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.testing.change(params::parse_nonce, "null", request))),
    )
    .commits()
    .testing(),
    MethodRoute::new(
        "hardhat_setNonce",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.testing.change(params::parse_nonce, "true", request))),
    )
    .commits()
    .testing(),
    MethodRoute::new(
        "evm_setAccountNonce",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.testing.change(params::parse_nonce, "true", request))),
    )
    .commits()
    .testing(),
    MethodRoute::new(
        "anvil_snapshot",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.testing.change(params::parse_save, "null", request))),
    )
    .commits()
    .testing(),
    MethodRoute::new(
        "evm_snapshot",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.testing.change(params::parse_save, "null", request))),
    )
    .commits()
    .testing(),
    MethodRoute::new(
        "anvil_revert",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.testing.change(params::parse_return, "null", request))),
    )
    .commits()
    .testing(),
    MethodRoute::new(
        "evm_revert",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.testing.change(params::parse_return, "null", request))),
    )
    .commits()
    .testing(),
    MethodRoute::new(
        "anvil_increaseTime",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.testing.change(params::parse_seconds, "null", request))),
    )
    .commits()
    .testing(),
    MethodRoute::new(
        "evm_increaseTime",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.testing.change(params::parse_seconds, "null", request))),
    )
    .commits()
    .testing(),
    MethodRoute::new(
        "anvil_setNextBlockTimestamp",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.testing.change(params::parse_timestamp, "null", request))),
    )
    .commits()
    .testing(),
    MethodRoute::new(
        "evm_setNextBlockTimestamp",
        Inline,
        Handler::Serve(|node, request| Box::pin(node.testing.change(params::parse_timestamp, "null", request))),
    )
    .commits()
    .testing(),
]);

/// Returns the method called `name`.
pub fn by_name(name: &str) -> Option<&'static MethodRoute> {
    static BY_NAME: LazyLock<HashMap<&str, &MethodRoute>> =
        LazyLock::new(|| ALL.iter().map(|method| (method.info.name, method)).collect());
    BY_NAME.get(name).copied()
}

/// Returns the document of all methods in a dialect, as JSON. It is made once.
pub fn document(dialect: &'static Dialect) -> &'static str {
    dialect.document.get_or_init(|| {
        let methods = ALL.iter().map(|method| (method.info.name, method.describe));
        document::document(dialect, methods).to_string()
    })
}

/// Returns -32601: there is no such method.
pub fn unknown(name: &str) -> RpcError {
    let shown = cut(name, 80);
    let meant = nearest(name, ALL.iter().map(|method| method.info.name));
    let meant = meant.map_or_else(String::new, |near| format!("did you mean {near}? "));
    RpcError::new(-32601, format!("method {shown:?} does not exist: {meant}rpc.discover lists those that do"))
}

/// Sets the index of each row.
const fn numbered<const N: usize>(mut rows: [MethodRoute; N]) -> [MethodRoute; N] {
    let mut index = 0;
    while index < N {
        rows[index].info.index = index;
        index += 1;
    }
    rows
}
