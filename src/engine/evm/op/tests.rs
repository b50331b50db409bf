//! The rules of the OP stack by fork, one transaction at a time: the ends of deposits, fees, limits of precompiles.

use std::time::Duration;

use alloy_consensus::{Header, SignableTransaction, TxEip1559, TxEnvelope, transaction::Recovered};
use alloy_evm::{Evm, EvmEnv, FromRecoveredTx};
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, address};
use alloy_signer::SignerSync;
use alloy_signer_local::PrivateKeySigner;
use op_alloy::consensus::TxDeposit;
use revm::{
    DatabaseCommit,
    context::{BlockEnv, CfgEnv, result::ExecutionResult},
    context_interface::block::BlobExcessGasAndPrice,
};
use serde_json::json;
use support::op_chain::{BASE_FEE_VAULT, L1_BLOCK, L1_FEE_VAULT, OPERATOR_FEE_VAULT, SEQUENCER_FEE_VAULT, config};

use crate::{
    chain::{BlockHashes, ChainSpec, ChainTx, OpFork, OpTx},
    engine::{ChainExecutor, OpStack, RunEvm, RunPrecompiles},
    state::{CodeCache, Overlay, World},
};

const CHAIN_ID: u64 = 10;
const SENDER: Address = Address::repeat_byte(0x5e);
const CONTRACT: Address = Address::repeat_byte(0xc0);
const BASE_FEE: u64 = 1_000;
const GAS: u64 = 200_000;

const FORKS: [OpFork; 11] = [
    OpFork::Bedrock,
    OpFork::Regolith,
    OpFork::Canyon,
    OpFork::Ecotone,
    OpFork::Fjord,
    OpFork::Granite,
    OpFork::Holocene,
    OpFork::Isthmus,
    OpFork::Jovian,
    OpFork::Azul,
    OpFork::Karst,
];

/// Returns a state with L1 parameters of every fork, and a contract with this code.
fn state(code: &[u8]) -> Overlay {
    let mut overlay = Overlay::new(World::default(), BlockHashes::default());
    let codes = CodeCache::new(1 << 16);
    overlay.set(CONTRACT, None, Some(1), Some(codes.chain(Bytes::copy_from_slice(code))));
    overlay.set(L1_BLOCK, None, Some(1), None);
    let scalars = (U256::from(2_000_000) << 96) | (U256::from(3_000_000) << 64);
    let operator = (U256::from(400) << 96) | (U256::from(5_000_000) << 64) | U256::from(77);
    let slots = [(1, U256::from(9)), (3, scalars), (5, U256::from(188)), (6, U256::from(684_000)), (7, U256::from(4))];
    for (slot, value) in slots.into_iter().chain([(8, operator)]) {
        overlay.set_slot(L1_BLOCK, U256::from(slot), value);
    }
    overlay
}

fn run(fork: OpFork, overlay: &mut Overlay, tx: &ChainTx, sender: Address) -> ExecutionResult {
    let chain = ChainSpec::new(serde_json::from_value(config(CHAIN_ID, "karst")).unwrap(), Duration::from_secs(2));
    let cfg = CfgEnv::new_with_spec(fork).with_chain_id(CHAIN_ID);
    let blobs = BlobExcessGasAndPrice { excess_blob_gas: 0, blob_gasprice: 1 };
    let block = BlockEnv {
        number: U256::from(7),
        timestamp: U256::from(1_000),
        beneficiary: SEQUENCER_FEE_VAULT,
        gas_limit: 60_000_000,
        basefee: BASE_FEE,
        prevrandao: Some(Default::default()),
        blob_excess_gas_and_price: (fork >= OpFork::Ecotone).then_some(blobs),
        ..BlockEnv::default()
    };
    let precompiles = RunPrecompiles::of(&chain.unwrap(), fork);
    let mut evm = RunEvm::<OpStack>::new(overlay, EvmEnv::new(cfg, block), precompiles);
    let ran = evm.transact_raw(OpTx::from_recovered_tx(tx, sender)).expect("a valid transaction");
    evm.db_mut().commit(ran.state);
    ran.result
}

fn deposit(to: TxKind, input: Bytes, value: u64, is_system_transaction: bool) -> ChainTx {
    let (value, gas_limit) = (U256::from(value), GAS);
    TxDeposit { from: SENDER, to, mint: 50, value, gas_limit, is_system_transaction, input, ..TxDeposit::default() }
        .into()
}

fn signed(to: Address, gas_limit: u64, input: Bytes) -> (ChainTx, Address) {
    let (max_fee_per_gas, max_priority_fee_per_gas) = (u128::from(BASE_FEE) + 10, 10);
    let (chain_id, to) = (CHAIN_ID, TxKind::Call(to));
    let tx =
        TxEip1559 { chain_id, gas_limit, max_fee_per_gas, max_priority_fee_per_gas, to, input, ..TxEip1559::default() };
    let signer = PrivateKeySigner::from_bytes(&B256::repeat_byte(1)).expect("a key");
    let signature = signer.sign_hash_sync(&tx.signature_hash()).expect("a signature");
    (TxEnvelope::from(tx.into_signed(signature)).into(), signer.address())
}

#[test]
fn a_failed_deposit_keeps_its_mint_and_uses_its_nonce() {
    let invalid = vec![0xfe];
    let too_long = Bytes::from(vec![0; 49_153]);
    for fork in FORKS {
        let to_contract = deposit(CONTRACT.into(), Bytes::new(), 0, false);
        let without_funds = deposit(CONTRACT.into(), Bytes::new(), 51, false);
        let creates_without_funds = deposit(TxKind::Create, Bytes::new(), 51, false);
        let creates = deposit(TxKind::Create, Bytes::from_static(&[0xfe]), 7, false);
        for tx in [to_contract, without_funds, creates_without_funds, creates] {
            let mut overlay = state(&invalid);
            let result = run(fork, &mut overlay, &tx, SENDER);
            assert!(result.is_halt() && result.tx_gas_used() == GAS, "{fork:?}: {result:?}");
            assert_eq!(overlay.balance_and_nonce(SENDER), (U256::from(50), 1), "{fork:?}: {tx:?}");
            assert_eq!(overlay.balance_and_nonce(CONTRACT), (U256::ZERO, 1));
        }
        // A deposit is processed like a transaction of type 2, for which EIP-3860 holds from Canyon on.
        let mut tx = TxDeposit { gas_limit: 3_000_000, from: SENDER, to: TxKind::Create, ..TxDeposit::default() };
        tx.input = too_long.clone();
        let result = run(fork, &mut state(&[]), &tx.into(), SENDER);
        assert_eq!(result.is_success(), fork < OpFork::Canyon, "{fork:?}: {result:?}");
    }
}

#[test]
fn before_regolith_a_deposit_uses_its_limit_or_nothing() {
    // The contracts stop, revert, and halt.
    for code in [vec![0x00], vec![0x5f, 0x5f, 0xfd], vec![0xfe]] {
        for (is_system, used) in [(false, GAS), (true, 0)] {
            let tx = deposit(CONTRACT.into(), Bytes::new(), 0, is_system);
            assert_eq!(run(OpFork::Bedrock, &mut state(&code), &tx, SENDER).tx_gas_used(), used, "{code:x?}");
        }
    }
    // From Regolith on the gas is the real one, and no deposit is the system's.
    let stops = deposit(CONTRACT.into(), Bytes::new(), 0, false);
    assert_eq!(run(OpFork::Regolith, &mut state(&[0x00]), &stops, SENDER).tx_gas_used(), 21_000);
    let system = deposit(CONTRACT.into(), Bytes::new(), 0, true);
    let result = run(OpFork::Regolith, &mut state(&[0x00]), &system, SENDER);
    assert!(result.is_halt() && result.tx_gas_used() == GAS, "{result:?}");
}

#[test]
fn fees_make_and_burn_no_ether() {
    // The contract clears a slot, so that a part of the gas is refunded, or reverts.
    for code in [vec![0x60, 0, 0x60, 1, 0x55], vec![0x60, 0, 0x60, 0, 0xfd]] {
        for fork in FORKS {
            let mut overlay = state(&code);
            overlay.set_slot(CONTRACT, U256::ONE, U256::ONE);
            let (tx, sender) = signed(CONTRACT, GAS, Bytes::from_static(&[7; 300]));
            let had = U256::from(1_000_000_000_000_000_000_u64);
            overlay.set(sender, Some(had), None, None);
            let gas = run(fork, &mut overlay, &tx, sender).tx_gas_used();
            let mut balance = |address| overlay.balance_and_nonce(address).0;
            let paid = had - balance(sender);
            let [base, l1, operator, tip] =
                [BASE_FEE_VAULT, L1_FEE_VAULT, OPERATOR_FEE_VAULT, SEQUENCER_FEE_VAULT].map(&mut balance);
            assert_eq!(paid, base + l1 + operator + tip, "{fork:?}");
            assert_eq!((base, tip), (U256::from(gas * BASE_FEE), U256::from(gas * 10)), "{fork:?}");
            let operator_fee = match fork {
                OpFork::Jovian | OpFork::Azul | OpFork::Karst => gas * 5_000_000 * 100 + 77,
                OpFork::Isthmus => gas * 5 + 77,
                _ => 0,
            };
            assert_eq!(operator, U256::from(operator_fee), "{fork:?}");
            assert!(!l1.is_zero(), "{fork:?}");
        }
    }
}

#[test]
fn until_ecotones_parameters_are_set_bedrocks_fee_is_due() {
    for fork in [OpFork::Ecotone, OpFork::Fjord, OpFork::Karst] {
        let (tx, sender) = signed(CONTRACT, GAS, Bytes::new());
        let fee = |fork, unset: &[u64]| {
            let mut overlay = state(&[]);
            overlay.set(sender, Some(U256::from(1_000_000_000_000_000_u64)), None, None);
            for slot in unset {
                overlay.set_slot(L1_BLOCK, U256::from(*slot), U256::ZERO);
            }
            run(fork, &mut overlay, &tx, sender);
            overlay.balance_and_nonce(L1_FEE_VAULT).0
        };
        assert_eq!(fee(fork, &[3, 7]), fee(OpFork::Regolith, &[]), "{fork:?}");
        // With a blob base fee, scalars of zero are the operator's choice.
        assert_eq!(fee(fork, &[3]), U256::ZERO, "{fork:?}");
    }
}

#[test]
fn precompiles_have_the_limits_of_their_fork() {
    // The contract calls the precompile in the first word of its call data with as many zeros as the second says, and
    // returns whether the call succeeded.
    let calls = [0x5f, 0x5f, 0x60, 32, 0x35, 0x5f, 0x5f, 0x35, 0x5a, 0xfa, 0x5f, 0x52, 0x60, 32, 0x5f, 0xf3];
    let succeeds = |fork, precompile: u64, length: usize| {
        let mut overlay = state(&calls);
        let input = [U256::from(precompile), U256::from(length)].map(|word| word.to_be_bytes::<32>()).concat();
        let mut tx = TxDeposit { gas_limit: 60_000_000, from: SENDER, to: CONTRACT.into(), ..TxDeposit::default() };
        tx.input = input.into();
        let result = run(fork, &mut overlay, &tx.into(), SENDER);
        assert!(result.is_success(), "{result:?}");
        U256::from_be_slice(result.output().expect("a word")) == U256::ONE
    };
    // The longest whole number of pairs within the limit, and one pair more.
    let limits = [
        (
            8,
            192,
            vec![(OpFork::Granite, 112_687), (OpFork::Jovian, 81_984), (OpFork::Azul, 81_984), (OpFork::Karst, 57_600)],
        ),
        (0x0c, 160, vec![(OpFork::Isthmus, 513_760), (OpFork::Jovian, 288_960), (OpFork::Karst, 288_960)]),
        (0x0e, 288, vec![(OpFork::Isthmus, 488_448), (OpFork::Jovian, 278_784), (OpFork::Azul, 278_784)]),
        (0x0f, 384, vec![(OpFork::Isthmus, 235_008), (OpFork::Jovian, 156_672), (OpFork::Karst, 156_672)]),
    ];
    for (precompile, pair, forks) in limits {
        for (fork, limit) in forks {
            let within = limit / pair * pair;
            assert!(succeeds(fork, precompile, within), "{precompile:#x} in {fork:?} with {within} bytes");
            assert!(!succeeds(fork, precompile, within + pair), "{precompile:#x} in {fork:?}");
        }
    }
    assert!(succeeds(OpFork::Canyon, 8, 112_896), "before Granite there is no limit");
}

#[test]
fn canyon_deploys_its_contract_in_the_block_of_its_time() {
    let deployer = address!("13b0D85CcB8bf860b6b79AF3029fCA081AE9beF2");
    let mut rules = config(CHAIN_ID, "regolith");
    rules["canyonTime"] = json!(1_000);
    let chain = ChainSpec::new(serde_json::from_value(rules).unwrap(), Duration::from_secs(2)).unwrap();
    for (timestamp, deploys) in [(998, false), (1_000, true), (1_002, false)] {
        let header = Header { number: 5, timestamp, gas_limit: 30_000_000, ..Header::default() };
        let mut overlay = state(&[]);
        overlay.set(deployer, Some(U256::from(3)), None, None);
        ChainExecutor::new(&chain, &mut overlay, &header, None, &[]).begin().unwrap();
        let info = overlay.info(&deployer).unwrap();
        assert_eq!(info.code.is_some_and(|code| code.len() == 1_584), deploys, "{timestamp}");
        assert_eq!(info.balance, U256::from(3));
    }
}

#[test]
fn osakas_limit_of_gas_holds_for_signed_transactions_alone() {
    let cap = 1 << 24;
    let chain = ChainSpec::new(serde_json::from_value(config(CHAIN_ID, "karst")).unwrap(), Duration::from_secs(2));
    let chain = chain.unwrap();
    let header = Header {
        number: 5,
        timestamp: 1_000,
        gas_limit: 60_000_000,
        base_fee_per_gas: Some(BASE_FEE),
        parent_beacon_block_root: Some(Default::default()),
        ..Header::default()
    };
    let is_valid = |tx: ChainTx, sender| {
        let mut overlay = state(&[]);
        overlay.set(sender, Some(U256::MAX >> 8), None, None);
        let mut executor = ChainExecutor::new(&chain, &mut overlay, &header, None, &[]);
        executor.execute(&Recovered::new_unchecked(tx, sender)).is_ok()
    };
    for (gas, is_within) in [(cap, true), (cap + 1, false)] {
        let (tx, sender) = signed(CONTRACT, gas, Bytes::new());
        assert_eq!(is_valid(tx, sender), is_within, "{gas}");
        let tx = TxDeposit { gas_limit: gas, from: SENDER, to: CONTRACT.into(), ..TxDeposit::default() };
        assert!(is_valid(tx.into(), SENDER), "{gas}");
    }
}
