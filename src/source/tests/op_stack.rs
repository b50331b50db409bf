//! Blocks of the OP stack: real ones, deposits, L1 fees, and base fees.

use std::sync::Arc;

use crate::{
    chain::{Attributes, BlockBody, BlockHashes, ChainSpec, ChainTx, Family, SealedBlock, genesis_block},
    engine::{
        BaseFeeRule, Call, CallFees, CallOutcome, CallRequest, Engine, Outputs, ShadowedTx, SimBlock, SimCall,
        Simulation, SimulationError, SimulationRules, execute_block, open_block, shadow_block,
    },
    ledger::{Block, Included, Snapshot},
    source::{devnet::world::dev_signers, sub_block::extend},
    state::{CodeCache, LocalWorld, Overlay, ReadSet, Touched},
};
use alloy_consensus::{Header, SignableTransaction, TxEip1559, TxEnvelope, TxReceipt, transaction::Recovered};
use alloy_eips::eip2718::{Decodable2718, Encodable2718};
use alloy_genesis::Genesis;
use alloy_primitives::{Address, B256, Bytes, TxKind, U64, U256, hex};
use alloy_signer::SignerSync;
use alloy_signer_local::PrivateKeySigner;
use op_alloy::consensus::TxDeposit;
use serde_json::{Value, json};
use support::{
    op_chain::{ATTRIBUTED, BASE_FEE_VAULT, L1_BLOCK, L1_FEE_VAULT, OPERATOR_FEE_VAULT, SEQUENCER_FEE_VAULT, config},
    shared,
};

fn spec(chain_id: u64, last: &str) -> ChainSpec {
    ChainSpec::new(serde_json::from_value(config(chain_id, last)).unwrap(), std::time::Duration::from_secs(2)).unwrap()
}

/// A block of a real chain, with the state that it was executed on.
struct RealBlock {
    spec: ChainSpec,
    header: Header,
    transactions: Vec<alloy_consensus::transaction::Recovered<ChainTx>>,
    parent: Snapshot,
}

impl RealBlock {
    fn load() -> Option<Self> {
        let text = std::fs::read_to_string(shared("fixtures/rise-8138510.json")?).expect("it can be read");
        let fixture: Value = serde_json::from_str(&text).expect("it is JSON");
        let header: Header = serde_json::from_value(fixture["block"].clone()).expect("a header");
        assert_eq!(header.hash_slow().to_string(), fixture["block"]["hash"].as_str().unwrap());
        let chain_id: U64 = serde_json::from_value(fixture["chainId"].clone()).expect("a quantity");
        let spec = spec(chain_id.to(), fixture["hardfork"].as_str().unwrap());
        let genesis: Genesis = serde_json::from_value(json!({
            "alloc": fixture["alloc"], "config": {}, "difficulty": "0x0", "gasLimit": "0x0", "nonce": "0x0",
            "timestamp": "0x0", "extraData": "0x", "mixHash": B256::ZERO, "coinbase": Address::ZERO,
        }))
        .expect("a genesis");
        let raw: Vec<Bytes> = serde_json::from_value(fixture["rawTransactions"].clone()).expect("transactions");
        let transactions = raw
            .iter()
            .map(|raw| ChainTx::decode_2718_exact(raw).expect("a transaction").recovered().expect("a sender"))
            .collect();
        // The parent, with the fields that execution reads. The others are not known.
        let parent = Header {
            number: header.number - 1,
            timestamp: header.timestamp - 1,
            gas_limit: header.gas_limit,
            base_fee_per_gas: header.base_fee_per_gas,
            extra_data: header.extra_data.clone(),
            beneficiary: header.beneficiary,
            withdrawals_root: header.withdrawals_root,
            blob_gas_used: Some(0),
            excess_blob_gas: Some(0),
            ..Header::default()
        };
        let mut hashes = BlockHashes::default();
        hashes.push(parent.number, header.parent_hash);
        let head = SealedBlock::new(parent, BlockBody::default());
        let world = LocalWorld::of_genesis(&genesis, &CodeCache::new(1 << 24));
        Some(Self { spec, header, transactions, parent: Snapshot::at_head(world, Arc::new(head), hashes) })
    }
}

/// Fees are no difference, whatever the vaults get: data, operation, and the base fee have other prices before.
#[test]
fn a_real_block_differs_in_nothing_but_fees_under_the_forks_before() {
    let Some(RealBlock { spec, header, transactions, parent }) = RealBlock::load() else { return };
    let executed = execute_block(&spec, &parent, &header, &transactions, &[], None).unwrap();
    let count = transactions.len();
    let (receipts, body) = (executed.receipts, BlockBody::default());
    let body = BlockBody { transactions, receipts, ..body };
    let block = Block::sealed(&Arc::new(SealedBlock::new(header, body))).expect("its body");
    for fork in ["jovian", "isthmus", "holocene", "fjord", "karst", "azul"] {
        let mut overlay = Overlay::new(parent.world.clone(), parent.hashes.clone());
        let mut told = 0;
        let take = |included: &Included<'_>, tx: ShadowedTx| {
            told += 1;
            assert!(tx.difference.is_none(), "{fork}: transaction {}: {tx:?}", included.index);
            assert_eq!(tx.gas_under, Some(included.evm_gas_used()), "{fork}");
            Ok::<_, SimulationError>(())
        };
        shadow_block(&spec, spec.under(fork).unwrap(), &block, 1 << 20, &mut overlay, take).unwrap();
        assert_eq!(told, count, "{fork}");
    }
}

const RULES: SimulationRules = SimulationRules {
    base_fee: BaseFeeRule::Block,
    keeps_prev_randao: true,
    block_time: Some(std::time::Duration::from_secs(1)),
    state_roots: true,
    gas_cap: u64::MAX,
    max_blocks: 256,
    max_trace: 1 << 20,
    estimate_tolerance: 0.0,
};

/// A small chain of the OP stack under Jovian.
struct JovianChain {
    spec: ChainSpec,
    signer: PrivateKeySigner,
    head: Snapshot,
}

impl JovianChain {
    fn new() -> Self {
        let signer = dev_signers().unwrap()[0].clone();
        let genesis: Genesis = serde_json::from_value(json!({
            "config": config(4242, "jovian"),
            "alloc": {
                signer.address().to_string(): { "balance": "0x56bc75e2d63100000" },
                L1_BLOCK.to_string(): { "balance": "0x0", "code": "0x00", "storage": ATTRIBUTED.storage() },
                // The code is an invalid opcode.
                Address::repeat_byte(0xfe).to_string(): { "balance": "0x0", "code": "0xfe" },
            },
            "difficulty": "0x0", "gasLimit": "0x1c9c380", "nonce": "0x0", "timestamp": "0x65000000",
            // Denominator 250, elasticity 6, minimum base fee 1,000,000.
            "extraData": "0x01000000fa0000000600000000000f4240",
            "baseFeePerGas": "0x3b9aca00", "mixHash": B256::ZERO, "coinbase": Address::ZERO,
        }))
        .unwrap();
        let spec = ChainSpec::new(genesis.config.clone(), std::time::Duration::from_secs(2)).unwrap();
        let world = LocalWorld::of_genesis(&genesis, &CodeCache::new(1 << 20));
        let block = genesis_block(&genesis, &spec, world.state_root());
        let mut hashes = BlockHashes::default();
        hashes.push(block.number(), block.hash());
        Self { spec, signer, head: Snapshot::at_head(world, Arc::new(block), hashes) }
    }

    fn open(&self) -> Snapshot {
        let parent = self.head.head.header.inner();
        let attributes = Attributes {
            timestamp: parent.timestamp + 2,
            fee_recipient: SEQUENCER_FEE_VAULT,
            prev_randao: B256::ZERO,
            beacon_root: B256::ZERO,
            gas_limit: parent.gas_limit,
        };
        open_block(&self.spec, &self.head, attributes).expect("a block opens").snapshot
    }

    fn with(&self, on: &Snapshot, transactions: Vec<ChainTx>) -> Snapshot {
        extend(&self.spec, on, on.open.as_ref().unwrap(), |sub_block| {
            for tx in transactions {
                sub_block.push(tx.recovered().unwrap()).expect("it can be in the block");
            }
        })
        .snapshot
    }

    fn transfer(&self, nonce: u64) -> ChainTx {
        self.signed(nonce).into()
    }

    fn signed(&self, nonce: u64) -> TxEnvelope {
        let tx = TxEip1559 {
            chain_id: 4242,
            nonce,
            gas_limit: 30_000,
            max_fee_per_gas: 10_000_000_000,
            max_priority_fee_per_gas: 500,
            to: TxKind::Call(Address::repeat_byte(0x11)),
            value: U256::from(5),
            ..TxEip1559::default()
        };
        let signature = self.signer.sign_hash_sync(&tx.signature_hash()).unwrap();
        tx.into_signed(signature).into()
    }

    fn balance(at: &Snapshot, address: Address) -> U256 {
        at.world.account(&address).map_or(U256::ZERO, |account| account.balance)
    }
}

#[test]
fn a_signed_transaction_pays_each_vault_its_part() {
    let chain = JovianChain::new();
    let open = chain.open();
    let base_fee = open.header().base_fee_per_gas.unwrap();
    let before = JovianChain::balance(&open, chain.signer.address());
    let tx = chain.transfer(0);
    assert!(tx.encode_2718_len() < 150, "so short that the least size counts");
    let after = chain.with(&open, vec![ATTRIBUTED.deposit(), tx]);
    let gas = U256::from(21_000);
    let parts = [
        (SEQUENCER_FEE_VAULT, gas * U256::from(500)),
        (BASE_FEE_VAULT, gas * U256::from(base_fee)),
        (L1_FEE_VAULT, ATTRIBUTED.l1_fee()),
        (OPERATOR_FEE_VAULT, ATTRIBUTED.operator_fee(21_000)),
    ];
    for (vault, part) in parts {
        assert!(!part.is_zero());
        assert_eq!(JovianChain::balance(&after, vault), part, "{vault}");
    }
    let paid: U256 = parts.iter().map(|(_, part)| *part).sum();
    assert_eq!(before - JovianChain::balance(&after, chain.signer.address()), paid + U256::from(5));
    // 100 bytes of 400 gas each.
    assert_eq!(after.open.as_ref().unwrap().blob_gas_used, 40_000);
}

#[test]
fn a_free_call_pays_no_vault_and_costs_its_sender_nothing() {
    let chain = JovianChain::new();
    let codes = CodeCache::new(1 << 20);
    let watched = [chain.signer.address(), SEQUENCER_FEE_VAULT, BASE_FEE_VAULT, L1_FEE_VAULT, OPERATOR_FEE_VAULT];
    let from = chain.signer.address();
    let one = Call { from, to: TxKind::Call(Address::repeat_byte(0x11)), gas: Some(90_000), ..Call::default() };
    let simulation = Simulation {
        blocks: vec![SimBlock { calls: vec![one.clone().into(), one.clone().into()], ..SimBlock::default() }],
        ..Simulation::default()
    };
    let mut overlay = Overlay::new(chain.head.world.clone(), chain.head.hashes.clone());
    let mut engine = Engine { spec: &chain.spec, rules: &RULES, codes: &codes, overlay: &mut overlay };
    engine.simulate(&chain.head, &simulation).unwrap();
    for address in watched {
        assert_eq!(overlay.balance_and_nonce(address).0, JovianChain::balance(&chain.head, address), "{address}");
    }
    let request = CallRequest { call: one, ..CallRequest::default() };
    let mut overlay = Overlay::new(chain.head.world.clone(), chain.head.hashes.clone());
    let mut engine = Engine { spec: &chain.spec, rules: &RULES, codes: &codes, overlay: &mut overlay };
    let ran = engine.call(chain.head.header(), &request).unwrap();
    assert!(ran.is_success());
}

/// Each transaction raises the vaults' balances, so what reads them follows from each.
#[test]
fn vaults_that_get_fees_are_read_only_by_code_that_looks() {
    let chain = JovianChain::new();
    let codes = CodeCache::new(1 << 20);
    // The vaults have something already, so that they exist.
    let open = chain.with(&chain.open(), vec![chain.transfer(0)]);
    let from = chain.signer.address();
    let vaults = [SEQUENCER_FEE_VAULT, BASE_FEE_VAULT, L1_FEE_VAULT, OPERATOR_FEE_VAULT];
    let run = |calls: Vec<SimCall>| {
        let mut overlay = Overlay::new(open.world.clone(), open.hashes.clone());
        overlay.record_reads(true);
        let outputs = Outputs::STATUS | Outputs::GAS_USED | Outputs::STATE_DIFF;
        let blocks = vec![SimBlock { calls, ..SimBlock::default() }];
        let simulation = Simulation { blocks, outputs, ..Simulation::default() };
        let mut engine = Engine { spec: &chain.spec, rules: &RULES, codes: &codes, overlay: &mut overlay };
        let done = engine.simulate(&open, &simulation).unwrap();
        assert!(done.blocks[0].calls.iter().all(|call| call.outcome == CallOutcome::Success));
        let diff = done.blocks[0].diff.clone().unwrap();
        let paid: Vec<Address> = vaults.into_iter().filter(|vault| diff.contains_key(vault)).collect();
        (overlay.reads(), paid)
    };
    let is_due = |reads: &ReadSet, vault: Address| {
        let mut overlay = Overlay::new(open.world.clone(), open.hashes.clone());
        overlay.set(vault, Some(U256::from(1_000_000)), None, None);
        let mut touched = Touched::default();
        touched.add(&open.world, &overlay.changed().1);
        reads.everything
            || touched.accounts().any(|(address, account)| {
                let mut reads = reads.accounts.iter().filter(|read| read.address == *address);
                reads.any(|read| account.parts.intersects(read.parts))
            })
    };
    let signed = || SimCall::Signed(Box::new(Recovered::new_unchecked(chain.signed(1), from)));
    let price = CallFees::GasPrice(10_000_000_000);
    let unsigned = |code: Vec<u8>| Call {
        from,
        to: TxKind::Create,
        data: code.into(),
        gas: Some(90_000),
        fees: price,
        ..Call::default()
    };
    for (call, paid) in
        [(signed(), vaults.to_vec()), (unsigned(vec![0]).into(), vec![SEQUENCER_FEE_VAULT, BASE_FEE_VAULT])]
    {
        let is_signed = matches!(call, SimCall::Signed(_));
        let (reads, changed) = run(vec![call]);
        assert_eq!(changed, paid);
        assert!(!reads.everything, "{reads:?}");
        for vault in vaults {
            assert!(!is_due(&reads, vault), "{vault}: {reads:?}");
        }
        // The prices that the fees for L1 follow from are read.
        let slots = reads.accounts.iter().find(|account| account.address == L1_BLOCK).map(|account| &account.slots);
        assert_eq!(slots, is_signed.then_some(&[1, 3, 7, 8].map(U256::from).to_vec()), "{reads:?}");
    }
    for looked_at in vaults {
        // PUSH20 the vault, BALANCE, POP, STOP.
        let code = [&[0x73], looked_at.as_slice(), &[0x31, 0x50, 0]].concat();
        let (reads, _) = run(vec![signed(), Call { nonce: Some(2), ..unsigned(code) }.into()]);
        for vault in vaults {
            assert_eq!(is_due(&reads, vault), vault == looked_at, "{vault}, {looked_at} is looked at: {reads:?}");
        }
    }
}

#[test]
fn a_call_that_pays_for_gas_pays_the_base_fee_vault_and_nothing_for_l1() {
    let chain = JovianChain::new();
    let codes = CodeCache::new(1 << 20);
    let price = 10_000_000_000;
    let from = chain.signer.address();
    let to = TxKind::Call(Address::repeat_byte(0x11));
    let one = Call { from, to, gas: Some(90_000), fees: CallFees::GasPrice(price), ..Call::default() };
    let blocks = vec![SimBlock { calls: vec![one.into()], ..SimBlock::default() }];
    let simulation = Simulation { blocks, validation: true, ..Simulation::default() };
    let mut overlay = Overlay::new(chain.head.world.clone(), chain.head.hashes.clone());
    let mut engine = Engine { spec: &chain.spec, rules: &RULES, codes: &codes, overlay: &mut overlay };
    let done = engine.simulate(&chain.head, &simulation).unwrap();
    let base_fee = done.blocks[0].listing.as_ref().unwrap().header.base_fee_per_gas.unwrap();
    let gas = U256::from(21_000);
    assert_eq!(overlay.balance_and_nonce(BASE_FEE_VAULT).0, gas * U256::from(base_fee));
    assert_eq!(overlay.balance_and_nonce(L1_FEE_VAULT).0, U256::ZERO);
    assert_eq!(overlay.balance_and_nonce(OPERATOR_FEE_VAULT).0, U256::ZERO);
    let spent = JovianChain::balance(&chain.head, from) - overlay.balance_and_nonce(from).0;
    assert_eq!(spent, gas * U256::from(price));
}

#[test]
fn a_deposit_that_fails_keeps_its_mint_and_uses_all_its_gas() {
    let chain = JovianChain::new();
    let open = chain.open();
    let from = Address::repeat_byte(0x22);
    let deposit = |to: TxKind, mint: u128, value: u64| -> ChainTx {
        let (gas_limit, value) = (50_000, U256::from(value));
        TxDeposit { from, to, mint, value, gas_limit, ..TxDeposit::default() }.into()
    };
    let cases = [
        // The value exceeds the balance.
        deposit(TxKind::Call(Address::repeat_byte(0x33)), 7, 1_000_000),
        // The callee halts.
        deposit(TxKind::Call(Address::repeat_byte(0xfe)), 10, 3),
    ];
    let after = chain.with(&open, cases.into());
    let block = after.open.as_ref().unwrap();
    let account = after.world.account(&from).unwrap();
    assert_eq!((account.nonce, account.balance), (2, U256::from(17)));
    assert_eq!(JovianChain::balance(&after, Address::repeat_byte(0xfe)), U256::ZERO);
    for (at, receipt) in block.receipts.iter().enumerate() {
        let deposit = receipt.as_deposit().unwrap();
        assert!(!receipt.status());
        assert_eq!(receipt.cumulative_gas_used(), 50_000 * (at as u64 + 1));
        assert_eq!((deposit.deposit_nonce, deposit.deposit_receipt_version), (Some(at as u64), Some(1)));
    }
}

#[test]
fn each_family_refuses_what_only_the_other_has() {
    let chain = JovianChain::new();
    let open = chain.open();
    let mut blobs = None;
    extend(&chain.spec, &open, open.open.as_ref().unwrap(), |sub_block| {
        let tx = alloy_consensus::TxEip4844 {
            chain_id: 4242,
            gas_limit: 30_000,
            max_fee_per_gas: 10_000_000_000,
            blob_versioned_hashes: vec![B256::with_last_byte(1)],
            ..Default::default()
        };
        let signature = chain.signer.sign_hash_sync(&tx.signature_hash()).unwrap();
        let tx = alloy_consensus::TxEnvelope::from(tx.into_signed(signature));
        blobs = Some(sub_block.push(ChainTx::from(tx).recovered().unwrap()).unwrap_err().to_string());
    });
    assert_eq!(
        blobs.unwrap(),
        "transaction type 0x03: expected one of the OP stack's: 0x0, 0x1, 0x2, 0x4, 0x7d and 0x7e"
    );

    let ethereum = ChainSpec::new(
        serde_json::from_value(json!({ "chainId": 1, "terminalTotalDifficultyPassed": true })).unwrap(),
        std::time::Duration::from_secs(12),
    )
    .unwrap();
    assert_eq!((ethereum.family(), chain.spec.family()), (Family::Ethereum, Family::OpStack));
    let header = Header { number: 1, timestamp: 0x6500_0002, gas_limit: 30_000_000, ..Header::default() };
    let deposit = [ATTRIBUTED.deposit::<ChainTx>().recovered().unwrap()];
    let refused = execute_block(&ethereum, &chain.head, &header, &deposit, &[], None).unwrap_err();
    assert_eq!(refused.to_string(), "transaction type 0x7e: expected one of Ethereum's, 0x0 to 0x4");
}

/// The parameters of a parent, and the base fee of the block on it.
struct BaseFee {
    fork: &'static str,
    gas_used: u64,
    footprint: u64,
    extra_data: &'static [u8],
    expected: u64,
}

/// All cases have a gas limit of 60,000,000 and a base fee of 1,000,000,000: the target at elasticity 6 is 10,000,000.
#[test]
fn the_base_fee_follows_the_rules_of_its_fork() {
    let holocene = &hex!("00 00000032 0000000a");
    let defaults = &hex!("00 00000000 00000000");
    let jovian = &hex!("01 00000032 0000000a 0000000000000000");
    let floor = &hex!("01 00000032 0000000a 0000000077359400");
    let cases = [
        // Denominator 50 before Canyon: 1e9 + 1e9 * 1/1 / 50.
        BaseFee { fork: "regolith", gas_used: 20_000_000, footprint: 0, extra_data: &[], expected: 1_020_000_000 },
        // Denominator 250 from Canyon on.
        BaseFee { fork: "canyon", gas_used: 20_000_000, footprint: 0, extra_data: &[], expected: 1_004_000_000 },
        BaseFee { fork: "granite", gas_used: 0, footprint: 0, extra_data: &[], expected: 996_000_000 },
        // From Holocene on, the header has the parameters: denominator 50, elasticity 10, so a target of 6,000,000.
        BaseFee { fork: "holocene", gas_used: 12_000_000, footprint: 0, extra_data: holocene, expected: 1_020_000_000 },
        // Zeros mean the constants, and so do malformed bytes.
        BaseFee { fork: "holocene", gas_used: 20_000_000, footprint: 0, extra_data: defaults, expected: 1_004_000_000 },
        BaseFee { fork: "isthmus", gas_used: 20_000_000, footprint: 0, extra_data: &[9], expected: 1_004_000_000 },
        // Before Jovian, blob gas does not count.
        BaseFee { fork: "isthmus", gas_used: 0, footprint: 12_000_000, extra_data: holocene, expected: 980_000_000 },
        // From Jovian on, the DA footprint counts if it is higher than the gas used.
        BaseFee { fork: "jovian", gas_used: 0, footprint: 12_000_000, extra_data: jovian, expected: 1_020_000_000 },
        BaseFee { fork: "jovian", gas_used: 6_000_000, footprint: 5, extra_data: jovian, expected: 1_000_000_000 },
        // The fee has a minimum.
        BaseFee { fork: "jovian", gas_used: 0, footprint: 0, extra_data: floor, expected: 2_000_000_000 },
    ];
    for case in cases {
        let parent = Header {
            number: 9,
            timestamp: 100,
            gas_limit: 60_000_000,
            gas_used: case.gas_used,
            blob_gas_used: Some(case.footprint),
            base_fee_per_gas: Some(1_000_000_000),
            extra_data: Bytes::from_static(case.extra_data),
            ..Header::default()
        };
        let got = spec(4242, case.fork).next_base_fee(&parent, 10, 102);
        let name = format!("{} used {} footprint {}", case.fork, case.gas_used, case.footprint);
        assert_eq!(got, Some(case.expected), "{name}");
    }
}

#[test]
fn no_parent_makes_the_base_fee_overflow() {
    let spec = spec(4242, "jovian");
    for extra_data in [&hex!("01 00000001 ffffffff ffffffffffffffff"), &hex!("01 00000001 00000002 0000000000000000")] {
        for (gas_limit, gas_used) in [(0, 0), (1, u64::MAX), (u64::MAX, u64::MAX), (30_000_000, 30_000_000)] {
            let parent = Header {
                number: 9,
                gas_limit,
                gas_used,
                base_fee_per_gas: Some(u64::MAX),
                extra_data: Bytes::from_static(extra_data),
                ..Header::default()
            };
            assert!(spec.next_base_fee(&parent, 10, 2).is_some());
        }
    }
}

#[test]
fn a_header_carries_the_parameters_of_the_base_fee_on() {
    let carried = |fork: &str, parent: &'static [u8]| {
        let parent = Header { timestamp: 100, extra_data: Bytes::from_static(parent), ..Header::default() };
        spec(4242, fork).next_extra_data(&parent, 102)
    };
    assert_eq!(carried("granite", b"text"), Bytes::new());
    assert_eq!(carried("holocene", &hex!("00 00000032 0000000a")), Bytes::from(hex!("00 00000032 0000000a")));
    // The constants are used if the parent has no parameters.
    assert_eq!(carried("holocene", &[]), Bytes::from(hex!("00 000000fa 00000006")));
    let jovian = hex!("01 00000032 0000000a 0000000000000005");
    assert_eq!(carried("jovian", &hex!("01 00000032 0000000a 0000000000000005")), Bytes::from(jovian));
}

#[test]
fn a_malformed_genesis_of_the_op_stack_is_refused() {
    let mut broken = config(4242, "jovian");
    broken["optimism"] = json!(true);
    let error = ChainSpec::new(serde_json::from_value(broken).unwrap(), std::time::Duration::from_secs(2))
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("config.optimism: ") && error.contains("expected an object"), "{error}");
    let mut broken = config(4242, "jovian");
    broken["canyonTime"] = json!("soon");
    let error = ChainSpec::new(serde_json::from_value(broken).unwrap(), std::time::Duration::from_secs(2))
        .unwrap_err()
        .to_string();
    assert!(error.contains("canyonTime") && error.contains("expected a Unix time"), "{error}");
}
