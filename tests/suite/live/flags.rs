//! Combinations of flags that a node rejects.

use std::time::Duration;

use alloy_consensus::Header;
use alloy_primitives::U256;
use presim::testing::chain::ChainSpec;
use revm::primitives::hardfork::SpecId;
use serde_json::{Value, json};

use super::{
    built::{Built, ETHEREUM, SOMEBODY, ethereum_config, transfer},
    head, serve,
    stage::genesis_of,
    try_start,
};
use crate::{
    op_chain::config,
    support::TestNode,
    upstream::{Fault, SmallUpstream},
};

fn refusal(started: eyre::Result<TestNode>, what: &str) -> String {
    match started {
        Ok(_) => panic!("{what}: the node started"),
        Err(error) => format!("{error:#}"),
    }
}

#[test]
fn sources_that_do_not_go_together_are_refused_with_the_reason() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let file = file.path().to_str().unwrap();
    let upstream = ["--upstream", "http://127.0.0.1:1"];
    let cases: [(&[&str], &[&str]); 12] = [
        (&["--flashblocks", "ws://127.0.0.1:1/ws"], &["--flashblocks needs --upstream"]),
        (&["--verify-proofs"], &["--verify-proofs needs --upstream"]),
        (&[upstream[0], upstream[1], "--genesis", file, "--chain", file], &["--upstream and --chain"]),
        (&[upstream[0], upstream[1], "--feed", "devnet"], &["--upstream and --feed devnet"]),
        (&[upstream[0], upstream[1], "--genesis", file, "--feed", "static"], &["--upstream and --feed static"]),
        (&["--upstream", "nonsense"], &["--upstream", "expected a URL"]),
        (&["--upstream", "ftp://127.0.0.1"], &["scheme ftp", "http, https, ws or wss"]),
        (&["--upstream", "http://"], &["--upstream", "host"]),
        (&[upstream[0], upstream[1], "--flashblocks", "http://127.0.0.1"], &["--flashblocks", "ws or wss"]),
        (&[upstream[0], upstream[1], "--flashblocks", "nonsense"], &["--flashblocks", "expected a URL"]),
        (&[upstream[0], upstream[1], "--cache-mb", "0"], &["--cache-mb"]),
        (&[upstream[0], upstream[1], "--flashblocks-ahead", "0"], &["--flashblocks-ahead"]),
    ];
    for (flags, expected) in cases {
        let told = refusal(TestNode::try_start(flags), &format!("{flags:?}"));
        for part in expected {
            assert!(told.contains(part), "{flags:?}: {told}");
        }
    }
}

async fn refused(url: &str, config: Option<&Value>, flags: &[&str], expected: &[&str]) {
    let told = refusal(try_start(url, config, flags).await, &format!("{expected:?}"));
    for part in expected {
        assert!(told.contains(part), "expected {part}: {told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_that_is_not_the_one_meant_is_refused_with_the_reason() {
    let built = Built::ethereum();
    let upstream = serve(&[&built]).await;
    let mut other = ethereum_config();
    other["chainId"] = json!(5);
    refused(&upstream.url(), Some(&other), &[], &["--genesis", "config.chainId is 5", "31415"]).await;
    let advice = ["--upstream", "chain 31415", "eth_config", "--fork NAME=0", "--genesis"];
    refused(&upstream.url(), None, &[], &advice).await;
    refused(&upstream.url(), None, &["--fork", "osaka=1"], &advice).await;
    // The error shows the address, but not the parts of the URL that may be secret.
    let secret = upstream.url().replace("http://", "http://user:secret@") + "/key-of-mine";
    upstream.fail(Fault::Garbage, usize::MAX);
    let told = refusal(try_start(&secret, Some(&built.config), &[]).await, "garbage");
    assert!(told.contains("--upstream http://127.0.0.1") && told.contains("eth_chainId"), "{told}");
    assert!(!told.contains("secret") && !told.contains("key-of-mine"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn proofs_of_an_upstream_that_has_none_are_refused_once_it_answers() {
    let built = Built::ethereum();
    let upstream = serve(&[&built]).await;
    let expected = ["--verify-proofs", "eth_getProof", "leave the flag out"];
    refused(&upstream.url(), Some(&built.config), &["--verify-proofs"], &expected).await;
    assert_eq!(upstream.asked("eth_getProof"), 1);
    // One that is only busy may have them later.
    upstream.refuse("eth_getProof", Some((-32000, "the proof is not ready")));
    let node = try_start(&upstream.url(), Some(&built.config), &["--verify-proofs"]).await.unwrap();
    upstream.refuse("eth_getProof", None);
    let proven = built.clone();
    upstream.script(move |method, params| {
        let address = serde_json::from_value(params[0].clone()).ok()?;
        (method == "eth_getProof").then(|| Ok(proven.proof(address, &[])))
    });
    let balance = node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await;
    assert_eq!(balance, json!(built.balance(SOMEBODY)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_is_known_by_its_name_without_a_genesis() {
    let built = Built::op_stack();
    // The chain id of Base.
    let chain = crate::upstream::UpstreamChain::new(vec![built.block.clone()]);
    let upstream = crate::upstream::SmallUpstream::start(8453, chain).await;
    let node = try_start(&upstream.url(), None, &[]).await.unwrap();
    assert_eq!(node.result("/", "eth_chainId", json!([])).await, "0x2105");
    let other = config(4242, "jovian");
    refused(&upstream.url(), Some(&other), &[], &["config.chainId is 4242", "8453"]).await;
}

/// Pushes a block with a transfer, and checks that it is executed here by the rules of its chain.
async fn executes(node: &TestNode, upstream: &SmallUpstream, first: &Built) {
    let one = first.next(vec![transfer(ETHEREUM, 0, 5)], 1);
    upstream.push(one.block.clone());
    head(node, one.hash()).await;
    assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"executed\"}"), 1.0);
    assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, json!(U256::from(5)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_forks_of_an_unknown_chain_are_those_that_its_node_announces() {
    let first = Built::ethereum();
    let mut config = ethereum_config();
    let (osaka, blobs) = (1_893_456_000_u64, 1_924_992_000_u64);
    (config["osakaTime"], config["bpo1Time"]) = (json!(osaka), json!(blobs));
    config["blobSchedule"] = json!({
        "cancun": {"target": 3, "max": 6, "baseFeeUpdateFraction": 3_338_477},
        "prague": {"target": 7, "max": 11, "baseFeeUpdateFraction": 6_000_000},
        "osaka": {"target": 8, "max": 12, "baseFeeUpdateFraction": 6_500_000},
        "bpo1": {"target": 9, "max": 13, "baseFeeUpdateFraction": 7_000_000},
    });
    let other = tokio::task::block_in_place(|| TestNode::on(&genesis_of(&config), &["--feed", "static"]));
    let mut told = other.result("/", "eth_config", json!([])).await;
    assert_eq!(told["next"]["activationTime"], osaka, "{told}");
    assert_eq!(told["last"]["activationTime"], blobs, "{told}");
    let upstream = serve(&[&first]).await;
    let announced = told.clone();
    upstream.script(move |method, _| (method == "eth_config").then(|| Ok(announced.clone())));
    let node = try_start(&upstream.url(), None, &[]).await.expect("it starts");
    let mut own = node.result("/", "eth_config", json!([])).await;
    for config in [&mut told, &mut own] {
        // The genesis is another one.
        ["current", "next", "last"].iter().for_each(|fork| config[fork]["forkId"] = Value::Null);
    }
    assert_eq!(own, told);
    executes(&node, &upstream, &first).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_active_fork_that_changed_blobs_alone_has_the_rules_of_osaka() {
    let first = Built::ethereum();
    let mut config = ethereum_config();
    config["osakaTime"] = json!(0);
    config["blobSchedule"]["osaka"] = json!({"target": 9, "max": 13, "baseFeeUpdateFraction": 7_000_000});
    let other = tokio::task::block_in_place(|| TestNode::on(&genesis_of(&config), &["--feed", "static"]));
    let mut told = other.result("/", "eth_config", json!([])).await;
    let time = first.header().timestamp;
    told["current"]["activationTime"] = json!(time);
    let announced = serde_json::from_value(told).expect("its forks");
    let spec = ChainSpec::announced(ETHEREUM, &announced, &[], Duration::from_secs(1));
    let spec = spec.expect("presim knows the fork").expect("its forks are in order");
    let most = |timestamp| spec.blob_params(timestamp).expect("it has blobs").max_blob_count;
    assert_eq!((most(time - 1), most(time)), (9, 13));
    let fork = |timestamp| spec.evm_fork(&Header { timestamp, ..first.header().clone() });
    assert_eq!((fork(0), fork(time)), (SpecId::OSAKA, SpecId::OSAKA));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_from_genesis_gives_the_rules_of_a_chain_whose_node_announces_none() {
    let first = Built::ethereum();
    let upstream = serve(&[&first]).await;
    let node = try_start(&upstream.url(), None, &["--fork", "prague=0"]).await.expect("it starts");
    executes(&node, &upstream, &first).await;
    // A fork that presim does not know is not guessed.
    upstream.script(|method, _| {
        let mut current =
            json!({"activationTime": 0, "chainId": "0x7ab7", "forkId": "0x01020304", "systemContracts": {}});
        current["precompiles"] = json!({"NEW": "0x0000000000000000000000000000000000000fff"});
        (method == "eth_config").then(|| Ok(json!({"current": current, "next": null, "last": null})))
    });
    refused(&upstream.url(), None, &[], &["chain 31415", "does not know the active fork", "--fork NAME=0"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_chain_of_the_op_stack_needs_a_genesis() {
    let built = Built::op_stack();
    let upstream = serve(&[&built]).await;
    for flags in [&[][..], &["--fork", "prague=0"]] {
        refused(&upstream.url(), None, flags, &["chain 4242", "OP stack", "--genesis"]).await;
    }
}
