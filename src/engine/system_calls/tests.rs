//! The system calls of simulated blocks, beside those of executed blocks, which the EVM runs.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use alloy_consensus::Header;
use alloy_eips::eip7928::compute_block_access_list_hash;
use alloy_genesis::{ChainConfig, Genesis, GenesisAccount};
use alloy_primitives::{B256, U256};
use proptest::prelude::*;

use self::system_contracts::contracts;
use crate::{
    chain::{BlockBody, BlockHashes, ChainSpec, SealedBlock},
    engine::{BaseFeeRule, BlockOverrides, ChainExecutor, Engine, SimBlock, Simulation, SimulationRules},
    ledger::Snapshot,
    meter::Meter,
    state::{CodeCache, LocalWorld, Overlay, World},
};

#[path = "../../../tests/suite/system_contracts.rs"]
mod system_contracts;

/// The number of parent hashes, and of beacon roots, that their contracts keep.
const KEPT: u64 = 8_191;

/// The account at the address of a system contract before the first block.
#[derive(Clone, Copy, Debug)]
enum AtAddress {
    Nothing,
    Ether,
    Contract,
    /// The contract's code with one more byte, which never runs: presim does not know it.
    UnknownContract,
}

/// A chain at its head, and the next blocks, which have no transactions.
#[derive(Clone, Debug)]
struct EmptyBlocks {
    number: u64,
    timestamp: u64,
    root: B256,
    contracts: [AtAddress; 6],
    /// Slots of each contract: of the queues those that count, of the others those that the first block writes.
    slots: [[U256; 4]; 6],
    count: usize,
}

/// Returns the rules of Prague, or of Amsterdam, from the start.
fn spec(amsterdam_time: Option<u64>) -> ChainSpec {
    let config = ChainConfig {
        london_block: Some(0),
        terminal_total_difficulty: Some(U256::ZERO),
        shanghai_time: Some(0),
        cancun_time: Some(0),
        prague_time: Some(0),
        osaka_time: amsterdam_time,
        amsterdam_time,
        ..ChainConfig::default()
    };
    ChainSpec::new(config, Duration::from_secs(12)).expect("a chain")
}

impl EmptyBlocks {
    fn world(&self) -> LocalWorld {
        let mut genesis = Genesis::default();
        for (index, (address, code)) in contracts().into_iter().enumerate() {
            let code = match self.contracts[index] {
                AtAddress::Nothing => continue,
                AtAddress::Ether => None,
                AtAddress::Contract => Some(code.clone()),
                AtAddress::UnknownContract => Some([&code[..], &[0]].concat().into()),
            };
            let time = (self.timestamp + 12) % KEPT;
            let places = match index {
                0 => [self.number % KEPT, (self.number + 1) % KEPT, 2, 3],
                1 => [time, time + KEPT, 2, 3],
                _ => [0, 1, 2, 3],
            };
            let slots: BTreeMap<B256, B256> = places
                .map(|place| U256::from(place).into())
                .into_iter()
                .zip(self.slots[index].map(B256::from))
                .collect();
            let account =
                GenesisAccount { balance: U256::ONE, code, storage: Some(slots), ..GenesisAccount::default() };
            genesis.alloc.insert(address, account);
        }
        LocalWorld::of_genesis(&genesis, &CodeCache::new(1 << 20))
    }

    /// Simulates the blocks. Returns their headers.
    fn simulated(&self, spec: &ChainSpec) -> Vec<Header> {
        let parent = Header {
            number: self.number,
            timestamp: self.timestamp,
            gas_limit: 30_000_000,
            base_fee_per_gas: Some(7),
            excess_blob_gas: Some(0),
            blob_gas_used: Some(0),
            ..Header::default()
        };
        let snapshot = Snapshot::at_head(
            self.world(),
            Arc::new(SealedBlock::new(parent, BlockBody::default())),
            BlockHashes::default(),
        );
        let rules = SimulationRules {
            base_fee: BaseFeeRule::ZeroWhenFree,
            keeps_prev_randao: false,
            block_time: Some(Duration::from_secs(12)),
            state_roots: true,
            gas_cap: u64::MAX,
            max_blocks: 256,
            max_trace: 1 << 20,
            estimate_tolerance: 0.0,
        };
        let mut overlay = Overlay::new(snapshot.world.clone(), snapshot.hashes.clone());
        overlay.meter = Meter::until(std::time::Instant::now() + Duration::from_secs(120), Arc::default(), None);
        let block = BlockOverrides { beacon_root: Some(self.root), ..BlockOverrides::default() };
        let block = SimBlock { block, ..SimBlock::default() };
        let simulation = Simulation { blocks: vec![block; self.count], ..Simulation::default() };
        let codes = CodeCache::new(1 << 20);
        let mut engine = Engine { spec, rules: &rules, codes: &codes, overlay: &mut overlay };
        let simulated = engine.simulate(&snapshot, &simulation).expect("empty blocks");
        simulated.blocks.into_iter().map(|block| block.listing.expect("a header").header.into_inner()).collect()
    }
}

/// Blocks at random, with queues that are empty, full, or out of any order.
fn empty_blocks() -> impl Strategy<Value = EmptyBlocks> {
    let contract = prop_oneof![
        1 => Just(AtAddress::Nothing),
        1 => Just(AtAddress::Ether),
        4 => Just(AtAddress::Contract),
        1 => Just(AtAddress::UnknownContract),
    ]
    .boxed();
    let slot = prop_oneof![
        4 => Just(U256::ZERO),
        3 => (0_u64..6).prop_map(U256::from),
        1 => Just(U256::MAX),
        1 => Just(U256::MAX - U256::ONE),
        1 => any::<[u8; 32]>().prop_map(U256::from_be_bytes),
    ]
    .boxed();
    let fields = (
        prop_oneof![0_u64..3, 0..u64::MAX / 2],
        0..u64::MAX / 2,
        any::<[u8; 32]>().prop_map(B256::from),
        prop::array::uniform6(contract),
        prop::array::uniform6(prop::array::uniform4(slot).boxed()).boxed(),
        1_usize..4,
    );
    fields.prop_map(|(number, timestamp, root, contracts, slots, count)| EmptyBlocks {
        number,
        timestamp,
        root,
        contracts,
        slots,
        count,
    })
}

#[test]
fn a_simulated_empty_block_has_the_state_and_the_requests_of_an_executed_one() {
    let cases = ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() };
    let forks = [None, Some(0)].map(spec);
    proptest!(cases, |(blocks in empty_blocks(), at in 0_usize..2)| {
        let spec = &forks[at];
        let mut world = World::from(blocks.world());
        for header in blocks.simulated(spec) {
            let mut overlay = Overlay::new(world, BlockHashes::default());
            let mut executor = ChainExecutor::new(spec, &mut overlay, &header, None, &[]);
            executor.begin().expect("the first system calls");
            let requests = executor.finish([]).expect("the last system calls").requests;
            let list = overlay.take_access_list().as_deref().map(compute_block_access_list_hash);
            prop_assert_eq!(header.block_access_list_hash, list);
            world = overlay.changed_world();
            let root = world.local().expect("the whole state").state_root();
            prop_assert_eq!((header.state_root, header.requests_hash), (root, Some(requests.requests_hash())));
        }
    });
}
