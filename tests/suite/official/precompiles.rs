//! The bound of precompiles in a short run. The meter ticks on opcodes alone, so it counts their gas.

use alloy_primitives::{Address, Bytes, TxKind, U256, bytes};
use presim::testing::{
    engine::{
        BaseFeeRule, Call, CallOutcome, CallRequest, Engine, SimBlock, Simulation, SimulationError, SimulationRules,
        load_kzg_settings,
    },
    meter::{Meter, Stopped},
    state::{CodeCache, Overlay},
};
use serde_json::json;

use super::{blocks, built::BuiltChain};
use crate::support::{TestNode, items, number};

const IDENTITY: u8 = 0x04;
const MODEXP: u8 = 0x05;
const PAIRING: u8 = 0x08;
const POINT_EVALUATION: u8 = 0x0a;
/// Gas of each call: nearly 100,000 of it, the bound of a short run, are the precompile's.
const CALL_GAS: u64 = 120_000;

const RULES: SimulationRules = SimulationRules {
    base_fee: BaseFeeRule::ZeroWhenFree,
    keeps_prev_randao: false,
    block_time: Some(std::time::Duration::from_secs(12)),
    state_roots: false,
    gas_cap: 50_000_000,
    max_blocks: 256,
    max_trace: 1 << 20,
    estimate_tolerance: 0.0,
};

fn at(precompile: u8) -> Address {
    Address::with_last_byte(precompile)
}

/// Returns a pair for the pairing check: the generator of G1, and that of G2.
fn pair() -> Vec<u8> {
    const G2: [&str; 4] = [
        "198e9393920d483a7260bfb731fb5d25f1aa493335a9e71297e485b7aef312c2",
        "1800deef121f1e76426a00665e5c4479674322d4f75edadd46debd5cd992f6ed",
        "090689d0585ff075ec9e99ad690c3395bc4b313370b38ef355acdadcd122975b",
        "12c85ea5db8c6deb4aab71808dcb408fe3d1e7690c43d37b4ce6cc0166fa7daa",
    ];
    let g1 = [U256::from(1), U256::from(2)].map(|word| word.to_be_bytes::<32>()).concat();
    [g1, G2.map(|word| const_hex::decode(word).unwrap()).concat()].concat()
}

/// Returns calls whose precompiles fail: a modexp for which the gas is not enough, a pairing whose last point is not on
/// its curve, and a proof that is well formed and wrong.
fn failing() -> [(u8, Bytes); 3] {
    let lengths = [1, 512, 512].map(|length| U256::from(length).to_be_bytes::<32>()).concat();
    let modexp = [lengths, vec![0xff; 1025]].concat();
    let mut pairing = pair();
    *pairing.last_mut().unwrap() ^= 1;
    // The commitment to the polynomial that is zero everywhere, and a value of one.
    let infinity = [vec![0xc0], vec![0; 47]].concat();
    let hash = bytes!("010657f37554c781402a22917dee2f75def7ab966d7b770905398eba3c444014");
    let (z, y) = (vec![0; 32], U256::ONE.to_be_bytes_vec());
    let proof = [hash.to_vec(), z, y, infinity.clone(), infinity].concat();
    [(MODEXP, modexp.into()), (PAIRING, pairing.into()), (POINT_EVALUATION, proof.into())]
}

fn call((precompile, data): &(u8, Bytes), gas: Option<u64>) -> Call {
    Call {
        from: Address::repeat_byte(0xc0),
        to: TxKind::Call(at(*precompile)),
        gas,
        data: data.clone(),
        ..Call::default()
    }
}

/// Runs `run` with a meter, on the genesis of a chain in Prague.
fn with_engine<T>(chain: &BuiltChain, meter: Meter, run: impl FnOnce(&mut Engine<'_>) -> T) -> T {
    let codes = CodeCache::new(1 << 20);
    let mut overlay = Overlay::new(chain.head().world.clone(), chain.head().hashes.clone());
    overlay.meter = meter;
    run(&mut Engine { spec: &chain.spec, rules: &RULES, codes: &codes, overlay: &mut overlay })
}

/// The meter of a run on a connection's thread.
fn short() -> Meter {
    Meter::short(12)
}

#[test]
fn precompiles_that_fail_exceed_the_bound_of_a_short_run_in_one_block_or_in_many() {
    load_kzg_settings();
    let chain = blocks::prague(&|_| {});
    // Each number is of the calls in one block. Returns whether each call succeeds, and its gas.
    let simulate = |of: &(u8, Bytes), counts: &[usize], meter: Meter| {
        let block =
            |count: &usize| SimBlock { calls: vec![call(of, Some(CALL_GAS)).into(); *count], ..SimBlock::default() };
        let simulation = Simulation { blocks: counts.iter().map(block).collect(), ..Simulation::default() };
        let blocks = with_engine(&chain, meter, |engine| engine.simulate(chain.head(), &simulation))?.blocks;
        let calls = blocks.into_iter().flat_map(|block| block.calls);
        Ok(calls.map(|call| (call.outcome == CallOutcome::Success, call.gas_used)).collect::<Vec<_>>())
    };
    let copy = (IDENTITY, Bytes::from_static(&[1; 32]));
    for failing in failing() {
        assert_eq!(simulate(&failing, &[1], short()).unwrap(), [(false, CALL_GAS)], "{failing:?}");
        for counts in [[2].as_slice(), &[1, 1]] {
            let stopped = simulate(&failing, counts, short());
            assert!(matches!(stopped, Err(SimulationError::Stopped(Stopped::TooLong))), "{failing:?}: {stopped:?}");
            assert_eq!(simulate(&failing, counts, Meter::default()).unwrap(), [(false, CALL_GAS); 2], "{failing:?}");
            assert!(simulate(&copy, counts, short()).unwrap().iter().all(|(succeeds, _)| *succeeds));
        }
    }
}

/// A run that is repeated, for an estimate or a list, is not exempt: it ends as too long, not as a fault of the node.
#[test]
fn repeated_runs_share_the_bound_of_precompiles() {
    let chain = blocks::prague(&|_| {});
    let long = (PAIRING, Bytes::from(pair().repeat(3)));
    let request = CallRequest { call: call(&long, None), ..CallRequest::default() };
    let header = chain.head().header().clone();
    let ended = |meter| {
        with_engine(&chain, meter, |engine| {
            [engine.estimate_gas(&header, &request).err(), engine.create_access_list(&header, &request).err()]
        })
    };
    for stopped in ended(short()) {
        assert!(matches!(stopped, Some(SimulationError::Stopped(Stopped::TooLong))), "{stopped:?}");
    }
    assert!(ended(Meter::default()).iter().all(Option::is_none));
}

#[tokio::test(flavor = "multi_thread")]
async fn precompiles_that_are_too_long_for_a_short_run_are_answered_by_a_longer_one() {
    let node = TestNode::quiet();
    let calls: Vec<_> = failing()
        .iter()
        .map(|(precompile, data)| json!({"to": at(*precompile), "input": data, "gas": format!("{CALL_GAS:#x}")}))
        .collect();
    for blocks in
        [json!([{"calls": calls}]), json!(calls.iter().map(|call| json!({"calls": [call]})).collect::<Vec<_>>())]
    {
        let blocks = node.result("/standard", "eth_simulateV1", json!([{"blockStateCalls": blocks}, "latest"])).await;
        let results: Vec<_> = items(&blocks).iter().flat_map(|block| items(&block["calls"]).to_vec()).collect();
        assert_eq!(results.len(), 3);
        for result in results {
            assert_eq!((&result["status"], number(&result["gasUsed"])), (&json!("0x0"), CALL_GAS), "{result}");
        }
    }
    for (call, (_, data)) in calls.iter().zip(failing()) {
        let error = node.error("/standard", "eth_call", json!([call, "latest"])).await;
        assert_eq!(error["code"], -32000, "{error} {data}");
    }
}
