//! Sending to an upstream: nonces, fees, replacements, restarts, reorgs and faults.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use alloy_consensus::{Transaction, transaction::SignerRecoverable};
use alloy_eips::Encodable2718;
use alloy_primitives::{Address, U256, bytes};
use presim::testing::wallet::ether;
use serde_json::json;

use super::{LiveWallet, call, key, mined, reason};
use crate::{
    live::{
        built::{Built, ETHEREUM, GATE, SOMEBODY, STORE, sent_by},
        head, serve, try_start,
    },
    process::text,
    support::items,
    terminal::Terminal,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_stored_sent_and_followed_through_a_block_and_a_reorg() {
    let mut live = LiveWallet::ethereum(&[]).await;
    let id = live.send(0, false, &[call(SOMEBODY, 7, bytes!()), call(STORE, 0, bytes!("05"))]).await;
    let sent = live.sent(2).await;
    assert_eq!((sent[0].nonce(), sent[1].nonce()), (0, 1));
    assert_eq!(sent[0].recover_signer().unwrap(), key(0).address());
    let waits = live.status_when(&id, |status| reason(status).contains("no block has it yet")).await;
    assert_eq!((&waits["status"], waits.get("receipts")), (&json!(100), None), "{waits}");

    let before = live.newest.clone();
    live.mine(mined(sent.clone())).await;
    let status = live.settled(&id, 200).await;
    assert_eq!(items(&status["receipts"]).len(), 2, "{status}");
    assert_eq!(status["receipts"][0]["blockHash"], json!(live.newest.hash()), "{status}");
    assert_eq!(status.get("capabilities"), None, "{status}");

    // A reorg takes the batch back: it waits, and the same bytes are sent again.
    let times = live.upstream.sent().len();
    let (first, second) = (before.next(vec![], 2), before.next(vec![], 2).next(vec![], 2));
    live.upstream.reorganise(vec![first.block.clone(), second.block.clone()]);
    live.newest = second;
    head(live.node(), live.newest.hash()).await;
    live.settled(&id, 100).await;
    let again = live.upstream.has_sent(times + 2).await;
    assert!(again[times..].iter().all(|raw| again[..times].contains(raw)), "nothing is signed twice");
    live.mine(mined(sent)).await;
    let status = live.settled(&id, 200).await;
    assert_eq!(status["receipts"][1]["blockHash"], json!(live.newest.hash()), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_simulated_after_those_of_its_account_that_wait() {
    let live = LiveWallet::ethereum(&[]).await;
    let closed = [call(GATE, 0, bytes!())];
    live.send(0, false, &closed).await;
    live.send(0, false, &[call(GATE, 0, bytes!("01"))]).await;
    // The gate is closed by what waits, for this account alone.
    let result = live.node().result("/", "wallet_sendCalls", live.batch(0, false, &closed)).await;
    assert_eq!(result["capabilities"]["simulation"]["calls"][0]["status"], "0x0", "{result}");
    let error = live.node().error("/", "wallet_sendCalls", live.batch(0, true, &closed)).await;
    assert_eq!(error["code"], -32000, "{error}");
    let result = live.node().result("/", "wallet_sendCalls", live.batch(1, false, &closed)).await;
    assert_eq!(result["capabilities"]["simulation"]["calls"][0]["status"], "0x1", "{result}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_an_upstream_does_not_take_says_why_and_is_sent_after_a_restart() {
    let mut live = LiveWallet::ethereum(&[]).await;
    live.upstream.refuse("eth_sendRawTransaction", Some((-32000, "transaction underpriced: tip needed 5")));
    let id = live.send(0, false, &[call(SOMEBODY, 1, bytes!())]).await;
    live.status_when(&id, |status| reason(status).contains("underpriced: tip needed 5")).await;
    assert!(live.upstream.sent().is_empty());
    live.stop().await;
    live.upstream.refuse("eth_sendRawTransaction", None);
    live.start(&[]).await;
    let sent = live.sent(1).await;
    live.status_when(&id, |status| reason(status).contains("no block has it yet")).await;
    // The upstream says that it knows it, which is as good.
    live.upstream.refuse("eth_sendRawTransaction", Some((-32000, "already known")));
    live.upstream.is_asked("eth_sendRawTransaction", live.upstream.asked("eth_sendRawTransaction") + 2).await;
    assert!(reason(&live.status(&id).await).contains("no block has it yet"));
    live.mine(mined(sent)).await;
    live.settled(&id, 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_mined_while_the_node_is_down_is_found() {
    let mut live = LiveWallet::ethereum(&[]).await;
    let id = live.send(0, false, &[call(STORE, 0, bytes!("07"))]).await;
    let taken = live.send(1, false, &[call(STORE, 0, bytes!("08"))]).await;
    let sent = live.sent(2).await;
    live.stop().await;
    let own = sent.into_iter().find(|tx| tx.recover_signer().unwrap() == key(0).address()).unwrap();
    let foreign = sent_by(1, ETHEREUM, 0, SOMEBODY, 3, bytes!());
    let by = *foreign.tx_hash();
    let number = live.mine_unseen(vec![own.into(), foreign]);
    live.start(&[]).await;
    let status = live.settled(&id, 200).await;
    assert_eq!((&status["receipts"][0]["blockNumber"], items(&status["receipts"][0]["logs"]).len()), (&number, 1));
    let status = live.settled(&taken, 400).await;
    assert_eq!(status["capabilities"]["transactions"]["replaced"][0]["by"], json!(by), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_nonce_a_foreign_transaction_takes_has_failed_unless_a_reorg_gives_it_back() {
    let mut live = LiveWallet::ethereum(&[]).await;
    let id = live.send(0, false, &[call(STORE, 0, bytes!("01")), call(SOMEBODY, 2, bytes!())]).await;
    let sent = live.sent(2).await;
    let foreign = sent_by(0, ETHEREUM, 0, SOMEBODY, 3, bytes!());
    let by = *foreign.tx_hash();
    let before = live.newest.clone();
    live.mine(vec![foreign.clone()]).await;
    // A part of it can still be mined.
    let status = live.status_when(&id, |status| status["capabilities"]["transactions"]["replaced"].is_array()).await;
    assert_eq!(status["status"], 100, "{status}");
    live.mine(mined(sent[1..].to_vec())).await;
    let status = live.settled(&id, 600).await;
    let replaced = &status["capabilities"]["transactions"]["replaced"];
    assert_eq!(*replaced, json!([{"hash": sent[0].tx_hash(), "by": by}]), "{status}");
    // The next batch has the next nonce.
    let next = live.send(0, false, &[call(SOMEBODY, 1, bytes!())]).await;
    let third = live.sent(3).await.pop().unwrap();
    assert_eq!(third.nonce(), 2);
    // On another branch the foreign transaction is not there.
    let one = before.next(mined(vec![sent[0].clone()]), 2);
    let two = one.next(mined(vec![sent[1].clone(), third]), 2);
    let three = two.next(vec![], 2);
    live.upstream.reorganise([&one, &two, &three].map(|built| built.block.clone()).to_vec());
    live.newest = three;
    head(live.node(), live.newest.hash()).await;
    live.settled(&id, 200).await;
    live.settled(&next, 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nonces_follow_the_transactions_that_wait_at_the_upstream() {
    let mut live = LiveWallet::ethereum(&[]).await;
    live.upstream.lie(|method, params, truth| match (method, params[1].as_str()) {
        ("eth_getTransactionCount", Some("pending")) => json!("0x2"),
        _ => truth,
    });
    let id = live.send(0, false, &[call(SOMEBODY, 1, bytes!())]).await;
    let sent = live.sent(1).await;
    assert_eq!(sent[0].nonce(), 2);
    live.status_when(&id, |status| reason(status).contains("from nonce 0 on")).await;
    let foreign = |nonce| sent_by(0, ETHEREUM, nonce, SOMEBODY, 3, bytes!());
    live.mine(vec![foreign(0), foreign(1), sent[0].clone().into()]).await;
    live.settled(&id, 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approver_bumps_a_batch_and_cancels_another() {
    let mut live = LiveWallet::ethereum(&[]).await;
    let id = live.send(0, false, &[call(STORE, 0, bytes!("01"))]).await;
    let other = live.send(0, false, &[call(STORE, 0, bytes!("02"))]).await;
    let sent = live.sent(2).await;
    let shown = live.operate(&["bump", &id, "--yes"]).await.unwrap();
    let bumped = live.sent(3).await.pop().unwrap();
    let fees =
        U256::from(bumped.gas_limit()) * U256::from(bumped.max_fee_per_gas()) * U256::from(125) / U256::from(100);
    let quote = format!("{id}: signs 1 transaction once more, for at most {} ether of gas fees\n", ether(fees));
    assert!(shown.starts_with(&quote), "{quote}{shown}");
    assert!(shown.contains(&format!("bumped {id}")) && shown.contains(&bumped.tx_hash().to_string()), "{shown}");
    assert_eq!((bumped.nonce(), bumped.input(), bumped.to()), (0, sent[0].input(), sent[0].to()));
    assert!(bumped.max_fee_per_gas() > sent[0].max_fee_per_gas() * 110 / 100);
    live.operate(&["cancel", &other[..10], "--yes"]).await.unwrap();
    let nothing = live.sent(4).await.pop().unwrap();
    assert_eq!(
        (nothing.nonce(), nothing.gas_limit(), nothing.value(), nothing.input().len()),
        (1, 21_000, U256::ZERO, 0)
    );
    // Restarted, the node knows both versions.
    live.stop().await;
    live.start(&[]).await;
    live.sent(4).await;
    // The old version of the first and the new one of the second are mined.
    let before = live.newest.clone();
    live.mine(mined(vec![sent[0].clone(), nothing.clone()])).await;
    live.settled(&id, 200).await;
    let status = live.settled(&other, 400).await;
    let by = &status["capabilities"]["transactions"]["replaced"][0]["by"];
    assert_eq!(*by, json!(nothing.tx_hash()), "{status}");
    let error = live.operate(&["bump", &id, "--yes"]).await.unwrap_err();
    assert!(error.contains("no transaction of"), "{error}");
    // And the other way round on another branch.
    let one = before.next(mined(vec![bumped, sent[1].clone()]), 2);
    let two = one.next(vec![], 2);
    live.upstream.reorganise([&one, &two].map(|built| built.block.clone()).to_vec());
    head(live.node(), two.hash()).await;
    live.settled(&id, 200).await;
    live.settled(&other, 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bump_that_costs_more_than_was_shown_signs_nothing() {
    let live = LiveWallet::ethereum(&[]).await;
    let id = live.send(0, false, &[call(STORE, 0, bytes!("01"))]).await;
    let sent = live.sent(1).await;
    // The operator was shown as much as the transaction offers already.
    let shown = U256::from(sent[0].gas_limit()) * U256::from(sent[0].max_fee_per_gas());
    for task in ["bump", "cancel"] {
        let bounds = json!({"gas": if task == "bump" { shown } else { U256::from(1) }, "data": "0x0", "margin": 25});
        let answer = say(&live, json!({"replace": {"id": id, "how": task, "bounds": bounds}})).await;
        let message = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{answer}"));
        assert!(message.contains("ether was shown, and at least "), "{message}");
    }
    assert_eq!(live.sent(1).await, sent);
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_terminal_a_replacement_is_signed_after_a_yes_alone() {
    let live = LiveWallet::ethereum(&[]).await;
    let id = live.send(0, false, &[call(STORE, 0, bytes!("01"))]).await;
    let sent = live.sent(1).await;
    let run = async |task: &'static str, answer: &'static str| {
        let (data, id) = (text(live.data.path()).to_owned(), id.clone());
        let ended = tokio::task::spawn_blocking(move || {
            let mut terminal = Terminal::start(&["wallet", task, &id, "--data-dir", &data]);
            let shown = terminal.shows("sign it? [y/N] ");
            assert!(shown.contains("ether of gas fees"), "{shown}");
            terminal.types(answer);
            terminal.ended()
        });
        ended.await.unwrap()
    };
    for task in ["bump", "cancel"] {
        let (status, shown) = run(task, "n\n").await;
        assert!(!status.success() && !shown.contains("replaced, unless"), "{shown}");
    }
    assert_eq!(live.sent(1).await, sent);
    let (status, shown) = run("bump", "y\n").await;
    let bumped = live.sent(2).await.pop().unwrap();
    assert!(status.success() && shown.contains(&bumped.tx_hash().to_string()), "{shown}");
}

/// Sends a request to the approver's socket, and returns the answer.
async fn say(live: &LiveWallet, request: serde_json::Value) -> serde_json::Value {
    let path = live.data.path().join("wallet.sock");
    let asked = tokio::task::spawn_blocking(move || {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(format!("{request}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    });
    asked.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_atomic_batch_deploys_the_executor_and_delegates_the_account() {
    let mut live = LiveWallet::ethereum(&[]).await;
    let calls = [call(STORE, 0, bytes!("01")), call(SOMEBODY, 5, bytes!())];
    let id = live.send(0, true, &calls).await;
    let sent = live.sent(2).await;
    assert!(sent[1].is_eip7702() && sent[1].nonce() == 1, "{sent:?}");
    // The next one counts on the executor that waits. Nodes keep it only when the account's nonce is past the authorization.
    let next = live.send(0, true, &calls).await;
    let waits = live.status_when(&next, |status| reason(status).contains("which delegates it")).await;
    assert_eq!(waits["capabilities"]["transactions"]["waiting"][0]["nonce"], "0x3", "an authorization has used one");
    live.sent(2).await;
    assert!(live.upstream.sent().iter().all(|raw| sent.iter().any(|tx| *raw == tx.encoded_2718())));
    live.mine(mined(sent)).await;
    let status = live.settled(&id, 200).await;
    assert_eq!((&status["atomic"], items(&status["receipts"]).len()), (&json!(true), 1), "{status}");
    let third = live.sent(3).await.pop().unwrap();
    assert_eq!(third.nonce(), 3);
    live.mine(mined(vec![third])).await;
    live.settled(&next, 200).await;
    assert_eq!(live.node().result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, "0xa");
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_behind_an_accounts_first_atomic_one_are_taken_whatever_the_upstream_counts() {
    let mut live = LiveWallet::ethereum(&[]).await;
    let calls = [call(SOMEBODY, 5, bytes!())];
    let first = live.send(0, true, &calls).await;
    let sent = live.sent(2).await;
    // The upstream counts the two transactions, and not the nonce that the authorization of the second uses.
    live.upstream.lie(|method, params, truth| match (method, params[1].as_str()) {
        ("eth_getTransactionCount", Some("pending")) => json!("0x2"),
        _ => truth,
    });
    let mut behind = Vec::new();
    for atomic in [false, true, false] {
        behind.push(live.send(0, atomic, &calls).await);
    }
    // Batches behind a delegation have the next nonces: 3, 4 with an authorization, and 6.
    let mut nonces = Vec::new();
    for id in &behind {
        let waits = live.status_when(id, |status| !reason(status).is_empty()).await;
        nonces.push(waits["capabilities"]["transactions"]["waiting"][0]["nonce"].clone());
    }
    assert_eq!(nonces, [json!("0x3"), json!("0x4"), json!("0x6")]);
    live.upstream.well();
    // A delegation ends what is sent at once: the first two, the next two, and the last.
    live.mine(mined(sent)).await;
    for count in [4, 5] {
        let newest = live.sent(count).await.split_off(if count == 4 { 2 } else { 4 });
        live.mine(mined(newest)).await;
    }
    for id in behind.iter().chain([&first]) {
        live.settled(id, 200).await;
    }
    assert_eq!(live.newest.balance(SOMEBODY), U256::from(20));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_atomic_batch_whose_executor_is_missing_has_reverted_whether_the_node_saw_it_or_not() {
    for is_seen in [true, false] {
        let mut live = LiveWallet::ethereum(&[]).await;
        let id = live.send(0, true, &[call(SOMEBODY, 5, bytes!())]).await;
        let sent = live.sent(2).await;
        // In the place of the deployment.
        let foreign = sent_by(0, ETHEREUM, 0, Address::repeat_byte(0x22), 3, bytes!());
        let block = vec![foreign, sent[1].clone().into()];
        if is_seen {
            live.mine(block).await;
        } else {
            live.stop().await;
            live.mine_unseen(block);
            live.start(&[]).await;
        }
        let status = live.settled(&id, 500).await;
        assert_eq!(status["receipts"][0]["transactionHash"], json!(sent[1].tx_hash()), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_another_program_delegates_elsewhere_is_delegated_again() {
    let mut live = LiveWallet::ethereum(&[]).await;
    let calls = [call(STORE, 0, bytes!("01"))];
    let id = live.send(0, true, &calls).await;
    let sent = live.sent(2).await;
    live.mine(mined(sent)).await;
    live.settled(&id, 200).await;
    // Delegated, a batch needs no authorization.
    let id = live.send(0, true, &calls).await;
    let third = live.sent(3).await.pop().unwrap();
    assert!(third.is_eip1559());
    live.mine(mined(vec![third.clone()])).await;
    live.settled(&id, 200).await;
    // While strangers' transactions wait, it is delegated again with the batch.
    let foreign = sent_by(0, ETHEREUM, third.nonce() + 1, SOMEBODY, 1, bytes!());
    let count = json!(format!("{:#x}", foreign.nonce() + 1));
    live.upstream.lie(move |method, params, truth| match (method, params[1].as_str()) {
        ("eth_getTransactionCount", Some("pending")) => count.clone(),
        _ => truth,
    });
    let id = live.send(0, true, &calls).await;
    let fourth = live.sent(4).await.pop().unwrap();
    assert!(fourth.is_eip7702() && fourth.nonce() == foreign.nonce() + 1, "{fourth:?}");
    live.mine(vec![foreign, fourth.into()]).await;
    live.settled(&id, 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_eth_send_transaction_is_stored_sent_and_mined() {
    let mut live = LiveWallet::ethereum(&[]).await;
    let tx = json!([{"from": key(0).address(), "to": STORE, "data": "0x05"}]);
    let hash = live.node().result("/standard", "eth_sendTransaction", tx).await;
    live.sent(1).await;
    // The transaction is on the disk, and sent again after a restart.
    live.stop().await;
    let times = live.upstream.sent().len();
    live.start(&[]).await;
    live.upstream.has_sent(times + 1).await;
    let sent = live.sent(1).await;
    assert_eq!((json!(sent[0].tx_hash()), sent[0].nonce()), (hash.clone(), 0));
    live.mine(mined(sent)).await;
    let receipt = live.node().result("/standard", "eth_getTransactionReceipt", json!([hash])).await;
    assert_eq!((&receipt["status"], items(&receipt["logs"]).len()), (&json!("0x1"), 1), "{receipt}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fees_follow_the_upstreams_history() {
    let live = LiveWallet::ethereum(&[]).await;
    live.upstream.script(|method, params| {
        let wanted = method == "eth_feeHistory" && params[1] == "latest" && params[2].as_array()?.len() == 1;
        wanted.then(|| Ok(json!({"oldestBlock": "0x0", "reward": [["0x0"], ["0x77359401"]], "baseFeePerGas": ["0x1"]})))
    });
    live.send(0, false, &[call(SOMEBODY, 1, bytes!())]).await;
    let sent = live.sent(1).await;
    assert_eq!(sent[0].max_priority_fee_per_gas(), Some(2_000_000_001));
    live.send(0, false, &[call(SOMEBODY, 1, bytes!())]).await;
    live.sent(2).await;
    assert_eq!(live.upstream.asked("eth_feeHistory"), 1, "once a block");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_is_gone_delays_a_batch_and_loses_none() {
    let mut live = LiveWallet::ethereum(&["--upstream-timeout-ms", "200"]).await;
    // The state that the batch reads is known.
    live.node().result("/", "wallet_getCapabilities", json!([key(0).address()])).await;
    live.send(0, false, &[call(SOMEBODY, 1, bytes!())]).await;
    let first = live.sent(1).await.pop().unwrap();
    live.upstream.go_away();
    let id = live.send(0, false, &[call(SOMEBODY, 2, bytes!())]).await;
    live.status_when(&id, |status| reason(status).contains("upstream")).await;
    live.upstream.come_back().await;
    let second = live.sent(2).await.pop().unwrap();
    assert_eq!((second.nonce(), second.value()), (1, U256::from(2)));
    live.mine(mined(vec![first, second])).await;
    live.settled(&id, 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_answered_within_one_round_trip_on_a_warm_upstream() {
    let live = LiveWallet::ethereum(&[]).await;
    let calls = [call(STORE, 0, bytes!("01"))];
    live.send(0, false, &calls).await;
    live.sent(1).await;
    let asked = |method| live.upstream.asked(method);
    let before = (asked("eth_getTransactionCount"), live.upstream.waves());
    live.upstream.delay(Duration::from_millis(50));
    live.send(0, false, &calls).await;
    live.upstream.delay(Duration::ZERO);
    assert_eq!((asked("eth_getTransactionCount"), live.upstream.waves()), (before.0 + 1, before.1 + 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_another_chain_or_none_is_refused() {
    let mut live = LiveWallet::ethereum(&[]).await;
    live.send(0, false, &[call(SOMEBODY, 1, bytes!())]).await;
    live.stop().await;
    let other = Built::op_stack();
    let upstream = serve(&[&other]).await;
    let data = text(live.data.path());
    let flags = ["--data-dir", data, "--wallet-key-file", text(live.keys[0].path())];
    let error =
        format!("{:#}", try_start(&upstream.url(), Some(&other.config), &flags).await.err().expect("it is refused"));
    assert!(error.contains("transactions of chain 31415"), "{error}");
    let error = try_start(&upstream.url(), Some(&other.config), &flags[2..]).await.err().expect("it is refused");
    assert!(format!("{error:#}").contains("need --data-dir"), "{error:#}");
}
