//! Osaka's EVM on the OP stack, and blocks of less than a second.

use std::{sync::Arc, time::Duration};

use alloy_consensus::{BlockBody, SignableTransaction, TxEip1559};
use alloy_eips::{Encodable2718, eip4895::Withdrawals};
use alloy_genesis::Genesis;
use alloy_hardforks::{EthereumChainHardforks, EthereumHardfork, EthereumHardforks, ForkCondition};
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, address, hex};
use alloy_rlp::Encodable;
use alloy_signer::SignerSync;
use op_alloy::consensus::TxDeposit;
use presim::testing::{
    chain::{Attributes, BlockHashes, ChainSpec, ChainTx, genesis_block},
    engine::{open_block, seal},
    ledger::Snapshot,
    source::{devnet::world::dev_signers, sub_block::extend},
    state::{CodeCache, LocalWorld},
};
use serde_json::{Value, json};

use crate::{
    live::built::BASE_TIME,
    op_chain::config,
    support::{TestNode, chain_files, hex, number},
};

fn known(id: u64) -> ChainSpec {
    ChainSpec::known(id).unwrap_or_else(|| panic!("{id} is known"))
}

#[test]
fn the_tables_of_ethereums_networks_agree_with_alloys() {
    let tables = [
        (1, EthereumChainHardforks::mainnet()),
        (11_155_111, EthereumChainHardforks::sepolia()),
        (17_000, EthereumChainHardforks::holesky()),
        (560_048, EthereumChainHardforks::hoodi()),
    ];
    for (id, table) in tables {
        let spec = known(id);
        for &fork in EthereumHardfork::VARIANTS.iter().filter(|fork| **fork != EthereumHardfork::Dao) {
            let (ours, theirs) = (spec.ethereum_fork_activation(fork), table.ethereum_fork_activation(fork));
            match (ours, theirs) {
                (ForkCondition::TTD { fork_block: one, .. }, ForkCondition::TTD { fork_block: other, .. }) => {
                    assert_eq!(one, other, "{id} {fork}");
                }
                // Forks without an effect on a network that began with them.
                (ForkCondition::Block(0), ForkCondition::Never) => {}
                // A network that began with proof of stake.
                (ForkCondition::Block(0), ForkCondition::TTD { fork_block, .. }) => {
                    assert_eq!(fork_block.unwrap_or_default(), 0, "{id} {fork}");
                }
                _ => assert_eq!(ours, theirs, "{id} {fork}"),
            }
        }
    }
    let mainnet = known(1);
    assert_eq!(mainnet.dao_fork_block(), Some(1_920_000));
    let blobs = |time| mainnet.blob_params(time).unwrap();
    assert_eq!(blobs(1_767_747_671), alloy_eips::eip7840::BlobParams::bpo2());
    assert_eq!(blobs(1_767_747_670), alloy_eips::eip7840::BlobParams::bpo1());
    assert_eq!(blobs(1_764_798_551), alloy_eips::eip7840::BlobParams::osaka());
}

/// Starts a static node on a chain of the OP stack whose newest fork is `last`, with `flags`.
fn op_node(last: &str, flags: &[&str]) -> TestNode {
    let genesis = json!({
        "config": config(4242, last),
        "alloc": { dev_signers().unwrap()[0].address().to_string(): { "balance": "0x56bc75e2d63100000" } },
        "difficulty": "0x0", "gasLimit": "0x3938700", "nonce": "0x0", "timestamp": "0x65000000",
        "extraData": "0x01000000fa0000000600000000000f4240",
        "baseFeePerGas": "0x3b9aca00", "mixHash": B256::ZERO, "coinbase": Address::ZERO,
    });
    TestNode::on(&genesis, &[&["--feed", "static"], flags].concat())
}

const PAIRING: &str = "0x0000000000000000000000000000000000000008";
const MODEXP: &str = "0x0000000000000000000000000000000000000005";
const P256: &str = "0x0000000000000000000000000000000000000100";

/// Returns whether a call with this many zero bytes succeeds, and the gas that it uses.
async fn used(node: &TestNode, to: &str, bytes: usize) -> (bool, u64) {
    let data = Bytes::from(vec![0; bytes]);
    let calls = json!({"blockStateCalls": [{"calls": [{"to": to, "data": data, "gas": "0x1000000"}]}]});
    let blocks = node.result("/", "eth_simulateV1", json!([calls, "latest"])).await;
    let call = &blocks[0]["calls"][0];
    (call["status"] == "0x1", number(&call["gasUsed"]))
}

#[tokio::test]
async fn karst_and_azul_are_osakas_evm_and_karst_alone_lowers_the_limit_of_the_pairing() {
    // `azul` follows Jovian on a Base chain.
    for (last, flags, osaka, pairs) in [
        ("jovian", &[][..], false, 427),
        ("karst", &[][..], true, 300),
        ("jovian", &["--fork", "azul=0"][..], true, 427),
        ("jovian", &["--fork", "KARST=1694498816"][..], true, 300),
    ] {
        let node = op_node(last, flags);
        let what = format!("{last} {flags:?}");
        // EIP-7951 doubles the price of P256VERIFY, to which 160 zero bytes add 640.
        assert_eq!(used(&node, P256, 160).await, (true, 21_640 + if osaka { 6_900 } else { 3_450 }), "{what}");
        // EIP-7883 raises the least price of MODEXP from 200 to 500.
        assert_eq!(used(&node, MODEXP, 0).await, (true, 21_000 + if osaka { 500 } else { 200 }), "{what}");
        // <https://specs.optimism.io/protocol/karst/exec-engine.html#precompile-input-size-restrictions>
        let gas = 21_000 + 4 * 192 * pairs + 45_000 + 34_000 * pairs;
        assert_eq!(used(&node, PAIRING, 192 * pairs as usize).await, (true, gas), "{what}");
        assert!(!used(&node, PAIRING, 192 * (pairs as usize + 1)).await.0, "{what}");
        // EIP-7939: CLZ of 1 is 255.
        let code = "0x60011e5f5260205ff3";
        let overrides = json!({"0x00000000000000000000000000000000000000c1": {"code": code}});
        let call = json!([{"to": "0x00000000000000000000000000000000000000c1"}, "latest", overrides]);
        let answer = node.call("/", "eth_call", call).await;
        if osaka {
            assert_eq!(answer["result"], format!("{:#066x}", U256::from(255)), "{what}");
        } else {
            assert!(answer["error"]["message"].as_str().unwrap().contains("opcode"), "{what}: {answer}");
        }
        // EIP-7825 bounds the gas of a transaction, but not that of a call.
        let sent = node.call("/", "eth_sendRawTransaction", json!([transfer_with((1 << 24) + 1)])).await;
        if osaka {
            assert_eq!(
                sent["error"]["message"], "transaction gas limit too high (cap: 16777216, tx: 16777217)",
                "{what}"
            );
        } else {
            assert!(sent["result"].is_string(), "{what}: {sent}");
        }
        node.node.stop();
    }
}

/// Returns a signed transfer with this gas limit.
fn transfer_with(gas_limit: u64) -> Bytes {
    let tx = TxEip1559 {
        chain_id: 4242,
        gas_limit,
        max_fee_per_gas: 10_000_000_000,
        max_priority_fee_per_gas: 1_000_000_000,
        to: TxKind::Call(Address::repeat_byte(0x11)),
        ..TxEip1559::default()
    };
    let signature = dev_signers().unwrap()[0].sign_hash_sync(&tx.signature_hash()).unwrap();
    alloy_consensus::TxEnvelope::from(tx.into_signed(signature)).encoded_2718().into()
}

#[tokio::test]
async fn eth_config_of_the_op_stack_has_its_precompiles_and_no_blobs() {
    let node = op_node("jovian", &["--fork", "azul=1,beryl=2000000000"]);
    let told = node.result("/", "eth_config", json!([])).await;
    let (current, next) = (&told["current"], &told["next"]);
    assert_eq!(current["blobSchedule"]["max"], 0, "{told}");
    assert_eq!(current["precompiles"]["P256VERIFY"], P256, "{told}");
    let contracts: Vec<&String> = current["systemContracts"].as_object().unwrap().keys().collect();
    assert_eq!(contracts, ["BEACON_ROOTS_ADDRESS", "HISTORY_STORAGE_ADDRESS"]);
    assert_eq!(next["activationTime"], 2_000_000_000);
}

/// A chain under Denim: its genesis, and five blocks of 200 ms.
struct DenimChain {
    genesis: Value,
    blocks: Vec<u8>,
}

const START: u64 = 0x6500_0000;

#[test]
fn the_time_between_blocks_changes_when_denim_activates() {
    let mut rules = config(4242, "jovian");
    rules["denimTime"] = json!(START);
    let of = |block_time| ChainSpec::new(serde_json::from_value(rules.clone()).unwrap(), block_time).unwrap();
    let (usual, short) = (Duration::from_secs(2), Duration::from_millis(50));
    assert_eq!(of(usual).block_time_at(START - 1), usual);
    assert_eq!(of(usual).block_time_at(START), Duration::from_millis(200));
    assert_eq!(of(short).block_time_at(START), short, "it was set");
}

impl DenimChain {
    fn new() -> Self {
        let mut rules = config(4242, "jovian");
        for fork in ["azul", "beryl", "denim"] {
            rules[format!("{fork}Time")] = json!(0);
        }
        let genesis = json!({
            "config": rules,
            "alloc": {
                dev_signers().unwrap()[0].address().to_string(): { "balance": "0x56bc75e2d63100000" },
                // Returns slot 0, or sets it where there is an argument.
                BASE_TIME.to_string(): { "balance": "0x0", "code": "0x36600c575f545f5260205ff35b6004355f5500" },
            },
            "difficulty": "0x0", "gasLimit": "0x1c9c380", "nonce": "0x0", "timestamp": format!("{START:#x}"),
            "extraData": "0x01000000fa0000000600000000000f4240",
            "baseFeePerGas": "0x3b9aca00", "mixHash": B256::ZERO, "coinbase": Address::ZERO,
        });
        let parsed: Genesis = serde_json::from_value(genesis.clone()).unwrap();
        let spec = ChainSpec::new(parsed.config.clone(), Duration::from_secs(2)).unwrap();
        let world = LocalWorld::of_genesis(&parsed, &CodeCache::new(1 << 20));
        let block = genesis_block(&parsed, &spec, world.state_root());
        let mut hashes = BlockHashes::default();
        hashes.push(block.number(), block.hash());
        let mut head = Snapshot::at_head(world, Arc::new(block), hashes);
        let mut blocks = Vec::new();
        for number in 1..=4 {
            head = Self::append(&spec, &head, START, 200 * number, &mut blocks);
        }
        Self::append(&spec, &head, START + 1, 0, &mut blocks);
        Self { genesis, blocks }
    }

    /// Appends a block that begins with two deposits, the second of which sets its milliseconds.
    fn append(spec: &ChainSpec, on: &Snapshot, timestamp: u64, millis: u16, blocks: &mut Vec<u8>) -> Snapshot {
        let attributes = Attributes {
            timestamp,
            fee_recipient: Address::ZERO,
            prev_randao: B256::ZERO,
            beacon_root: B256::ZERO,
            gas_limit: 30_000_000,
        };
        let deposit = |to: Address, source: u8, input: Vec<u8>| -> ChainTx {
            TxDeposit {
                from: address!("DeaDDEaDDeAdDeAdDEAdDEaddeAddEAdDEAd0001"),
                to: TxKind::Call(to),
                source_hash: B256::with_last_byte(source),
                gas_limit: 1_000_000,
                input: input.into(),
                ..TxDeposit::default()
            }
            .into()
        };
        let set = [&hex!("86bdf394")[..], &U256::from(millis).to_be_bytes::<32>()].concat();
        let deposits = [deposit(Address::repeat_byte(0x15), 1, Vec::new()), deposit(BASE_TIME, 2, set)];
        let open = open_block(spec, on, attributes).expect("a block opens").snapshot;
        let grown = extend(spec, &open, open.open.as_ref().unwrap(), |sub_block| {
            for tx in deposits {
                sub_block.push(tx.recovered().unwrap()).expect("it can be in the block");
            }
        })
        .snapshot;
        let (sealed, _) = seal(spec, &grown, grown.open.as_ref().unwrap(), Withdrawals::default()).unwrap();
        let (header, body) = (sealed.snapshot.head.header.inner().clone(), sealed.snapshot.head.body());
        let transactions = body.transactions.iter().map(|tx| tx.inner().clone()).collect();
        let body = BlockBody { transactions, ommers: Vec::new(), withdrawals: body.withdrawals.clone() };
        alloy_consensus::Block { header, body }.encode(blocks);
        sealed.snapshot
    }
}

#[tokio::test]
async fn blocks_of_200_ms_share_timestamps_and_say_their_milliseconds() {
    let DenimChain { genesis, blocks } = DenimChain::new();
    let (_folder, flags) = chain_files(&genesis, &blocks);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let node = TestNode::start(&flags);
    for path in ["/", "/standard"] {
        for (block, time) in [(0, None), (1, Some(200)), (4, Some(800)), (5, Some(1000))] {
            let time = time.map_or(Value::Null, |time| hex(START * 1000 + time));
            let seconds = hex(START + u64::from(block == 5));
            let told = node.result(path, "eth_getBlockByNumber", json!([hex(block), true])).await;
            assert_eq!((&told["timestamp"], &told["timestampMs"]), (&seconds, &time), "{path} {block}");
            let header = node.result(path, "eth_getHeaderByNumber", json!([hex(block)])).await;
            assert_eq!(header["timestampMs"], time, "{path} {block}");
            if block > 0 {
                assert_eq!(told["transactions"][1]["blockTimestampMs"], time, "{path} {block}");
            }
        }
    }
    // The same blocks under rules by which timestamps grow.
    let text = TestNode::refusal(&[&flags[..], &["--fork", "denim=1800000000"]].concat());
    assert!(text.contains("timestamp") && text.contains(&format!("more than the parent's {START}")), "{text}");
}

#[tokio::test]
async fn simulated_blocks_go_on_by_the_milliseconds_of_the_chain() {
    let DenimChain { genesis, blocks } = DenimChain::new();
    let (_folder, flags) = chain_files(&genesis, &blocks);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let node = TestNode::start(&flags);
    let asks = json!({"calls": [{"to": BASE_TIME}]});
    // Block 4 is 800 ms after a second, so the next one begins a second.
    let simulated = |entries: Value| json!([{ "blockStateCalls": entries }, "0x4"]);
    let blocks = node.result("/", "eth_simulateV1", simulated(json!([asks, asks, asks, asks, asks, asks]))).await;
    for (index, block) in blocks.as_array().unwrap().iter().enumerate() {
        let time = (START + 1) * 1000 + 200 * index as u64;
        assert_eq!(number(&block["timestamp"]), time / 1000, "{index}");
        assert_eq!(number(&block["timestampMs"]), time, "{index}");
        // The predeploy has what the block's deposit would have set.
        assert_eq!(block["calls"][0]["returnData"], format!("{:#066x}", U256::from(time % 1000)), "{index}");
    }
    let at = |seconds: u64| json!({ "blockOverrides": { "time": hex(seconds) } });
    let same = node.result("/", "eth_simulateV1", simulated(json!([at(START), at(START), at(START + 2), {}]))).await;
    let times: Vec<u64> = same.as_array().unwrap().iter().map(|block| number(&block["timestampMs"])).collect();
    assert_eq!(times, [800, 800, 2000, 2200].map(|ms| START * 1000 + ms));
    let back = node.error("/", "eth_simulateV1", simulated(json!([at(START - 1)]))).await;
    assert_eq!(back["code"], -38021, "{back}");
    // No time is too late for an override.
    let late = node.result("/", "eth_simulateV1", simulated(json!([at(u64::MAX)]))).await;
    assert_eq!(number(&late[0]["timestamp"]), u64::MAX);
    // execution-apis: 12 seconds, and no repetition.
    let blocks = node.result("/standard", "eth_simulateV1", simulated(json!([{}, {}]))).await;
    let times: Vec<u64> = blocks.as_array().unwrap().iter().map(|block| number(&block["timestamp"])).collect();
    assert_eq!(times, [START + 12, START + 24]);
    let same = node.error("/standard", "eth_simulateV1", simulated(json!([at(START)]))).await;
    assert_eq!(same["code"], -38021, "{same}");
}
