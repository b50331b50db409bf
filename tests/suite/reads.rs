//! Reads: state and its proofs, blocks, transactions and receipts.

use std::collections::BTreeMap;

use alloy_consensus::proofs::{calculate_receipt_root, calculate_transaction_root};
use alloy_primitives::{Address, B256, U256, address, keccak256};
use alloy_rlp::Encodable;
use alloy_rpc_types_eth::{Block, EIP1186AccountProofResponse, TransactionReceipt};
use alloy_trie::{Nibbles, TrieAccount, proof::verify_proof};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::support::{BOUND, PATHS, TestNode, hex, items, number, without_block_hash};

/// An address without an account.
const NOBODY: Address = address!("0x00000000000000000000000000000000000abcde");

/// Starts a devnet that trades, with a block every hundred milliseconds, and that keeps all snapshots of a test.
fn busy(flags: &[&str]) -> TestNode {
    TestNode::start(&[&["--sub-block-ms", "10", "--keep-snapshots", "100000"], flags].concat())
}

fn typed<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

fn accounts(node: &TestNode) -> Vec<Address> {
    node.node.info().accounts.iter().map(|signer| signer.address()).collect()
}

/// Waits for a snapshot with transactions in the block being built, and returns its id.
async fn a_moment(node: &TestNode) -> Value {
    node.sealed(2).await;
    loop {
        let both =
            node.batch("/", &[("presim_snapshot", json!([])), ("eth_getBlockByNumber", json!(["pending"]))]).await;
        if !items(&both[1]["transactions"]).is_empty() {
            return json!({"snapshotId": both[0]["id"]});
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn look_ups_are_what_the_evm_reads() {
    let node = busy(&[]);
    let at = a_moment(&node).await;
    let world = node.node.info().trading.expect("the devnet trades");
    for path in PATHS {
        for who in accounts(&node).into_iter().chain([NOBODY, world.weth]) {
            // Returns the account's balance: PUSH20 who BALANCE.
            let code = format!("0x73{}315f5260205ff3", &format!("{who:#x}")[2..]);
            let seen =
                node.result(path, "eth_call", json!([{"to": NOBODY}, at, {NOBODY.to_string(): {"code": code}}])).await;
            let balance: U256 = typed(&node.result(path, "eth_getBalance", json!([who, at])).await);
            assert_eq!(balance, typed::<U256>(&seen), "{who} on {path}");
        }
        let mut values = Vec::new();
        for slot in 0..8u64 {
            // SLOAD of the slot, in place of the token's own code and on its storage.
            let code = format!("0x60{slot:02x}545f5260205ff3");
            let seen = node
                .result(path, "eth_call", json!([{"to": world.alpha}, at, {world.alpha.to_string(): {"code": code}}]))
                .await;
            let value = node.result(path, "eth_getStorageAt", json!([world.alpha, hex(slot), at])).await;
            assert_eq!(value, seen, "slot {slot} on {path}");
            values.push(value);
        }
        assert!(values.iter().any(|value| typed::<U256>(value) != U256::ZERO), "{values:?}");
        let slots: Vec<Value> = (0..8).map(hex).collect();
        let asked = json!({world.alpha.to_string(): slots, NOBODY.to_string(): ["0x0"]});
        let all = node.result(path, "eth_getStorageValues", json!([asked, at])).await;
        assert_eq!(all[format!("{:#x}", world.alpha)], json!(values), "{path}");
        assert_eq!(all[format!("{NOBODY:#x}")], json!([B256::ZERO]), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nonce_counts_the_transactions_so_far() {
    let node = busy(&[]);
    node.sealed(5).await;
    for path in PATHS {
        let senders = accounts(&node);
        let counts = |at: &'static str| senders.iter().map(move |who| ("eth_getTransactionCount", json!([who, at])));
        let calls: Vec<_> = counts("latest").chain(counts("pending")).collect();
        let blocks =
            [("eth_getBlockByNumber", json!(["pending", true])), ("eth_getBlockByNumber", json!(["latest", true]))];
        let answers = node.batch(path, &[&blocks[..], &calls].concat()).await;
        let head = number(&answers[1]["number"]);
        let mut sealed: BTreeMap<Address, u64> = BTreeMap::new();
        for block in 1..=head {
            let block = node.result(path, "eth_getBlockByNumber", json!([hex(block), true])).await;
            items(&block["transactions"]).iter().for_each(|tx| *sealed.entry(typed(&tx["from"])).or_default() += 1);
        }
        assert!(!sealed.is_empty());
        for (index, who) in senders.iter().enumerate() {
            let pending = items(&answers[0]["transactions"]).iter().filter(|tx| typed::<Address>(&tx["from"]) == *who);
            // The first account deployed the devnet's contracts.
            let genesis = number(&node.result(path, "eth_getTransactionCount", json!([who, "earliest"])).await);
            let latest = genesis + sealed.get(who).copied().unwrap_or_default();
            assert_eq!(number(&answers[2 + index]), latest, "{who} on {path}");
            assert_eq!(number(&answers[2 + senders.len() + index]), latest + pending.count() as u64, "{who} on {path}");
        }
    }
}

/// Checks a proof against a state root: that of the account or of its absence, and that of each slot.
fn verify(proof: &EIP1186AccountProofResponse, root: B256) {
    let account = TrieAccount {
        nonce: proof.nonce,
        balance: proof.balance,
        storage_root: proof.storage_hash,
        code_hash: proof.code_hash,
    };
    let expected = (account != TrieAccount::default()).then(|| alloy_rlp::encode(account));
    verify_proof(root, Nibbles::unpack(keccak256(proof.address)), expected, &proof.account_proof)
        .unwrap_or_else(|error| panic!("{}: {error}", proof.address));
    for slot in &proof.storage_proof {
        let expected = (!slot.value.is_zero()).then(|| alloy_rlp::encode(slot.value));
        verify_proof(proof.storage_hash, Nibbles::unpack(keccak256(slot.key.as_b256())), expected, &slot.proof)
            .unwrap_or_else(|error| panic!("{} {}: {error}", proof.address, slot.key.as_b256()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proofs_hold_against_the_state_root_of_their_block() {
    let node = busy(&[]);
    let moment = a_moment(&node).await;
    let alpha = node.node.info().trading.expect("the devnet trades").alpha;
    let trader = accounts(&node)[3];
    let slots: Vec<Value> = (0..8).map(hex).chain([json!(B256::repeat_byte(0x77))]).collect();
    for path in PATHS {
        for at in [json!("latest"), json!("pending"), moment.clone()] {
            let answers = node
                .batch(
                    path,
                    &[
                        ("eth_getBlockByNumber", json!([at, false])),
                        ("eth_getProof", json!([alpha, slots, at])),
                        ("eth_getProof", json!([trader, ["0x0"], at])),
                        ("eth_getProof", json!([NOBODY, ["0x0"], at])),
                        ("eth_getStorageValues", json!([{alpha.to_string(): slots}, at])),
                        ("eth_getBalance", json!([trader, at])),
                    ],
                )
                .await;
            let root: B256 = typed(&answers[0]["stateRoot"]);
            let [token, account, nobody] = [1, 2, 3].map(|index| typed::<EIP1186AccountProofResponse>(&answers[index]));
            for proof in [&token, &account, &nobody] {
                verify(proof, root);
                assert!(verify_fails(proof, B256::repeat_byte(1)), "a proof holds against any root");
            }
            assert_eq!(nobody.balance, U256::ZERO);
            assert_eq!(account.balance, typed::<U256>(&answers[5]), "{path} {at}");
            let values: Vec<B256> = typed(&answers[4][format!("{alpha:#x}")]);
            let proved: Vec<B256> = token.storage_proof.iter().map(|slot| slot.value.into()).collect();
            assert_eq!(proved, values, "{path} {at}");
            assert!(proved.contains(&B256::ZERO) && proved.iter().any(|value| !value.is_zero()), "{proved:?}");
            // A key is returned as it was requested.
            assert_eq!(answers[1]["storageProof"][1]["key"], "0x1");
            assert_eq!(answers[1]["storageProof"][8]["key"], json!(B256::repeat_byte(0x77)));
        }
    }
}

fn verify_fails(proof: &EIP1186AccountProofResponse, root: B256) -> bool {
    verify_proof(root, Nibbles::unpack(keccak256(proof.address)), None, &proof.account_proof).is_err()
}

/// Checks every derived part of a block: hash, roots, bloom, gas, size. `block` has full transactions.
fn check_block(block: &Value, receipts: &Value) {
    let typed_block: Block = typed(block);
    let told = typed_block.header.hash;
    let receipts: Vec<_> =
        typed::<Vec<TransactionReceipt>>(receipts).into_iter().map(|one| one.into_primitives_receipt().inner).collect();
    let size = typed_block.header.size.expect("a block has a size");
    let consensus = typed_block.into_consensus().map_transactions(|tx| tx.inner.into_inner());
    assert_eq!(consensus.header.hash_slow(), told, "{block}");
    assert_eq!(consensus.header.transactions_root, calculate_transaction_root(&consensus.body.transactions));
    assert_eq!(consensus.header.receipts_root, calculate_receipt_root(&receipts));
    assert_eq!(consensus.header.gas_used, receipts.last().map_or(0, |last| last.cumulative_gas_used()));
    let bloom = receipts.iter().fold(alloy_primitives::Bloom::ZERO, |all, one| all | *one.logs_bloom());
    assert_eq!(consensus.header.logs_bloom, bloom);
    assert_eq!(U256::from(consensus.length()), size, "{block}");
    for (index, tx) in items(&block["transactions"]).iter().enumerate() {
        let place = json!([tx["blockHash"], tx["blockNumber"], tx["transactionIndex"], tx["blockTimestamp"]]);
        assert_eq!(place, json!([block["hash"], block["number"], hex(index as u64), block["timestamp"]]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_is_the_same_by_every_name_and_holds_together() {
    let node = busy(&[]);
    node.sealed(4).await;
    for path in PATHS {
        let by_number = node.result(path, "eth_getBlockByNumber", json!(["0x3", true])).await;
        let (number_, hash) = (&by_number["number"], &by_number["hash"]);
        assert_eq!(*number_, "0x3");
        let receipts = node.result(path, "eth_getBlockReceipts", json!(["0x3"])).await;
        assert!(!items(&receipts).is_empty(), "the devnet trades");
        check_block(&by_number, &receipts);
        for at in [
            json!({"blockNumber": number_}),
            json!({"blockHash": hash}),
            json!({"blockHash": hash, "requireCanonical": true}),
        ] {
            assert_eq!(node.result(path, "eth_getBlockByNumber", json!([at, true])).await, by_number, "{path} {at}");
            assert_eq!(node.result(path, "eth_getBlockReceipts", json!([at])).await, receipts, "{path} {at}");
        }
        assert_eq!(node.result(path, "eth_getBlockByHash", json!([hash, true])).await, by_number);
        let mut with_hashes = by_number.clone();
        with_hashes["transactions"] = items(&by_number["transactions"]).iter().map(|tx| tx["hash"].clone()).collect();
        assert_eq!(node.result(path, "eth_getBlockByHash", json!([hash, false])).await, with_hashes);
        assert_eq!(node.result(path, "eth_getBlockByNumber", json!(["0x3"])).await, with_hashes);

        let tags = ["latest", "safe", "finalized", "earliest", "pending"];
        let calls = tags.map(|tag| ("eth_getBlockByNumber", json!([tag, true])));
        let more = [("eth_getBlockReceipts", json!(["pending"])), ("presim_snapshot", json!([]))];
        let answers = node.batch(path, &[&calls[..], &more].concat()).await;
        assert_eq!((&answers[0], &answers[0]), (&answers[1], &answers[2]), "{path}: safe and finalized are the head");
        assert_eq!(answers[3], node.result(path, "eth_getBlockByNumber", json!(["0x0", true])).await);
        let pending = &answers[4];
        assert_eq!(pending["parentHash"], answers[0]["hash"]);
        assert_eq!(number(&pending["number"]), number(&answers[0]["number"]) + 1);
        let moment = json!({"snapshotId": answers[6]["id"]});
        node.sealed(number(&pending["number"])).await;
        assert_eq!(node.result(path, "eth_getBlockByNumber", json!([moment, true])).await, *pending, "as it was");
        let receipts = node.result("/", "eth_getBlockReceipts", json!([moment])).await;
        check_block(pending, &receipts);
        // On `/standard`, receipts of a block that is being built are not told.
        let told = if path == "/" { receipts } else { Value::Null };
        assert_eq!(answers[5], told, "{path}");
        assert_eq!(node.result(path, "eth_getBlockReceipts", json!([moment])).await, told, "{path}: as it was");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_block_being_built_answers_by_the_hash_that_it_has_just_now() {
    let node = TestNode::quiet();
    for path in PATHS {
        let pending = node.result(path, "eth_getBlockByNumber", json!(["pending", false])).await;
        assert_eq!(node.result(path, "eth_getBlockByHash", json!([pending["hash"], false])).await, pending);
        assert_eq!(node.result(path, "eth_getBlockByNumber", json!([pending["number"], false])).await, pending);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_a_block_is_found_by_count_by_index_and_by_hash() {
    let node = busy(&[]);
    let moment = a_moment(&node).await;
    let sealed = node.block("0x2").await["hash"].clone();
    for path in PATHS {
        for (at, hash) in [(json!("0x2"), Some(&sealed)), (moment.clone(), None)] {
            let block = node.result(path, "eth_getBlockByNumber", json!([at, true])).await;
            let transactions = items(&block["transactions"]);
            assert!(!transactions.is_empty());
            let (count, none) = (hex(transactions.len() as u64), hex(0));
            assert_eq!(node.result(path, "eth_getBlockTransactionCountByNumber", json!([at])).await, count);
            assert_eq!(node.result(path, "eth_getUncleCountByBlockNumber", json!([at])).await, none);
            for (index, tx) in transactions.iter().enumerate() {
                let index = hex(index as u64);
                assert_eq!(node.result(path, "eth_getTransactionByBlockNumberAndIndex", json!([at, index])).await, *tx);
                if let Some(hash) = hash {
                    assert_eq!(
                        node.result(path, "eth_getTransactionByBlockHashAndIndex", json!([hash, index])).await,
                        *tx
                    );
                    assert_eq!(node.result(path, "eth_getTransactionByHash", json!([tx["hash"]])).await, *tx);
                }
            }
            assert_eq!(
                node.result(path, "eth_getTransactionByBlockNumberAndIndex", json!([at, count])).await,
                Value::Null
            );
            if let Some(hash) = hash {
                assert_eq!(node.result(path, "eth_getBlockTransactionCountByHash", json!([hash])).await, count);
                assert_eq!(node.result(path, "eth_getUncleCountByBlockHash", json!([hash])).await, none);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pre_confirmed_receipt_is_the_sealed_one_but_for_the_block_hash() {
    // The blocks last long enough to ask twice about the same one.
    let node = busy(&["--sub-blocks", "60", "--standard-receipts", "preconfirmed"]);
    for path in PATHS {
        let (block, receipts) = loop {
            let block = node.result(path, "eth_getBlockByNumber", json!(["pending", true])).await;
            let mut calls =
                vec![("eth_getBlockByNumber", json!(["pending", true])), ("eth_getBlockReceipts", json!(["pending"]))];
            let hashes = items(&block["transactions"]).iter().map(|tx| json!([tx["hash"]]));
            calls.extend(hashes.clone().map(|hash| ("eth_getTransactionReceipt", hash)));
            calls.extend(hashes.map(|hash| ("eth_getTransactionByHash", hash)));
            let mut answers = node.batch(path, &calls).await;
            let known = items(&block["transactions"]).len();
            if known > 0 && answers[0]["number"] == block["number"] {
                assert_eq!(answers[2..2 + known], items(&answers[1])[..known], "{path}");
                assert_eq!(answers[2 + known..], items(&answers[0]["transactions"])[..known], "{path}");
                break (answers.swap_remove(0), answers.swap_remove(1));
            }
        };
        for (tx, receipt) in items(&block["transactions"]).iter().zip(items(&receipts)) {
            let shared = ["blockHash", "blockNumber", "transactionIndex", "from", "to", "type"];
            shared.iter().for_each(|field| assert_eq!(tx[field], receipt[field], "{field}"));
            assert_eq!((&tx["hash"], &tx["gasPrice"]), (&receipt["transactionHash"], &receipt["effectiveGasPrice"]));
        }
        node.sealed(number(&block["number"])).await;
        let sealed = node.result(path, "eth_getBlockReceipts", json!([block["number"]])).await;
        for (before, after) in items(&receipts).iter().zip(items(&sealed)) {
            assert_eq!(without_block_hash(before), without_block_hash(after), "{path}");
            assert_ne!(before["blockHash"], after["blockHash"]);
            let alone = node.result(path, "eth_getTransactionReceipt", json!([after["transactionHash"]])).await;
            assert_eq!(alone, *after, "{path}");
        }
    }
}

/// Starts a devnet whose blocks are sealed on request, with a pre-confirmed transaction. Returns its pre-confirmed
/// receipt, too.
async fn preconfirmed(flags: &[&str]) -> (TestNode, Value) {
    let node =
        TestNode::start(&[&["--testing", "--world", "--block-time", "1000s", "--sub-block-ms", "100"], flags].concat());
    let raw = crate::sending::raw(crate::sending::plain(0), &crate::sending::key(0));
    let receipt = node.result("/standard", "eth_sendRawTransactionSync", json!([raw, 60_000])).await;
    assert_eq!(receipt["blockNumber"], "0x1", "the answer is the pre-confirmed receipt on each path");
    (node, receipt)
}

#[tokio::test(flavor = "multi_thread")]
async fn on_standard_a_receipt_implies_its_block() {
    let (node, receipt) = preconfirmed(&["--dialect", "project"]).await;
    let (hash, sender) = (&receipt["transactionHash"], &receipt["from"]);
    let calls = [
        ("eth_getTransactionReceipt", json!([hash])),
        ("eth_getBlockReceipts", json!(["pending"])),
        ("eth_getBlockReceipts", json!(["0x1"])),
        ("eth_getBlockReceipts", json!([receipt["blockHash"]])),
    ];
    for (method, params) in &calls {
        assert_eq!(node.result("/standard", method, params.clone()).await, Value::Null, "{method} {params}");
        assert!(!node.result("/", method, params.clone()).await.is_null(), "{method} {params}");
    }
    let tx = node.result("/standard", "eth_getTransactionByHash", json!([hash])).await;
    for key in ["blockHash", "blockNumber", "blockTimestamp", "transactionIndex"] {
        assert_eq!(tx.get(key), Some(&Value::Null), "{key}: {tx}");
    }
    assert_eq!((&tx["hash"], &tx["from"], &tx["gasPrice"]), (hash, sender, &tx["maxFeePerGas"]));
    assert_eq!(node.result("/", "eth_getTransactionByHash", json!([hash])).await["blockNumber"], "0x1");
    assert_eq!(node.result("/standard", "eth_getTransactionCount", json!([sender, "latest"])).await, "0x0");
    assert_eq!(node.result("/standard", "eth_getTransactionCount", json!([sender, "pending"])).await, "0x1");

    node.result("/", "evm_mine", json!([])).await;
    let told = node.result("/standard", "eth_getTransactionReceipt", json!([hash])).await;
    assert_eq!(without_block_hash(&told), without_block_hash(&receipt));
    let block = node.result("/standard", "eth_getBlockByNumber", json!(["latest", true])).await;
    assert_eq!((&told["blockHash"], &block["transactions"][0]["hash"]), (&block["hash"], hash));
    let tx = node.result("/standard", "eth_getTransactionByHash", json!([hash])).await;
    assert_eq!(tx, block["transactions"][0]);
    for at in [json!("latest"), json!("0x1"), block["hash"].clone(), receipt["blockHash"].clone()] {
        let receipts = node.result("/standard", "eth_getBlockReceipts", json!([at])).await;
        assert_eq!(receipts, json!([told]), "{at}");
    }
    assert_eq!(node.result("/standard", "eth_getTransactionCount", json!([sender, "latest"])).await, "0x1");

    // The dialect decides, and not the path.
    let (node, receipt) = preconfirmed(&["--dialect", "standard"]).await;
    let hash = json!([receipt["transactionHash"]]);
    assert_eq!(node.result("/", "eth_getTransactionReceipt", hash).await, Value::Null);
    let (node, receipt) = preconfirmed(&["--standard-receipts", "preconfirmed"]).await;
    let hash = json!([receipt["transactionHash"]]);
    assert_eq!(node.result("/standard", "eth_getTransactionByHash", hash.clone()).await["blockNumber"], "0x1");
    let told = node.result("/standard", "eth_getTransactionReceipt", hash).await;
    assert_eq!(without_block_hash(&told), without_block_hash(&receipt));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_block_has_a_hash_a_nonce_and_a_miner_on_both_paths() {
    let node = TestNode::quiet_with(&["--fee-recipient", "0x00000000000000000000000000000000000abcde"]);
    for path in PATHS {
        let pending = node.result(path, "eth_getBlockByNumber", json!(["pending", true])).await;
        let block: Block = typed(&pending);
        assert_eq!(
            (json!(block.header.hash), &pending["nonce"]),
            (pending["hash"].clone(), &json!("0x0000000000000000"))
        );
        assert_eq!(block.header.beneficiary, NOBODY, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provisional_hash_stays_a_name_of_the_block_that_became_of_it() {
    let testing = ["--testing", "--world", "--dialect=project", "--no-mining"];
    let node =
        TestNode::start(&[&testing[..], &["--keep-snapshots=2", "--keep-blocks=4", "--keep-history=4"]].concat());
    let (alice, world) = (accounts(&node)[0], node.node.info().trading.expect("a world"));
    let pending = node.block("pending").await;
    let (hash, height) = (&pending["hash"], &pending["number"]);
    let sent = json!([{"from": alice, "to": world.weth, "value": "0x7"}]);
    let sent = node.result("/", "eth_sendTransaction", sent).await;
    // Further ahead than snapshots are retained.
    node.result("/", "anvil_mine", json!(["0x3"])).await;
    let (by_hash, by_number) = (json!({"blockHash": hash}), json!({"blockNumber": height}));
    let moment = json!({"to": world.weth, "data": "0x18160ddd"});
    for path in PATHS {
        let block = node.result(path, "eth_getBlockByNumber", json!([height, true])).await;
        assert_eq!((&block["transactions"][0]["hash"], &block["number"]), (&sent, height), "{path}");
        assert_ne!(block["hash"], *hash, "the hash was provisional");
        for (one, other) in [
            (("eth_getBlockByHash", json!([hash, true])), ("eth_getBlockByNumber", json!([height, true]))),
            (("eth_getHeaderByHash", json!([hash])), ("eth_getHeaderByNumber", json!([height]))),
            (
                ("eth_getBlockTransactionCountByHash", json!([hash])),
                ("eth_getBlockTransactionCountByNumber", json!([height])),
            ),
            (("eth_getUncleCountByBlockHash", json!([hash])), ("eth_getUncleCountByBlockNumber", json!([height]))),
            (
                ("eth_getTransactionByBlockHashAndIndex", json!([hash, "0x0"])),
                ("eth_getTransactionByBlockNumberAndIndex", json!([height, "0x0"])),
            ),
            (
                ("eth_getRawTransactionByBlockHashAndIndex", json!([hash, "0x0"])),
                ("eth_getRawTransactionByBlockNumberAndIndex", json!([height, "0x0"])),
            ),
            (("eth_getBlockReceipts", json!([hash])), ("eth_getBlockReceipts", json!([height]))),
            (
                ("eth_getLogs", json!([{"blockHash": hash}])),
                ("eth_getLogs", json!([{"fromBlock": height, "toBlock": height}])),
            ),
            (("debug_getRawBlock", json!([hash])), ("debug_getRawBlock", json!([height]))),
            (("debug_traceBlockByHash", json!([hash])), ("debug_traceBlockByNumber", json!([height]))),
            (("trace_block", json!([hash])), ("trace_block", json!([height]))),
            (("eth_getBalance", json!([world.weth, by_hash])), ("eth_getBalance", json!([world.weth, by_number]))),
            (("eth_call", json!([moment, by_hash])), ("eth_call", json!([moment, by_number]))),
            (
                ("eth_simulateV1", json!([{"blockStateCalls": [{}]}, by_hash])),
                ("eth_simulateV1", json!([{"blockStateCalls": [{}]}, by_number])),
            ),
        ] {
            assert_eq!(
                node.result(path, one.0, one.1.clone()).await,
                node.result(path, other.0, other.1).await,
                "{one:?}"
            );
        }
    }
    // As long as the block is retained, and not longer.
    node.result("/", "anvil_mine", json!(["0x2"])).await;
    assert_eq!(node.result("/", "eth_getBlockByHash", json!([hash, false])).await, Value::Null);
    assert_eq!(node.error("/", "eth_getBlockByNumber", json!([height, false])).await["code"], 4444);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provisional_hash_is_forgotten_with_a_block_that_is_undone() {
    let node =
        TestNode::start(&["--testing", "--world", "--dialect", "project", "--no-mining", "--keep-snapshots", "2"]);
    let saved = node.result("/", "evm_snapshot", json!([])).await;
    // The chain that is undone has another first block than the one after it.
    let alice = accounts(&node)[0];
    node.result("/", "eth_sendTransaction", json!([{"from": alice, "to": NOBODY, "value": "0x7"}])).await;
    node.result("/", "anvil_mine", json!(["0x1"])).await;
    let pending = node.block("pending").await;
    node.result("/", "anvil_mine", json!(["0x4"])).await;
    let block = node.result("/", "eth_getBlockByHash", json!([pending["hash"], false])).await;
    assert_eq!(block["number"], pending["number"]);
    node.result("/", "evm_revert", json!([saved])).await;
    node.result("/", "anvil_mine", json!(["0x6"])).await;
    assert_eq!(node.result("/", "eth_getBlockByHash", json!([pending["hash"], false])).await, Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_exist_is_null() {
    let node = TestNode::quiet();
    let nothing = B256::repeat_byte(0xee);
    for path in PATHS {
        for (method, params) in [
            ("eth_getBlockByNumber", json!(["0x3e8", false])),
            ("eth_getBlockByNumber", json!(["0xffffffffffffffff", true])),
            ("eth_getBlockByHash", json!([nothing, false])),
            ("eth_getBlockTransactionCountByNumber", json!(["0x3e8"])),
            ("eth_getBlockTransactionCountByHash", json!([nothing])),
            ("eth_getUncleCountByBlockNumber", json!(["0x3e8"])),
            ("eth_getUncleCountByBlockHash", json!([nothing])),
            ("eth_getBlockReceipts", json!(["0x3e8"])),
            ("eth_getBlockReceipts", json!([nothing])),
            ("eth_getTransactionByHash", json!([nothing])),
            ("eth_getTransactionReceipt", json!([nothing])),
            ("eth_getTransactionByBlockNumberAndIndex", json!(["0x3e8", "0x0"])),
            ("eth_getTransactionByBlockNumberAndIndex", json!(["latest", "0xffffffffffffffff"])),
            ("eth_getTransactionByBlockHashAndIndex", json!([nothing, "0x0"])),
        ] {
            assert_eq!(node.result(path, method, params.clone()).await, Value::Null, "{method} {params} on {path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_parameters_are_named() {
    let node = TestNode::quiet();
    let (who, hash) = (json!(NOBODY), json!(B256::repeat_byte(0xee)));
    let many: Vec<Value> = vec![json!("0x0"); 1025];
    let cases = [
        ("eth_getBalance", json!(["0x1", "latest"]), -32602, "params[0]"),
        ("eth_getBalance", json!([who, "newest"]), -32602, "params[1]"),
        ("eth_getBalance", json!([who, "0x01"]), -32602, "params[1]"),
        ("eth_getBalance", json!([who, "latest", 1]), -32602, "more parameters"),
        ("eth_getBalance", json!([who, "0x3e8"]), -32000, "1000 is after the newest"),
        ("eth_getBalance", json!([who, {"blockHash": hash}]), -32000, "no block with hash"),
        ("eth_getBalance", json!([who, {"snapshotId": "0xffffff"}]), -32000, "snapshot 0xffffff is not retained"),
        ("eth_getBalance", json!([who, {"blockHash": hash, "blockNumber": "0x0"}]), -32602, "exactly one of"),
        ("eth_getStorageAt", json!([who, "0xzz", "latest"]), -32602, "params[1]"),
        ("eth_getStorageAt", json!([who, format!("0x{}", "0".repeat(65)), "latest"]), -32602, "params[1]"),
        ("eth_getStorageValues", json!([{NOBODY.to_string(): many}, "latest"]), -32602, "at most 1024"),
        ("eth_getProof", json!([who, "0x0", "latest"]), -32602, "params[1]"),
        ("eth_getProof", json!([who, many, "latest"]), -32602, "at most 1024"),
        ("eth_getProof", json!([who, ["0xzz"], "latest"]), -32602, "params[1][0]"),
        ("eth_getBlockByNumber", json!(["latest", "yes"]), -32602, "params[1]"),
        ("eth_getBlockByNumber", json!([{"snapshotId": "0xffffff"}, true]), -32000, "is not retained"),
        ("eth_getBlockByHash", json!(["latest", true]), -32602, "params[0]"),
        ("eth_getBlockByHash", json!(["0x1", true]), -32602, "params[0]"),
        ("eth_getBlockTransactionCountByHash", json!(["0x1"]), -32602, "params[0]"),
        ("eth_getTransactionByBlockHashAndIndex", json!(["latest", "0x0"]), -32602, "params[0]"),
        ("eth_getTransactionByBlockNumberAndIndex", json!(["latest", 0]), -32602, "params[1]"),
        ("eth_getTransactionByHash", json!(["0x1234"]), -32602, "params[0]"),
        ("eth_getTransactionReceipt", json!([]), -32602, "1 parameter"),
        ("eth_feeHistory", json!(["0x4", "latest", [50, 10]]), -32602, "params[2][1]"),
        ("eth_feeHistory", json!(["0x4", "latest", [101]]), -32602, "params[2][0]"),
        ("eth_feeHistory", json!(["0x4", "latest", vec![1; 101]]), -32602, "101 percentiles: at most 100"),
        ("eth_feeHistory", json!(["many", "latest"]), -32602, "params[0]"),
        ("eth_feeHistory", json!(["0x4", "0x3e8"]), -32000, "beyond head"),
        ("eth_gasPrice", json!([1]), -32602, "more parameters than the method takes"),
        ("web3_sha3", json!(["0x123"]), -32602, "params[0]"),
    ];
    for path in PATHS {
        for (method, params, code, text) in &cases {
            let error = node.error(path, method, params.clone()).await;
            let message = error["message"].as_str().expect("a message");
            assert!(error["code"] == *code && message.contains(text), "{method} on {path}: {error}, not {code} {text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_outlives_its_state() {
    let node = busy(&["--keep-blocks", "2"]);
    node.sealed(6).await;
    for path in PATHS {
        let who = accounts(&node)[0];
        for (method, params) in [
            ("eth_getBalance", json!([who, "0x1"])),
            ("eth_getTransactionCount", json!([who, "0x1"])),
            ("eth_getCode", json!([who, "0x1"])),
            ("eth_getStorageAt", json!([who, "0x0", "0x1"])),
            ("eth_getStorageValues", json!([{who.to_string(): ["0x0"]}, "0x1"])),
            ("eth_getProof", json!([who, [], "0x1"])),
            ("eth_call", json!([{"to": who}, "0x1"])),
        ] {
            let error = node.error(path, method, params).await;
            let message = error["message"].as_str().expect("a message");
            assert_eq!(error["code"], -32000, "{method}: {error}");
            assert!(message.contains("state of block 1 is not retained: the oldest retained is"), "{method}: {error}");
        }
        let block = node.result(path, "eth_getBlockByNumber", json!(["0x1", true])).await;
        let receipts = node.result(path, "eth_getBlockReceipts", json!(["0x1"])).await;
        check_block(&block, &receipts);
        let tx = &block["transactions"][0];
        assert_eq!(node.result(path, "eth_getTransactionByHash", json!([tx["hash"]])).await, *tx);
        assert_eq!(node.result(path, "eth_getTransactionReceipt", json!([tx["hash"]])).await, receipts[0]);
        assert!(node.result(path, "eth_getBalance", json!([who, "latest"])).await.is_string());
    }
}

/// The number of snapshots to observe while the devnet publishes.
const SNAPSHOTS: usize = 30;

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_agrees_with_itself_while_the_devnet_publishes() {
    let node = TestNode::start(&["--sub-block-ms", "3", "--sub-blocks", "5", "--standard-receipts", "preconfirmed"]);
    let senders = accounts(&node);
    let mut snapshots = std::collections::BTreeSet::new();
    let began = std::time::Instant::now();
    for round in 0.. {
        if snapshots.len() >= SNAPSHOTS {
            break;
        }
        assert!(began.elapsed() < BOUND, "the devnet publishes no more: {snapshots:?}");
        let path = PATHS[round % 2];
        let fixed = [
            ("eth_getBlockByNumber", json!(["pending", true])),
            ("eth_getBlockByNumber", json!(["latest", false])),
            ("eth_getBlockReceipts", json!(["pending"])),
            ("eth_getProof", json!([senders[1], [], "pending"])),
            ("eth_getBalance", json!([senders[1], "pending"])),
            ("eth_blockNumber", json!([])),
            ("presim_snapshot", json!([])),
            ("eth_getBlockTransactionCountByNumber", json!(["pending"])),
        ];
        let counts = |at: &'static str| senders.iter().map(move |who| ("eth_getTransactionCount", json!([who, at])));
        let calls: Vec<_> = fixed.into_iter().chain(counts("latest")).chain(counts("pending")).collect();
        let answers = node.batch(path, &calls).await;
        let (pending, latest) = (&answers[0], &answers[1]);
        assert_eq!(pending["parentHash"], latest["hash"]);
        assert_eq!((&answers[5], &answers[6]["head"]["hash"]), (&latest["number"], &latest["hash"]));
        assert_eq!(answers[6]["blockNumber"], pending["number"]);
        check_block(pending, &answers[2]);
        let proof: EIP1186AccountProofResponse = typed(&answers[3]);
        verify(&proof, typed(&pending["stateRoot"]));
        assert_eq!(proof.balance, typed::<U256>(&answers[4]));
        let transactions = items(&pending["transactions"]);
        assert_eq!(number(&answers[7]), transactions.len() as u64);
        for (index, who) in senders.iter().enumerate() {
            let sent = transactions.iter().filter(|tx| typed::<Address>(&tx["from"]) == *who).count();
            assert_eq!(number(&answers[8 + senders.len() + index]), number(&answers[8 + index]) + sent as u64, "{who}");
        }
        snapshots.insert(number(&answers[6]["id"]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hash_that_was_given_out_for_the_block_being_built_names_its_state() {
    let node = busy(&[]);
    let who = accounts(&node)[0];
    let world = node.node.info().trading.expect("the devnet trades");
    for path in PATHS {
        let pending = node.result(path, "eth_getBlockByNumber", json!(["pending", false])).await;
        let snapshot = json!({"blockHash": pending["hash"]});
        // The block continues, but the hash still names the state that it was returned for.
        node.sealed(number(&pending["number"])).await;
        assert_eq!(node.result(path, "eth_getBlockByHash", json!([pending["hash"], false])).await, pending);
        let calls = [
            ("eth_getProof", json!([who, [], snapshot])),
            ("eth_getBalance", json!([who, snapshot])),
            ("eth_call", json!([{"to": world.alpha, "data": "0x18160ddd"}, snapshot])),
        ];
        let answers = node.batch(path, &calls).await;
        let proof: EIP1186AccountProofResponse = typed(&answers[0]);
        verify(&proof, typed(&pending["stateRoot"]));
        assert_eq!(proof.balance, typed::<U256>(&answers[1]));
    }
}
