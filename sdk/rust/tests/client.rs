//! The crate against real nodes: values of every method, watches across broken connections, and subscriptions.

use std::sync::Arc;

use alloy_eips::BlockNumberOrTag;
use alloy_primitives::{Address, B256, I256, U256, address, utils::parse_ether};
use alloy_provider::{DynProvider, Provider, ProviderBuilder, WsConnect};
use alloy_rpc_types_eth::{
    TransactionRequest,
    simulate::{self as simulate_v1, SimulatePayload},
};
use alloy_sol_types::{SolCall, sol};
use eyre::{OptionExt, Result, ensure};
use futures::StreamExt;
use presim_client::{
    AssetKind, BlockOverrides, BlockSelector, ChangeFilter, Changes, FeedState, Objective, Outcome, Output, PresimApi,
    PresimError, PublishedSnapshot, Search, SimBlock, Simulated, Simulation, StateChanges, Values, Vary, Verified,
    Watch, WatchedBundle, WatchedResult, error,
};
use serde_json::json;
use support::{BOUND, PATHS, TestNode};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::timeout,
};

#[path = "../examples/simulate.rs"]
#[allow(dead_code, reason = "the test calls a part of it")]
mod simulate;

const WETH: Address = address!("0x5FbDB2315678afecb367f032d93F642f64180aa3");
const ALPHA: Address = address!("0x9fE46736679d2D9a65F0992F2272dE9f3c7fa6e0");
const ROUTER: Address = address!("0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9");
const RECEIVER: Address = address!("0x00000000000000000000000000000000000abcde");
/// Every output that a block before Amsterdam has.
const OUTPUTS: [Output; 13] = [
    Output::Status,
    Output::GasUsed,
    Output::ReturnData,
    Output::Error,
    Output::Logs,
    Output::Header,
    Output::Transfers,
    Output::StateDiff,
    Output::AccessList,
    Output::ReadSet,
    Output::Assets,
    Output::Coinbase,
    Output::Trace,
];

sol! {
    function balanceOf(address account) external view returns (uint256);
    function transfer(address to, uint256 value) external returns (bool);
    function swapExactETHForTokens(uint256 amountOutMin, address[] calldata path, address to, uint256 deadline) external payable returns (uint256[] memory amounts);
}

/// Starts a devnet whose accounts only the test uses.
fn devnet() -> TestNode {
    // Alloy's client needs it. Fails if it was installed before. A program with alloy's own features has one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    TestNode::start(&["--traffic", "0", "--sub-block-ms", "50"])
}

fn over_http(node: &TestNode, path: &str) -> Result<DynProvider> {
    Ok(ProviderBuilder::new().connect_http(node.url(path).parse()?).erased())
}

async fn over_socket(at: impl std::fmt::Display) -> Result<DynProvider> {
    // The connection is tried again until it is there. A busy machine needs more attempts.
    let connect = WsConnect::new(format!("ws://{at}/standard"))
        .with_max_retries(u32::MAX)
        .with_retry_interval(std::time::Duration::from_millis(20));
    Ok(ProviderBuilder::new().connect_ws(connect).await?.erased())
}

fn pay(from: Address, wei: u64) -> TransactionRequest {
    TransactionRequest::default().from(from).to(RECEIVER).value(U256::from(wei)).gas_limit(100_000)
}

fn call(from: Address, to: Address, input: impl SolCall) -> TransactionRequest {
    TransactionRequest::default().from(from).to(to).gas_limit(500_000).input(input.abi_encode().into())
}

fn balance_of(account: Address) -> TransactionRequest {
    call(account, WETH, balanceOfCall { account })
}

/// A standing bundle whose answer is an account's balance of wrapped ether.
fn watched(account: Address) -> Vec<WatchedBundle> {
    let simulation = Simulation::of([balance_of(account)]).with_outputs([Output::ReturnData]);
    vec![WatchedBundle::simulate("balance", simulation)]
}

/// Returns the balance in the changes of [`watched`].
fn balance(changes: &Changes) -> Result<U256> {
    let [changed] = &changes.changed[..] else { eyre::bail!("one bundle: {changes:?}") };
    ensure!(changed.name == "balance" && changed.error.is_none(), "{changed:?}");
    let Some(WatchedResult::Simulated(Simulated::Blocks(blocks))) = &changed.result else {
        eyre::bail!("a simulation: {changed:?}")
    };
    let data = blocks[0].calls[0].return_data.as_ref().ok_or_eyre("it was requested")?;
    Ok(U256::from_be_slice(data))
}

/// Wraps ether of an account of the devnet, and returns when a block has the transaction.
async fn wrap(node: &TestNode, from: Address, wei: u64) {
    let send = json!([{"from": from, "to": WETH, "value": U256::from(wei), "data": "0xd0e30db0"}]);
    let hash = node.result("/", "eth_sendTransaction", send).await;
    node.when("the transaction is pre-confirmed", async || {
        let receipt = node.result("/", "eth_getTransactionReceipt", json!([hash])).await;
        (!receipt.is_null()).then(|| assert_eq!(receipt["status"], "0x1"))
    })
    .await;
}

async fn soon<T>(what: &str, answer: impl Future<Output = T>) -> T {
    timeout(BOUND, answer).await.unwrap_or_else(|_| panic!("{what}: not within {BOUND:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_simulation_has_its_outputs_in_both_dialects() -> Result<()> {
    let node = devnet();
    for path in PATHS {
        let provider = over_http(&node, path)?;
        let from = node.account(0);
        let swap = swapExactETHForTokensCall {
            amountOutMin: U256::ZERO,
            path: vec![WETH, ALPHA],
            to: from,
            deadline: U256::MAX,
        };
        let calls = [
            pay(from, 5),
            call(from, ROUTER, swap).value(parse_ether("1")?),
            call(RECEIVER, ALPHA, transferCall { to: from, value: U256::from(7) }),
        ];
        let mut bundle =
            Simulation::of_blocks([SimBlock::of([balance_of(from)]), SimBlock::of(calls)]).with_outputs(OUTPUTS);
        bundle.return_full_transactions = true;
        bundle.errors = vec!["error InsufficientBalance(uint256 have, uint256 want)".into()];
        let blocks = provider.presim_simulate(&bundle, BlockSelector::PENDING).await?.into_blocks()?;

        let [paid, swapped, refused] = &blocks[1].calls[..] else { eyre::bail!("three calls: {blocks:?}") };
        assert_eq!((paid.has_succeeded(), paid.gas_used, paid.max_used_gas), (true, Some(21_000), Some(21_000)));
        let transfer = paid.transfers.as_ref().ok_or_eyre("transfers")?[0];
        assert_eq!((transfer.from, transfer.to, transfer.value), (from, RECEIVER, U256::from(5)));
        let amounts = swapExactETHForTokensCall::abi_decode_returns(swapped.return_data.as_ref().ok_or_eyre("data")?)?;
        assert_eq!(swapped.logs.as_ref().ok_or_eyre("logs")?[0].address(), WETH);
        assert!(swapped.trace.as_ref().ok_or_eyre("a trace")?.calls.iter().any(|frame| frame.to == Some(WETH)));
        assert!(swapped.access_list.as_ref().ok_or_eyre("a list")?.0.iter().any(|item| item.address == WETH));
        let refusal = refused.error.as_ref().ok_or_eyre("it fails")?;
        assert!(!refused.has_succeeded() && refusal.message.contains("InsufficientBalance"), "{refusal:?}");
        assert_eq!((refusal.code, refusal.data.is_some()), if path == "/" { (None, false) } else { (Some(3), true) });

        let assets = &blocks[1].assets.as_ref().ok_or_eyre("assets")?[&from];
        let of = |kind, token| assets.iter().find(|change| (change.kind, change.token) == (kind, token));
        let spent = I256::try_from(parse_ether("1")?)? + I256::try_from(5)?;
        assert_eq!(of(AssetKind::Ether, None).map(|ether| ether.change), Some(-spent));
        let bought = of(AssetKind::Erc20, Some(ALPHA)).ok_or_eyre("the token was bought")?;
        assert_eq!((bought.change, bought.symbol.as_deref()), (I256::try_from(amounts[1])?, Some("ALPHA")));
        assert!(blocks[1].state_diff.as_ref().ok_or_eyre("changes")?[&from].nonce.is_some());
        assert!(blocks[1].coinbase.is_some() && blocks[1].fork.as_deref() == Some("osaka"));
        // The reads of a block's header are not known.
        assert!(blocks[1].read_set.as_ref().ok_or_eyre("reads")?.everything);
        let bundle = Simulation::of([balance_of(from)]).with_outputs([Output::ReadSet]);
        let blocks_read = provider.presim_simulate(&bundle, BlockSelector::PENDING).await?.into_blocks()?;
        let reads = blocks_read[0].read_set.as_ref().ok_or_eyre("reads")?;
        let accounts = reads.accounts.as_ref().ok_or_eyre("accounts")?;
        assert_eq!((reads.everything, accounts[&WETH].slots.len()), (false, 1));

        let first = blocks[0].block.as_ref().ok_or_eyre("a header")?;
        let second = blocks[1].block.as_ref().ok_or_eyre("a header")?;
        assert_eq!((second.header.number, second.header.parent_hash), (first.header.number + 1, first.header.hash));
        let sent = second.transactions.as_transactions().ok_or_eyre("whole transactions")?;
        assert_eq!((sent.len(), sent[0].inner.signer()), (3, from));
    }
    Ok(())
}

/// The reason why the README sends providers to `/standard`.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_call_is_read_by_alloy_at_standard_only() -> Result<()> {
    let node = TestNode::quiet();
    let refused = call(RECEIVER, ALPHA, transferCall { to: WETH, value: U256::from(7) });
    let payload = SimulatePayload::default().extend(simulate_v1::SimBlock::default().call(refused));
    let blocks = over_http(&node, "/standard")?.simulate(&payload).pending().await?;
    assert!(blocks[0].calls[0].error.is_some());
    let error = over_http(&node, "/")?.simulate(&payload).pending().await.expect_err("the error is a text");
    assert!(error.is_deser_error(), "{error}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_atomic_bundle_names_the_call_that_failed() -> Result<()> {
    let node = devnet();
    let provider = over_http(&node, "/standard")?;
    let from = node.account(0);
    let refused = call(RECEIVER, ALPHA, transferCall { to: from, value: U256::from(7) });
    let bundle = Simulation::of([pay(from, 1), refused]).with_outputs([Output::Status]).atomic();
    let simulated = provider.presim_simulate(&bundle, BlockSelector::PENDING).await?;
    let dropped = simulated.into_blocks().expect_err("the second call fails");
    assert_eq!((dropped.dropped.block, dropped.dropped.call), (0, 1));
    assert_eq!(dropped.to_string(), "call 1 of block 0 has not ended as the bundle requires");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn selectors_pin_a_snapshot_and_overrides_reach_the_node() -> Result<()> {
    let node = TestNode::quiet();
    let provider = over_http(&node, "/")?;
    let from = node.account(0);
    let newest = provider.presim_snapshot().await?;
    assert_eq!((newest.feed, newest.verified, &*newest.fork), (FeedState::Live, Verified::Full, "osaka"));
    assert_eq!((newest.id, newest.block_number), (node.id(newest.id & 0xffff_ffff), newest.head.number + 1));

    let mut block = SimBlock::of([pay(from, 1)]);
    let time = 4_000_000_000;
    block.block_overrides = Some(BlockOverrides {
        time: Some(time),
        fork: Some("amsterdam".into()),
        fee_recipient: Some(WETH),
        ..Default::default()
    });
    block.state_overrides.entry(RECEIVER).or_default().balance = Some(U256::from(41));
    let outputs = [Output::Header, Output::StateDiff, Output::BlockAccessList];
    let bundle = Simulation::of_blocks([block]).with_outputs(outputs);
    for selector in [
        BlockSelector::snapshot(newest.id),
        BlockSelector::LATEST,
        BlockNumberOrTag::Number(newest.head.number).into(),
        newest.head.hash.into(),
        BlockSelector::InBlock { block_number: newest.head.number, transaction_index: -1 },
    ] {
        let blocks = provider.presim_simulate(&bundle, selector).await?.into_blocks()?;
        let header = &blocks[0].block.as_ref().ok_or_eyre("a header")?.header;
        assert_eq!((header.timestamp, header.beneficiary), (time, WETH), "{selector:?}");
        assert_eq!(blocks[0].fork.as_deref(), Some("amsterdam"));
        assert_eq!(
            header.slot_number.is_some(),
            header.block_access_list_hash.is_some() && header.slot_number.is_some()
        );
        let accesses = blocks[0].block_access_list.as_ref().ok_or_eyre("the list of the block")?;
        let receiver = accesses.iter().find(|account| account.address == RECEIVER).ok_or_eyre("it is accessed")?;
        assert_eq!(receiver.balance_changes[0].post_balance, U256::from(42), "{selector:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_finds_the_best_value() -> Result<()> {
    let node = devnet();
    let provider = over_http(&node, "/standard")?;
    let from = node.account(0);
    let values = Values::list([3, 9, 5].map(U256::from));
    let mut search = Search::of([pay(from, 0)], Vary::value(0, 0, values), Objective::ether(RECEIVER))
        .with_least(I256::try_from(4)?)
        .with_outputs([Output::Status, Output::GasUsed]);
    search.top = Some(3);
    let found = provider.presim_search(&search, BlockSelector::PENDING).await?;
    let best = found.best.iter().map(|variant| (variant.values[0].to::<u64>(), variant.objective, variant.status));
    let expected =
        [(9, true), (5, true), (3, false)].map(|(value, status)| (value, I256::try_from(value).ok(), status));
    assert_eq!(best.collect::<Vec<_>>(), expected);
    assert_eq!((found.runs, found.complete, &*found.fork), (3, true, "osaka"));
    let blocks = found.result.ok_or_eyre("it was requested")?.into_blocks()?;
    assert_eq!(blocks[0].calls[0].gas_used, Some(21_000));

    // The amount is the second word of the call's data, which alloy names `input`.
    let transfer = call(from, WETH, transferCall { to: RECEIVER, value: U256::ZERO });
    let range = Values::maximize(U256::from(1), U256::from(1_000));
    let mut search = Search::of([transfer], Vary::data(0, 0, 1, range), Objective::token(RECEIVER, WETH));
    let slot = alloy_primitives::keccak256(alloy_sol_types::SolValue::abi_encode(&(from, U256::ZERO)));
    let balance = B256::from(U256::from(1_000));
    search.blocks[0].state_overrides.entry(WETH).or_default().state_diff =
        Some([(slot, balance)].into_iter().collect());
    let found = provider.presim_search(&search, BlockSelector::PENDING).await?;
    assert_eq!(found.best[0].objective, Some(I256::try_from(found.best[0].values[0])?), "{found:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_tells_its_load_and_what_became_of_a_bundle() -> Result<()> {
    let node = devnet();
    let provider = over_http(&node, "/standard")?;
    let status = provider.presim_status().await?;
    assert_eq!((status.chain_id, status.feed.state), (31337, FeedState::Live));
    assert!(status.version.starts_with("presim/") && status.lanes.contains_key("short"), "{status:?}");
    assert!(status.contracts.iter().any(|contract| contract.address == WETH));
    assert_eq!(provider.presim_divergences().await?, []);
    assert_eq!(provider.presim_outcome(B256::ZERO).await?, None);
    let approvals = provider.presim_approvals().await?;
    assert_eq!((approvals.batches.len(), approvals.more), (0, 0));

    // A signed transaction as a call and in a bundle. The node signs it.
    let sign = json!([{"from": node.account(3), "to": RECEIVER, "value": "0x1", "gas": "0x5208", "gasPrice": "0x174876e800", "nonce": "0x0"}]);
    let signed = node.call("/", "eth_signTransaction", sign).await;
    let raw = signed["result"]["raw"].as_str().or(signed["result"].as_str()).ok_or_eyre(signed.to_string())?;
    let raw: alloy_primitives::Bytes = raw.parse()?;
    let bundle = Simulation::of([raw.clone()]).with_outputs([Output::Status]);
    let blocks = provider.presim_simulate(&bundle, BlockSelector::PENDING).await?.into_blocks()?;
    assert!(blocks[0].calls[0].has_succeeded());
    let number = provider.presim_snapshot().await?.block_number + 5;
    let sent = json!([{"txs": [raw], "blockNumber": U256::from(number)}]);
    let hash: B256 = serde_json::from_value(node.result("/", "eth_sendBundle", sent).await["bundleHash"].take())?;
    assert_eq!(provider.presim_outcome(hash).await?, Some(Outcome::Pending));
    let mined = node.when("the bundle is mined", async || match provider.presim_outcome(hash).await {
        Ok(Some(Outcome::Mined { block_number })) => Some(block_number),
        other => other.map(drop).err().map(|error| panic!("{error}")),
    });
    assert_eq!(mined.await, number);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_pass_through_with_their_codes() -> Result<()> {
    let node = TestNode::quiet();
    let provider = over_http(&node, "/standard")?;
    let bundle = Simulation::of([pay(RECEIVER, 1)]);
    let error = provider.presim_simulate(&bundle, BlockSelector::snapshot(1)).await.expect_err("not retained");
    assert_eq!((error.presim_code(), error.overload()), (Some(error::REJECTED), None));
    let none = provider.presim_watch(&[], BlockSelector::PENDING).await.expect_err("a watch has bundles");
    assert_eq!(none.presim_code(), Some(error::INVALID_PARAMS));
    let polled = provider.presim_rewatch(Default::default(), 1).await.expect_err("there is no such watch over HTTP");
    assert!([Some(error::REJECTED), Some(error::METHOD_NOT_FOUND)].contains(&polled.presim_code()), "{polled}");

    // The example of the page on overload.
    let text = r#"{"code":-32005,"message":"overloaded","data":{"full":"the bundle lane","expectedWaitMs":412,"flag":"--queue-wait-ms"}}"#;
    let rejected = alloy_transport::TransportError::ErrorResp(serde_json::from_str(text)?);
    let overload = rejected.overload().ok_or_eyre("the node was overloaded")?;
    assert_eq!(
        (&*overload.full, overload.expected_wait_ms, &*overload.flag),
        ("the bundle lane", 412, "--queue-wait-ms")
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_over_http_has_each_change_once() -> Result<()> {
    let node = devnet();
    let account = node.account(1);
    let watch = over_http(&node, "/")?.watch(watched(account), BlockSelector::PENDING).await?;
    let id = watch.id();
    let mut answers = watch.into_stream();
    for wrapped in 0..3 {
        // The stream is asked before the answer changes, so that an answer that has been received already would be the next.
        let (changes, ()) = tokio::join!(soon("an answer", answers.next()), async {
            if wrapped > 0 {
                wrap(&node, account, 1).await;
            }
        });
        let changes = changes.ok_or_eyre("it does not end")??;
        assert_eq!((balance(&changes)?, changes.watch), (U256::from(wrapped), Some(id)));
        assert!(changes.block_number.is_some() && changes.timestamp.is_some(), "{changes:?}");
    }
    Ok(())
}

/// Forwards connections to a node, and cuts them on request.
struct Wire {
    at: std::net::SocketAddr,
    is_open: Arc<watch::Sender<bool>>,
}

impl Wire {
    async fn to(node: std::net::SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let at = listener.local_addr()?;
        let is_open = Arc::new(watch::Sender::new(true));
        let mut switch = is_open.subscribe();
        tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let Ok((mut client, _)) = accepted else { return };
                        // A connection that is accepted while the wire is cut is closed at once.
                        if *switch.borrow() {
                            connections.spawn(async move {
                                let mut server = TcpStream::connect(node).await?;
                                copy_bidirectional(&mut client, &mut server).await
                            });
                        }
                    }
                    changed = switch.changed() => {
                        if changed.is_err() { return }
                        if !*switch.borrow() { connections.shutdown().await }
                    }
                }
            }
        });
        Ok(Self { at, is_open })
    }

    fn cut(&self) {
        self.is_open.send_replace(false);
    }

    fn mend(&self) {
        self.is_open.send_replace(true);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_loses_nothing_when_its_socket_breaks() -> Result<()> {
    let node = devnet();
    let account = node.account(1);
    let wire = Wire::to(node.at()).await?;
    let provider = over_socket(wire.at).await?;
    let mut watch = provider.watch(watched(account), BlockSelector::PENDING).await?;
    let id = watch.id();
    assert_eq!(balance(&soon("the first answer", watch.recv()).await?)?, U256::ZERO);
    for round in 1..=3_u64 {
        // The answer changes while a request of the watch waits on the broken connection.
        let (changes, ()) = tokio::join!(soon("an answer after the break", watch.recv()), async {
            wire.cut();
            wrap(&node, account, 1).await;
            wire.mend();
        });
        let changes = changes?;
        assert_eq!((balance(&changes)?, changes.watch), (U256::from(round), Some(id)));
    }
    assert!(watch.end().await?, "the bundles have stood all the time");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_the_node_has_forgotten_begins_again() -> Result<()> {
    let node = devnet();
    let account = node.account(1);
    let provider = over_socket(node.at()).await?;
    let mut watch: Watch = provider.watch(watched(account), BlockSelector::LATEST).await?;
    let first = soon("the first answer", watch.recv()).await?;
    assert!(provider.presim_unwatch(watch.id()).await?);
    let again = soon("the answer of the new watch", watch.recv()).await?;
    assert_eq!((balance(&first)?, balance(&again)?), (U256::ZERO, U256::ZERO));
    assert_eq!(again.watch, Some(watch.id()));
    assert_ne!(again.watch, first.watch);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_has_snapshots_and_continues_after_a_break() -> Result<()> {
    let node = devnet();
    let account = node.account(2);
    let wire = Wire::to(node.at()).await?;
    let provider = over_socket(wire.at).await?;
    let feed = soon("the feed", provider.presim_subscribe_feed().await?.recv()).await?;
    assert_eq!((feed.state, feed.verified, feed.cause), (FeedState::Live, Verified::Full, None));

    let filter = ChangeFilter { address: vec![WETH], ..ChangeFilter::default() };
    let mut changes = provider.presim_subscribe_state_changes(&filter).await?;
    let snapshots = provider.presim_subscribe_snapshots().await?;
    let sent = TransactionRequest::default()
        .from(account)
        .to(WETH)
        .value(U256::from(3))
        .input(vec![0xd0, 0xe3, 0x0d, 0xb0].into());
    let hash: B256 = provider.raw_request("eth_sendTransaction".into(), (sent,)).await?;
    let StateChanges::Known(known) = soon("the change", changes.recv()).await? else { eyre::bail!("it is known") };
    assert_eq!(known.logs[0].transaction_hash, hash);
    let log = known.logs[0].clone().into_log().ok_or_eyre("a log")?;
    assert_eq!((log.address, known.changes.contains_key(&WETH)), (WETH, true));

    let mut snapshots = snapshots.into_stream();
    let has_it = async |snapshots: &mut (dyn futures::Stream<Item = PublishedSnapshot> + Send + Unpin)| loop {
        let snapshot = snapshots.next().await.expect("it does not end");
        if let Some(number) = snapshot.block_of(hash) {
            return (snapshot, number);
        }
    };
    let (snapshot, number) = soon("the transaction", has_it(&mut snapshots)).await;
    assert!(number <= snapshot.block_number && snapshot.touched.is_some_and(|touched| touched.contains(&WETH)));

    wire.cut();
    wire.mend();
    let newest = node.node.snapshots().newest().id.0;
    let after = soon("a later snapshot", async {
        loop {
            let snapshot = snapshots.next().await.expect("it does not end");
            if snapshot.id > newest {
                return snapshot.id;
            }
        }
    });
    assert!(after.await > newest);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lines_of_the_readme_run() -> Result<()> {
    let node = devnet();
    let blocks =
        simulate::simulate(&format!("ws://{}/standard", node.at())).await.map_err(|error| eyre::eyre!("{error}"))?;
    let receiver = &blocks[0].assets.as_ref().ok_or_eyre("assets")?[&node.account(1)];
    assert_eq!((receiver[0].change, blocks[0].calls[0].gas_used), (I256::ONE, Some(21_000)));

    // The README has the lines of the example, with the URL of a node as it starts. Line breaks are the formatter's.
    let readme = include_str!("../README.md");
    let block =
        readme.split("```rust,ignore").nth(1).and_then(|rest| rest.split("```").next()).ok_or_eyre("a program")?;
    assert_eq!(block.trim().lines().count(), 6, "{block}");
    let example: String = include_str!("../examples/simulate.rs").split_whitespace().collect();
    for line in block.trim().lines() {
        let line = line.replace(r#""ws://127.0.0.1:8545/standard""#, "url");
        assert!(example.contains(&*line.split_whitespace().collect::<String>()), "{line}");
    }
    Ok(())
}
