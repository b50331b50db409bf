//! Sent transactions: accepted or refused, waiting, mined, and waiting for receipts.

use std::{
    collections::{BTreeSet, HashSet},
    sync::LazyLock,
};

use alloy_consensus::{
    EthereumTxEnvelope, SidecarBuilder, SignableTransaction, SimpleCoder, TxEip1559, TxEip2930, TxEip4844,
    TxEip4844WithSidecar, TxEip7702, TxEnvelope, TxLegacy,
};
use alloy_eips::{
    Encodable2718,
    eip2930::{AccessList, AccessListItem},
    eip4844::BlobTransactionSidecar,
    eip7594::{BlobTransactionSidecarEip7594, BlobTransactionSidecarVariant},
    eip7702::Authorization,
};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, address, bytes, hex, keccak256};
use alloy_signer::SignerSync;
use alloy_signer_local::{MnemonicBuilder, PrivateKeySigner, coins_bip39::English};
use presim::testing::source::devnet::world::{dev_genesis, dev_signers, traffic_signers};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    process::eventually,
    support::{BOUND, Socket, TestNode, hex, items, number, request},
};

const CHAIN: u64 = 31337;
const GWEI: u128 = 1_000_000_000;
const ETHER: u128 = 1_000_000_000_000_000_000;
/// An address without an account.
const TO: Address = address!("0x00000000000000000000000000000000000abcde");
/// Returns one of the user's nine unused accounts; the first account has set up the devnet's contracts.
pub fn key(index: usize) -> PrivateKeySigner {
    static KEYS: LazyLock<Vec<PrivateKeySigner>> = LazyLock::new(|| dev_signers().unwrap());
    KEYS[index + 1].clone()
}

/// Returns all accounts of the test mnemonic.
fn mnemonic() -> impl Iterator<Item = PrivateKeySigner> {
    let words = "test test test test test test test test test test test junk";
    let parent = MnemonicBuilder::<English>::default().phrase(words).index(0).unwrap().build_parent_key().unwrap();
    parent.children().map(Result::unwrap)
}

pub fn plain(nonce: u64) -> TxEip1559 {
    TxEip1559 {
        chain_id: CHAIN,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: 10 * GWEI,
        max_priority_fee_per_gas: GWEI,
        to: TO.into(),
        value: U256::from(1),
        ..TxEip1559::default()
    }
}

fn legacy(nonce: u64) -> TxLegacy {
    TxLegacy {
        chain_id: Some(CHAIN),
        nonce,
        gas_price: 10 * GWEI,
        gas_limit: 21_000,
        to: TO.into(),
        value: U256::from(1),
        input: Bytes::new(),
    }
}

pub fn blob_tx(nonce: u64, blob_versioned_hashes: Vec<B256>) -> TxEip4844 {
    TxEip4844 {
        chain_id: CHAIN,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: 10 * GWEI,
        max_priority_fee_per_gas: GWEI,
        to: TO,
        max_fee_per_blob_gas: GWEI,
        blob_versioned_hashes,
        ..TxEip4844::default()
    }
}

fn seven_thousand_seven_hundred_two(nonce: u64, to: Address) -> TxEip7702 {
    TxEip7702 {
        chain_id: CHAIN,
        nonce,
        gas_limit: 100_000,
        max_fee_per_gas: 10 * GWEI,
        max_priority_fee_per_gas: GWEI,
        to,
        ..TxEip7702::default()
    }
}

pub fn sign<T>(tx: T, signer: &PrivateKeySigner) -> TxEnvelope
where
    T: SignableTransaction<Signature>,
    TxEnvelope: From<alloy_consensus::Signed<T>>,
{
    let signature = signer.sign_hash_sync(&tx.signature_hash()).unwrap();
    tx.into_signed(signature).into()
}

pub fn raw<T>(tx: T, signer: &PrivateKeySigner) -> Bytes
where
    T: SignableTransaction<Signature>,
    TxEnvelope: From<alloy_consensus::Signed<T>>,
{
    sign(tx, signer).encoded_2718().into()
}

/// Encodes a blob transaction in its network form.
pub fn raw_blob(tx: TxEip4844, sidecar: impl Into<BlobTransactionSidecarVariant>, signer: &PrivateKeySigner) -> Bytes {
    let signature = signer.sign_hash_sync(&tx.signature_hash()).unwrap();
    let tx = TxEip4844WithSidecar::from_tx_and_sidecar(tx, sidecar.into());
    let signed: EthereumTxEnvelope<_> = EthereumTxEnvelope::Eip4844(tx.into_signed(signature));
    signed.encoded_2718().into()
}

pub fn blobs(data: &[u8]) -> SidecarBuilder<SimpleCoder> {
    SidecarBuilder::from_slice(data)
}

pub fn hashes(sidecar: &BlobTransactionSidecarEip7594) -> Vec<B256> {
    sidecar.versioned_hashes().collect()
}

async fn send(node: &TestNode, raw: &Bytes) -> Value {
    node.result("/", "eth_sendRawTransaction", json!([raw])).await
}

async fn send_sync(node: &TestNode, raw: &Bytes) -> Value {
    node.result("/", "eth_sendRawTransactionSync", json!([raw, 30_000])).await
}

async fn refusal(node: &TestNode, raw: &Bytes) -> (i64, String) {
    let error = node.error("/", "eth_sendRawTransaction", json!([raw])).await;
    (error["code"].as_i64().unwrap(), error["message"].as_str().unwrap().to_owned())
}

async fn nonce(node: &TestNode, of: Address) -> u64 {
    let snapshot = node.node.snapshots().newest();
    snapshot.world.account(&of).map_or(0, |account| account.nonce)
}

/// Starts a devnet without traffic and with quick sub-blocks.
fn devnet(flags: &[&str]) -> TestNode {
    TestNode::start(&[&["--traffic", "0", "--sub-block-ms", "50"], flags].concat())
}

// Transaction types.

#[tokio::test(flavor = "multi_thread")]
async fn transactions_of_each_plain_type_are_mined() {
    let node = devnet(&[]);
    let list = AccessList(vec![AccessListItem { address: TO, storage_keys: vec![B256::ZERO] }]);
    let cases = [
        (0, raw(legacy(0), &key(0))),
        (
            1,
            raw(
                TxEip2930 {
                    chain_id: CHAIN,
                    gas_price: 10 * GWEI,
                    gas_limit: 30_000,
                    to: TO.into(),
                    value: U256::from(1),
                    access_list: list.clone(),
                    ..TxEip2930::default()
                },
                &key(1),
            ),
        ),
        (2, raw(TxEip1559 { gas_limit: 30_000, access_list: list, ..plain(0) }, &key(2))),
    ];
    for (index, (kind, raw)) in cases.iter().enumerate() {
        let receipt = send_sync(&node, raw).await;
        assert_eq!((&receipt["status"], number(&receipt["type"])), (&json!("0x1"), *kind), "{receipt}");
        let gas = if *kind == 0 { 21_000 } else { 21_000 + 2_400 + 1_900 };
        assert_eq!(number(&receipt["gasUsed"]), gas, "{receipt}");
        assert_eq!(receipt["from"].as_str().unwrap().parse::<Address>().unwrap(), key(index).address());
        assert_eq!(node.balance(TO, "pending").await, U256::from(index + 1));
        let paid = U256::from(gas) * receipt["effectiveGasPrice"].as_str().unwrap().parse::<U256>().unwrap();
        assert_eq!(node.balance(key(index).address(), "pending").await, U256::from(10_000 * ETHER - 1) - paid);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_transaction_is_mined_without_its_blobs() {
    let node = devnet(&[]);
    let cells = blobs(b"cells").build_7594().unwrap();
    let tx = blob_tx(0, hashes(&cells));
    let bare = sign(tx.clone(), &key(0));
    let receipt = send_sync(&node, &raw_blob(tx, cells.clone(), &key(0))).await;
    assert_eq!(receipt["transactionHash"], json!(bare.tx_hash()));
    assert_eq!((&receipt["type"], &receipt["status"]), (&json!("0x3"), &json!("0x1")));
    assert_eq!((&receipt["blobGasUsed"], &receipt["blobGasPrice"]), (&json!("0x20000"), &json!("0x1")));
    let shown = node.result("/", "eth_getTransactionByHash", json!([bare.tx_hash()])).await;
    assert_eq!(shown["blobVersionedHashes"], json!(hashes(&cells)));

    // The older proofs are accepted too: geth accepts them from clients that do not know Osaka.
    let plain_proofs: BlobTransactionSidecar = blobs(b"blob proof").build_4844().unwrap();
    let tx = blob_tx(1, plain_proofs.versioned_hashes().collect());
    let receipt = send_sync(&node, &raw_blob(tx, plain_proofs, &key(0))).await;
    assert_eq!((&receipt["type"], &receipt["status"]), (&json!("0x3"), &json!("0x1")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delegation_that_was_sent_works() {
    let node = devnet(&[]);
    // The created code returns 42.
    let create = TxLegacy {
        gas_limit: 200_000,
        to: TxKind::Create,
        value: U256::ZERO,
        input: bytes!("600a600c600039600a6000f3602a60005260206000f3"),
        ..legacy(0)
    };
    let receipt = send_sync(&node, &raw(create, &key(0))).await;
    let code_at: Address = receipt["contractAddress"].as_str().unwrap().parse().unwrap();
    let authority = key(5);
    let authorization = Authorization { chain_id: U256::from(CHAIN), address: code_at, nonce: 0 };
    let signature = authority.sign_hash_sync(&authorization.signature_hash()).unwrap();
    let tx = TxEip7702 {
        authorization_list: vec![authorization.into_signed(signature)],
        ..seven_thousand_seven_hundred_two(1, authority.address())
    };
    let receipt = send_sync(&node, &raw(tx, &key(0))).await;
    assert_eq!((&receipt["type"], &receipt["status"]), (&json!("0x4"), &json!("0x1")));
    let code = node.result("/", "eth_getCode", json!([authority.address(), "pending"])).await;
    assert_eq!(code, json!(format!("0xef0100{}", hex::encode(code_at))));
    let answer = node.result("/", "eth_call", json!([{"to": authority.address()}, "pending"])).await;
    assert_eq!(answer, json!(B256::with_last_byte(42)));
    // An account with a delegation can still send (EIP-3607 as changed by EIP-7702).
    let receipt = send_sync(&node, &raw(TxEip1559 { gas_limit: 30_000, ..plain(1) }, &authority)).await;
    assert_eq!(receipt["status"], "0x1");
}

// Refusals.

#[tokio::test(flavor = "multi_thread")]
async fn each_refusal_is_geths() {
    let node = TestNode::quiet();
    let rich = key(0);
    let poor = mnemonic().nth(40).unwrap();
    let mut high_s = sign(plain(0), &rich);
    if let TxEnvelope::Eip1559(signed) = &mut high_s {
        let order: U256 = "0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141".parse().unwrap();
        let signature = signed.signature();
        let flipped = Signature::new(signature.r(), order - signature.s(), !signature.v());
        *signed = signed.tx().clone().into_signed(flipped);
    }
    let known = raw(plain(0), &key(8));
    send(&node, &known).await;
    let cells = blobs(b"cells").build_7594().unwrap();
    let other_cells = blobs(b"others").build_7594().unwrap();
    let mut swapped_proofs = cells.clone();
    swapped_proofs.cell_proofs = other_cells.cell_proofs.clone();
    let mut few_proofs = cells.clone();
    few_proofs.cell_proofs.pop();
    let mut no_blob = cells.clone();
    no_blob.blobs.clear();
    let blob = |tx: TxEip4844, sidecar: &BlobTransactionSidecarEip7594| raw_blob(tx, sidecar.clone(), &rich);
    let with_cells = |nonce| blob_tx(nonce, hashes(&cells));
    let create =
        |gas_limit, bytes: usize| TxEip1559 { gas_limit, to: TxKind::Create, input: vec![0; bytes].into(), ..plain(0) };
    let balance = 10_000 * ETHER;
    let expensive = U256::from(balance);
    let commitment_hash = hashes(&cells)[0];
    let cases: Vec<(&str, Bytes, String)> = vec![
        ("no bytes", Bytes::new(), "malformed transaction: typed transaction too short".into()),
        ("a type alone", bytes!("02"), "malformed transaction: typed transaction too short".into()),
        ("an unknown type", bytes!("05c0"), "transaction type not supported: 0x5".into()),
        ("a reserved type", bytes!("7fc0"), "transaction type not supported: 0x7f".into()),
        ("no list", bytes!("0281ff"), "malformed transaction: rlp: unexpected string".into()),
        ("a list too short", bytes!("02c0"), "malformed transaction: rlp: input too short".into()),
        ("an empty list", bytes!("c0"), "malformed transaction: rlp: input too short".into()),
        ("a nonce with a zero before it", bytes!("c3820001"), "malformed transaction: rlp: leading zero".into()),
        (
            "bytes after it",
            [&raw(plain(0), &rich)[..], &[0]].concat().into(),
            "malformed transaction: rlp: unexpected length".into(),
        ),
        (
            "unprotected",
            raw(TxLegacy { chain_id: None, ..legacy(0) }, &rich),
            "only replay-protected (EIP-155) transactions allowed over RPC".into(),
        ),
        ("known", known, "already known".into()),
        (
            "oversized",
            raw(TxEip1559 { input: vec![1; 131_072].into(), gas_limit: 10_000_000, ..plain(0) }, &rich),
            "oversized data: transaction size 131190, limit 131072".into(),
        ),
        (
            "init code",
            raw(create(10_000_000, 49_153), &rich),
            "max initcode size exceeded: code size 49153 limit 49152".into(),
        ),
        (
            "transaction gas cap",
            raw(TxEip1559 { gas_limit: (1 << 24) + 1, ..plain(0) }, &rich),
            "transaction gas limit too high (cap: 16777216, tx: 16777217)".into(),
        ),
        (
            "tip above fee",
            raw(TxEip1559 { max_priority_fee_per_gas: 11 * GWEI, ..plain(0) }, &rich),
            "max priority fee per gas higher than max fee per gas".into(),
        ),
        (
            "another chain",
            raw(TxEip1559 { chain_id: 1, ..plain(0) }, &rich),
            "invalid sender: invalid chain id for signer: have 1 want 31337".into(),
        ),
        (
            "another chain, legacy",
            raw(TxLegacy { chain_id: Some(5), ..legacy(0) }, &rich),
            "invalid sender: invalid chain id for signer: have 5 want 31337".into(),
        ),
        ("a high s", high_s.encoded_2718().into(), "invalid sender: invalid transaction v, r, s values".into()),
        ("the last nonce", raw(plain(u64::MAX), &rich), "nonce has max value".into()),
        (
            "intrinsic gas",
            raw(TxEip1559 { gas_limit: 20_999, ..plain(0) }, &rich),
            "intrinsic gas too low: gas 20999, minimum needed 21000".into(),
        ),
        (
            "intrinsic gas of a creation",
            raw(create(53_000, 32), &rich),
            "intrinsic gas too low: gas 53000, minimum needed 53130".into(),
        ),
        (
            "floor gas",
            raw(TxEip1559 { gas_limit: 22_000, input: vec![1; 50].into(), ..plain(0) }, &rich),
            "insufficient gas for floor data gas cost: gas 22000, minimum needed 23000".into(),
        ),
        (
            "no tip",
            raw(TxEip1559 { max_priority_fee_per_gas: 0, ..plain(0) }, &rich),
            "transaction gas price below minimum: gas tip cap 0, minimum needed 1".into(),
        ),
        (
            "no authorizations",
            raw(seven_thousand_seven_hundred_two(0, TO), &rich),
            "set code tx must have at least one authorization tuple".into(),
        ),
        ("bare blobs", raw(with_cells(0), &rich), "missing sidecar in blob transaction".into()),
        (
            "no blob fee",
            blob(TxEip4844 { max_fee_per_blob_gas: 0, ..with_cells(0) }, &cells),
            "transaction gas price below minimum: blob fee cap 0, minimum needed 1".into(),
        ),
        (
            "no blobs",
            blob(blob_tx(0, vec![]), &BlobTransactionSidecarEip7594::default()),
            "blobless blob transaction".into(),
        ),
        (
            "seven blobs",
            blob(blob_tx(0, vec![commitment_hash; 7]), &cells),
            "transaction blob limit exceeded: blob count 7, limit 6".into(),
        ),
        (
            "a blob is missing",
            blob(with_cells(0), &no_blob),
            "invalid number of 0 blobs compared to 1 blob hashes".into(),
        ),
        (
            "a blob less than hashes",
            blob(blob_tx(0, vec![commitment_hash; 2]), &cells),
            "invalid number of 1 blobs compared to 2 blob hashes".into(),
        ),
        (
            "another's hash",
            blob(with_cells(0), &other_cells),
            format!("blob 0: computed hash {} mismatches transaction one {commitment_hash}", hashes(&other_cells)[0]),
        ),
        (
            "another version of hash",
            blob(blob_tx(0, vec![B256::with_last_byte(1)]), &cells),
            format!("blob 0: computed hash {commitment_hash} mismatches transaction one {}", B256::with_last_byte(1)),
        ),
        (
            "a proof is missing",
            blob(with_cells(0), &few_proofs),
            "invalid number of 127 blob proofs expected 128".into(),
        ),
        ("another's proofs", blob(with_cells(0), &swapped_proofs), "KZG verification error: invalid KZG proof".into()),
        (
            "no ether",
            raw(plain(0), &poor),
            "insufficient funds for gas * price + value: balance 0, tx cost 210000000000001, overshot 210000000000001"
                .into(),
        ),
        (
            "more than it has",
            raw(TxEip1559 { value: expensive, ..plain(0) }, &rich),
            format!(
                "insufficient funds for gas * price + value: balance {balance}, tx cost {}, overshot 210000000000000",
                balance + 210_000_000_000_000
            ),
        ),
        (
            "more than it has beside what waits",
            raw(TxEip1559 { value: U256::from(balance - 300_000_000_000_000), ..plain(1) }, &key(8)),
            format!(
                "insufficient funds for gas * price + value: balance {balance}, queued cost 210000000000001, tx cost {}, overshot 120000000000001",
                balance - 90_000_000_000_000
            ),
        ),
    ];
    for (name, raw, expected) in cases {
        assert_eq!(refusal(&node, &raw).await, (-32000, expected), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nonce_that_was_used_is_refused() {
    let node = devnet(&[]);
    send_sync(&node, &raw(plain(0), &key(0))).await;
    let error = refusal(&node, &raw(TxEip1559 { value: U256::ZERO, ..plain(0) }, &key(0))).await;
    assert_eq!(error, (-32000, "nonce too low: next nonce 1, tx nonce 0".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn forks_and_block_limits_decide_what_is_taken() {
    let types: Vec<(u64, Bytes)> = vec![
        (1, raw(TxEip2930 { chain_id: CHAIN, gas_price: GWEI, gas_limit: 30_000, ..TxEip2930::default() }, &key(0))),
        (2, raw(plain(0), &key(0))),
        (3, raw(blob_tx(0, vec![B256::ZERO]), &key(0))),
        (4, raw(seven_thousand_seven_hundred_two(0, TO), &key(0))),
    ];
    let cases = [("Berlin", 1), ("London", 2), ("Cancun", 3), ("Prague", 4)];
    for (fork, kind) in cases {
        let mut genesis = dev_genesis(&dev_signers().unwrap(), 1_000);
        let config = &mut genesis.config;
        (config.osaka_time, config.prague_time) = (None, None);
        if kind < 4 {
            config.cancun_time = None;
        }
        if kind < 3 {
            (config.shanghai_time, config.london_block, config.arrow_glacier_block) = (None, None, None);
            (config.gray_glacier_block, config.merge_netsplit_block) = (None, None);
            (config.terminal_total_difficulty, config.terminal_total_difficulty_passed) = (None, false);
        }
        if kind < 2 {
            config.berlin_block = None;
        }
        genesis.gas_limit = 20_000;
        let node = TestNode::on(&genesis, &["--feed", "static"]);
        let (_, raw_tx) = types.iter().find(|(of, _)| *of == kind).unwrap();
        let expected = format!("transaction type not supported: type {kind} rejected, pool not yet in {fork}");
        assert_eq!(refusal(&node, raw_tx).await, (-32000, expected), "{fork}");
        assert_eq!(refusal(&node, &raw(legacy(0), &key(0))).await, (-32000, "exceeds block gas limit".to_owned()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cell_proofs_are_refused_before_osaka() {
    let mut genesis = dev_genesis(&dev_signers().unwrap(), 1_000);
    genesis.config.osaka_time = None;
    let node = TestNode::on(&genesis, &["--feed", "static"]);
    let cells = blobs(b"cells").build_7594().unwrap();
    let error = refusal(&node, &raw_blob(blob_tx(0, hashes(&cells)), cells.clone(), &key(0))).await;
    assert_eq!(error, (-32000, "unexpected sidecar version, want: 0, got: 1".to_owned()));
    let mut plain_proofs: BlobTransactionSidecar = blobs(b"cells").build_4844().unwrap();
    send(&node, &raw_blob(blob_tx(0, hashes(&cells)), plain_proofs.clone(), &key(0))).await;
    plain_proofs.proofs = blobs(b"others").build_4844().unwrap().proofs;
    let error = refusal(&node, &raw_blob(blob_tx(0, hashes(&cells)), plain_proofs, &key(1))).await;
    assert_eq!(error, (-32000, "KZG verification error: invalid KZG proof".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_contract_sends_nothing() {
    let mut genesis = dev_genesis(&dev_signers().unwrap(), 1_000);
    let account = genesis.alloc.get_mut(&key(0).address()).unwrap();
    account.code = Some(bytes!("00"));
    let node = TestNode::on(&genesis, &["--feed", "static"]);
    let (code, message) = refusal(&node, &raw(plain(0), &key(0))).await;
    let hash = alloy_primitives::keccak256([0]);
    assert_eq!((code, message), (-32000, format!("sender not an eoa: address {}, codehash: {hash}", key(0).address())));
}

// Waiting transactions.

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_nonce_gap_a_transaction_waits_until_it_is_filled() {
    let node = devnet(&[]);
    let (later, last) = (send(&node, &raw(plain(1), &key(0))).await, send(&node, &raw(plain(2), &key(0))).await);
    // Three transactions of another account are mined meanwhile: only the gap holds this one back.
    for nonce in 0..3 {
        send_sync(&node, &raw(plain(nonce), &key(1))).await;
    }
    let shown = node.result("/", "eth_getTransactionByHash", json!([later])).await;
    assert_eq!((&shown["hash"], &shown["blockNumber"], &shown["nonce"]), (&later, &Value::Null, &json!("0x1")));
    assert_eq!(node.result("/", "eth_getTransactionReceipt", json!([later])).await, Value::Null);
    send(&node, &raw(plain(0), &key(0))).await;
    node.mined(&last).await;
    assert_eq!(nonce(&node, key(0).address()).await, 3);
    let receipt = node.result("/", "eth_getTransactionReceipt", json!([later])).await;
    assert_eq!(receipt["status"], "0x1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_takes_anothers_place_where_it_pays_enough_more() {
    let node = TestNode::still(&dev_signers().unwrap(), &[]);
    let paying = |fee: u128, tip: u128| TxEip1559 { max_fee_per_gas: fee, max_priority_fee_per_gas: tip, ..plain(0) };
    let first = send(&node, &raw(paying(1_000, 100), &key(0))).await;
    let cases = [
        (1_099, 110, "gas fee cap 1099 < 1000 queued + 10%"),
        (1_100, 109, "gas tip cap 109 < 100 queued + 10%"),
        (1_000, 200, "gas fee cap 1000 < 1000 queued + 10%"),
    ];
    for (fee, tip, expected) in cases {
        let expected = format!("replacement transaction underpriced: new tx {expected} replacement penalty");
        assert_eq!(refusal(&node, &raw(paying(fee, tip), &key(0))).await, (-32000, expected));
    }
    let second = send(&node, &raw(paying(1_100, 110), &key(0))).await;
    assert_eq!(node.result("/", "eth_getTransactionByHash", json!([first])).await, Value::Null);
    assert_eq!(node.result("/", "eth_getTransactionByHash", json!([second])).await["hash"], second);

    let sidecar = blobs(b"blob").build_7594().unwrap();
    let blob = |fee: u128, blob_fee: u128| TxEip4844 {
        max_fee_per_gas: fee,
        max_priority_fee_per_gas: fee / 10,
        max_fee_per_blob_gas: blob_fee,
        ..blob_tx(0, hashes(&sidecar))
    };
    send(&node, &raw_blob(blob(1_000, 50), sidecar.clone(), &key(1))).await;
    let cases = [(1_999, 100, "gas fee cap 1999 < 1000"), (2_000, 99, "blob gas fee cap 99 < 50")];
    for (fee, blob_fee, expected) in cases {
        let expected =
            format!("replacement transaction underpriced: new tx {expected} queued + 100% replacement penalty");
        let error = refusal(&node, &raw_blob(blob(fee, blob_fee), sidecar.clone(), &key(1))).await;
        assert_eq!(error, (-32000, expected));
    }
    send(&node, &raw_blob(blob(2_000, 100), sidecar.clone(), &key(1))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_price_bump_is_a_setting() {
    let node = TestNode::still(&dev_signers().unwrap(), &["--pool-price-bump", "50", "--pool-min-tip", "10"]);
    let paying = |fee: u128| TxEip1559 { max_fee_per_gas: fee, max_priority_fee_per_gas: fee, ..plain(0) };
    send(&node, &raw(paying(100), &key(0))).await;
    let (_, message) = refusal(&node, &raw(paying(149), &key(0))).await;
    assert!(message.contains("+ 50% replacement penalty"), "{message}");
    send(&node, &raw(paying(150), &key(0))).await;
    let (_, message) = refusal(&node, &raw(paying(9), &key(1))).await;
    assert_eq!(message, "transaction gas price below minimum: gas tip cap 9, minimum needed 10");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_pool_keeps_what_pays_more() {
    let node = TestNode::still(&dev_signers().unwrap(), &["--pool-transactions", "3"]);
    let paying = |nonce: u64, tip: u128| TxEip1559 { max_priority_fee_per_gas: tip, ..plain(nonce) };
    let gapped = send(&node, &raw(paying(5, 100), &key(0))).await;
    let cheap = send(&node, &raw(paying(0, 10), &key(1))).await;
    let dear = send(&node, &raw(paying(0, 30), &key(2))).await;
    let (code, message) = refusal(&node, &raw(paying(5, 1_000), &key(3))).await;
    assert_eq!((code, message.as_str()), (-32000, "txpool is full"), "one that cannot be mined yet");
    // A transaction that cannot be mined is evicted first, then the one that pays least.
    let next = send(&node, &raw(paying(0, 20), &key(3))).await;
    let there = async |hash: &Value| !node.result("/", "eth_getTransactionByHash", json!([hash])).await.is_null();
    assert_eq!((there(&gapped).await, there(&cheap).await), (false, true));
    let (code, message) = refusal(&node, &raw(paying(0, 10), &key(4))).await;
    assert_eq!((code, message.as_str()), (-32000, "transaction underpriced"));
    send(&node, &raw(paying(0, 15), &key(4))).await;
    assert_eq!((there(&cheap).await, there(&dear).await, there(&next).await), (false, true, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fills_a_gap_gets_its_place_from_those_behind_it() {
    let node = TestNode::still(&dev_signers().unwrap(), &["--pool-transactions", "3"]);
    for nonce in 1..4 {
        send(&node, &raw(plain(nonce), &key(0))).await;
    }
    let first = send(&node, &raw(plain(0), &key(0))).await;
    assert!(!node.result("/", "eth_getTransactionByHash", json!([first])).await.is_null());
    let next = node.result("/", "eth_getTransactionCount", json!([key(0).address(), "pending"])).await;
    assert_eq!(number(&next), 3, "the last of them has given way");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pool_is_bounded_in_bytes_and_by_account() {
    let node = TestNode::still(&dev_signers().unwrap(), &["--pool-bytes", "1000", "--pool-account-transactions", "2"]);
    send(&node, &raw(plain(0), &key(0))).await;
    send(&node, &raw(plain(1), &key(0))).await;
    let (code, message) = refusal(&node, &raw(plain(2), &key(0))).await;
    assert_eq!((code, message.as_str()), (-32000, "account limit exceeded: pooled 2 txs"));
    let long = TxEip1559 { input: vec![0; 900].into(), gas_limit: 100_000, ..plain(0) };
    let (code, message) = refusal(&node, &raw(long, &key(1))).await;
    assert_eq!((code, message.as_str()), (-32000, "transaction underpriced"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_that_stands_still_keeps_transactions_and_never_mines_them() {
    let node = TestNode::still(&dev_signers().unwrap(), &[]);
    let (ready, gapped) = (raw(plain(0), &key(0)), raw(plain(7), &key(1)));
    let hash = send(&node, &ready).await;
    send(&node, &gapped).await;
    let waiting = raw(plain(1), &key(0));
    let error = node.error("/", "eth_sendRawTransactionSync", json!([waiting, 300])).await;
    let expected = "The transaction was added to the transaction pool but wasn't processed in 300ms";
    assert_eq!(error, json!({"code": 4, "message": expected, "data": sign(plain(1), &key(0)).tx_hash()}));
    assert_eq!(node.result("/", "eth_getTransactionByHash", json!([hash])).await["blockHash"], Value::Null);
    assert_eq!(node.result("/", "eth_getTransactionReceipt", json!([hash])).await, Value::Null);
    assert_eq!(node.result("/", "eth_blockNumber", json!([])).await, "0x0");
    assert_eq!(node.result("/", "eth_accounts", json!([])).await, json!([]));
    assert_eq!(refusal(&node, &ready).await, (-32000, "already known".to_owned()));
}

// Waiting for a receipt.

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_that_was_waited_for_is_the_one_that_is_asked_for() {
    let node = TestNode::start(&["--traffic", "0", "--sub-block-ms", "200", "--sub-blocks", "10000"]);
    for (nonce, params) in [json!([]), json!([20_000]), json!(["0x4e20"])].into_iter().enumerate() {
        let raw = raw(plain(nonce as u64), &key(0));
        let params =
            [json!([raw]), params].iter().flat_map(|list| list.as_array().unwrap().clone()).collect::<Vec<_>>();
        let receipt = node.result("/", "eth_sendRawTransactionSync", Value::Array(params)).await;
        assert_eq!(receipt["blockNumber"], "0x1");
        let hash = &receipt["transactionHash"];
        let mut asked = node.result("/", "eth_getTransactionReceipt", json!([hash])).await;
        // The hash of the block being built changes with each sub-block.
        asked["blockHash"] = receipt["blockHash"].clone();
        assert_eq!(asked["logs"], receipt["logs"]);
        assert_eq!(asked, receipt);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_behind_a_gap_is_not_waited_for() {
    let node = devnet(&[]);
    let tx = sign(plain(3), &key(0));
    let error = node.error("/", "eth_sendRawTransactionSync", json!([Bytes::from(tx.encoded_2718())])).await;
    assert_eq!((&error["code"], &error["data"]), (&json!(5), &json!(tx.tx_hash())));
    let message = error["message"].as_str().unwrap();
    assert!(message.ends_with("nonce 0 of its sender is missing"), "{message}");
    let shown = node.result("/", "eth_getTransactionByHash", json!([tx.tx_hash()])).await;
    assert_eq!(shown["nonce"], "0x3", "it waits in the pool all the same");
}

/// Waits until the pool has a transaction.
async fn is_known(node: &TestNode, hash: B256) {
    let known = async || node.result("/", "eth_getTransactionByHash", json!([hash])).await.is_object().then_some(());
    eventually("it is known", known).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_what_was_replaced_is_told_so() {
    let node = TestNode::start(&["--traffic", "0", "--sub-block-ms", "1000"]);
    let tx = sign(TxEip1559 { max_fee_per_gas: 1, max_priority_fee_per_gas: 1, ..plain(0) }, &key(0));
    let waiting =
        async { node.error("/", "eth_sendRawTransactionSync", json!([Bytes::from(tx.encoded_2718()), 30_000])).await };
    let replacing = async {
        is_known(&node, *tx.tx_hash()).await;
        send(&node, &raw(plain(0), &key(0))).await;
    };
    let (error, ()) = tokio::join!(waiting, replacing);
    assert_eq!((&error["code"], &error["data"]), (&json!(5), &json!(tx.tx_hash())), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_are_bounded_and_hold_no_worker() {
    let node = TestNode::still(&dev_signers().unwrap(), &["--workers", "1", "--max-sync-waiters", "2"]);
    let wait = async |index: usize| {
        node.error("/", "eth_sendRawTransactionSync", json!([raw(plain(0), &key(index)), 60_000])).await
    };
    let others = async {
        for index in 0..2 {
            is_known(&node, *sign(plain(0), &key(index)).tx_hash()).await;
        }
        let refused = wait(2).await;
        assert_eq!(refused, json!({"code": -32005, "message": "too busy: 2 requests wait for receipts already"}));
        // The refused transaction is not in the pool.
        send(&node, &raw(plain(0), &key(2))).await;
    };
    tokio::select! {
        error = wait(0) => panic!("it waits no more: {error}"),
        error = wait(1) => panic!("it waits no more: {error}"),
        () = others => {}
    }
    // A client that disconnects frees its slot.
    let error = eventually("a slot is free", async || {
        let tx = raw(plain(0), &key(3));
        let error = node.error("/", "eth_sendRawTransactionSync", json!([tx, 1])).await;
        (error["code"] != -32005).then_some(error)
    });
    assert_eq!(error.await["code"], 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn how_long_one_waits_is_a_setting() {
    let node = TestNode::still(&dev_signers().unwrap(), &["--sync-timeout-ms", "100", "--max-sync-timeout-ms", "300"]);
    // An hour is cut to the maximum; zero and null mean the default.
    for (index, (asked, waited)) in
        [(json!(3_600_000), "300ms"), (json!(0), "100ms"), (json!(null), "100ms")].into_iter().enumerate()
    {
        let tx = raw(plain(0), &key(index));
        let error = node.error("/", "eth_sendRawTransactionSync", json!([tx, asked])).await;
        let expected = format!("The transaction was added to the transaction pool but wasn't processed in {waited}");
        assert_eq!((&error["code"], &error["message"]), (&json!(4), &json!(expected)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_transaction_is_refused_at_once_when_its_receipt_is_wanted() {
    let node = TestNode::quiet();
    let error = node.error("/", "eth_sendRawTransactionSync", json!(["0x02"])).await;
    assert_eq!(error, json!({"code": -32000, "message": "malformed transaction: typed transaction too short"}));
    let cases = [
        (json!([]), "params: invalid length 0, expected 1 or 2 parameters: a signed transaction, milliseconds to wait"),
        (
            json!(["0x02", -1]),
            "params[1]: invalid type: integer `-1`, expected a quantity, like \"0x1f\", or a number, like 31",
        ),
        (
            json!(["0x02", 1.5]),
            "params[1]: invalid type: floating point `1.5`, expected a quantity, like \"0x1f\", or a number, like 31",
        ),
        (json!(["0x02", "5000"]), "params[1]: \"5000\": a quantity begins with 0x"),
    ];
    for (params, expected) in cases {
        let error = node.error("/", "eth_sendRawTransactionSync", params.clone()).await;
        assert_eq!(error, json!({"code": -32602, "message": expected}), "{params}");
    }
}

// Mining.

/// A transaction that arrives while a sub-block is being built is in the one after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_is_in_one_of_the_next_two_sub_blocks_of_a_devnet_with_traffic() {
    let node = TestNode::start(&["--keep-snapshots", "100000"]);
    for nonce in 0..10 {
        send(&node, &raw(plain(nonce), &key(0))).await;
        let second = node.node.snapshots().newest().id.0 + 2;
        let has_come = async || (node.node.snapshots().newest().id.0 >= second).then_some(());
        node.when("two sub-blocks", has_come).await;
        let at = json!([key(0).address(), {"snapshotId": hex(second)}]);
        assert_eq!(number(&node.result("/", "eth_getTransactionCount", at).await), nonce + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_pays_more_is_mined_first_and_each_in_the_order_of_its_nonces() {
    let node = TestNode::start(&["--testing", "--dialect", "project", "--no-mining"]);
    let paying = |nonce: u64, tip: u128| TxEip1559 { max_priority_fee_per_gas: tip * GWEI, ..plain(nonce) };
    for (account, nonce, tip) in [(0, 0, 1), (0, 1, 9), (1, 0, 3), (2, 0, 2), (3, 0, 3)] {
        send(&node, &raw(paying(nonce, tip), &key(account))).await;
    }
    node.result("/", "evm_mine", json!([])).await;
    let block = node.result("/", "eth_getBlockByNumber", json!(["latest", true])).await;
    let of = |tx: &Value| (tx["from"].as_str().unwrap().parse::<Address>().unwrap(), number(&tx["nonce"]));
    let order: Vec<_> = items(&block["transactions"]).iter().map(of).collect();
    let of = |index: usize, nonce: u64| (key(index).address(), nonce);
    assert_eq!(order, [of(1, 0), of(3, 0), of(2, 0), of(0, 0), of(0, 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_the_block_waits_for_the_next() {
    let node = TestNode::start(&["--traffic", "0", "--sub-block-ms", "100", "--sub-blocks", "5"]);
    // Each transaction uses all of its gas: the init code is an endless loop.
    let burn = |nonce: u64| TxEip1559 {
        gas_limit: 16_000_000,
        to: TxKind::Create,
        value: U256::ZERO,
        input: bytes!("5b600056"),
        ..plain(nonce)
    };
    let mut last = Value::Null;
    for nonce in 0..5 {
        last = send(&node, &raw(burn(nonce), &key(0))).await;
    }
    // Other accounts are not delayed.
    let receipt = send_sync(&node, &raw(plain(0), &key(1))).await;
    assert_eq!(receipt["status"], "0x1");
    node.mined(&last).await;
    let published = node.node.snapshots().load();
    let (_, index) = published.transaction(&last.as_str().unwrap().parse().unwrap()).unwrap();
    let receipt = node.result("/", "eth_getTransactionReceipt", json!([last])).await;
    assert_eq!(receipt["status"], "0x0");
    assert!(number(&receipt["blockNumber"]) >= 2, "80 million gas are in one block of 60: {index}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_can_no_longer_be_paid_leaves_the_pool() {
    let node = devnet(&[]);
    // The created code sends all of its account's ether away.
    let create = TxLegacy {
        gas_limit: 200_000,
        to: TxKind::Create,
        value: U256::ZERO,
        input: bytes!("600d600c600039600d6000f3600080808047620abcde5af100"),
        ..legacy(0)
    };
    let receipt = send_sync(&node, &raw(create, &key(0))).await;
    let code_at: Address = receipt["contractAddress"].as_str().unwrap().parse().unwrap();
    let giver = key(1);
    let hash = send(&node, &raw(plain(1), &giver)).await;
    let authorization = Authorization { chain_id: U256::from(CHAIN), address: code_at, nonce: 0 };
    let signature = giver.sign_hash_sync(&authorization.signature_hash()).unwrap();
    let tx = TxEip7702 {
        authorization_list: vec![authorization.into_signed(signature)],
        ..seven_thousand_seven_hundred_two(1, giver.address())
    };
    send_sync(&node, &raw(tx, &key(0))).await;
    assert_eq!(node.balance(giver.address(), "pending").await, U256::ZERO);
    let known = async || node.result("/", "eth_getTransactionByHash", json!([hash])).await;
    node.when("it leaves the pool", async || known().await.is_null().then_some(())).await;
    assert_eq!(nonce(&node, giver.address()).await, 1, "the delegation alone was counted");
    let (_, message) = refusal(&node, &raw(plain(1), &giver)).await;
    assert!(message.starts_with("insufficient funds for gas * price + value: balance 0"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_two_accounts_send_at_once() {
    let signers: Vec<_> = mnemonic().take(32).collect();
    let node = TestNode::on(&dev_genesis(&signers, 1_000), &["--sub-block-ms", "50", "--traffic", "0"]);
    let mut tasks = JoinSet::new();
    for signer in &signers {
        let body = request(1, "eth_sendRawTransactionSync", json!([raw(plain(0), signer), 30_000]));
        let post = node.client.post(node.url("/")).json(&body);
        tasks.spawn(async move { post.send().await.unwrap().json::<Value>().await.unwrap() });
    }
    let mut hashes = HashSet::new();
    while let Some(answer) = tasks.join_next().await {
        let answer = answer.unwrap();
        assert_eq!(answer["result"]["status"], "0x1", "{answer}");
        hashes.insert(answer["result"]["transactionHash"].clone());
    }
    assert_eq!(hashes.len(), 32);
    assert_eq!(node.balance(TO, "pending").await, U256::from(32));
}

// Accounts that the node signs for.

#[tokio::test(flavor = "multi_thread")]
async fn the_node_signs_for_its_accounts() {
    let node = devnet(&[]);
    let accounts: Vec<Address> = dev_signers().unwrap().iter().map(|signer| signer.address()).collect();
    assert_eq!(node.result("/", "eth_accounts", json!([])).await, json!(accounts));
    let from = accounts[3];
    let cases = [
        (2, json!({})),
        (0, json!({"gasPrice": "0x12a05f200"})),
        (1, json!({"gasPrice": "0x12a05f200", "accessList": []})),
        (2, json!({"maxFeePerGas": "0x12a05f200", "maxPriorityFeePerGas": "0x1"})),
        (2, json!({"chainId": "0x7a69", "nonce": "0x4", "data": "0x", "input": "0x"})),
    ];
    for (nonce, (kind, fields)) in cases.into_iter().enumerate() {
        let mut tx = json!({"from": from, "to": TO, "value": "0x1", "gas": "0x5208"});
        tx.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let hash = node.result("/", "eth_sendTransaction", json!([tx])).await;
        node.mined(&hash).await;
        let shown = node.result("/", "eth_getTransactionByHash", json!([hash])).await;
        assert_eq!((number(&shown["type"]), number(&shown["nonce"])), (kind, nonce as u64), "{shown}");
        assert_eq!(shown["from"].as_str().unwrap().parse::<Address>().unwrap(), from);
    }
    assert_eq!(node.balance(TO, "pending").await, U256::from(5));

    // Without `gas`, the exact gas that the transfer needs is set.
    let hash = node.result("/", "eth_sendTransaction", json!([{"from": from, "to": TO, "value": "0x1"}])).await;
    node.mined(&hash).await;
    let shown = node.result("/", "eth_getTransactionByHash", json!([hash])).await;
    assert_eq!(shown["gas"], "0x5208");
    // The created contract has one byte of code.
    let create = json!([{"from": from, "to": null, "data": "0x600160005360016000f3"}]);
    let hash = node.result("/", "eth_sendTransaction", create).await;
    node.mined(&hash).await;
    let receipt = node.result("/", "eth_getTransactionReceipt", json!([hash])).await;
    assert_eq!(receipt["status"], "0x1", "{receipt}");
    let code = node.result("/", "eth_getCode", json!([receipt["contractAddress"], "pending"])).await;
    assert_eq!(code, "0x01");
    // A transaction that would revert is not sent.
    let reverts = json!([{"from": from, "to": null, "data": "0x60006000fd"}]);
    let error = node.error("/", "eth_sendTransaction", reverts).await;
    assert_eq!(error, json!({"code": -32000, "message": "execution reverted", "data": "0x"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_node_does_not_sign_is_refused() {
    let node = TestNode::quiet();
    let from = key(0).address();
    let tx = |fields: Value| {
        let mut tx = json!({"from": from, "to": TO, "gas": "0x5208"});
        tx.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!([tx])
    };
    let cases = [
        (tx(json!({"from": TO})), -32000, "unknown account"),
        (tx(json!({"from": traffic_signers().unwrap()[0].address()})), -32000, "unknown account"),
        (tx(json!({"chainId": "0x1"})), -32000, "chainId does not match node's (have=1, want=31337)"),
        (
            tx(json!({"blobVersionedHashes": [B256::with_last_byte(1)]})),
            -32000,
            "signing blob transactions not supported",
        ),
        (tx(json!({"to": null})), -32000, "contract creation without any data provided"),
        (
            tx(json!({"maxFeePerGas": "0x1", "maxPriorityFeePerGas": "0x2"})),
            -32000,
            "maxFeePerGas (1) < maxPriorityFeePerGas (2)",
        ),
        (tx(json!({"gas": "0x1"})), -32000, "intrinsic gas too low: gas 1, minimum needed 21000"),
        (tx(json!({"colour": "red"})), -32602, "params[0].colour: unknown field"),
    ];
    for (params, code, message) in cases {
        let error = node.error("/", "eth_sendTransaction", params.clone()).await;
        assert_eq!(error, json!({"code": code, "message": message}), "{params}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_is_filled_in_as_by_geth() {
    let node = devnet(&[]);
    let (from, to) = (key(0).address(), json!(format!("{TO:#x}")));
    let zero = Signature::new(U256::ZERO, U256::ZERO, false);
    for path in ["/", "/standard"] {
        // A price: a transaction without a type, whose last three fields, v, r and s, are zeros.
        let fields =
            json!({"from": TO, "to": TO, "value": "0x1", "gas": "0x5208", "nonce": "0x0", "gasPrice": "0x12a05f200"});
        let raw = "0xe48085012a05f2008252089400000000000000000000000000000000000abcde0180808080";
        let filled = node.result(path, "eth_fillTransaction", json!([fields])).await;
        let tx = json!({
            "type": "0x0", "nonce": "0x0", "to": to, "gas": "0x5208", "gasPrice": "0x12a05f200",
            "maxPriorityFeePerGas": null, "maxFeePerGas": null, "value": "0x1", "input": "0x",
            "v": "0x0", "r": "0x0", "s": "0x0", "hash": keccak256(hex::decode(raw).unwrap()),
        });
        assert_eq!(filled, json!({"raw": raw, "tx": tx}), "{path}");
    }

    // All that can be left open. The next nonce is that after the transactions of the pool.
    let behind = json!([{"from": from, "to": TO, "value": "0x1"}]);
    node.mined(&node.result("/", "eth_sendTransaction", behind).await).await;
    for nonce in 1..=2 {
        let open = json!([{"from": from, "to": TO, "value": "0x1"}]);
        let filled = node.result("/", "eth_fillTransaction", open).await;
        let shown = &filled["tx"];
        let field = |name: &str| u128::from(number(&shown[name]));
        let (fee, tip) = (field("maxFeePerGas"), field("maxPriorityFeePerGas"));
        // Twice the base fee and the tip.
        assert!(tip > 0 && fee > tip && (fee - tip).is_multiple_of(2), "{shown}");
        let tx = TxEip1559 { nonce, max_fee_per_gas: fee, max_priority_fee_per_gas: tip, ..plain(0) };
        let bare: TxEnvelope = tx.clone().into_signed(zero).into();
        assert_eq!(filled["raw"], json!(Bytes::from(bare.encoded_2718())), "{shown}");
        let expected = json!({
            "type": "0x2", "chainId": "0x7a69", "nonce": format!("{nonce:#x}"), "to": to, "gas": "0x5208",
            "gasPrice": null, "maxPriorityFeePerGas": format!("{tip:#x}"), "maxFeePerGas": format!("{fee:#x}"),
            "value": "0x1", "input": "0x", "accessList": [], "v": "0x0", "r": "0x0", "s": "0x0", "yParity": "0x0",
            "hash": bare.tx_hash(),
        });
        assert_eq!(*shown, expected);
        // The client signs it.
        node.mined(&send(&node, &raw(tx, &key(0))).await).await;
    }

    // The other types.
    let list = json!([{"address": to, "storageKeys": [B256::ZERO]}]);
    let authorization =
        json!({"chainId": "0x7a69", "address": to, "nonce": "0x0", "yParity": "0x1", "r": "0x1", "s": "0x2"});
    for (kind, key, value, fields) in [
        ("0x1", "accessList", &list, json!({"gasPrice": "0x12a05f200", "accessList": list})),
        ("0x4", "authorizationList", &json!([authorization]), json!({"authorizationList": [authorization]})),
    ] {
        let mut tx = json!({"from": from, "to": TO, "value": "0x1", "gas": "0xffff"});
        tx.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let filled = node.result("/", "eth_fillTransaction", json!([tx])).await;
        assert_eq!((&filled["tx"]["type"], &filled["tx"][key]), (&json!(kind), value), "{filled}");
        let raw = hex::decode(filled["raw"].as_str().unwrap()).unwrap();
        assert_eq!(filled["tx"]["hash"], json!(keccak256(&raw)));
        let kind = u8::from_str_radix(&kind[2..], 16).unwrap();
        assert!(raw[0] == kind && raw.ends_with(&[0x80; 3]), "{filled}");
    }
    // Without a sender it is the first account's, as that which is sent.
    let filled = node.result("/", "eth_fillTransaction", json!([{"to": TO}])).await;
    let first = node.result("/", "eth_accounts", json!([])).await;
    let count = node.result("/", "eth_getTransactionCount", json!([first[0], "pending"])).await;
    assert_eq!(filled["tx"]["nonce"], count);
    assert_eq!(node.result("/", "txpool_status", json!([])).await["pending"], "0x0", "nothing is sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_filled_in_is_refused() {
    let node = TestNode::quiet();
    let tx = |fields: Value| {
        let mut tx = json!({"from": key(0).address(), "to": TO});
        tx.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!([tx])
    };
    for (params, code, message) in [
        (tx(json!({"chainId": "0x1"})), -32000, "chainId does not match node's (have=1, want=31337)"),
        (tx(json!({"to": null})), -32000, "contract creation without any data provided"),
        (tx(json!({"to": null, "data": "0x60006000fd"})), -32000, "execution reverted"),
        (
            tx(json!({"blobVersionedHashes": [B256::with_last_byte(1)]})),
            -32000,
            "filling in blob transactions is not supported",
        ),
        (
            tx(json!({"maxFeePerGas": "0x1", "maxPriorityFeePerGas": "0x2"})),
            -32000,
            "maxFeePerGas (1) < maxPriorityFeePerGas (2)",
        ),
        (tx(json!({"colour": "red"})), -32602, "params[0].colour: unknown field"),
    ] {
        let error = node.error("/", "eth_fillTransaction", params.clone()).await;
        assert_eq!((&error["code"], &error["message"]), (&json!(code), &json!(message)), "{params}");
    }
    let poor = node.error("/", "eth_fillTransaction", tx(json!({"from": TO, "value": "0x1"}))).await;
    assert_eq!(poor["code"], -32000, "{poor}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_account_signs_a_transaction_without_sending_it() {
    let node = devnet(&[]);
    let from = key(0).address();
    let list = AccessList(vec![AccessListItem { address: TO, storage_keys: vec![B256::ZERO] }]);
    let with_list = TxEip2930 {
        chain_id: CHAIN,
        nonce: 1,
        gas_price: 10 * GWEI,
        gas_limit: 30_000,
        to: TO.into(),
        value: U256::from(1),
        access_list: list.clone(),
        ..TxEip2930::default()
    };
    let price = json!({"gas": "0x5208", "gasPrice": "0x2540be400"});
    let price_and_list = json!({"gas": "0x7530", "gasPrice": "0x2540be400", "accessList": list});
    let fees = json!({"gas": "0x5208", "maxFeePerGas": "0x2540be400", "maxPriorityFeePerGas": "0x3b9aca00"});
    let cases = [
        (price, sign(legacy(0), &key(0))),
        (price_and_list, sign(with_list, &key(0))),
        (fees, sign(plain(2), &key(0))),
    ];
    for (nonce, (fields, signed)) in cases.into_iter().enumerate() {
        let mut tx = json!({"from": from, "to": TO, "value": "0x1", "nonce": format!("{nonce:#x}")});
        tx.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let path = if nonce == 0 { "/" } else { "/standard" };
        let answer = node.result(path, "eth_signTransaction", json!([tx])).await;
        let bytes = Bytes::from(signed.encoded_2718());
        assert_eq!(answer["raw"], json!(bytes), "{answer}");
        assert_eq!(node.result("/", "eth_getTransactionByHash", json!([signed.tx_hash()])).await, Value::Null);
        node.mined(&send(&node, &bytes).await).await;
        // The chain shows the same fields, and more.
        let shown = node.result("/", "eth_getTransactionByHash", json!([signed.tx_hash()])).await;
        for (key, value) in answer["tx"].as_object().unwrap() {
            let expected = if key == "gasPrice" && nonce == 2 { &Value::Null } else { &shown[key] };
            assert_eq!(value, expected, "{key}: {answer}");
        }
        assert_eq!(answer["tx"]["hash"], json!(signed.tx_hash()), "{answer}");
    }

    let whole = json!({"from": from, "to": TO, "gas": "0x5208", "nonce": "0x0", "gasPrice": "0x2540be400"});
    let missing_fees = "missing gasPrice or maxFeePerGas/maxPriorityFeePerGas";
    for (changes, message) in [
        (json!({"gas": null}), "gas not specified"),
        (json!({"gasPrice": null}), missing_fees),
        (json!({"gasPrice": null, "maxFeePerGas": "0x1"}), missing_fees),
        (json!({"gasPrice": null, "maxPriorityFeePerGas": "0x1"}), missing_fees),
        (json!({"nonce": null}), "nonce not specified"),
        (json!({"from": TO}), "unknown account"),
        (json!({"chainId": "0x1"}), "chainId does not match node's (have=1, want=31337)"),
        (json!({"to": null}), "contract creation without any data provided"),
        (
            json!({"gasPrice": null, "maxFeePerGas": "0x1", "maxPriorityFeePerGas": "0x2"}),
            "maxFeePerGas (1) < maxPriorityFeePerGas (2)",
        ),
        (json!({"blobVersionedHashes": [B256::with_last_byte(1)]}), "signing blob transactions not supported"),
    ] {
        let mut tx = whole.clone();
        for (key, value) in changes.as_object().unwrap() {
            // An absent field, but a null callee.
            match value {
                Value::Null if key != "to" => _ = tx.as_object_mut().unwrap().remove(key),
                value => tx[key] = value.clone(),
            }
        }
        let error = node.error("/", "eth_signTransaction", json!([tx])).await;
        assert_eq!(error, json!({"code": -32000, "message": message}), "{changes}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_sender_the_first_account_sends() {
    for path in ["/", "/standard"] {
        let node = devnet(&[]);
        let hash = node.result(path, "eth_sendTransaction", json!([{"to": TO, "value": "0x1"}])).await;
        node.mined(&hash).await;
        let shown = node.result(path, "eth_getTransactionByHash", json!([hash])).await;
        assert_eq!(shown["from"], node.result(path, "eth_accounts", json!([])).await[0], "{path}: {shown}");
    }
    let still = TestNode::still(&[], &[]);
    let error = still.error("/", "eth_sendTransaction", json!([{"to": TO, "value": "0x1"}])).await;
    assert_eq!(error, json!({"code": -32000, "message": "unknown account"}), "there is no account");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fees_that_are_filled_in_replace_a_transaction_that_waits() {
    let node = devnet(&[]);
    let from = key(2).address();
    // Behind a gap, so that each waits. The fees of the first two are chosen, then they are filled in for each from the one before.
    let fees = [
        json!({"gasPrice": "0x174876e800"}),
        json!({"maxFeePerGas": "0x2e90edd000", "maxPriorityFeePerGas": "0x2e90edd000"}),
    ];
    let filled = [json!({}), json!({}), json!({"gas": "0x5208"})];
    for (count, fields) in fees.iter().chain(&filled).enumerate() {
        let mut tx = json!({"from": from, "to": TO, "value": format!("{count:#x}"), "nonce": "0x5"});
        tx.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let hash = node.result("/", "eth_sendTransaction", json!([tx])).await;
        let content = node.result("/", "txpool_contentFrom", json!([from])).await;
        assert_eq!(content["queued"]["5"]["hash"], hash, "{content}");
    }
    // One that says itself what it pays, too little, is refused all the same.
    let low = json!({"from": from, "to": TO, "value": "0x9", "nonce": "0x5", "maxPriorityFeePerGas": "0x1"});
    let error = node.error("/", "eth_sendTransaction", json!([low])).await;
    assert!(error["message"].as_str().unwrap().starts_with("replacement transaction underpriced"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_two_transactions_of_one_account_get_the_same_nonce() {
    let node = devnet(&[]);
    let mut tasks = JoinSet::new();
    for _ in 0..32 {
        let tx = json!([{"from": key(0).address(), "to": TO, "value": "0x1", "gas": "0x5208"}]);
        let post = node.client.post(node.url("/")).json(&request(1, "eth_sendTransaction", tx));
        tasks.spawn(async move { post.send().await.unwrap().json::<Value>().await.unwrap() });
    }
    let mut nonces = BTreeSet::new();
    while let Some(answer) = tasks.join_next().await {
        let hash = answer.unwrap()["result"].take();
        node.mined(&hash).await;
        nonces.insert(number(&node.result("/", "eth_getTransactionByHash", json!([hash])).await["nonce"]));
    }
    assert_eq!(nonces, (0..32).collect());
    assert_eq!(node.balance(TO, "pending").await, U256::from(32));
}

// Background traffic.

/// Returns the senders in the block being built, over `snapshots` changes of the newest snapshot.
async fn senders(node: &TestNode, snapshots: u64) -> HashSet<Address> {
    let mut senders = HashSet::new();
    for _ in 0..snapshots {
        node.publishes(1).await;
        let newest = node.node.snapshots().newest();
        senders.extend(newest.open.iter().flat_map(|open| open.transactions.iter()).map(|tx| tx.signer()));
    }
    senders
}

#[tokio::test(flavor = "multi_thread")]
async fn background_traffic_leaves_the_users_accounts_alone() {
    let node = TestNode::start(&["--sub-block-ms", "50", "--traffic", "20"]);
    let own: HashSet<Address> = traffic_signers().unwrap().iter().map(|signer| signer.address()).collect();
    let senders = senders(&node, 6).await;
    assert!(!senders.is_empty() && senders.is_subset(&own), "{senders:?}");
    for index in 0..9 {
        assert_eq!(nonce(&node, key(index).address()).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_another_genesis_traffic_leaves_an_account_to_whoever_sends_from_it() {
    let genesis = dev_genesis(&dev_signers().unwrap()[1..3], 1_000);
    let node = TestNode::on(&genesis, &["--sub-block-ms", "50", "--traffic", "20"]);
    let both: HashSet<Address> = [key(0).address(), key(1).address()].into();
    assert_eq!(senders(&node, 6).await, both);
    assert_eq!(node.result("/", "eth_accounts", json!([])).await, json!([key(0).address(), key(1).address()]));
    // Traffic uses the account's nonces until the user has a transaction in the pool; the node assigns the next nonce.
    let tx = json!({"from": key(0).address(), "to": TO, "value": "0x1", "gas": "0x5208"});
    let send = async {
        loop {
            let hash = node.result("/", "eth_sendTransaction", json!([tx])).await;
            let hash: B256 = hash.as_str().unwrap().parse().unwrap();
            node.publishes(3).await;
            if node.node.snapshots().load().transaction(&hash).is_some() {
                return;
            }
        }
    };
    tokio::time::timeout(BOUND, send).await.expect("it is mined");
    let from = nonce(&node, key(0).address()).await;
    senders(&node, 4).await;
    assert_eq!(nonce(&node, key(0).address()).await, from);
}

// Notifications.

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_are_told_of_transactions_when_they_can_be_mined() {
    let node = TestNode::still(&dev_signers().unwrap(), &[]);
    let mut socket = Socket::open(&node, "/").await;
    let id = socket.subscribe(json!(["newPendingTransactions"])).await;
    let mut hashes = Vec::new();
    for (nonce, account) in [(1, 0), (0, 1), (0, 0)] {
        hashes.push(send(&node, &raw(plain(nonce), &key(account))).await);
    }
    for index in [1, 2, 0] {
        assert_eq!(socket.notification(&id).await, hashes[index]);
    }
}
