//! Lagoon's post-execution transaction: refunds of gas that the sequencer lists in the last transaction of a block.
//!
//! Expected values are computed from the rules
//! (<https://github.com/ethereum-optimism/specs/blob/main/specs/protocol/lagoon/sdm.md>).

use std::sync::Arc;

use alloy_consensus::{
    BlockBody, ReceiptWithBloom, SignableTransaction, Signed, TxEip1559, TxEnvelope, TxReceipt, transaction::Recovered,
};
use alloy_eips::{eip2718::Encodable2718, eip4895::Withdrawals};
use alloy_genesis::Genesis;
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, hex, keccak256};
use alloy_rlp::Encodable;
use alloy_signer::SignerSync;
use alloy_signer_local::PrivateKeySigner;
use presim::testing::{
    chain::{Attributes, BlockHashes, ChainSpec, ChainTx, GasRefunds, genesis_block},
    engine::{BlockEnd, execute_block, open_block, seal},
    ledger::Snapshot,
    source::{devnet::world::dev_signers, sub_block::extend},
    state::{CodeCache, LocalWorld},
};
use serde_json::{Value, json};

use crate::{
    live::built::SOMEBODY,
    op_chain::{
        ATTRIBUTED, BASE_FEE_VAULT, L1_BLOCK, L1_FEE_VAULT, OPERATOR_FEE_VAULT, SEQUENCER_FEE_VAULT, config, post_exec,
    },
    support::{TestNode, chain_files, hex, items, number},
};

/// A contract that stores the balance of its caller in slot 0.
const WITNESS: Address = Address::repeat_byte(0xbb);
const WITNESS_CODE: &str = "0x33315f5500";
/// The gas of a transfer.
const TRANSFER: u64 = 21_000;
/// The tip of all transactions here, in wei for a unit of gas.
const TIP: u64 = 500;

/// A chain of the OP stack, with the accounts of the published mnemonic.
pub struct OpChain {
    pub spec: ChainSpec,
    genesis: Value,
    signers: Vec<PrivateKeySigner>,
    pub head: Snapshot,
    /// The blocks after genesis, in RLP.
    pub blocks: Vec<u8>,
}

impl OpChain {
    /// Creates a chain whose newest fork is `last`.
    pub fn new(last: &str) -> Self {
        Self::of(config(4242, last), json!({ WITNESS.to_string(): { "balance": "0x0", "code": WITNESS_CODE } }))
    }

    /// Creates a chain with this `config`, and with these accounts beside the usual ones.
    pub fn of(config: Value, mut more: Value) -> Self {
        let signers = dev_signers().unwrap();
        let mut alloc = json!({
            L1_BLOCK.to_string(): { "balance": "0x0", "code": "0x00", "storage": ATTRIBUTED.storage() },
        });
        alloc.as_object_mut().unwrap().append(more.as_object_mut().unwrap());
        for signer in &signers {
            alloc[signer.address().to_string()] = json!({ "balance": "0x56bc75e2d63100000" });
        }
        let genesis = json!({
            "config": config,
            "alloc": alloc,
            "difficulty": "0x0", "gasLimit": "0x1c9c380", "nonce": "0x0", "timestamp": "0x65000000",
            // Denominator 250, elasticity 6, minimum base fee 1,000,000.
            "extraData": "0x01000000fa0000000600000000000f4240",
            "baseFeePerGas": "0x3b9aca00", "mixHash": B256::ZERO, "coinbase": Address::ZERO,
        });
        let parsed: Genesis = serde_json::from_value(genesis.clone()).unwrap();
        let spec = ChainSpec::new(parsed.config.clone(), std::time::Duration::from_secs(2)).unwrap();
        let world = LocalWorld::of_genesis(&parsed, &CodeCache::new(1 << 20));
        let block = genesis_block(&parsed, &spec, world.state_root());
        let mut hashes = BlockHashes::default();
        hashes.push(block.number(), block.hash());
        let head = Snapshot::at_head(world, Arc::new(block), hashes);
        Self { spec, genesis, signers, head, blocks: Vec::new() }
    }

    fn attributes(&self, fee_recipient: Address) -> Attributes {
        let parent = self.head.head.header.inner();
        Attributes {
            timestamp: parent.timestamp + 2,
            fee_recipient,
            prev_randao: B256::ZERO,
            beacon_root: B256::ZERO,
            gas_limit: parent.gas_limit,
        }
    }

    /// Executes a block whose fees go to `fee_recipient`.
    pub fn execute(&self, fee_recipient: Address, transactions: Vec<ChainTx>) -> Result<BlockEnd, String> {
        let parent = &self.head.head;
        let header = self.spec.next_header(&parent.header, parent.number() + 1, self.attributes(fee_recipient));
        let transactions: Vec<Recovered<ChainTx>> =
            transactions.into_iter().map(|tx| tx.recovered().unwrap()).collect();
        let executed =
            execute_block(&self.spec, &self.head, &header, &transactions, &[], Some(&Withdrawals::default()));
        executed.map_err(|error| format!("{error:#}: {:?}", std::error::Error::source(&error).map(ToString::to_string)))
    }

    /// Appends a block, which its post-execution transaction may end.
    pub fn append(&mut self, transactions: Vec<ChainTx>) {
        let mut at = open_block(&self.spec, &self.head, self.attributes(SEQUENCER_FEE_VAULT)).unwrap().snapshot;
        at.open.as_mut().unwrap().refunds = transactions.last().map(GasRefunds::of_last).unwrap_or_default();
        let grown = extend(&self.spec, &at, at.open.as_ref().unwrap(), |sub_block| {
            for tx in transactions {
                sub_block.push(tx.recovered().unwrap()).expect("it can be in the block");
            }
        })
        .snapshot;
        let (sealed, _) = seal(&self.spec, &grown, grown.open.as_ref().unwrap(), Withdrawals::default()).unwrap();
        let (header, body) = (sealed.snapshot.head.header.inner().clone(), sealed.snapshot.head.body());
        let transactions = body.transactions.iter().map(|tx| tx.inner().clone()).collect();
        let body = BlockBody { transactions, ommers: Vec::new(), withdrawals: body.withdrawals.clone() };
        alloy_consensus::Block { header, body }.encode(&mut self.blocks);
        self.head = sealed.snapshot;
    }

    /// Writes the files of the chain, and returns their folder and the flags that name them.
    pub fn files(&self) -> (tempfile::TempDir, Vec<String>) {
        chain_files(&self.genesis, &self.blocks)
    }

    pub fn base_fee(&self) -> u64 {
        let parent = self.head.head.header.inner();
        self.spec.next_base_fee(parent, parent.number + 1, parent.timestamp + 2).unwrap()
    }

    pub fn address(&self, who: usize) -> Address {
        self.signers[who].address()
    }

    /// Signs a transaction of one of the accounts.
    pub fn sign<T: SignableTransaction<Signature>>(&self, who: usize, tx: T) -> ChainTx
    where
        TxEnvelope: From<Signed<T>>,
    {
        let signature = self.signers[who].sign_hash_sync(&tx.signature_hash()).unwrap();
        TxEnvelope::from(tx.into_signed(signature)).into()
    }

    pub fn sent(&self, who: usize, nonce: u64, to: Address, value: U256) -> ChainTx {
        self.sent_with(who, nonce, to, value, 60_000)
    }

    fn sent_with(&self, who: usize, nonce: u64, to: Address, value: U256, gas_limit: u64) -> ChainTx {
        let tx = TxEip1559 {
            chain_id: self.spec.chain_id(),
            nonce,
            gas_limit,
            max_fee_per_gas: 10_000_000_000,
            max_priority_fee_per_gas: TIP.into(),
            to: TxKind::Call(to),
            value,
            ..TxEip1559::default()
        };
        self.sign(who, tx)
    }
}

pub fn ether(count: u64) -> U256 {
    U256::from(count) * U256::from(10).pow(U256::from(18))
}

pub fn wei(value: u64) -> U256 {
    U256::from(value)
}

pub fn balance(executed: &BlockEnd, address: Address) -> U256 {
    executed.world.account(&address).map_or(U256::ZERO, |account| account.balance)
}

#[test]
fn a_refund_is_paid_back_by_whom_the_gas_was_paid_to() {
    let chain = OpChain::new("lagoon");
    let base_fee = wei(chain.base_fee());
    let (first, second) = (chain.sent(0, 0, SOMEBODY, wei(5)), chain.sent(1, 0, SOMEBODY, wei(6)));
    // The deposit uses 21,000 gas and that of its data, which it buys on L1.
    let block = vec![ATTRIBUTED.deposit(), first, second, post_exec(1, &[(1, 5_000)])];
    let executed = chain.execute(SEQUENCER_FEE_VAULT, block.clone()).expect("it is valid");
    let plain = chain.execute(SEQUENCER_FEE_VAULT, block[..3].to_vec()).expect("it is valid");
    let deposit = executed.receipts[0].cumulative_gas_used();
    // 16,000 gas of the first, and 21,000 of the second.
    let gas = wei(37_000);
    let operator = ATTRIBUTED.operator_fee(16_000) + ATTRIBUTED.operator_fee(TRANSFER);
    assert_eq!(balance(&executed, SEQUENCER_FEE_VAULT), gas * wei(TIP));
    assert_eq!(balance(&executed, BASE_FEE_VAULT), gas * base_fee);
    assert_eq!(balance(&executed, OPERATOR_FEE_VAULT), operator);
    assert_eq!(balance(&executed, L1_FEE_VAULT), wei(2) * ATTRIBUTED.l1_fee(), "the L1 fee does not change");
    let paid = |gas: u64| wei(gas) * (base_fee + wei(TIP)) + ATTRIBUTED.operator_fee(gas) + ATTRIBUTED.l1_fee();
    assert_eq!(balance(&executed, chain.address(0)), ether(100) - wei(5) - paid(16_000));
    assert_eq!(balance(&executed, chain.address(1)), ether(100) - wei(6) - paid(TRANSFER));
    // Receipts count the gas after the refund, and the post-execution transaction uses none.
    let cumulative: Vec<u64> =
        executed.receipts.iter().map(|receipt| receipt.cumulative_gas_used() - deposit).collect();
    assert_eq!(cumulative, [0, 16_000, 37_000, 37_000]);
    assert_eq!(executed.gas_used, deposit + 37_000);
    assert_eq!(plain.gas_used, deposit + 42_000);
    assert_eq!(executed.blob_gas_used, plain.blob_gas_used, "the DA footprint does not count it");
    // 0x7d, and the RLP of a receipt with status 1, this gas, an empty bloom and no logs.
    let inner = alloy_consensus::Receipt::<alloy_primitives::Log> {
        status: true.into(),
        cumulative_gas_used: deposit + 37_000,
        logs: Vec::new(),
    };
    let expected = [&[0x7d][..], &alloy_rlp::encode(ReceiptWithBloom::from(inner))].concat();
    assert_eq!(executed.receipts[3].encoded_2718(), expected);
}

#[test]
fn the_encoding_is_the_type_and_a_list_of_version_number_and_refunds() {
    let tx: ChainTx = post_exec(0x0102, &[(1, 0x1388), (3, 7)]);
    // [1, 0x0102, [[1, 0x1388], [3, 7]]]
    let expected = hex!("7dcd01820102c8c401821388c20307");
    assert_eq!(tx.encoded_2718(), expected);
    assert_eq!(*tx.tx_hash(), keccak256(expected));
}

/// The sender is the fee recipient, so that it gives and gets; and a refund of all of the gas.
#[test]
fn a_fee_recipient_may_be_the_refunded_sender_and_all_of_the_gas_may_be_refunded() {
    let chain = OpChain::new("lagoon");
    let sender = chain.address(0);
    for (refund, left) in [(1, 20_999), (TRANSFER, 0)] {
        let block = vec![ATTRIBUTED.deposit(), chain.sent(0, 0, SOMEBODY, wei(5)), post_exec(1, &[(1, refund)])];
        let executed = chain.execute(sender, block).expect("it is valid");
        // The sender keeps the tip, because it is the fee recipient.
        let paid = wei(left) * wei(chain.base_fee()) + ATTRIBUTED.operator_fee(left) + ATTRIBUTED.l1_fee();
        assert_eq!(balance(&executed, sender), ether(100) - wei(5) - paid, "{refund}");
        assert_eq!(balance(&executed, BASE_FEE_VAULT), wei(left) * wei(chain.base_fee()), "{refund}");
        assert_eq!(balance(&executed, OPERATOR_FEE_VAULT), ATTRIBUTED.operator_fee(left), "{refund}");
    }
}

#[test]
fn later_transactions_of_the_block_see_the_settled_balances() {
    let chain = OpChain::new("lagoon");
    let (base_fee, sender) = (wei(chain.base_fee()), chain.address(0));
    let fees = |gas: u64, price: U256| wei(gas) * price + ATTRIBUTED.operator_fee(gas) + ATTRIBUTED.l1_fee();
    // The second needs its gas limit at its highest price. The first leaves 100 wei less without its refund.
    let needed = fees(TRANSFER, wei(10_000_000_000));
    let paid = fees(TRANSFER, base_fee + wei(TIP));
    let value = ether(100) - paid - needed + wei(100);
    let (first, second) =
        (chain.sent_with(0, 0, SOMEBODY, value, TRANSFER), chain.sent_with(0, 1, SOMEBODY, U256::ZERO, TRANSFER));
    let block = |refunds: &[(u64, u64)]| {
        let mut all = vec![ATTRIBUTED.deposit(), first.clone(), second.clone()];
        all.extend((!refunds.is_empty()).then(|| post_exec(1, refunds)));
        all
    };
    chain.execute(SEQUENCER_FEE_VAULT, block(&[])).expect_err("the sender has too little");
    let executed = chain.execute(SEQUENCER_FEE_VAULT, block(&[(1, 1)])).expect("the refund is spent in the same block");
    let gained = base_fee + wei(TIP) + ATTRIBUTED.operator_fee(1) - ATTRIBUTED.operator_fee(0);
    assert_eq!(balance(&executed, sender), needed - wei(100) + gained - paid);
    // A contract sees them, too.
    let calls = vec![
        ATTRIBUTED.deposit(),
        chain.sent(0, 0, SOMEBODY, U256::ZERO),
        chain.sent_with(0, 1, WITNESS, U256::ZERO, 60_000),
        post_exec(1, &[(1, 2_000)]),
    ];
    let executed = chain.execute(SEQUENCER_FEE_VAULT, calls).expect("it is valid");
    let seen = executed.world.account(&WITNESS).unwrap().slot(&U256::ZERO);
    let before = ether(100) - fees(19_000, base_fee + wei(TIP));
    assert_eq!(seen, before - fees(60_000, base_fee + wei(TIP)), "the gas limit of the caller is paid in advance");
}

#[test]
fn a_block_that_breaks_a_rule_is_invalid() {
    let chain = OpChain::new("lagoon");
    let (first, second) = (chain.sent(0, 0, SOMEBODY, wei(5)), chain.sent(1, 0, SOMEBODY, wei(6)));
    let with = |post: &[ChainTx]| [&[ATTRIBUTED.deposit(), first.clone(), second.clone()], post].concat();
    let refunds = |refunds: &[(u64, u64)]| with(&[post_exec(1, refunds)]);
    let valid = post_exec(1, &[(1, 5_000)]);
    chain.execute(SEQUENCER_FEE_VAULT, with(std::slice::from_ref(&valid))).expect("the others differ by one rule");
    let in_the_middle = vec![ATTRIBUTED.deposit(), first.clone(), valid.clone(), second.clone()];
    for (block, broken) in [
        (with(&[valid.clone(), valid.clone()]), "not the last"),
        (in_the_middle, "not the last"),
        (with(&[post_exec(2, &[(1, 5_000)])]), "of block 2: expected 1"),
        (refunds(&[]), "without refunds"),
        (refunds(&[(1, 5_000), (1, 5_000)]), "at index 1 after one at 1"),
        (refunds(&[(2, 5_000), (1, 5_000)]), "at index 1 after one at 2"),
        (refunds(&[(1, 0)]), "0 gas at index 1"),
        (refunds(&[(0, 5_000)]), "at index 0, which is not a signed transaction"),
        (refunds(&[(3, 5_000)]), "at index 3, which is not a signed transaction"),
        (refunds(&[(4, 5_000)]), "at index 4, which is not a signed transaction"),
        (refunds(&[(u64::MAX, 5_000)]), "which is not a signed transaction"),
        (refunds(&[(2, 21_001)]), "a refund of 21001 gas: expected at most 21000"),
    ] {
        let error = chain.execute(SEQUENCER_FEE_VAULT, block).expect_err(broken);
        assert!(error.contains(broken), "{broken}: {error}");
    }
    let karst = OpChain::new("karst");
    let error = karst.execute(SEQUENCER_FEE_VAULT, with(&[valid])).expect_err("Lagoon is not active");
    assert!(error.contains("before Lagoon"), "{error}");
}

/// A block with a transfer whose 5,000 gas are refunded, another transfer, and one that has a witness of the caller's balance.
fn sample() -> (OpChain, Vec<ChainTx>) {
    let mut chain = OpChain::new("lagoon");
    let block = vec![
        ATTRIBUTED.deposit(),
        chain.sent(0, 0, SOMEBODY, wei(5)),
        chain.sent(0, 1, WITNESS, U256::ZERO),
        post_exec(1, &[(1, 5_000), (2, 3_000)]),
    ];
    chain.append(block.clone());
    let empty = vec![ATTRIBUTED.deposit()];
    chain.append(empty);
    (chain, block)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_file_with_refunds_is_imported_and_its_data_is_that_of_the_specification() {
    let (chain, block) = sample();
    let (_folder, flags) = chain.files();
    let data = tempfile::tempdir().unwrap();
    let mut flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    flags.extend(["--data-dir", data.path().to_str().unwrap()]);
    let hash = block[3].tx_hash();
    let raw = Bytes::from(block[3].encoded_2718());
    for how in ["imported", "restored"] {
        let node = TestNode::start(&flags);
        for path in ["/", "/standard"] {
            let told = node.result(path, "eth_getBlockByNumber", json!(["0x1", true])).await;
            assert_eq!(items(&told["transactions"]).len(), 4, "{how}");
            let receipts = node.result(path, "eth_getBlockReceipts", json!(["0x1"])).await;
            let (deposit, witnessed) = (number(&receipts[0]["gasUsed"]), number(&receipts[2]["gasUsed"]));
            let used = deposit + 16_000 + witnessed;
            assert_eq!(number(&told["gasUsed"]), used, "{path}");
            let at = json!({
                "blockHash": told["hash"], "blockNumber": "0x1", "blockTimestamp": told["timestamp"],
                "transactionIndex": "0x3",
            });
            let mut expected = at.clone();
            for (field, value) in [
                ("type", json!("0x7d")),
                ("hash", json!(hash)),
                ("from", json!(Address::ZERO)),
                ("gas", json!("0x0")),
                ("value", json!("0x0")),
                ("input", json!(raw.slice(1..))),
            ] {
                expected[field] = value;
            }
            assert_eq!(told["transactions"][3], expected, "{path}");
            for (method, params) in [
                ("eth_getTransactionByHash", json!([hash])),
                ("eth_getTransactionByBlockNumberAndIndex", json!(["0x1", "0x3"])),
            ] {
                assert_eq!(node.result(path, method, params).await, expected, "{path} {method}");
            }
            let mut expected = at;
            expected.as_object_mut().unwrap().remove("blockTimestamp");
            for (field, value) in [
                ("type", json!("0x7d")),
                ("transactionHash", json!(hash)),
                ("from", json!(Address::ZERO)),
                ("status", json!("0x1")),
                ("cumulativeGasUsed", hex(used)),
                ("gasUsed", json!("0x0")),
                ("effectiveGasPrice", json!("0x0")),
                ("logs", json!([])),
                ("logsBloom", json!(alloy_primitives::Bloom::ZERO)),
                ("blobGasUsed", json!("0x0")),
            ] {
                expected[field] = value;
            }
            assert_eq!(receipts[3], expected, "{path}");
            assert_eq!(node.result(path, "eth_getTransactionReceipt", json!([hash])).await, expected, "{path}");
            let refunds: Vec<Option<&Value>> =
                items(&receipts).iter().map(|receipt| receipt.get("opGasRefund")).collect();
            assert_eq!(refunds, [None, Some(&hex(5_000)), Some(&hex(3_000)), None], "{path}");
            assert_eq!(receipts[1]["gasUsed"], hex(16_000));
            // The strict types of a library read them. (Those of op-alloy 2.0 do not read the transaction that they write.)
            let _: Vec<op_alloy::rpc_types::OpTransactionReceipt> = serde_json::from_value(receipts).expect("receipts");
        }
        // The bytes that the hashes are of.
        for (method, params) in [
            ("eth_getRawTransactionByHash", json!([hash])),
            ("eth_getRawTransactionByBlockNumberAndIndex", json!(["0x1", "0x3"])),
            ("debug_getRawTransaction", json!([hash])),
        ] {
            assert_eq!(node.result("/", method, params).await, json!(raw), "{method}");
        }
        let encoded = node.result("/", "debug_getRawBlock", json!(["0x1"])).await.as_str().unwrap().to_owned();
        assert!(encoded.ends_with(&raw.to_string()[2..]) || encoded.contains(&raw.to_string()[2..]), "{encoded}");
        let raws = node.result("/", "debug_getRawReceipts", json!(["0x1"])).await;
        assert!(raws[3].as_str().unwrap().starts_with("0x7df9"), "{raws}");
        // The next base fee follows from the gas after refunds: the file is imported, so the header's is right.
        let history = node.result("/", "eth_feeHistory", json!(["0x1", "0x1", [50]])).await;
        assert_eq!(history["reward"][0][0], hex(TIP), "{history}");
        for bytes in [raw.to_string(), format!("{raw}00")] {
            for method in ["eth_sendRawTransaction", "eth_sendRawTransactionSync"] {
                let error = node.error("/", method, json!([bytes])).await;
                assert_eq!(
                    (&error["code"], &error["message"]),
                    (&json!(-32000), &json!("transaction type not supported: 0x7d"))
                );
            }
        }
        node.node.stop();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_that_begin_in_the_middle_of_a_block_begin_with_settled_balances() {
    let (chain, block) = sample();
    let (_folder, flags) = chain.files();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let node = TestNode::start(&flags);
    let sender = chain.address(0);
    let base_fee = wei(number(&node.block("0x1").await["baseFeePerGas"]));
    let settled = ether(100)
        - wei(5)
        - wei(16_000) * (base_fee + wei(TIP))
        - ATTRIBUTED.operator_fee(16_000)
        - ATTRIBUTED.l1_fee();
    // A contract that returns the balance of its caller.
    let code = json!({WITNESS.to_string(): {"code": "0x33315f5260205ff3"}});
    let word = |value: U256| format!("{value:#066x}");
    let call = json!([{"transactions": [{"from": sender, "to": WITNESS}]}]);
    let answer =
        node.result("/", "eth_callMany", json!([call, {"blockNumber": "0x1", "transactionIndex": 2}, code])).await;
    assert_eq!(answer[0][0]["value"], word(settled), "{answer}");
    let traced = json!([{"from": sender, "to": WITNESS}, "0x1", {"txIndex": "0x2", "stateOverrides": code}]);
    let answer = node.result("/", "debug_traceCall", traced).await;
    assert_eq!(answer["returnValue"], word(settled), "{answer}");
    let range = node.result("/", "debug_storageRangeAt", json!(["0x1", 3, WITNESS, "0x", 1])).await;
    let stored =
        items(&json!(range["storage"].as_object().unwrap().values().cloned().collect::<Vec<_>>()))[0]["value"].clone();
    let limit = wei(60_000) * (base_fee + wei(TIP)) + ATTRIBUTED.operator_fee(60_000) + ATTRIBUTED.l1_fee();
    assert_eq!(stored, word(settled - limit), "the block's own call has seen it");

    // Frames have the EVM's gas. The difference of the state is after the settlement.
    let (first, last) = (block[1].tx_hash(), block[3].tx_hash());
    let calls = node.result("/", "debug_traceTransaction", json!([first, {"tracer": "callTracer"}])).await;
    assert_eq!(calls["gasUsed"], hex(TRANSFER), "{calls}");
    let steps = node.result("/", "debug_traceTransaction", json!([first])).await;
    assert_eq!(steps["gas"], TRANSFER, "{steps}");
    let diff = json!({"tracer": "prestateTracer", "tracerConfig": {"diffMode": true}});
    let diff = node.result("/", "debug_traceTransaction", json!([first, diff])).await;
    let post = |account: Address| diff["post"][account.to_string().to_lowercase()]["balance"].clone();
    let quantity = |value: U256| json!(format!("{value:#x}"));
    assert_eq!(post(sender), quantity(settled), "{diff}");
    assert_eq!(post(BASE_FEE_VAULT), quantity(wei(16_000) * base_fee));
    assert_eq!(post(SEQUENCER_FEE_VAULT), quantity(wei(16_000) * wei(TIP)));
    assert_eq!(post(OPERATOR_FEE_VAULT), quantity(ATTRIBUTED.operator_fee(16_000)));
    let replayed = node.result("/", "trace_replayTransaction", json!([first, ["trace", "stateDiff"]])).await;
    let change = &replayed["stateDiff"][sender.to_string().to_lowercase()]["balance"]["*"]["to"];
    assert_eq!(*change, quantity(settled), "{replayed}");

    // The post-execution transaction runs no code, and has no trace.
    for (method, params, count) in [
        ("debug_traceBlockByNumber", json!(["0x1", {"tracer": "callTracer"}]), 3),
        ("trace_replayBlockTransactions", json!(["0x1", ["trace"]]), 3),
        ("trace_transaction", json!([last]), 0),
    ] {
        assert_eq!(items(&node.result("/", method, params).await).len(), count, "{method}");
    }
    for (method, params) in
        [("debug_traceTransaction", json!([last])), ("trace_replayTransaction", json!([last, ["trace"]]))]
    {
        let error = node.error("/", method, params).await;
        assert!(error["message"].as_str().unwrap().contains("runs no code"), "{method}: {error}");
    }
    // Refunds exist in blocks only: what is simulated uses the EVM's gas.
    let simulated = json!([{"blockStateCalls": [{"calls": [{"from": sender, "to": SOMEBODY}]}]}, "latest"]);
    let simulated = node.result("/", "eth_simulateV1", simulated).await;
    assert_eq!(simulated[0]["calls"][0]["gasUsed"], hex(TRANSFER), "{simulated}");
}
