//! `eth_callBundle` and `mev_simBundle`: signed transactions on the devnet, and the results that Flashbots documents.

use alloy_consensus::{
    BlobTransactionSidecar, SignableTransaction, TxEip1559, TxEip2930, TxEip4844, TxEip4844WithSidecar, TxEip7702,
    TxEnvelope, TxLegacy,
};
use alloy_eips::{
    eip2718::Encodable2718,
    eip2930::{AccessList, AccessListItem},
    eip4844::{Blob, Bytes48},
    eip7702::Authorization,
};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, address, hex, keccak256};
use alloy_rpc_types_mev::{
    BundleItem, EthCallBundleResponse, Inclusion, MevSendBundle, ProtocolVersion, SimBundleResponse,
};
use alloy_signer::SignerSync;
use serde_json::{Value, json};

use crate::support::{TestNode, number};

const GWEI: u128 = 1_000_000_000;
const ETHER: u128 = 1_000_000_000 * GWEI;
const CHAIN_ID: u64 = 31_337;
/// Seconds between blocks of a node that [`TestNode::quiet`] starts.
const BLOCK_TIME: u64 = 600;
/// The fee recipient, in tests that set it.
const COINBASE: Address = address!("00000000000000000000000000000000000c01ba");
/// Code that forwards its value to the fee recipient: CALL(GAS, COINBASE, CALLVALUE).
const PAYS: &str = "5f5f5f5f34415af100";

/// A node whose accounts sign, and the block that their transactions are for.
struct SigningNode {
    node: TestNode,
    /// The number of the block being built. `base_fee` is its base fee.
    open: u64,
    base_fee: u128,
}

impl SigningNode {
    async fn new() -> Self {
        Self::on(TestNode::quiet()).await
    }

    async fn on(node: TestNode) -> Self {
        let block = node.block("pending").await;
        let (open, base_fee) = (number(&block["number"]), number(&block["baseFeePerGas"]).into());
        Self { node, open, base_fee }
    }

    fn address(&self, index: usize) -> Address {
        self.node.node.info().accounts[index].address()
    }

    fn sign<T: SignableTransaction<Signature>>(&self, index: usize, tx: T) -> TxEnvelope
    where
        TxEnvelope: From<alloy_consensus::Signed<T>>,
    {
        let signature = self.node.node.info().accounts[index].sign_hash_sync(&tx.signature_hash()).unwrap();
        tx.into_signed(signature).into()
    }

    /// Returns a dynamic-fee transaction with a maximum fee of 100 gwei and a tip of 2 gwei.
    fn tx(&self, nonce: u64, to: impl Into<TxKind>, value: u128, input: impl Into<Bytes>) -> TxEip1559 {
        TxEip1559 {
            chain_id: CHAIN_ID,
            nonce,
            gas_limit: 200_000,
            max_fee_per_gas: 100 * GWEI,
            max_priority_fee_per_gas: 2 * GWEI,
            to: to.into(),
            value: U256::from(value),
            access_list: AccessList::default(),
            input: input.into(),
        }
    }

    /// Returns a bundle for the block being built, with further fields.
    fn bundle(&self, txs: &[TxEnvelope], more: Value) -> Value {
        let mut bundle = json!({
            "txs": txs.iter().map(raw).collect::<Vec<_>>(),
            "blockNumber": format!("{:#x}", self.open),
            "stateBlockNumber": "pending",
        });
        bundle.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!([bundle])
    }

    async fn run(&self, txs: &[TxEnvelope], more: Value) -> Value {
        self.node.result("/", "eth_callBundle", self.bundle(txs, more)).await
    }

    async fn refuse(&self, txs: &[TxEnvelope], more: Value) -> Value {
        self.node.error("/", "eth_callBundle", self.bundle(txs, more)).await
    }
}

fn raw(tx: &TxEnvelope) -> String {
    hex::encode_prefixed(tx.encoded_2718())
}

/// Returns code that creates a contract with this code of less than 256 bytes.
fn creating(code: &str) -> Bytes {
    let code = hex::decode(code).unwrap();
    let length = u8::try_from(code.len()).unwrap();
    [&[0x60, length, 0x60, 0x0a, 0x5f, 0x39, 0x60, length, 0x5f, 0xf3][..], &code].concat().into()
}

/// Returns code that creates a contract whose code, which is the bundle's `value`, is the words these opcodes push.
fn showing(opcodes: &[&str]) -> Bytes {
    let stores: String =
        opcodes.iter().enumerate().map(|(index, opcode)| format!("{opcode}60{:02x}52", 32 * index)).collect();
    hex::decode(format!("{stores}60{:02x}5ff3", 32 * opcodes.len())).unwrap().into()
}

/// Splits a `value` into words.
fn words(value: &Value) -> Vec<U256> {
    let bytes = hex::decode(value.as_str().unwrap_or_else(|| panic!("no value: {value}"))).unwrap();
    bytes.chunks(32).map(U256::from_be_slice).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_tells_what_its_producer_gets() {
    let bench = SigningNode::new().await;
    let (a1, a2) = (bench.address(1), bench.address(2));
    // A tip of 2 gwei; a tip that the fee cap limits to 1 gwei; a gas price of the base fee plus 5 gwei.
    let capped = TxEip1559 {
        max_fee_per_gas: bench.base_fee + GWEI,
        max_priority_fee_per_gas: GWEI + 1,
        ..bench.tx(1, a2, 1, Bytes::new())
    };
    let legacy = TxLegacy {
        chain_id: Some(CHAIN_ID),
        nonce: 0,
        gas_price: bench.base_fee + 5 * GWEI,
        gas_limit: 21_000,
        to: a1.into(),
        value: U256::from(1),
        input: Bytes::new(),
    };
    let txs = [bench.sign(1, bench.tx(0, a2, 1, Bytes::new())), bench.sign(1, capped), bench.sign(2, legacy)];
    let result = bench.run(&txs, json!({"coinbase": COINBASE})).await;
    let hashes: Vec<u8> = txs.iter().flat_map(|tx| tx.tx_hash().0).collect();
    let tx = |tip: u128, from: Address, to: Address, index: usize| {
        json!({
            "coinbaseDiff": (21_000 * tip).to_string(),
            "ethSentToCoinbase": "0",
            "fromAddress": from,
            "gasFees": (21_000 * tip).to_string(),
            "gasPrice": tip.to_string(),
            "gasUsed": 21_000,
            "toAddress": to,
            "txHash": txs[index].tx_hash(),
            "value": "0x",
        })
    };
    let expected = json!({
        "bundleGasPrice": (8 * GWEI / 3).to_string(),
        "bundleHash": keccak256(hashes),
        "coinbaseDiff": (8 * 21_000 * GWEI).to_string(),
        "ethSentToCoinbase": "0",
        "gasFees": (8 * 21_000 * GWEI).to_string(),
        "results": [tx(2 * GWEI, a1, a2, 0), tx(GWEI, a1, a2, 1), tx(5 * GWEI, a2, a1, 2)],
        "stateBlockNumber": bench.open,
        "totalGasUsed": 63_000,
    });
    assert_eq!(result, expected);
    // The type with which client libraries read the response.
    let typed: EthCallBundleResponse = serde_json::from_value(result).unwrap();
    assert_eq!(typed.coinbase_diff, U256::from(8 * 21_000 * GWEI));
    // The node's own chain is unchanged.
    assert_eq!(bench.node.result("/", "eth_getTransactionCount", json!([a1, "pending"])).await, "0x0");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_contract_pays_the_producer_is_told_apart_from_fees() {
    let bench = SigningNode::new().await;
    let payer = bench.address(1).create(0);
    let txs = [
        bench.sign(1, bench.tx(0, TxKind::Create, 0, creating(PAYS))),
        bench.sign(2, bench.tx(0, payer, ETHER, Bytes::new())),
    ];
    for (path, more) in [("/", json!({"coinbase": COINBASE})), ("/standard", json!({}))] {
        let result = bench.node.result(path, "eth_callBundle", bench.bundle(&txs, more)).await;
        let [deployed, paid] = [&result["results"][0], &result["results"][1]];
        assert_eq!((&deployed["toAddress"], &deployed["value"]), (&Value::Null, &json!(format!("0x{PAYS}"))));
        assert_eq!(deployed["ethSentToCoinbase"], "0");
        assert_eq!(paid["ethSentToCoinbase"], ETHER.to_string());
        let fees = |tx: &Value| u128::from(tx["gasUsed"].as_u64().unwrap()) * 2 * GWEI;
        assert_eq!(paid["gasFees"], fees(paid).to_string());
        assert_eq!(paid["coinbaseDiff"], (ETHER + fees(paid)).to_string());
        assert_eq!(
            paid["gasPrice"],
            ((ETHER + fees(paid)) / u128::from(paid["gasUsed"].as_u64().unwrap())).to_string()
        );
        assert_eq!(result["ethSentToCoinbase"], ETHER.to_string());
        assert_eq!(result["gasFees"], (fees(deployed) + fees(paid)).to_string());
        assert_eq!(result["coinbaseDiff"], (ETHER + fees(deployed) + fees(paid)).to_string());
        let gas = u128::from(result["totalGasUsed"].as_u64().unwrap());
        assert_eq!(result["bundleGasPrice"], ((ETHER + fees(deployed) + fees(paid)) / gas).to_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_that_pays_loses() {
    let bench = SigningNode::new().await;
    let txs = [bench.sign(1, bench.tx(0, COINBASE, ETHER, Bytes::new()))];
    let result = bench.run(&txs, json!({"coinbase": bench.address(1)})).await;
    let tip = 21_000 * 2 * GWEI;
    // The fee recipient sends: the tip returns to it, and the base fee is burnt.
    let lost = ETHER + 21_000 * bench.base_fee;
    assert_eq!(result["coinbaseDiff"], format!("-{lost}"));
    assert_eq!(result["ethSentToCoinbase"], format!("-{}", lost + tip));
    assert_eq!(result["gasFees"], tip.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_fails_pays_and_the_others_run() {
    let bench = SigningNode::new().await;
    // Reverts with a word of 42; reverts without data; executes an invalid opcode.
    let failing = ["602a5f5260205ffd", "5f5ffd", "fe"];
    let mut txs = Vec::new();
    for (nonce, code) in failing.iter().enumerate() {
        txs.push(bench.sign(1, bench.tx(nonce as u64, TxKind::Create, 0, hex::decode(code).unwrap())));
    }
    txs.push(bench.sign(1, bench.tx(3, COINBASE, 7, Bytes::new())));
    let result = bench.run(&txs, json!({})).await;
    let results = result["results"].as_array().unwrap();
    let outcome = |index: usize| {
        let tx: &Value = &results[index];
        (tx.get("error").cloned(), tx.get("revert").cloned(), tx.get("value").cloned())
    };
    let reverted = Some(json!("execution reverted"));
    assert_eq!(outcome(0), (reverted.clone(), Some(json!(format!("0x{:064x}", 42))), None));
    assert_eq!(outcome(1), (reverted, None, None));
    assert_eq!(outcome(2), (Some(json!("invalid opcode: INVALID")), None, None));
    assert_eq!(outcome(3), (None, None, Some(json!("0x"))));
    assert_eq!(results[2]["gasUsed"], 200_000);
    let gas: u64 = results.iter().map(|tx| tx["gasUsed"].as_u64().unwrap()).sum();
    assert_eq!(result["totalGasUsed"], gas);
    assert_eq!(result["gasFees"], (u128::from(gas) * 2 * GWEI).to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn all_types_of_transactions_run() {
    let bench = SigningNode::new().await;
    let to = bench.address(2);
    let listed = AccessList(vec![AccessListItem { address: COINBASE, storage_keys: vec![B256::ZERO] }]);
    let blob = TxEip4844 {
        chain_id: CHAIN_ID,
        nonce: 1,
        gas_limit: 21_000,
        max_fee_per_gas: 100 * GWEI,
        max_priority_fee_per_gas: GWEI,
        to,
        value: U256::ZERO,
        access_list: AccessList::default(),
        blob_versioned_hashes: vec![B256::with_last_byte(1) | B256::from(U256::from(1) << 248)],
        max_fee_per_blob_gas: GWEI,
        input: Bytes::new(),
    };
    let authorization = Authorization { chain_id: U256::ZERO, address: COINBASE, nonce: 0 };
    let signature = bench.node.node.info().accounts[3].sign_hash_sync(&authorization.signature_hash()).unwrap();
    let txs = [
        bench.sign(
            1,
            TxEip2930 {
                chain_id: CHAIN_ID,
                nonce: 0,
                gas_price: 100 * GWEI,
                gas_limit: 30_000,
                to: to.into(),
                value: U256::ZERO,
                access_list: listed,
                input: Bytes::new(),
            },
        ),
        bench.sign(1, blob.clone()),
        bench.sign(
            1,
            TxEip7702 {
                chain_id: CHAIN_ID,
                nonce: 2,
                gas_limit: 46_000,
                max_fee_per_gas: 100 * GWEI,
                max_priority_fee_per_gas: GWEI,
                to,
                value: U256::ZERO,
                access_list: AccessList::default(),
                authorization_list: vec![authorization.into_signed(signature)],
                input: Bytes::new(),
            },
        ),
        // Shows the result of the delegation: the code hash of the third account.
        bench.sign(1, bench.tx(3, TxKind::Create, 0, showing(&[&format!("73{}3f", hex::encode(bench.address(3)))]))),
    ];
    let result = bench.run(&txs, json!({})).await;
    let gas = |index: usize| result["results"][index]["gasUsed"].as_u64().unwrap();
    // The refund for an authorization of an existing account is capped at a fifth of the gas used.
    assert_eq!((gas(0), gas(1), gas(2)), (21_000 + 2_400 + 1_900, 21_000, 46_000 - 46_000 / 5));
    let designator = [&hex!("ef0100")[..], COINBASE.as_slice()].concat();
    assert_eq!(words(&result["results"][3]["value"]), [U256::from_be_bytes(keccak256(designator).0)]);

    // The blob transaction in its network form, with its blob, gives the same result.
    let TxEnvelope::Eip4844(bare) = &txs[1] else { panic!("a blob transaction") };
    let sidecar = BlobTransactionSidecar::new(vec![Blob::ZERO], vec![Bytes48::ZERO], vec![Bytes48::ZERO]);
    let pooled = TxEip4844WithSidecar::from_tx_and_sidecar(blob, sidecar);
    let pooled: TxEnvelope = pooled.into_signed(*bare.signature()).into();
    assert!(raw(&pooled).len() > 2 * 131_072);
    let [first, _, third, fourth] = txs;
    assert_eq!(bench.run(&[first, pooled, third, fourth], json!({})).await, result);
}

#[tokio::test(flavor = "multi_thread")]
async fn blobs_are_bounded_by_the_block() {
    let bench = SigningNode::new().await;
    let blobs = |nonce: u64, count: usize| {
        let versioned = |index: usize| B256::from((U256::from(1) << 248) + U256::from(index));
        bench.sign(
            1,
            TxEip4844 {
                chain_id: CHAIN_ID,
                nonce,
                gas_limit: 21_000,
                max_fee_per_gas: 100 * GWEI,
                max_priority_fee_per_gas: GWEI,
                to: COINBASE,
                value: U256::ZERO,
                access_list: AccessList::default(),
                blob_versioned_hashes: (0..count).map(versioned).collect(),
                max_fee_per_blob_gas: GWEI,
                input: Bytes::new(),
            },
        )
    };
    // A block has at most nine blobs, a transaction six (EIP-7691, EIP-7594).
    assert_eq!(bench.run(&[blobs(0, 6), blobs(1, 3)], json!({})).await["totalGasUsed"], 42_000);
    let error = bench.refuse(&[blobs(0, 6), blobs(1, 4)], json!({})).await;
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("params[0].txs[1] (") && message.contains("blob gas limit reached"), "{message}");
    let error = bench.refuse(&[blobs(0, 7)], json!({})).await;
    assert!(error["message"].as_str().unwrap().starts_with("params[0].txs[0] ("), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_at_pending_continues_the_block_being_built() {
    let bench = SigningNode::new().await;
    let block = bench.node.block("pending").await;
    // NUMBER, TIMESTAMP, BASEFEE, COINBASE, PREVRANDAO, GASLIMIT, BLOCKHASH of the parent.
    let tx =
        bench.sign(1, bench.tx(0, TxKind::Create, 0, showing(&["43", "42", "48", "41", "44", "45", "6001430340"])));
    let seen = words(&bench.run(&[tx], json!({})).await["results"][0]["value"]);
    let field = |name: &str| -> U256 { block[name].as_str().unwrap().parse().unwrap() };
    let expected = ["number", "timestamp", "baseFeePerGas", "miner", "mixHash", "gasLimit", "parentHash"].map(field);
    assert_eq!(seen, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_on_a_sealed_block_begins_the_next() {
    let bench = SigningNode::new().await;
    let head = bench.node.block("latest").await;
    let field = |name: &str| -> U256 { head[name].as_str().unwrap().parse().unwrap() };
    // The same, and the parent's hash and beacon root by the contracts of EIP-2935 and EIP-4788, each by a STATICCALL.
    let ask = |word: &str, contract: &str| format!("{word}5f52602061010060205f73{contract}5afa5061010051");
    let history = ask("60014303", "0000f90827f1c53a10cb7a02335b175320002935");
    let roots = ask("42", "000f3df6d732807ef1319fb7b8bb8522d0beac02");
    let code = [
        format!("{history}61012052{roots}61014052"),
        "435f52426020524860405241606052456080526001430340 60a052".replace(' ', ""),
        "6101205160c0526101405160e0526101005ff3".into(),
    ]
    .concat();
    let creation = |nonce| bench.sign(1, bench.tx(nonce, TxKind::Create, 0, hex::decode(&code).unwrap()));
    let on_latest = |number: u64| json!({"stateBlockNumber": "latest", "blockNumber": number});
    let next = bench.open;
    for (path, step) in [("/", BLOCK_TIME), ("/standard", 12)] {
        let params = bench.bundle(&[creation(0)], on_latest(next));
        let result = bench.node.result(path, "eth_callBundle", params).await;
        assert_eq!(result["stateBlockNumber"], next - 1);
        let seen = words(&result["results"][0]["value"]);
        let (time, parent) = (field("timestamp") + U256::from(step), field("hash"));
        let expected = [
            U256::from(next),
            time,
            U256::from(bench.base_fee),
            field("miner"),
            field("gasLimit"),
            parent,
            parent,
            U256::ZERO,
        ];
        assert_eq!(seen, expected, "{path}");
    }
    // The block has every given value. Numbers are quantities or JSON numbers.
    let given = json!({
        "stateBlockNumber": {"blockNumber": "0x0"},
        "blockNumber": "0x5",
        "timestamp": 4_000_000_000_u64,
        "coinbase": COINBASE,
        "gasLimit": "0x1c9c380",
        "baseFee": 7,
        "difficulty": "0x1",
        "timeout": 5_000,
    });
    let result = bench.run(&[creation(0)], given).await;
    let seen = words(&result["results"][0]["value"]);
    let expected = [5_u64, 4_000_000_000, 7].map(U256::from);
    assert_eq!(seen[..3], expected);
    assert_eq!(seen[3], U256::from_be_slice(COINBASE.as_slice()));
    assert_eq!(seen[4], U256::from(30_000_000));
    assert_eq!(result["results"][0]["gasPrice"], (2 * GWEI).to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_has_the_state_and_the_gas_that_the_block_being_built_left() {
    let flags = ["--traffic", "3", "--sub-block-ms", "20", "--sub-blocks", "10000", "--keep-snapshots", "10000"];
    let bench = SigningNode::on(TestNode::start(&flags)).await;
    // Finds a snapshot whose block has used some gas.
    let (snapshot, used) = loop {
        let snapshot = bench.node.result("/", "presim_snapshot", json!([])).await["id"].take();
        let block = bench.node.result("/", "eth_getBlockByNumber", json!([{"snapshotId": snapshot}])).await;
        assert_eq!(number(&block["number"]), bench.open);
        // The number of an id in its epoch.
        assert!(number(&snapshot) & 0xffff_ffff < 50, "no traffic in 50 snapshots");
        match number(&block["gasUsed"]) {
            0 => continue,
            used => break (snapshot, used),
        }
    };
    let state = json!({"snapshotId": snapshot});
    let nonce = async |index: usize| {
        number(&bench.node.result("/", "eth_getTransactionCount", json!([bench.address(index), state])).await)
    };
    // Each account's second transaction is valid only if the bundle commits the first.
    let mut txs = Vec::new();
    for index in 1..4 {
        let first = nonce(index).await;
        for nonce in [first, first + 1] {
            let tx = TxEip1559 { gas_limit: 21_000, ..bench.tx(nonce, COINBASE, 1, Bytes::new()) };
            txs.push(bench.sign(index, tx));
        }
    }
    let with_limit = |gas: u64| json!({"stateBlockNumber": state, "gasLimit": gas});
    let result = bench.run(&txs, with_limit(used + 6 * 21_000)).await;
    assert_eq!((&result["totalGasUsed"], &result["stateBlockNumber"]), (&json!(126_000), &json!(bench.open)));
    let error = bench.refuse(&txs, with_limit(used + 6 * 21_000 - 1)).await;
    let place = format!("params[0].txs[5] ({}): block gas limit reached", txs[5].tx_hash());
    assert!(error["message"].as_str().unwrap().starts_with(&place), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_past_the_block_being_built_stands_on_it() {
    let bench = SigningNode::new().await;
    let open = bench.node.block("pending").await;
    let tx = bench.sign(1, bench.tx(0, TxKind::Create, 0, showing(&["43", "42", "6001430340"])));
    let result = bench.run(&[tx], json!({"blockNumber": bench.open + 1})).await;
    assert_eq!(result["stateBlockNumber"], bench.open);
    let seen = words(&result["results"][0]["value"]);
    let hash: U256 = open["hash"].as_str().unwrap().parse().unwrap();
    assert_eq!(seen, [U256::from(bench.open + 1), U256::from(number(&open["timestamp"]) + BLOCK_TIME), hash]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ends_of_all_ranges_are_a_block_too() {
    let bench = SigningNode::new().await;
    let most = format!("{:#x}", u64::MAX);
    let tx = [bench.sign(1, bench.tx(0, TxKind::Create, 0, showing(&["43", "42", "45"])))];
    let given = json!({
        "blockNumber": most,
        "timestamp": most,
        "gasLimit": most,
        "difficulty": format!("{:#x}", U256::MAX),
        "timeout": most,
    });
    let result = bench.run(&tx, given).await;
    assert_eq!(words(&result["results"][0]["value"]), [U256::from(u64::MAX); 3]);
    // The base fee is higher than the maximum fee.
    let error = bench.refuse(&tx, json!({"baseFee": most})).await;
    assert!(error["message"].as_str().unwrap().contains("max fee per gas less than block base fee"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_the_block_cannot_have_refuses_the_bundle() {
    let bench = SigningNode::new().await;
    let good = || bench.sign(1, bench.tx(0, COINBASE, 1, Bytes::new()));
    let (a2, rich) = (bench.address(2), 10_000 * ETHER);
    let tx = |nonce, value| bench.tx(nonce, COINBASE, value, Bytes::new());
    let base_fee = bench.base_fee;
    let cases = [
        (tx(1, 1), format!("err: nonce too high: address {a2}, tx: 1 state: 0")),
        (tx(0, rich), format!("err: insufficient funds for gas * price + value: address {a2} have {rich} want ")),
        (
            TxEip1559 { max_fee_per_gas: base_fee - 1, max_priority_fee_per_gas: 0, ..tx(0, 1) },
            format!(
                "err: max fee per gas less than block base fee: address {a2}, maxFeePerGas: {}, baseFee: {base_fee}",
                base_fee - 1
            ),
        ),
        (
            TxEip1559 { max_priority_fee_per_gas: 101 * GWEI, ..tx(0, 1) },
            "max priority fee per gas higher than max fee per gas".into(),
        ),
        (TxEip1559 { chain_id: 1, ..tx(0, 1) }, "invalid chain id for signer: have 1 want 31337".into()),
        (TxEip1559 { gas_limit: 20_999, ..tx(0, 1) }, "err: intrinsic gas too low: have 20999, want 21000".into()),
        (TxEip1559 { gas_limit: 60_000_000, ..tx(0, 1) }, "block gas limit reached: 21000 used of 60000000".into()),
        (TxEip1559 { gas_limit: (1 << 24) + 1, ..tx(0, 1) }, "transaction gas limit".into()),
    ];
    for (tx, expected) in cases {
        let bad = bench.sign(2, tx);
        let error = bench.refuse(&[good(), bad.clone()], json!({})).await;
        let message = error["message"].as_str().unwrap();
        let place = format!("params[0].txs[1] ({}): {expected}", bad.tx_hash());
        assert!(message.starts_with(&place), "{message}\n{place}");
        assert!(error["code"] == -32000 || error["code"] == -32602, "{error}");
    }
    // The bundle itself has used the nonce.
    let error = bench.refuse(&[good(), good()], json!({})).await;
    assert!(error["message"].as_str().unwrap().contains("nonce too low"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_bundles_are_refused_by_the_name_of_the_field() {
    let bench = SigningNode::new().await;
    let tx = raw(&bench.sign(1, bench.tx(0, COINBASE, 1, Bytes::new())));
    let good = bench.bundle(&[], json!({"txs": [tx]}));
    let with = |field: &str, value: Value| {
        let mut params = good.clone();
        params[0][field] = value;
        params
    };
    let without = |field: &str| {
        let mut params = good.clone();
        params[0].as_object_mut().unwrap().remove(field);
        params
    };
    let mut unsigned = hex::decode(&tx).unwrap();
    let end = unsigned.len();
    // Sets the signature's s to a value above the curve's order.
    unsigned[end - 32..].fill(0xff);
    let head = bench.open - 1;
    let cases = [
        (json!([]), "params: "),
        (json!([good[0], 1]), "params: "),
        (without("txs"), "params[0]: missing field `txs`"),
        (without("blockNumber"), "params[0]: missing field `blockNumber`"),
        (without("stateBlockNumber"), "params[0]: missing field `stateBlockNumber`"),
        (with("txs", json!([])), "params[0].txs: empty: expected at least one signed transaction"),
        (with("txs", json!(tx)), "params[0].txs: "),
        (with("txs", json!([tx, "0x123"])), "params[0].txs[1]: "),
        (with("txs", json!([tx, "0x"])), "params[0].txs[1]: not a signed transaction (EIP-2718): "),
        (with("txs", json!([format!("{tx}00")])), "params[0].txs[0]: not a signed transaction (EIP-2718): "),
        (with("txs", json!([hex::encode_prefixed(unsigned)])), "params[0].txs[0]: no recoverable sender: "),
        (with("blockNumber", json!("latest")), "params[0].blockNumber: "),
        (with("blockNumber", json!("0x10000000000000000")), "params[0].blockNumber: out of range: at most 64 bits"),
        (with("blockNumber", json!(head)), "params[0].blockNumber: 0: expected a block after the state block, 1"),
        (with("stateBlockNumber", json!("newest")), "params[0].stateBlockNumber: "),
        (with("timestamp", json!("soon")), "params[0].timestamp: "),
        (with("timestamp", json!(-1)), "params[0].timestamp: "),
        (with("timestamp", json!(1.5)), "params[0].timestamp: "),
        (with("timestamp", json!(0)), "params[0].timestamp: 0: expected a time after that of the previous block"),
        (with("coinbase", json!("0x12")), "params[0].coinbase: "),
        (with("gasLimit", json!("60000000")), "params[0].gasLimit: "),
        (with("baseFee", json!([])), "params[0].baseFee: "),
        (with("timeout", json!("5s")), "params[0].timeout: "),
        (with("transactionIndex", json!(3)), "params[0].transactionIndex: "),
        (with("revertingTxHashes", json!([])), "params[0].revertingTxHashes: unknown field"),
    ];
    for (params, place) in cases {
        let error = bench.node.error("/", "eth_callBundle", params.clone()).await;
        assert_eq!(error["code"], -32602, "{params}: {error}");
        assert!(error["message"].as_str().unwrap().starts_with(place), "{place}: {error}");
    }
    let error = bench.node.error("/", "eth_callBundle", with("stateBlockNumber", json!("0x99"))).await;
    assert_eq!(error["code"], -32000, "{error}");
    // The bundle that the cases were made of is valid.
    assert_eq!(bench.node.result("/", "eth_callBundle", good).await["totalGasUsed"], 21_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_transactions_of_a_bundle_and_their_gas_are_bounded_by_settings() {
    let flags = ["--traffic", "0", "--sub-block-ms", "60000", "--max-block-calls", "2", "--gas-cap", "221000"];
    let bench = SigningNode::on(TestNode::start(&flags)).await;
    let txs: Vec<_> = (0..3).map(|nonce| bench.sign(1, bench.tx(nonce, COINBASE, 1, Bytes::new()))).collect();
    let error = bench.refuse(&txs, json!({})).await;
    assert_eq!(error, json!({"code": -32005, "message": "params[0].txs: too many transactions: 3, at most 2"}));
    assert_eq!(bench.run(&txs[..2], json!({})).await["totalGasUsed"], 42_000);
    let big = TxEip1559 { gas_limit: 200_001, ..bench.tx(1, COINBASE, 1, Bytes::new()) };
    let error = bench.refuse(&[txs[0].clone(), bench.sign(1, big)], json!({})).await;
    assert!(error["message"].as_str().unwrap().contains("gas cap"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_ends_at_the_time_that_its_client_gives_it() {
    let flags = ["--traffic", "0", "--sub-block-ms", "60000", "--gas-cap", "60000000", "--deadline-ms", "60000"];
    let bench = SigningNode::on(TestNode::start(&flags)).await;
    // Three endless loops, which run out of gas only after more than a millisecond.
    let endless = |nonce| {
        let tx = bench.tx(nonce, TxKind::Create, 0, hex!("5b5f56"));
        bench.sign(1, TxEip1559 { gas_limit: 1 << 24, ..tx })
    };
    let txs = [endless(0), endless(1), endless(2)];
    let error = bench.refuse(&txs, json!({"timeout": 1})).await;
    assert_eq!(error["code"], -32016, "{error}");
    // A timeout of zero means the node's own deadline.
    let result = bench.run(&txs, json!({"timeout": 0})).await;
    assert_eq!(result["results"][2]["error"], "out of gas");
}

/// Returns a bundle of MEV-Share with further fields.
fn shared(block: u64, body: Value, more: Value) -> Value {
    let mut bundle = json!({"version": "v0.1", "inclusion": {"block": format!("{block:#x}")}, "body": body});
    bundle.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    bundle
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_bundle_tells_its_profit_and_what_it_refunds() {
    let bench = SigningNode::new().await;
    let payer = bench.address(1).create(0);
    let user = bench.sign(3, bench.tx(0, bench.address(2), 1, Bytes::new()));
    let deployed = bench.sign(1, bench.tx(0, TxKind::Create, 0, creating(PAYS)));
    let paid = bench.sign(2, bench.tx(0, payer, ETHER, Bytes::new()));
    let block = json!({"parentBlock": "pending", "coinbase": COINBASE});
    let tx = |tx: &TxEnvelope| json!({"tx": raw(tx), "canRevert": false});
    let gas: Vec<u128> =
        bench.run(&[user.clone(), deployed.clone(), paid.clone()], json!({"coinbase": COINBASE})).await["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tx| tx["gasUsed"].as_u64().unwrap().into())
            .collect();
    let all: u128 = gas.iter().sum();
    let hex = |value: u128| format!("{value:#x}");

    // Without a refund: all that the producer gets.
    let body = json!([tx(&user), tx(&deployed), tx(&paid)]);
    for path in ["/", "/standard"] {
        let result =
            bench.node.result(path, "mev_simBundle", json!([shared(bench.open, body.clone(), json!({})), block])).await;
        let profit = ETHER + all * 2 * GWEI;
        let expected = json!({
            "success": true,
            "stateBlock": hex(bench.open.into()),
            "profit": hex(profit),
            "refundableValue": hex(profit),
            "gasUsed": hex(all),
            "mevGasPrice": hex(profit / all),
            "logs": [{"txLogs": []}, {"txLogs": []}, {"txLogs": []}],
        });
        assert_eq!(result, expected);
    }

    // The user gets nine tenths of what the backrun pays, in one transaction of 30,000 gas.
    let validity = json!({"validity": {"refund": [{"bodyIdx": 0, "percent": 90}]}});
    let inner = shared(bench.open, json!([tx(&user)]), json!({}));
    for first in [tx(&user), json!({"bundle": inner})] {
        let body = json!([first, tx(&deployed), tx(&paid)]);
        let bundle = shared(bench.open, body, validity.clone());
        let result = bench.node.result("/", "mev_simBundle", json!([bundle, block])).await;
        let refundable = ETHER + (gas[1] + gas[2]) * 2 * GWEI;
        let profit = refundable + gas[0] * 2 * GWEI - refundable * 90 / 100;
        assert_eq!(result["refundableValue"], hex(refundable));
        assert_eq!(result["profit"], hex(profit));
        assert_eq!(result["gasUsed"], hex(all + 30_000));
        assert_eq!(result["mevGasPrice"], hex(profit / (all + 30_000)));
    }
    // Two addresses get the refund of a bundle that names them, in a transaction each.
    let config = json!([{"address": COINBASE, "percent": 40}, {"address": payer, "percent": 60}]);
    let inner = shared(bench.open, json!([tx(&user)]), json!({"validity": {"refundConfig": config}}));
    let bundle = shared(bench.open, json!([{"bundle": inner}, tx(&deployed), tx(&paid)]), validity.clone());
    let result = bench.node.result("/", "mev_simBundle", json!([bundle, block])).await;
    assert_eq!(result["gasUsed"], hex(all + 60_000));
    assert_eq!(result["logs"][0], json!({"bundleLogs": [{"txLogs": []}]}));
    // A refund that is worth less than its payment.
    let bundle = shared(
        bench.open,
        json!([tx(&deployed), tx(&user)]),
        json!({"validity": {"refund": [{"bodyIdx": 0, "percent": 1}]}}),
    );
    let result = bench.node.result("/", "mev_simBundle", json!([bundle, block])).await;
    assert_eq!((&result["success"], &result["error"]), (&json!(false), &json!("negative profit")));
    assert_eq!(result["mevGasPrice"], "0x0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_bundle_that_cannot_land_says_why() {
    let bench = SigningNode::new().await;
    let good = bench.sign(1, bench.tx(0, COINBASE, 7, Bytes::new()));
    // Reverts with a word of 42.
    let bad = bench.sign(2, bench.tx(0, TxKind::Create, 0, hex::decode("602a5f5260205ffd").unwrap()));
    let sim = async |body: Value, block: Value| {
        bench.node.result("/", "mev_simBundle", json!([shared(bench.open, body, json!({})), block])).await
    };
    let pending = json!({"parentBlock": "pending"});
    let word = json!(format!("0x{:064x}", 42));
    for (may_revert, error) in [(false, Some("tx failed")), (true, None)] {
        let body = json!([{"tx": raw(&good)}, {"tx": raw(&bad), "canRevert": may_revert}]);
        let result = sim(body, pending.clone()).await;
        assert_eq!(result["success"], error.is_none());
        assert_eq!(result.get("error").and_then(Value::as_str), error);
        assert_eq!((&result["execError"], &result["revert"]), (&json!("execution reverted"), &word));
        let gas = u64::from_str_radix(result["gasUsed"].as_str().unwrap().trim_start_matches("0x"), 16).unwrap();
        // A transaction that breaks the bundle counts for nothing.
        assert_eq!(gas == 21_000, error.is_some(), "{result}");
    }
    // A refusal by the chain.
    let late = bench.sign(1, bench.tx(1, COINBASE, 7, Bytes::new()));
    let result = sim(json!([{"tx": raw(&late)}]), pending.clone()).await;
    let text = format!("nonce too high: address {}, tx: 1 state: 0", bench.address(1));
    assert_eq!((&result["success"], &result["error"]), (&json!(false), &json!(text)));
    // Another block than the bundle is for.
    let result =
        sim(json!([{"tx": raw(&good)}]), json!({"parentBlock": "pending", "blockNumber": bench.open + 1})).await;
    let text = format!("invalid inclusion: the bundle is not for block {}", bench.open + 1);
    assert_eq!((&result["success"], &result["error"]), (&json!(false), &json!(text)));

    // The types with which client libraries write the request and read the response.
    let bundle = MevSendBundle {
        protocol_version: ProtocolVersion::V0_1,
        inclusion: Inclusion { block: bench.open, max_block: Some(bench.open + 2) },
        bundle_body: vec![BundleItem::Tx { tx: good.encoded_2718().into(), can_revert: false }],
        validity: None,
        privacy: None,
    };
    // Without a block, the bundle runs in the one after `latest`.
    let result = bench.node.result("/", "mev_simBundle", json!([bundle])).await;
    let typed: SimBundleResponse = serde_json::from_value(result).unwrap();
    assert!(typed.success);
    assert_eq!(typed.state_block, bench.open - 1);
    assert_eq!(typed.profit, U256::from(21_000 * 2 * GWEI));
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_shared_bundles_are_refused_by_the_name_of_the_field() {
    let bench = SigningNode::new().await;
    let tx = json!({"tx": raw(&bench.sign(1, bench.tx(0, COINBASE, 7, Bytes::new())))});
    let one = json!([tx]);
    let with = |more: Value| shared(bench.open, one.clone(), more);
    let refund = |list: Value| with(json!({"validity": {"refund": list}}));
    let mut deep = shared(1, one.clone(), json!({}));
    for _ in 0..6 {
        deep = shared(1, json!([{"bundle": deep}]), json!({}));
    }
    let hash = B256::repeat_byte(7);
    for (bundle, expected) in [
        (with(json!({"version": "v2"})), "params[0].version: \"v2\": unknown version: expected one of v0.1, beta-1".to_owned()),
        (with(json!({"body": []})), "params[0].body: empty: expected at least one item".to_owned()),
        (
            with(json!({"body": [{"hash": hash}]})),
            format!("params[0].body[0].hash: {hash}: a transaction that only MEV-Share knows: expected its bytes in tx"),
        ),
        (
            with(json!({"body": [{"canRevert": true}]})),
            "params[0].body[0]: expected either tx, with or without canRevert, or bundle".to_owned(),
        ),
        (with(json!({"body": [{"tx": "0x00"}]})), "params[0].body[0].tx: not a signed transaction".to_owned()),
        (
            with(json!({"inclusion": {"block": "0x5", "maxBlock": "0x4"}})),
            "params[0].inclusion.maxBlock: 4: expected at least inclusion.block, 5".to_owned(),
        ),
        (
            refund(json!([{"bodyIdx": 1, "percent": 5}])),
            "params[0].validity.refund[0].bodyIdx: 1: the body has 1 items: expected an index from 0".to_owned(),
        ),
        (
            refund(json!([{"bodyIdx": 0, "percent": 5}, {"bodyIdx": 0, "percent": 5}])),
            "params[0].validity.refund[1].bodyIdx: 0: named twice: expected one refund for an item".to_owned(),
        ),
        (
            refund(json!([{"bodyIdx": 0, "percent": 101}])),
            "params[0].validity.refund: 101 percent in all: expected at most 100".to_owned(),
        ),
        (deep, "params[0].body[0].bundle.body[0].bundle.body[0].bundle.body[0].bundle.body[0].bundle.body[0].bundle: a bundle within 6 others: at most 5".to_owned()),
    ] {
        let error = bench.node.error("/", "mev_simBundle", json!([bundle])).await;
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(&expected), "{message}");
    }
    for (block, expected) in [
        (
            json!({"parentBlock": "pending", "blockNumber": 0}),
            "params[1].blockNumber: 0: expected a block after parentBlock",
        ),
        (
            json!({"parentBlock": "pending", "timestamp": 1}),
            "params[1].timestamp: 1: expected a time after that of the previous block",
        ),
        (json!({"gas": 1}), "params[1].gas: unknown field"),
    ] {
        let inclusion = json!({"inclusion": {"block": "0x0", "maxBlock": "0xffff"}});
        let error = bench.node.error("/", "mev_simBundle", json!([with(inclusion), block])).await;
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(expected), "{message}");
    }
}
