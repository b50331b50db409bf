//! The bound of precompiles in a short run. The meter ticks on opcodes alone, so it counts their gas.

use crate::{
    engine::{
        BaseFeeRule, Call, CallOutcome, CallRequest, Engine, SimBlock, Simulation, SimulationError, SimulationRules,
        load_kzg_settings,
    },
    meter::{Meter, Stopped},
    state::{CodeCache, Overlay},
};
use alloy_primitives::{Address, Bytes, TxKind};

use super::{
    blocks,
    built::BuiltChain,
    precompiled::{CALL_GAS, PAIRING, at, failing, pair},
};

const IDENTITY: u8 = 0x04;

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
