//! Combinations of flags that a node rejects.

use serde_json::{Value, json};

use super::{
    built::{Built, SOMEBODY, ethereum_config},
    serve, try_start,
};
use crate::{op_chain::config, support::TestNode, upstream::Fault};

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
        (&["--verify-proofs"], &["--verify-proofs needs --upstream or --follow"]),
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
    refused(&upstream.url(), None, &[], &["--upstream", "chain 31415", "--genesis"]).await;
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
