//! The library: nodes inside of this program, without HTTP and JSON.

use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope};
use alloy_primitives::{Address, B256, Bytes, I256, TxKind, U256, address};
use alloy_signer::SignerSync;
use alloy_signer_local::PrivateKeySigner;
use futures::{FutureExt, StreamExt};
use presim::{
    Config, Error, Node, Search, StartError,
    simulation::{
        AccountOverride, Aim, BundleSearch, Call, CallIndex, CallOutcome, CallRequest, Objective, SearchedValues,
        SimBlock, SimCall, Simulation, SimulationError, StorageOverride, ValueList, VariantEnd, VariedPart,
        VariedTarget,
    },
    testing::source::devnet::world::dev_signers,
};
use serde_json::{Value, json};
use support::{http, shared};
use tempfile::tempdir;

const SINK: Address = address!("00000000000000000000000000000000000000aa");

/// A devnet on which nothing happens by itself.
fn quiet() -> Config {
    Config::default().with("traffic", 0).with("sub-block-ms", 60_000)
}

fn alice() -> PrivateKeySigner {
    dev_signers().expect("the published accounts")[0].clone()
}

/// A call of a contract with this code, which the bundle sets.
fn coded(code: &[u8]) -> SimBlock {
    let code = Some(Bytes::copy_from_slice(code));
    let state = vec![(SINK, AccountOverride { code, ..AccountOverride::default() })];
    SimBlock { state, ..SimBlock::of([Call::to(SINK).with_from(alice().address())]) }
}

#[tokio::test(flavor = "current_thread")]
async fn a_bundle_has_the_results_that_clients_get() {
    let config = quiet().listen(([127, 0, 0, 1], 0).into());
    let node = Node::start(config).await.expect("it starts");
    let from = alice().address();
    let pay = Call::to(SINK).with_from(from).with_value(U256::from(5));
    let bundle = Simulation::of([SimBlock::of([pay.clone()]), SimBlock::of([pay])]);
    let simulated = node.simulate(&bundle).await.expect("it runs");

    let call = json!({"from": from, "to": SINK, "value": "0x5"});
    let blocks = json!([{"calls": [call]}, {"calls": [call]}]);
    let params = json!([{"blockStateCalls": blocks, "outputs": ["status", "gasUsed", "header"]}, "pending"]);
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "presim_simulate", "params": params});
    let url = format!("http://{}", node.listens_on().expect("it listens"));
    let answer: Value = http().post(url).json(&body).send().await.unwrap().json().await.unwrap();
    let listed = answer["result"].as_array().expect("the blocks");
    assert_eq!(listed.len(), 2, "{answer}");
    for (block, listed) in simulated.blocks.iter().zip(listed) {
        let listing = block.listing.as_ref().expect("the header is an output");
        assert_eq!(json!(listing.header.hash()), listed["hash"], "{listed}");
        assert_eq!(json!(format!("{:#x}", block.calls[0].gas_used)), listed["calls"][0]["gasUsed"]);
        assert_eq!(
            (block.calls[0].outcome.clone(), &listed["calls"][0]["status"]),
            (CallOutcome::Success, &json!("0x1"))
        );
    }
    assert_eq!(simulated.gas_used, 42_000);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_accounts_and_slots_are_those_of_the_newest_snapshot() {
    let node = Node::start(quiet()).await.expect("it starts");
    let account = node.account(alice().address()).await.expect("it is known");
    assert_eq!(account.code, Bytes::new());
    assert!(account.balance > U256::from(10).pow(U256::from(21)), "{account:?}");
    assert_eq!(node.account(SINK).await.expect("it is known"), presim::Account::default());
    let weth = node.contracts().into_iter().find(|(name, _)| *name == "WETH").expect("the devnet has it").1;
    assert!(!node.account(weth).await.expect("it is known").code.is_empty());
    assert_eq!(node.storage(SINK, U256::ZERO).await.expect("it is known"), B256::ZERO);

    // The contract returns the slot 1, which an override sets. SLOAD(1), MSTORE(0), RETURN(0, 32).
    let code = Some(Bytes::from_static(&[0x60, 1, 0x54, 0x5f, 0x52, 0x60, 32, 0x5f, 0xf3]));
    let storage = StorageOverride::Diff(vec![(U256::from(1), U256::from(77))]);
    let state = vec![(SINK, AccountOverride { code, storage, ..AccountOverride::default() })];
    let output =
        node.call(&CallRequest { call: Call::to(SINK), state, ..CallRequest::default() }).await.expect("it runs");
    assert_eq!((output.outcome, U256::from_be_slice(&output.data)), (CallOutcome::Success, U256::from(77)));

    // A revert and a halt are results, not errors.
    for (code, outcome) in [(vec![0x5f, 0x5f, 0xfd], true), (vec![0xfe], false)] {
        let simulated = node.simulate(&Simulation::of([coded(&code)])).await.expect("it runs");
        let call = &simulated.blocks[0].calls[0];
        assert_eq!(call.outcome == CallOutcome::Revert, outcome, "{:?}", call.outcome);
        assert_ne!(call.outcome, CallOutcome::Success);
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_chain_refuses_is_an_error_with_its_reason() {
    let node = Node::start(quiet()).await.expect("it starts");
    let poor = Call::to(SINK).with_from(Address::repeat_byte(9)).with_value(U256::from(1));
    let error = node.simulate(&Simulation::of([SimBlock::of([poor])])).await.expect_err("it has no ether");
    let Error::Simulation(SimulationError::InCall { index, error }) = &error else { panic!("{error:?}") };
    assert_eq!((index.block, index.call), (0, 0));
    assert!(matches!(**error, SimulationError::InsufficientFunds { want, .. } if want == U256::from(1)), "{error}");

    let endless = Simulation::of([coded(&[0x5b, 0x5f, 0x56])]);
    let node_of_haste =
        Node::start(quiet().with("deadline-ms", 50).with("gas-cap", u64::MAX)).await.expect("it starts");
    let SimBlock { state, calls, .. } = endless.blocks[0].clone();
    let block = presim::simulation::BlockOverrides { gas_limit: Some(u64::MAX), ..Default::default() };
    let endless = Simulation::of([SimBlock { state, block, calls }]);
    let error = node_of_haste.simulate(&endless).await.expect_err("it does not end");
    assert!(error.to_string().contains("deadline"), "{error}");
    drop((node, node_of_haste));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_finds_the_best_value() {
    let node = Node::start(quiet()).await.expect("it starts");
    // The contract pays the caller x (100 - x) wei of the value sent with x as the first word of the data, so 50 is the best:
    // CALL(gas, CALLER, MUL(x, SUB(100, x)), 0, 0, 0, 0).
    let code = [
        0x5f, 0x5f, 0x5f, 0x5f, // no data, in and out
        0x60, 4, 0x35, 0x80, 0x60, 100, 0x03, 0x02, // x (100 - x)
        0x33, 0x5a, 0xf1, 0x00,
    ];
    let payer = AccountOverride {
        code: Some(Bytes::copy_from_slice(&code)),
        balance: Some(U256::from(1_000_000)),
        ..AccountOverride::default()
    };
    let taker = Address::repeat_byte(5);
    let call = Call::to(SINK).with_from(taker).with_data(vec![0; 36]);
    let bundle = Simulation::of([SimBlock { state: vec![(SINK, payer)], ..SimBlock::of([call]) }]);
    let of_word = |word| {
        Search::new(bundle.clone(), Objective::Ether(taker))
            .maximize_word(0, 0, word, U256::ZERO, U256::from(100), U256::from(1))
            .top(2)
    };
    let outcome = node.search(&of_word(0)).await.expect("it runs");
    assert!(outcome.complete && outcome.runs <= 101, "{outcome:?}");
    assert_eq!(outcome.best[0].values, [U256::from(50)]);
    assert_eq!(outcome.best.len(), 2);
    let VariantEnd::Ran { objective, succeeded, .. } = outcome.best[0].end else { panic!("{outcome:?}") };
    assert_eq!((objective, succeeded), (I256::try_from(2_500).unwrap(), true));
    assert!(outcome.shown.is_some_and(|shown| shown.blocks[0].calls[0].outcome == CallOutcome::Success));

    let of_values = |values| {
        Search::from(BundleSearch {
            simulation: bundle.clone(),
            shows: false,
            targets: vec![VariedTarget::Call(CallIndex { block: 0, call: 0 }, VariedPart::Value)],
            values,
            aim: Aim::GasUsed,
            least: None,
            top: 1,
        })
    };
    let listed = |list| of_values(SearchedValues::Each(vec![list]));
    let (one, two) = (U256::from(1), U256::from(2));
    let slot = VariedTarget::Slot { block: 0, address: SINK, slot: one };
    let of_slot = Search::from(BundleSearch {
        simulation: bundle.clone(),
        shows: false,
        targets: vec![slot],
        values: SearchedValues::Each(vec![ValueList::Listed(vec![one])]),
        aim: Aim::GasUsed,
        least: None,
        top: 1,
    });
    let nowhere = [
        (of_slot, "has no slot 0x1"),
        (of_values(SearchedValues::Maximize { from: two, to: one, tolerance: one }), "from 2 to 1"),
        (of_values(SearchedValues::Maximize { from: one, to: two, tolerance: U256::ZERO }), "the tolerance is 0"),
        (listed(ValueList::Listed(Vec::new())), "a list has no values"),
        (listed(ValueList::Steps { from: one, step: U256::MAX, count: 2 }), "at most 256 bits"),
        (listed(ValueList::Linear { from: two, to: one, count: 2 }), "from 2 to 1"),
        (listed(ValueList::Geometric { from: one, to: two, count: 1 }), "expected a count from 2"),
        (listed(ValueList::Steps { from: one, step: one, count: 10_001 }), "expected at most 10000"),
        (of_word(1), "blocks[0].calls[0].data: word 1: the data has 36 bytes"),
        (of_word(usize::MAX), "the data has 36 bytes"),
        (Search::new(bundle.clone(), Objective::Ether(taker)), "a search varies one or two parts"),
        (of_word(0).maximize_value(0, 1, U256::ZERO, U256::from(1), U256::ZERO), "blocks[0].calls[1]: no such call"),
        (of_word(0).maximize_value(1, 0, U256::ZERO, U256::from(1), U256::ZERO), "blocks[1].calls[0]: no such call"),
    ];
    for (search, told) in nowhere {
        let error = node.search(&search).await.map(drop).expect_err("it varies nothing").to_string();
        assert!(error.contains(told), "{error}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_yields_each_newest_snapshot_and_ends_with_the_node() {
    let (node, mut feeder) = Node::start_fed(quiet()).await.expect("it starts");
    let mut watch = node.watch();
    let first = watch.next().await.expect("the newest");
    assert_eq!(first.id(), node.snapshot().id());
    assert!(watch.next().now_or_never().is_none(), "nothing is new");
    feeder.push([], false).await.expect("it is published");
    let second = watch.next().await.expect("the next");
    assert_eq!((second.id(), second.index()), (first.id() + 1, first.index() + 1));
    // Of two, the newest.
    feeder.push([], false).await.expect("it is published");
    feeder.push([], true).await.expect("it is published");
    let last = watch.next().await.expect("the newest");
    assert_eq!((last.id(), last.sealed().0), (first.id() + 3, first.sealed().0 + 1));
    assert!(watch.next().now_or_never().is_none(), "nothing is new");
    // A snapshot never changes.
    assert_eq!(first.sealed().0 + 1, first.header().number);
    let (signer, chain) = (alice(), node.chain_id());
    let nonce = node.account(signer.address()).await.expect("it is known").nonce;
    feeder.push([payment(&signer, chain, nonce)], false).await.expect("it is published");
    let balance = async |snapshot| node.account_on(snapshot, SINK).await.expect("it is known").balance;
    assert_eq!((balance(&first).await, balance(&node.snapshot()).await), (U256::ZERO, U256::from(1)));
    // The receiver of the payment returns its balance: SELFBALANCE, MSTORE(0), RETURN(0, 32).
    let code = Some(Bytes::from_static(&[0x47, 0x5f, 0x52, 0x60, 32, 0x5f, 0xf3]));
    let state = vec![(SINK, AccountOverride { code, ..AccountOverride::default() })];
    let request = CallRequest { call: Call::to(SINK), state, ..CallRequest::default() };
    let output = node.call_on(&first, &request).await.expect("it runs");
    assert_eq!(U256::from_be_slice(&output.data), U256::ZERO);
    assert_eq!(U256::from_be_slice(&node.call(&request).await.expect("it runs").data), U256::from(1));
    // The objective does not grow by more than what the sender has.
    let pay = Simulation::of([SimBlock::of([Call::to(alice().address()).with_from(SINK)])]);
    let search = Search::new(pay, Objective::Ether(signer.address())).maximize_value(
        0,
        0,
        U256::ZERO,
        U256::from(1),
        U256::from(1),
    );
    let best = async |snapshot| node.search_on(snapshot, &search).await.expect("it runs").best[0].values[0];
    assert_eq!((best(&first).await, best(&node.snapshot()).await), (U256::ZERO, U256::from(1)));
    node.stop().await;
    assert!(watch.next().await.is_none());
    assert!(feeder.push([], false).await.is_err_and(|error| error.to_string() == "the node is stopping"));
}

/// Returns a signed payment of one wei.
fn payment(signer: &PrivateKeySigner, chain_id: u64, nonce: u64) -> TxEnvelope {
    let tx = TxEip1559 {
        chain_id,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: 100_000_000_000,
        to: TxKind::Call(SINK),
        value: U256::from(1),
        ..TxEip1559::default()
    };
    let signature = signer.sign_hash_sync(&tx.signature_hash()).expect("a signature");
    tx.into_signed(signature).into()
}

#[tokio::test(flavor = "multi_thread")]
async fn given_sub_blocks_are_the_whole_chain_and_survive_a_restart() {
    let data = tempdir().expect("a folder");
    let config = Config::default().data_dir(data.path());
    let (node, mut feeder) = Node::start_fed(config.clone()).await.expect("it starts");
    let (signer, chain) = (alice(), node.chain_id());
    let first = node.account(signer.address()).await.expect("it is known").nonce;
    let used = payment(&signer, chain, first);
    let left_out =
        feeder.push([used.clone(), payment(&signer, chain, first + 1)], true).await.expect("it is published");
    assert_eq!(left_out, []);
    let left_out =
        feeder.push([used.clone(), payment(&signer, chain, first + 2)], false).await.expect("it is published");
    assert_eq!(left_out.len(), 1, "{left_out:?}");
    assert_eq!(left_out[0].0, *used.tx_hash());
    assert!(left_out[0].1.contains("nonce"), "{left_out:?}");
    let before = node.snapshot();
    assert_eq!((before.transactions(), node.account(SINK).await.unwrap().balance), (1, U256::from(3)));

    // Another node must not open the folder meanwhile.
    let error = Node::start(config.clone()).await.map(drop).expect_err("the folder is used");
    assert!(matches!(&error, StartError::Store(text) if text.contains("another node uses it")), "{error:?}");
    node.stop().await;

    let (node, mut feeder) = Node::start_fed(config).await.expect("it starts again");
    let after = node.snapshot();
    assert_eq!((after.sealed(), after.transactions()), (before.sealed(), 1));
    feeder.push([payment(&signer, chain, first + 3)], true).await.expect("it is published");
    assert_eq!(node.account(SINK).await.unwrap().balance, U256::from(4));
    node.stop().await;
}

#[tokio::test(flavor = "current_thread")]
async fn settings_are_checked_when_the_node_starts() {
    let refused = [
        (Config::default().with("nonsense", 1), "--nonsense"),
        (Config::default().with("help", true), "not settings"),
        (Config::default().workers(0), "--workers"),
        (Config::default().with("deadline-ms", "soon"), "--deadline-ms"),
        (Config::default().with("chain", "blocks.rlp"), "--chain needs --genesis"),
        (Config::default().listen(([0, 0, 0, 0], 0).into()), "--token-file"),
        (Config::default().flashblocks("wss://builder.example/ws"), "--flashblocks"),
    ];
    for (config, named) in refused {
        let error = Node::start(config).await.map(drop).expect_err("it is refused");
        let StartError::Setting(text) = &error else { panic!("{named}: {error:?}") };
        assert!(text.contains(named) && !text.contains("--help'"), "{named}: {text}");
    }
    let error = Node::start(Config::genesis("no-such-genesis.json")).await.map(drop).expect_err("there is no file");
    assert!(matches!(&error, StartError::Chain(text) if text.contains("no-such-genesis.json")), "{error:?}");
    let node = Node::start(quiet().listen(([127, 0, 0, 1], 0).into())).await.expect("it starts");
    let taken = quiet().listen(node.listens_on().expect("it listens"));
    let error = Node::start(taken).await.map(drop).expect_err("it is taken");
    assert!(matches!(&error, StartError::Address(text) if text.contains("cannot listen on")), "{error:?}");
    let fed =
        Node::start_fed(Config::following("http://127.0.0.1:1")).await.map(drop).expect_err("it has another source");
    assert!(matches!(&fed, StartError::Setting(text) if text.starts_with("--upstream")), "{fed:?}");
    node.stop().await;
}

#[tokio::test(flavor = "current_thread")]
async fn several_nodes_run_side_by_side() {
    let (one, other) = (Node::start(quiet()).await.expect("it starts"), Node::start(quiet()).await.expect("it starts"));
    let pay = Call::to(SINK).with_from(alice().address()).with_value(U256::from(1));
    let bundle = Simulation::of([SimBlock { calls: vec![SimCall::from(pay)], ..SimBlock::default() }]);
    let (first, second) = tokio::join!(one.simulate(&bundle), other.simulate(&bundle));
    assert_eq!((first.expect("it runs").gas_used, second.expect("it runs").gas_used), (21_000, 21_000));
    one.simulate(&bundle).await.expect("it runs");
    let gas = |node: &Node| {
        let metrics = node.metrics();
        let line = metrics.lines().find(|line| line.starts_with("presim_gas_simulated_total")).expect("the metric");
        line.rsplit(' ').next().and_then(|count| count.parse::<f64>().ok()).expect("a number")
    };
    assert_eq!((gas(&one), gas(&other)), (42_000., 21_000.));
    // Neither blocks this thread, which is the only one of its runtime.
    drop(one);
    other.simulate(&bundle).await.expect("the other node runs on");
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_follows_another_one() {
    let upstream = Node::start(Config::default().with("traffic", 0).listen(([127, 0, 0, 1], 0).into())).await.unwrap();
    let url = format!("http://{}", upstream.listens_on().expect("it listens"));
    let node = Node::start(Config::following(url)).await.expect("it starts");
    assert_eq!(node.chain_id(), upstream.chain_id());
    let (account, known) = (alice().address(), |account: presim::Account| (account.balance, account.nonce));
    assert_eq!(
        known(node.account(account).await.expect("it is fetched")),
        known(upstream.account(account).await.expect("it is known"))
    );
    let pay = Call::to(SINK).with_from(account).with_value(U256::from(1));
    assert_eq!(node.simulate(&Simulation::of([SimBlock::of([pay])])).await.expect("it runs").gas_used, 21_000);
    node.stop().await;
    upstream.stop().await;
}

#[test]
fn a_node_starts_outside_of_a_runtime() {
    let node = Node::start_blocking(quiet()).expect("it starts");
    assert_eq!(node.chain_id(), 31_337);
    drop(node);
    let Some(folder) = shared("vectors/execution-apis") else { return };
    let (genesis, chain) = (folder.join("genesis.json"), folder.join("chain.rlp"));
    let node = Node::start_blocking(Config::genesis(genesis).with("chain", chain.display())).expect("it starts");
    assert_eq!(node.snapshot().transactions(), 0);
    assert!(node.snapshot().sealed().0 > 0);
}
