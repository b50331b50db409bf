//! Lagoon on a live chain: canonical blocks and sub-blocks with refunds of gas.

use alloy_eips::Encodable2718;
use alloy_primitives::{Address, Bytes, address, hex, keccak256};
use presim::testing::{chain::ChainTx, ledger::FeedProblem};
use serde_json::{Value, json};

use super::{
    built::{Built, OP_CHAIN, SOMEBODY, STORE, sent_by, store, transfer},
    feed, head, refused,
    stage::{LiveStage, serve},
    start, until,
    watch::reads_balance,
    with_usual,
};
use crate::{
    op_chain::{BASE_FEE_VAULT, OPERATOR_FEE_VAULT, SEQUENCER_FEE_VAULT, post_exec},
    support::{BOUND, Socket, TestNode, hex, items},
    upstream::SmallUpstream,
    watch::{Held, newest, stand},
};

/// The accounts whose balances refunds change: two senders, their recipient and the vaults.
const WATCHED: [Address; 6] = [
    address!("f39fd6e51aad88f6f4ce6ab8827279cfffb92266"),
    address!("70997970c51812dc3a010c7d01b50e0d17dc79c8"),
    SOMEBODY,
    BASE_FEE_VAULT,
    SEQUENCER_FEE_VAULT,
    OPERATOR_FEE_VAULT,
];

/// Pushes a block to the upstream, and waits until the node has it.
async fn follows(node: &TestNode, block: &Built, upstream: &SmallUpstream) {
    upstream.push(block.block.clone());
    head(node, block.hash()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canonical_block_with_refunds_is_executed_and_stays_cached() {
    let first = Built::lagoon();
    let upstream = serve(&[&first]).await;
    let node = start(&upstream.url(), &first.config, &[]).await;
    let txs = |nonce| vec![transfer(OP_CHAIN, nonce, 5), sent_by(1, OP_CHAIN, nonce, SOMEBODY, 6, Bytes::new())];
    let mut block = first.next_refunded(txs(0), &[(1, 5_000), (2, 20_000)], 1);
    follows(&node, &block, &upstream).await;
    // `null` is accepted for a transaction without a refund, and the receipts are not even asked for.
    for at in 1..4 {
        let next = block.next_refunded(txs(at), &[(2, 1_000 * at)], 1);
        let before = ["eth_getBalance", "eth_getProof", "eth_getStorageAt", "eth_getBlockReceipts"]
            .map(|method| upstream.asked(method));
        follows(&node, &next, &upstream).await;
        let after = ["eth_getBalance", "eth_getProof", "eth_getStorageAt", "eth_getBlockReceipts"]
            .map(|method| upstream.asked(method));
        assert_eq!(before, after, "no state is fetched again, and no receipts");
        for account in [BASE_FEE_VAULT, SEQUENCER_FEE_VAULT, OPERATOR_FEE_VAULT, SOMEBODY] {
            let told = node.result("/", "eth_getBalance", json!([account, "latest"])).await;
            assert_eq!(told, json!(format!("{:#x}", next.balance(account))), "{account}");
        }
        let snapshot = node.result("/", "presim_snapshot", json!([])).await;
        assert_eq!(snapshot["verified"], "full", "{snapshot}");
        block = next;
    }
    assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"executed\"}"), 4.0);
    assert_eq!(node.result("/", "presim_divergences", json!([])).await, json!([]));
    let told = node.result("/standard", "eth_getBlockByNumber", json!(["latest", false])).await;
    assert_eq!(told["gasUsed"], hex(block.header().gas_used));
    // The type is not forwarded, either.
    let raw = Bytes::from(post_exec::<ChainTx>(9, &[(1, 1)]).encoded_2718());
    for method in ["eth_sendRawTransaction", "eth_sendRawTransactionSync"] {
        let error = refused(&node, method, json!([raw]), -32000, BOUND).await;
        assert_eq!(error, "transaction type not supported: 0x7d");
    }
    assert!(upstream.sent().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_block_and_a_payload_of_another_version_are_taken_as_the_upstream_has_them() {
    for (payload, is_invalid) in [
        // A block of another number, and a refund of more than the gas.
        (post_exec::<ChainTx>(7, &[(1, 5_000)]).encoded_2718(), true),
        (post_exec::<ChainTx>(1, &[(1, 21_001)]).encoded_2718(), true),
        // Version 2, and version 1 with a fourth field.
        (hex!("7dc80201c5c401821388").to_vec(), false),
        (hex!("7dc90101c5c401821388c0").to_vec(), false),
    ] {
        let first = Built::lagoon();
        let upstream = serve(&[&first]).await;
        let node = start(&upstream.url(), &first.config, &[]).await;
        let next = first.next(vec![transfer(OP_CHAIN, 0, 5)], 1);
        let mut block = next.block.clone();
        let hash = keccak256(&payload);
        let input = Bytes::from(payload[1..].to_vec());
        block.transactions.push(json!({
            "hash": hash, "type": "0x7d", "blockHash": next.hash(), "from": Address::ZERO, "gas": "0x0", "value": "0x0",
            "input": input, "blockNumber": "0x1", "transactionIndex": "0x2",
        }));
        // The header names the transactions that it has.
        let all: Vec<Bytes> = next.raw().iter().cloned().chain([payload.clone().into()]).collect();
        let root = alloy_trie::root::ordered_trie_root_encoded(&all);
        let mut header = next.header().clone();
        header.transactions_root = root;
        let named = header.hash_slow();
        block.fields["transactionsRoot"] = json!(root);
        block.fields["hash"] = json!(named);
        (block.hash, block.receipts) = (named, None);
        upstream.push(block);
        head(&node, named).await;
        assert_eq!(node.result("/", "eth_getBalance", json!([SOMEBODY, "latest"])).await, "0x5", "{input}");
        let snapshot = node.result("/", "presim_snapshot", json!([])).await;
        assert_eq!(snapshot["verified"], "none", "{input}: {snapshot}");
        let divergences = node.result("/", "presim_divergences", json!([])).await;
        assert_eq!(items(&divergences).len(), usize::from(is_invalid), "{input}: {divergences}");
    }
}

/// The state of an upstream that a restarted node knows has the refunds.
#[tokio::test(flavor = "multi_thread")]
async fn the_cache_of_an_upstreams_state_has_the_settled_balances() {
    let first = Built::lagoon();
    let upstream = serve(&[&first]).await;
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--data-dir", dir.path().to_str().unwrap()];
    let node = start(&upstream.url(), &first.config, &flags).await;
    let txs = |nonce| vec![transfer(OP_CHAIN, nonce, 5)];
    let second = first.next_refunded(txs(0), &[(1, 5_000)], 1);
    follows(&node, &second, &upstream).await;
    node.node.stop();
    let node = start(&upstream.url(), &first.config, &flags).await;
    until(&node, "the head", |published| published.head().hash() == second.hash()).await;
    let before = upstream.asked("eth_getBalance");
    assert_eq!(
        node.result("/", "eth_getBalance", json!([BASE_FEE_VAULT, "latest"])).await,
        json!(format!("{:#x}", second.balance(BASE_FEE_VAULT)))
    );
    assert_eq!(upstream.asked("eth_getBalance"), before, "it is in the cache");
    let third = second.next_refunded(txs(1), &[(1, 4_000)], 1);
    follows(&node, &third, &upstream).await;
    assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"executed\"}"), 1.0);
}

/// A block after one of its sub-blocks: the number of its signed transactions so far, and its refunds.
pub type SubBlock<'a> = (usize, &'a [(u64, u64)]);

/// Four transactions of two accounts, which follow a deposit in their block. The third has a log.
fn four(nonce: u64) -> Vec<ChainTx> {
    let other = |nonce| sent_by(1, OP_CHAIN, nonce, SOMEBODY, 6, Bytes::new());
    vec![transfer(OP_CHAIN, nonce, 5), other(nonce), store(OP_CHAIN, nonce + 1, nonce + 7), other(nonce + 1)]
}

/// Returns the block on `parent` after each sub-block, with the sub-block's message.
pub fn sub_blocks(parent: &Built, transactions: &[ChainTx], subs: &[SubBlock]) -> Vec<(Built, Value)> {
    let mut from = 0;
    let mut messages = Vec::new();
    for (index, (count, refunds)) in subs.iter().enumerate() {
        let built = parent.next_refunded(transactions[..*count].to_vec(), refunds, 1);
        let message = built.restated(index as u64, from, index % 2 == 0);
        // The deposit is the first.
        from = count + 1;
        messages.push((built, message));
    }
    messages
}

/// Waits until a sub-block is applied.
pub async fn applied(node: &TestNode, number: u64, index: usize) {
    let at = (number, index as u32);
    until(node, "the sub-block", |published| {
        published.newest.open.is_some() && (published.newest.header().number, published.newest.index()) == at
    })
    .await;
}

/// Returns the watched balances, as a block's are.
pub fn balances(built: &Built) -> Vec<Value> {
    WATCHED.iter().map(|account| json!(built.balance(*account))).collect()
}

pub async fn balances_at(node: &TestNode, at: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    for account in WATCHED {
        all.push(node.result("/", "eth_getBalance", json!([account, at])).await);
    }
    all
}

/// Checks that `pending` is this block so far, without its post-execution transaction.
async fn is_pending(node: &TestNode, built: &Built, refunds: &[(u64, u64)]) {
    assert_eq!(balances_at(node, &json!("pending")).await, balances(built));
    let block = node.result("/", "eth_getBlockByNumber", json!(["pending", true])).await;
    let count = built.raw().len() - usize::from(!refunds.is_empty());
    assert_eq!((items(&block["transactions"]).len(), &block["gasUsed"]), (count, &hex(built.header().gas_used)));
    let receipts = node.result("/", "eth_getBlockReceipts", json!(["pending"])).await;
    assert_eq!(items(&receipts).len(), count);
    for (index, receipt) in items(&receipts).iter().enumerate() {
        let refund = refunds.iter().find(|(at, _)| *at == index as u64);
        assert_eq!(receipt.get("opGasRefund"), refund.map(|(_, gas)| hex(*gas)).as_ref(), "{receipt}");
        let own = node.result("/", "eth_getTransactionReceipt", json!([receipt["transactionHash"]])).await;
        assert_eq!(&own, receipt);
    }
    let last = &receipts[count - 1]["cumulativeGasUsed"];
    assert_eq!((last, &block["gasUsed"]), (&hex(built.header().gas_used), last));
}

#[tokio::test(flavor = "multi_thread")]
async fn pending_follows_the_refunds_of_each_sub_block_and_earlier_snapshots_stay() {
    let stage = LiveStage::new(Built::lagoon(), SmallUpstream::url, &with_usual(&[])).await;
    let node = &stage.node;
    let mut socket = Socket::open(node, "/").await;
    let logs = socket.subscribe(json!(["pendingLogs", { "address": STORE }])).await;
    let subs: [SubBlock; 8] = [
        (1, &[]),
        // Refunds appear, change, go on unchanged with a transaction and without one, vanish, and appear elsewhere.
        (2, &[(1, 5_000)]),
        (2, &[(1, 5_000), (2, 700)]),
        (3, &[(1, 5_000), (2, 700)]),
        (3, &[(1, 5_000), (2, 700)]),
        (3, &[]),
        (4, &[(1, 100), (3, 20)]),
        (4, &[(1, 100), (3, 20), (4, 9)]),
    ];
    let sent = sub_blocks(&stage.first, &four(0), &subs);
    let mut shown = Vec::new();
    for (index, ((built, message), (_, refunds))) in sent.iter().zip(&subs).enumerate() {
        stage.server.send_json(message);
        applied(node, built.number(), index).await;
        is_pending(node, built, refunds).await;
        let snapshot = node.result("/", "presim_snapshot", json!([])).await;
        assert_eq!(snapshot["verified"], "full", "{snapshot}");
        let block = node.result("/", "eth_getBlockReceipts", json!([{ "snapshotId": snapshot["id"] }])).await;
        shown.push((snapshot["id"].clone(), built, block));
        // The step touches all of the block if it was executed again, and else what its own transactions do.
        let published = node.node.snapshots().load();
        let touched = |account: Address| {
            published.newest.path.iter().any(|step| step.changes.iter().any(|change| change.address == account))
        };
        let again = matches!(index, 1 | 2 | 5 | 6 | 7);
        assert_eq!(touched(WATCHED[1]), again || index == 6, "sub-block {index}");
        assert_eq!(touched(WATCHED[0]), again || matches!(index, 0 | 3), "sub-block {index}");
    }
    for (id, built, receipts) in &shown {
        let at = json!({ "snapshotId": id });
        assert_eq!(balances_at(node, &at).await, balances(built), "{id}");
        assert_eq!(node.result("/", "eth_getBlockReceipts", json!([at])).await, *receipts, "{id}");
    }
    stage.never_fell();
    // The block is canonical as it was pre-confirmed, and lists the post-execution transaction now.
    let (last, _) = &sent[7];
    let before = stage.upstream.asked("eth_getBlockReceipts");
    stage.upstream.push(last.block.clone());
    head(node, last.hash()).await;
    assert_eq!(stage.upstream.asked("eth_getBlockReceipts"), before);
    assert_eq!(node.metric("presim_preconfirmed_total{outcome=\"canonical\"}"), 1.0);
    let block = node.result("/", "eth_getBlockByNumber", json!(["latest", true])).await;
    assert_eq!((&block["transactions"][5]["type"], &block["hash"]), (&json!("0x7d"), &json!(last.hash())));
    let receipts = node.result("/", "eth_getBlockReceipts", json!(["latest"])).await;
    assert_eq!((items(&receipts).len(), &receipts[5]["type"]), (6, &json!("0x7d")));
    assert_eq!(balances_at(node, &json!("latest")).await, balances(last));
    assert_eq!(node.result("/", "presim_divergences", json!([])).await, json!([]));
    // The next block begins without refunds. The log of each block is told once.
    let next = sub_blocks(last, &four(2), &[(4, &[])]);
    stage.server.send_json(&next[0].1);
    applied(node, 2, 0).await;
    is_pending(node, &next[0].0, &[]).await;
    for word in [7, 9] {
        let log = socket.notification(&logs).await;
        assert_eq!(log["topics"][0], json!(format!("{word:#066x}")), "{log}");
    }
    stage.never_fell();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_whose_child_has_begun_keeps_its_refunds() {
    let stage = LiveStage::new(Built::lagoon(), SmallUpstream::url, &with_usual(&[])).await;
    let mut parent = stage.first.clone();
    for at in 0..3 {
        let subs: [SubBlock; 2] = [(2, &[(1, 5_000)]), (4, &[(1, 400), (4, 30)])];
        let sent = sub_blocks(&parent, &four(2 * at), &subs);
        for (index, (built, message)) in sent.iter().enumerate() {
            stage.server.send_json(message);
            applied(&stage.node, built.number(), index).await;
            is_pending(&stage.node, built, subs[index].1).await;
            if at > 0 && index == 0 {
                // The block before is complete, and not canonical yet.
                for (index, refund) in [(1, Some(hex(400))), (2, None), (4, Some(hex(30)))] {
                    let params = json!([parent.tx_hash(index)]);
                    let receipt = stage.node.result("/", "eth_getTransactionReceipt", params).await;
                    assert_eq!(receipt.get("opGasRefund"), refund.as_ref(), "{receipt}");
                }
                stage.upstream.push(parent.block.clone());
                head(&stage.node, parent.hash()).await;
                let now = stage.node.result("/", "eth_getBlockByHash", json!([parent.hash(), true])).await;
                assert_eq!(items(&now["transactions"]).len(), 6);
                is_pending(&stage.node, built, subs[index].1).await;
            }
        }
        parent = sent[1].0.clone();
    }
    stage.never_fell();
    assert_eq!(stage.node.metric("presim_preconfirmed_total{outcome=\"canonical\"}"), 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canonical_block_that_differs_by_its_refunds_alone_is_executed_again() {
    let stage = LiveStage::new(Built::lagoon(), SmallUpstream::url, &with_usual(&[])).await;
    let node = &stage.node;
    let mut parent = stage.first.clone();
    let told: [&[(u64, u64)]; 3] = [&[(1, 5_000)], &[], &[(1, 5_000)]];
    let canonical: [&[(u64, u64)]; 3] = [&[(1, 4_000)], &[(2, 300)], &[]];
    for (at, (told, refunds)) in told.into_iter().zip(canonical).enumerate() {
        let transactions = four(2 * at as u64);
        let sent = sub_blocks(&parent, &transactions, &[(4, told)]);
        stage.server.send_json(&sent[0].1);
        applied(node, sent[0].0.number(), 0).await;
        let block = parent.next_refunded(transactions, refunds, 1);
        stage.upstream.push(block.block.clone());
        head(node, block.hash()).await;
        assert_eq!(balances_at(node, &json!("pending")).await, balances(&block));
        parent = block;
    }
    stage.never_fell();
    assert_eq!(node.metric("presim_upstream_blocks_total{outcome=\"executed\"}"), 3.0);
    assert_eq!(node.metric("presim_preconfirmed_total{outcome=\"overtaken\"}"), 3.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sub_block_with_an_invalid_payload_falls_back_until_the_next_block() {
    let first = Built::lagoon();
    let raw = |tx: ChainTx| json!(Bytes::from(tx.encoded_2718()));
    for (post_exec, why) in [
        (raw(post_exec(1, &[(3, 1)])), "an index that the block does not have yet"),
        (raw(post_exec(1, &[(0, 1)])), "a deposit"),
        (raw(post_exec(2, &[(1, 1)])), "another block"),
        (raw(post_exec(1, &[(1, 21_001)])), "more than the gas"),
        (raw(post_exec(1, &[])), "no refund"),
        (json!("0x7dc80201c5c401821388"), "another version"),
        (json!("0x7dc90101c5c401821388c0"), "more fields"),
        (json!("0x7d"), "nothing"),
    ] {
        let stage = LiveStage::new(first.clone(), SmallUpstream::url, &with_usual(&[])).await;
        let sent = sub_blocks(&first, &four(0), &[(1, &[(1, 50)]), (2, &[(1, 50)]), (4, &[(1, 60)])]);
        stage.server.send_json(&sent[0].1);
        applied(&stage.node, 1, 0).await;
        let mut wrong = sent[1].1.clone();
        wrong["diff"]["post_exec_tx"] = post_exec;
        stage.server.send_json(&wrong);
        feed(&stage.node, Some(FeedProblem::Execution)).await;
        let pending = stage.node.block("pending").await;
        assert_eq!(pending["number"], "0x0", "{why}: {pending}");
        stage.upstream.push(sent[2].0.block.clone());
        head(&stage.node, sent[2].0.hash()).await;
        // The payload has died with the block.
        let next = sub_blocks(&sent[2].0, &four(2), &[(4, &[])]);
        stage.server.send_json(&next[0].1);
        applied(&stage.node, 2, 0).await;
        is_pending(&stage.node, &next[0].0, &[]).await;
        feed(&stage.node, None).await;
    }
}

/// A sub-block without transactions that changes a refund changes balances, which clients are told.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_refund_is_told_to_who_watches_the_balances() {
    let stage = LiveStage::new(Built::lagoon(), SmallUpstream::url, &with_usual(&[])).await;
    let node = &stage.node;
    let subs: [SubBlock; 4] = [(2, &[(1, 50)]), (2, &[(1, 900)]), (2, &[(1, 900)]), (2, &[])];
    let sent = sub_blocks(&stage.first, &four(0), &subs);
    stage.server.send_json(&sent[0].1);
    applied(node, 1, 0).await;
    let mut socket = Socket::open(node, "/").await;
    let bundles = [reads_balance("vault", BASE_FEE_VAULT), reads_balance("other", Address::repeat_byte(0x99))];
    let watch = stand(&mut socket, json!([bundles])).await["watch"].take();
    let mut held = Held::new();
    held.until(&mut socket, &watch, &newest(node).await).await;
    let mut changes = Socket::open(node, "/").await;
    let told = changes.subscribe(json!(["presim_stateChanges", { "address": WATCHED }])).await;
    for at in 1..4 {
        let runs = node.metric("presim_standing_runs_total");
        stage.server.send_json(&sent[at].1);
        applied(node, 1, at).await;
        held.until(&mut socket, &watch, &newest(node).await).await;
        held.check(node, &bundles, "after a change of refunds").await;
        let is_changed = at != 2;
        assert_eq!(node.metric("presim_standing_runs_total") - runs, f64::from(u8::from(is_changed)), "sub-block {at}");
        if is_changed {
            let changed = changes.notification(&told).await["changes"].take();
            let (before, after) = (balances(&sent[at - 1].0), balances(&sent[at].0));
            for (index, account) in WATCHED.iter().enumerate() {
                let balance = &changed[account.to_string().to_lowercase()]["balance"];
                match before[index] == after[index] {
                    true => assert!(balance.is_null(), "{account}: {changed}"),
                    false => assert_eq!(*balance, json!({ "from": before[index], "to": after[index] }), "{account}"),
                }
            }
        }
    }
}

/// Sub-blocks as the OP Stack's Subblocks, as X Layer and as older builders send them. The format is one.
#[tokio::test(flavor = "multi_thread")]
async fn messages_of_each_kind_of_builder_are_followed() {
    let stage = LiveStage::new(Built::lagoon(), SmallUpstream::url, &with_usual(&[])).await;
    let mut parent = stage.first.clone();
    let kinds: [fn(&mut Value, &Built); 3] = [
        // Subblocks: hashes and withdrawals are left out (which all of these messages do), and refunds may be there.
        |_, _| {},
        // X Layer: an access list as hexadecimal RLP, no receipts, no balances.
        |message, built| {
            message["metadata"] = json!({ "block_number": built.number(), "access_list": "0xc0" });
        },
        // Flashblocks with receipts and balances.
        |message, built| {
            let balance = |account: &Address| (account.to_string(), json!(built.balance(*account)));
            let balances: serde_json::Map<String, Value> = WATCHED.iter().map(balance).collect();
            message["metadata"] = json!({
                "block_number": built.number(), "new_account_balances": balances, "receipts": built.told_receipts(),
            });
        },
    ];
    for (at, kind) in kinds.into_iter().enumerate() {
        let subs: [SubBlock; 4] = [(1, &[]), (1, &[]), (4, &[(1, 5_000)]), (4, &[(1, 5_000)])];
        let sent = sub_blocks(&parent, &four(2 * at as u64), &subs);
        for (index, (built, message)) in sent.iter().enumerate() {
            let mut message = message.clone();
            kind(&mut message, built);
            assert_eq!(items(&message["diff"]["transactions"]).is_empty(), index % 2 == 1);
            stage.server.send_json(&message);
            applied(&stage.node, built.number(), index).await;
            is_pending(&stage.node, built, subs[index].1).await;
        }
        parent = sent[3].0.clone();
        stage.upstream.push(parent.block.clone());
        head(&stage.node, parent.hash()).await;
    }
    stage.never_fell();
    assert_eq!(stage.node.metric("presim_flashblocks_total{outcome=\"unreadable\"}"), 0.0);
    assert_eq!(stage.node.metric("presim_preconfirmed_total{outcome=\"canonical\"}"), 3.0);
}
