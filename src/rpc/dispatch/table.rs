//! The methods: their table and their handlers. `src/rpc/README.md` has the steps to add one.

use std::sync::{Arc, LazyLock};

use alloy_primitives::map::HashMap;

use super::method::MethodRoute;
use crate::rpc::{
    api::{
        Example, Serve, block, bundle, call, document, fee, log, many, mev, node, pool, search, send, shadow, simulate,
        state, status, subscribe,
        testing::{
            self,
            changes::{self, Testing},
            describe, detailed, drop, impersonate, state as test_state, tokens,
        },
        trace, wallet, watch,
    },
    json::hex::Quantity,
    params::{self, HashParam, SelectorParam},
    protocol::{
        dialect::Dialect,
        error::{Result, RpcError},
    },
    run::{AnsweredBy, Attempt, Backend, MethodScope, SealedOnly, request::Request, runner::RequestRunner},
};
use crate::{
    nearest::nearest,
    scheduler::{LaneName, RunTarget},
    shown,
};

use LaneName::{Bundle, Read, Short};
use RunTarget::{Inline, InlineThen, On};

/// All methods.
pub const ALL: &[MethodRoute] = &numbered([
    // Calls and bundles. A small simulation ends sooner than it could be handed over to a worker.
    MethodRoute::run::<call::EthCall>("eth_call", InlineThen(Short)),
    MethodRoute::run::<simulate::SimulateV1>("eth_simulateV1", InlineThen(Bundle)),
    MethodRoute::run::<simulate::Simulate>("presim_simulate", InlineThen(Bundle)),
    MethodRoute::serve::<search::request::Search>("presim_search", On(Bundle)),
    // Standing bundles.
    MethodRoute::serve::<watch::request::Begin>("presim_watch", On(Bundle)),
    MethodRoute::serve::<watch::request::Rewatch>("presim_rewatch", Inline),
    MethodRoute::serve::<watch::request::Results>("presim_results", Inline),
    MethodRoute::serve::<watch::request::End>("presim_unwatch", Inline),
    // These run calls many times. Waiting short calls may run between two of them.
    MethodRoute::run::<call::EstimateGas>("eth_estimateGas", On(Bundle)),
    MethodRoute::run::<call::CreateAccessList>("eth_createAccessList", On(Bundle)),
    MethodRoute::run::<bundle::CallBundle>("eth_callBundle", On(Bundle)),
    MethodRoute::run::<mev::SimBundle>("mev_simBundle", On(Bundle)),
    MethodRoute::run::<many::CallMany>("eth_callMany", On(Bundle)),
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
    // Blocks run under another fork, too.
    MethodRoute::run::<shadow::Shadow>("presim_shadow", On(Bundle)).scope(MethodScope::Command),
    // State.
    MethodRoute::run::<state::GetBalance>("eth_getBalance", Inline),
    MethodRoute::run::<state::GetStorageAt>("eth_getStorageAt", Inline),
    MethodRoute::run::<state::GetStorageValues>("eth_getStorageValues", Inline),
    MethodRoute::run::<state::GetTransactionCount>("eth_getTransactionCount", Inline),
    MethodRoute::run::<state::GetCode>("eth_getCode", Inline),
    // A proof hashes the parts of the trie that are not hashed yet.
    MethodRoute::run::<state::GetProof>("eth_getProof", On(Read)).by(AnsweredBy::WholeState),
    // Blocks and their contents. Responses are long, and the first request for the block being built hashes it.
    MethodRoute::run::<node::BlockNumber>("eth_blockNumber", Inline),
    MethodRoute::history::<block::GetBlock<SelectorParam>>("eth_getBlockByNumber"),
    MethodRoute::history::<block::GetBlock<HashParam>>("eth_getBlockByHash"),
    MethodRoute::history::<block::GetTransactionCountOfBlock<SelectorParam>>("eth_getBlockTransactionCountByNumber"),
    MethodRoute::history::<block::GetTransactionCountOfBlock<HashParam>>("eth_getBlockTransactionCountByHash"),
    MethodRoute::history::<block::GetUncleCount<SelectorParam>>("eth_getUncleCountByBlockNumber"),
    MethodRoute::history::<block::GetUncleCount<HashParam>>("eth_getUncleCountByBlockHash"),
    MethodRoute::history::<block::GetBlockReceipts<SelectorParam>>("eth_getBlockReceipts")
        .waits(SealedOnly::BlockReceipts),
    MethodRoute::history::<block::GetTransaction>("eth_getTransactionByHash").waits(SealedOnly::Inclusion),
    MethodRoute::history::<block::GetTransactionAt<SelectorParam>>("eth_getTransactionByBlockNumberAndIndex"),
    MethodRoute::history::<block::GetTransactionAt<HashParam>>("eth_getTransactionByBlockHashAndIndex"),
    MethodRoute::history::<block::GetTransactionBySender>("eth_getTransactionBySenderAndNonce"),
    MethodRoute::history::<block::GetTransactionReceipt>("eth_getTransactionReceipt").waits(SealedOnly::Receipt),
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
    MethodRoute::poll("eth_getFilterChanges"),
    MethodRoute::run::<log::GetFilterLogs>("eth_getFilterLogs", On(Read)),
    MethodRoute::run::<log::UninstallFilter>("eth_uninstallFilter", Inline),
    // Subscriptions. Standing bundles of a subscription are parsed on a worker.
    MethodRoute::serve::<subscribe::Subscribe>("eth_subscribe", On(Bundle)),
    MethodRoute::serve::<subscribe::Unsubscribe>("eth_unsubscribe", Inline),
    // Sending. Computing signatures and blob proofs takes long.
    MethodRoute::run::<send::SendRaw>("eth_sendRawTransaction", On(Read)).by(AnsweredBy::Taker).commits(),
    MethodRoute::serve::<send::SendRawSync>("eth_sendRawTransactionSync", On(Read)).by(AnsweredBy::Taker).commits(),
    MethodRoute::serve::<send::SendTransaction>("eth_sendTransaction", On(Read)).commits().by(AnsweredBy::Wallet),
    // An estimate of the gas runs the call many times.
    MethodRoute::run::<send::FillTransaction>("eth_fillTransaction", On(Bundle)),
    MethodRoute::serve::<send::SignTransaction>("eth_signTransaction", On(Read)).by(AnsweredBy::Wallet),
    MethodRoute::run::<send::SendBundle>("eth_sendBundle", On(Read)).commits(),
    MethodRoute::run::<send::CancelBundle>("eth_cancelBundle", Inline).commits(),
    MethodRoute::run::<send::GetOutcome>("presim_outcome", Inline),
    MethodRoute::run::<send::Accounts>("eth_accounts", Inline),
    // The pool.
    MethodRoute::run::<pool::Status>("txpool_status", On(Read)),
    MethodRoute::run::<pool::Content>("txpool_content", On(Read)),
    MethodRoute::run::<pool::ContentFrom>("txpool_contentFrom", On(Read)),
    MethodRoute::run::<pool::Inspect>("txpool_inspect", On(Read)),
    // The wallet. A batch is simulated, and may have many calls.
    MethodRoute::serve::<wallet::SendCalls>("wallet_sendCalls", On(Bundle)).commits().by(AnsweredBy::Wallet),
    MethodRoute::run::<wallet::GetCallsStatus>("wallet_getCallsStatus", On(Read)).by(AnsweredBy::Wallet),
    MethodRoute::run::<wallet::ShowCallsStatus>("wallet_showCallsStatus", On(Read)).by(AnsweredBy::Wallet),
    MethodRoute::run::<wallet::GetCapabilities>("wallet_getCapabilities", On(Read)).by(AnsweredBy::Wallet),
    MethodRoute::run::<wallet::GetApprovals>("presim_approvals", On(Read)).by(AnsweredBy::Wallet),
    // The wallet as pages know it from browsers.
    MethodRoute::run::<wallet::RequestAccounts>("eth_requestAccounts", Inline).by(AnsweredBy::Wallet),
    MethodRoute::run::<wallet::GetPermissions>("wallet_getPermissions", Inline).by(AnsweredBy::Wallet),
    MethodRoute::run::<wallet::RequestPermissions>("wallet_requestPermissions", Inline).by(AnsweredBy::Wallet),
    MethodRoute::run::<wallet::SwitchChain>("wallet_switchEthereumChain", Inline),
    MethodRoute::serve::<wallet::PersonalSign>("personal_sign", On(Read)).by(AnsweredBy::Wallet),
    MethodRoute::serve::<wallet::Sign>("eth_sign", On(Read)).by(AnsweredBy::Wallet),
    MethodRoute::serve::<wallet::SignTypedData>("eth_signTypedData_v4", On(Read)).by(AnsweredBy::Wallet),
    // The node and its chain.
    MethodRoute::run::<node::ChainId>("eth_chainId", Inline),
    MethodRoute::run::<node::NetVersion>("net_version", Inline),
    MethodRoute::run::<node::Listening>("net_listening", Inline),
    MethodRoute::run::<node::PeerCount>("net_peerCount", Inline),
    MethodRoute::run::<node::Syncing>("eth_syncing", Inline),
    MethodRoute::run::<node::Coinbase>("eth_coinbase", Inline),
    MethodRoute::run::<node::GetBadBlocks>("debug_getBadBlocks", Inline),
    MethodRoute::run::<node::GetConfig>("eth_config", Inline),
    MethodRoute::run::<node::GetCapabilities>("eth_capabilities", Inline),
    MethodRoute::run::<node::ClientVersion>("web3_clientVersion", Inline),
    MethodRoute::run::<node::Sha3>("web3_sha3", On(Read)),
    MethodRoute::run::<node::GetSnapshot>("presim_snapshot", Inline),
    MethodRoute::run::<node::GetDivergences>("presim_divergences", Inline).by(AnsweredBy::Reader),
    MethodRoute::serve::<status::GetStatus>("presim_status", Inline),
    MethodRoute::serve::<document::Discover>("rpc.discover", On(Read)),
    // Testing, under the names used by anvil, hardhat and ganache.
    MethodRoute::run::<testing::build::BuildBlock>("testing_buildBlockV1", On(Bundle)).scope(MethodScope::Testing),
    MethodRoute::run::<impersonate::Begin>("anvil_impersonateAccount", Inline).scope(MethodScope::Testing),
    MethodRoute::run::<impersonate::Begin>("hardhat_impersonateAccount", Inline).scope(MethodScope::Testing),
    MethodRoute::run::<impersonate::Stop>("anvil_stopImpersonatingAccount", Inline).scope(MethodScope::Testing),
    MethodRoute::run::<impersonate::Stop>("hardhat_stopImpersonatingAccount", Inline).scope(MethodScope::Testing),
    MethodRoute::change::<changes::Mine>("anvil_mine"),
    MethodRoute::change::<changes::Mine<changes::True>>("hardhat_mine"),
    MethodRoute::change::<changes::MineAt<changes::Zero>>("evm_mine"),
    MethodRoute::change::<changes::SetAutomine>("anvil_setAutomine"),
    MethodRoute::change::<changes::SetAutomine>("evm_setAutomine"),
    MethodRoute::change::<changes::GetAutomine<changes::IsAutomine>>("anvil_getAutomine"),
    MethodRoute::change::<changes::GetAutomine<changes::IsAutomine>>("hardhat_getAutomine"),
    MethodRoute::change::<changes::SetInterval>("anvil_setIntervalMining"),
    MethodRoute::change::<changes::SetInterval>("evm_setIntervalMining"),
    MethodRoute::change::<changes::GetInterval<changes::MiningInterval>>("anvil_getIntervalMining"),
    MethodRoute::change::<changes::SetBalance>("anvil_setBalance"),
    MethodRoute::change::<changes::SetBalance<changes::True>>("hardhat_setBalance"),
    MethodRoute::change::<changes::SetCode>("anvil_setCode"),
    MethodRoute::change::<changes::SetCode<changes::True>>("hardhat_setCode"),
    MethodRoute::change::<changes::SetStorageAt<changes::True>>("anvil_setStorageAt"),
    MethodRoute::change::<changes::SetStorageAt<changes::True>>("hardhat_setStorageAt"),
    MethodRoute::change::<changes::SetNonce>("anvil_setNonce"),
    MethodRoute::change::<changes::SetNonce<changes::True>>("hardhat_setNonce"),
    MethodRoute::change::<changes::SetNonce<changes::True>>("evm_setAccountNonce"),
    MethodRoute::change::<changes::Save<Quantity<u64>>>("anvil_snapshot"),
    MethodRoute::change::<changes::Save<Quantity<u64>>>("evm_snapshot"),
    MethodRoute::change::<changes::Return<bool>>("anvil_revert"),
    MethodRoute::change::<changes::Return<bool>>("evm_revert"),
    MethodRoute::change::<changes::MoveClock<i64>>("anvil_increaseTime"),
    MethodRoute::change::<changes::MoveClock<i64>>("evm_increaseTime"),
    MethodRoute::change::<changes::SetClock>("anvil_setNextBlockTimestamp"),
    MethodRoute::change::<changes::SetClock>("evm_setNextBlockTimestamp"),
    MethodRoute::serve::<describe::NodeInfo>("anvil_nodeInfo", Inline).scope(MethodScope::TestedDevnet),
    MethodRoute::serve::<describe::Metadata>("anvil_metadata", Inline).scope(MethodScope::TestedDevnet),
    MethodRoute::serve::<describe::Metadata>("hardhat_metadata", Inline).scope(MethodScope::TestedDevnet),
    MethodRoute::run::<drop::SetMinGasPrice>("anvil_setMinGasPrice", Inline).scope(MethodScope::TestedDevnet),
    MethodRoute::run::<drop::SetMinGasPrice>("hardhat_setMinGasPrice", Inline).scope(MethodScope::TestedDevnet),
    MethodRoute::run::<test_state::Dump>("anvil_dumpState", On(Bundle)).scope(MethodScope::TestedDevnet),
    MethodRoute::run::<test_state::Dump>("hardhat_dumpState", On(Bundle)).scope(MethodScope::TestedDevnet),
    MethodRoute::change::<test_state::Load>("anvil_loadState"),
    MethodRoute::change::<test_state::Load>("hardhat_loadState"),
    MethodRoute::run::<impersonate::SetAll>("anvil_autoImpersonateAccount", Inline).scope(MethodScope::Testing),
    MethodRoute::run::<impersonate::SetAll>("hardhat_autoImpersonateAccount", Inline).scope(MethodScope::Testing),
    MethodRoute::run::<send::SendUnsigned>("eth_sendUnsignedTransaction", On(Read))
        .commits()
        .scope(MethodScope::Testing),
    MethodRoute::run::<drop::Drop>("anvil_dropTransaction", Inline).scope(MethodScope::Testing),
    MethodRoute::run::<drop::DropIfThere>("hardhat_dropTransaction", Inline).scope(MethodScope::Testing),
    MethodRoute::run::<drop::DropAll>("anvil_dropAllTransactions", Inline).scope(MethodScope::Testing),
    MethodRoute::run::<drop::DropFrom>("anvil_removePoolTransactions", Inline).scope(MethodScope::Testing),
    MethodRoute::change::<changes::AddBalance>("anvil_addBalance"),
    MethodRoute::change::<changes::AddBalance>("hardhat_addBalance"),
    MethodRoute::change::<changes::SetCoinbase>("anvil_setCoinbase"),
    MethodRoute::change::<changes::SetCoinbase<changes::True>>("hardhat_setCoinbase"),
    MethodRoute::change::<changes::SetGasLimit<changes::True>>("anvil_setBlockGasLimit"),
    MethodRoute::change::<changes::SetGasLimit<changes::True>>("evm_setBlockGasLimit"),
    MethodRoute::change::<changes::SetBaseFee>("anvil_setNextBlockBaseFeePerGas"),
    MethodRoute::change::<changes::SetBaseFee<changes::True>>("hardhat_setNextBlockBaseFeePerGas"),
    MethodRoute::change::<changes::SetPrevRandao>("anvil_setPrevRandao"),
    MethodRoute::change::<changes::SetPrevRandao<changes::True>>("hardhat_setPrevRandao"),
    MethodRoute::change::<changes::SetTimestampInterval>("anvil_setBlockTimestampInterval"),
    MethodRoute::change::<changes::SetTimestampIntervalMs>("hardhat_setBlockTimestampInterval"),
    MethodRoute::change::<changes::SetTimestampInterval>("evm_setBlockTimestampInterval"),
    MethodRoute::change::<changes::RemoveTimestampInterval<bool>>("anvil_removeBlockTimestampInterval"),
    MethodRoute::change::<changes::RemoveTimestampInterval<bool>>("hardhat_removeBlockTimestampInterval"),
    MethodRoute::change::<changes::RemoveTimestampInterval<bool>>("evm_removeBlockTimestampInterval"),
    MethodRoute::change::<changes::RollBack>("anvil_rollback"),
    MethodRoute::serve::<testing::reorg::Reorganise>("anvil_reorg", On(Bundle)).scope(MethodScope::TestedDevnet),
    MethodRoute::change::<changes::Reset>("anvil_reset"),
    MethodRoute::change::<changes::Reset<changes::True>>("hardhat_reset"),
    MethodRoute::change::<changes::SetTime<i64>>("anvil_setTime"),
    MethodRoute::change::<changes::SetTime<i64>>("evm_setTime"),
    MethodRoute::change::<changes::SetRpcUrl>("anvil_setRpcUrl"),
    MethodRoute::serve::<detailed::MineDetailed>("anvil_mine_detailed", On(Bundle)).scope(MethodScope::TestedDevnet),
    MethodRoute::serve::<detailed::MineDetailed>("evm_mine_detailed", On(Bundle)).scope(MethodScope::TestedDevnet),
    MethodRoute::serve::<tokens::Deal>("anvil_dealERC20", On(Bundle)).scope(MethodScope::TestedDevnet),
    MethodRoute::serve::<tokens::Deal>("hardhat_dealERC20", On(Bundle)).scope(MethodScope::TestedDevnet),
    MethodRoute::serve::<tokens::SetAllowance>("anvil_setERC20Allowance", On(Bundle)).scope(MethodScope::TestedDevnet),
    MethodRoute::run::<describe::SetChainId>("anvil_setChainId", Inline).scope(MethodScope::TestedDevnet),
    MethodRoute::run::<describe::SetLogging>("anvil_setLoggingEnabled", Inline).scope(MethodScope::TestedDevnet),
    MethodRoute::run::<describe::SetLogging>("hardhat_setLoggingEnabled", Inline).scope(MethodScope::TestedDevnet),
    MethodRoute::run::<drop::DropAll>("hardhat_dropAllTransactions", Inline).scope(MethodScope::Testing),
]);

/// Returns the method called `name`.
pub fn by_name(name: &str) -> Option<&'static MethodRoute> {
    static BY_NAME: LazyLock<HashMap<&str, &MethodRoute>> =
        LazyLock::new(|| ALL.iter().map(|method| (method.info.name, method)).collect());
    BY_NAME.get(name).copied()
}

impl Serve for document::Discover {
    type Part = Testing;
    type Answer = document::OpenRpc;
    const EXAMPLE: Example = Example {
        params: "[]",
        answer: r#"{"openrpc": "1.2.6", "info": {"title": "presim", "version": "0.1.0", "description": "Simulation."}, "methods": [], "components": {"schemas": {}}}"#,
    };

    async fn serve(testing: &Testing, runner: &Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        let scope = testing.scope();
        let write = move |_: &Backend, run: &mut Attempt<'_>| {
            params::parse::<Self>(run.params, run.dialect)?;
            run.out.extend_from_slice(document(run.dialect, scope).as_bytes());
            Ok(())
        };
        runner.write(request, write).await
    }
}

/// Returns the document of the methods that nodes of this scope have, in a dialect, as JSON. It is created once.
pub fn document(dialect: &'static Dialect, scope: MethodScope) -> &'static str {
    dialect.documents[scope as usize].get_or_init(|| {
        let methods = ALL.iter().filter(|method| scope.has(method.info.scope));
        let methods = methods.map(|method| (method.info.name, method.describe));
        let document = document::document(dialect, methods);
        // Serializing plain data to a string cannot fail.
        serde_json::to_string(&document).unwrap_or_default()
    })
}

/// Returns -32601: there is no such method.
pub fn unknown(name: &str) -> RpcError {
    let shown = shown::wrong(name);
    let meant = nearest(name, ALL.iter().map(|method| method.info.name));
    let meant = meant.map_or_else(String::new, |near| format!("did you mean {near}? "));
    RpcError::new(-32601, format!("method {shown} does not exist: {meant}rpc.discover lists those that do"))
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
