//! Reads: a run ends the same on every snapshot that has the same values at what it has read.

use std::sync::Arc;

use alloy_consensus::Header;
use alloy_genesis::Genesis;
use alloy_primitives::{Address, B256, Bytes, U256};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use serde_json::{Value, json};
use support::say;

use super::random_bundles::{ACCOUNTS, FROM, POOL_CODES, SLOTS, address, bundle, pool_code};
use crate::{
    chain::{Attributes, BlockBody, BlockGas, BlockHashes, ChainSpec, SealedBlock, genesis_block},
    engine::{BaseFeeRule, BlockContext, ContextChange, Engine, Outputs, SimulationRules},
    ledger::{OpenBlock, Snapshot},
    rpc::{ShapeLimits, SimulationView, dialect::PRESIM, parse_presim_simulation, write_simulation},
    state::{AccountReads, BlockReads, CodeCache, LocalWorld, Overlay, ReadSet, Touched, World},
};

const RULES: SimulationRules = SimulationRules {
    base_fee: BaseFeeRule::Block,
    keeps_prev_randao: true,
    block_time: Some(std::time::Duration::from_secs(2)),
    state_roots: false,
    gas_cap: 50_000_000,
    max_blocks: 256,
    max_trace: 1 << 20,
    estimate_tolerance: 0.0,
};
const SHAPE: ShapeLimits = ShapeLimits { max_blocks: 256, max_block_calls: 100, max_calls: 100, max_search_runs: 100 };

/// A chain of which any snapshot can be made.
struct Chain {
    spec: ChainSpec,
    codes: CodeCache,
    first: Snapshot,
}

impl Chain {
    fn new() -> Self {
        let genesis: Genesis = serde_json::from_value(json!({
            "config": {
                "chainId": 1, "homesteadBlock": 0, "eip150Block": 0, "eip155Block": 0, "eip158Block": 0,
                "byzantiumBlock": 0, "constantinopleBlock": 0, "petersburgBlock": 0, "istanbulBlock": 0,
                "berlinBlock": 0, "londonBlock": 0, "terminalTotalDifficulty": 0, "shanghaiTime": 0,
                "cancunTime": 0, "pragueTime": 0,
            },
            "alloc": {}, "gasLimit": "0x1c9c380", "difficulty": "0x0", "baseFeePerGas": "0x7",
        }))
        .unwrap();
        let spec = ChainSpec::new(genesis.config.clone(), std::time::Duration::from_secs(2)).unwrap();
        let codes = CodeCache::new(1 << 24);
        let world = LocalWorld::of_genesis(&genesis, &codes);
        let block = genesis_block(&genesis, &spec, world.state_root());
        let mut hashes = BlockHashes::default();
        hashes.push(0, block.hash());
        let first = Snapshot::at_head(world, Arc::new(block), hashes);
        Self { spec, codes, first }
    }

    /// Returns a snapshot of a random state, with a block open or not.
    fn snapshot(&self, random: &mut SmallRng) -> Snapshot {
        let mut world = self.first.world.clone();
        for _ in 0..30 {
            world = self.changed(&world, random).0;
        }
        let open = (random.random_range(0..3) > 0).then(|| OpenBlock::new(self.header(random)));
        Snapshot::new(world, self.first.head.clone(), open, self.first.hashes.clone())
    }

    /// Returns the header of a block that follows the first, with random fields.
    fn header(&self, random: &mut SmallRng) -> Header {
        let mut header = self.spec.next_header(
            &self.first.head.header,
            1,
            Attributes {
                timestamp: 2,
                fee_recipient: address(random.random_range(0..2)),
                prev_randao: B256::with_last_byte(random.random_range(0..2)),
                beacon_root: B256::ZERO,
                gas_limit: 0x1c9c380,
            },
        );
        header.base_fee_per_gas = Some(random.random_range(7..9));
        header
    }

    /// Returns a world with a random change, and the change.
    fn changed(&self, world: &World, random: &mut SmallRng) -> (World, Touched) {
        let mut overlay = Overlay::new(world.clone(), self.first.hashes.clone());
        let account = match random.random_range(0..16) {
            0 => FROM.parse().unwrap(),
            1 => Address::with_last_byte(0xee),
            _ => address(random.random_range(0..ACCOUNTS)),
        };
        match random.random_range(0..8) {
            0 | 1 => overlay.set(account, Some(U256::from(random.random_range(0..5) * 50)), None, None),
            2 => overlay.set(account, None, Some(random.random_range(0..3)), None),
            3 => {
                let code: Bytes = pool_code(random.random_range(0..POOL_CODES)).parse().unwrap();
                overlay.set(account, None, None, Some(self.codes.chain(code)));
            }
            4 if random.random_range(0..4) == 0 => overlay.set(account, Some(U256::MAX), None, None),
            _ => {
                let slot = U256::from(random.random_range(0..SLOTS));
                overlay.set_slot(account, slot, U256::from(random.random_range(0..3)));
            }
        }
        let (after, changes) = overlay.changed();
        let mut touched = Touched::default();
        touched.add(world, &changes);
        (after, touched)
    }

    /// Returns another snapshot, after random changes of the state, of the block, or of both.
    fn next(&self, snapshot: &Snapshot, random: &mut SmallRng) -> (Snapshot, Touched) {
        let (mut world, mut touched) = (snapshot.world.clone(), Touched::default());
        let changes = random.random_range(0..4);
        for _ in 0..changes {
            let (after, more) = self.changed(&world, random);
            touched.merge(&more);
            world = after;
        }
        let mut open = snapshot.open.clone();
        if let Some(open) = &mut open
            && (changes == 0 || random.random_range(0..4) == 0)
        {
            let header = &mut open.header;
            match random.random_range(0..8) {
                0 => header.timestamp += 1,
                1 => header.beneficiary = address(random.random_range(0..2)),
                2 => header.base_fee_per_gas = header.base_fee_per_gas.map(|fee| fee + 1),
                3 => header.gas_limit += 1_000,
                4 => header.mix_hash = B256::repeat_byte(9),
                5 => open.blob_gas_used += 1 << 17,
                // The gas that is left may be too little, or be seen.
                _ => {
                    let regular = open.gas.regular + random.random_range(0..4) * 9_950_000;
                    open.set_gas(BlockGas { regular, state: 0 });
                }
            }
        }
        let mut hashes = snapshot.hashes.clone();
        let mut head = snapshot.head.clone();
        if random.random_range(0..8) == 0 {
            // Another block at the same height, or the next one.
            let number = head.number() + random.random_range(0..2);
            let excess_blob_gas = Some(random.random_range(0..2) << 24);
            let header = Header { number, excess_blob_gas, extra_data: "other".into(), ..head.header.inner().clone() };
            let body = BlockBody::default();
            head = Arc::new(SealedBlock::new(header, body));
            hashes.push(number, head.hash());
            open = None;
        }
        (Snapshot::new(world, head, open, hashes), touched)
    }

    /// Runs a bundle. Returns the answer as bytes, and what it read.
    fn run(&self, snapshot: &Snapshot, bundle: &Value, records: bool) -> (Vec<u8>, ReadSet) {
        let params = json!([bundle, "pending"]).to_string();
        let request = parse_presim_simulation(&params, &PRESIM, &SHAPE).unwrap();
        let mut overlay = Overlay::new(snapshot.world.clone(), snapshot.hashes.clone());
        overlay.record_reads(records);
        let mut engine = Engine { spec: &self.spec, rules: &RULES, codes: &self.codes, overlay: &mut overlay };
        let simulated = engine.simulate(snapshot, &request.simulation);
        let mut out = Vec::new();
        match simulated {
            Ok(simulated) => {
                let outputs = request.simulation.outputs;
                let view = SimulationView {
                    dialect: &PRESIM,
                    names_fork: true,
                    outputs,
                    full_transactions: false,
                    errors: None,
                    reads: None,
                    limit: usize::MAX,
                };
                assert!(!outputs.contains(Outputs::READ_SET));
                write_simulation(&mut out, &simulated, &view).unwrap();
            }
            Err(error) => out = format!("{} {error}", error.code()).into_bytes(),
        }
        (out, overlay.reads())
    }

    fn context(&self, snapshot: &Snapshot) -> BlockContext {
        BlockContext::of(&self.spec, snapshot, &RULES).unwrap()
    }
}

/// A kind of reads.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Part(AccountReads),
    Slots,
    Field(BlockReads),
    Hashes,
    Gas,
    /// Whether an account was accessed at all.
    Access,
}

/// The kinds of reads whose lack is seen. What the recorder notes as read everywhere is more than single fields.
const KINDS: [Kind; 17] = [
    Kind::Part(AccountReads::BALANCE),
    Kind::Part(AccountReads::NONCE),
    Kind::Part(AccountReads::CODE),
    Kind::Part(AccountReads::EXISTENCE),
    Kind::Part(AccountReads::STORAGE),
    Kind::Slots,
    Kind::Field(BlockReads::NUMBER),
    Kind::Field(BlockReads::TIMESTAMP),
    Kind::Field(BlockReads::FEE_RECIPIENT),
    Kind::Field(BlockReads::PREV_RANDAO),
    Kind::Field(BlockReads::GAS_LIMIT),
    Kind::Field(BlockReads::BASE_FEE),
    Kind::Field(BlockReads::BLOB_BASE_FEE),
    Kind::Field(BlockReads::GAS_LEFT),
    Kind::Hashes,
    Kind::Gas,
    Kind::Access,
];

impl Kind {
    /// Returns a set of reads without this kind.
    fn left_out(self, reads: &ReadSet) -> ReadSet {
        let mut reads = reads.clone();
        match self {
            Self::Part(part) => reads.accounts.iter_mut().for_each(|account| account.parts -= part),
            Self::Slots => reads.accounts.iter_mut().for_each(|account| account.slots.clear()),
            Self::Field(field) => reads.block -= field,
            Self::Hashes => reads.hashes.clear(),
            Self::Gas => reads.gas = 0,
            Self::Access => {
                reads.accounts.retain(|account| !account.parts.is_empty() || !account.slots.is_empty());
            }
        }
        reads
    }
}

/// Returns whether anything that was read of the state is among the `touched` parts.
fn is_touched(reads: &ReadSet, touched: &Touched) -> bool {
    let mut accounts = touched.accounts();
    reads.everything
        || accounts.any(|(address, account)| {
            reads.accounts.iter().filter(|read| read.address == *address).any(|read| {
                account.parts.intersects(read.parts)
                    || account.all_slots && !read.slots.is_empty()
                    || read.slots.iter().any(|slot| account.slots.contains(slot))
            })
        })
}

/// Returns whether a run that read this may end otherwise after a change of its block.
fn follows_from(reads: &ReadSet, change: &ContextChange) -> bool {
    let has_accessed = |address: &Address| reads.accounts.iter().any(|account| account.address == *address);
    reads.everything
        || change.everything
        || reads.block.intersects(change.fields)
        || reads.gas > change.gas_left
        || change.hashes && !reads.hashes.is_empty()
        || change.recipients.is_some_and(|recipients| recipients.iter().any(has_accessed))
}

/// The steps of the suite. More are run with `PRESIM_READ_STEPS`.
const STEPS: u64 = 4_000;

#[test]
fn a_run_ends_the_same_wherever_what_it_read_is_the_same() {
    let chain = Chain::new();
    let steps = std::env::var("PRESIM_READ_STEPS").map_or(STEPS, |steps| steps.parse().unwrap());
    let (mut changed, mut due, mut everything) = (0, 0, 0);
    let mut found: Vec<Kind> = Vec::new();
    for seed in 0..steps {
        let mut random = SmallRng::seed_from_u64(seed);
        let snapshot = chain.snapshot(&mut random);
        let bundle = bundle(&mut random, seed % 2 == 0);
        let (before, reads) = chain.run(&snapshot, &bundle, true);
        assert_eq!(before, chain.run(&snapshot, &bundle, false).0, "seed {seed}: recording changes nothing");
        everything += u64::from(reads.everything);
        let context = chain.context(&snapshot);
        for _ in 0..4 {
            let (next, touched) = chain.next(&snapshot, &mut random);
            let after = chain.run(&next, &bundle, false).0;
            let change = context.change_to(&chain.context(&next));
            let is_due = |reads: &ReadSet| is_touched(reads, &touched) || follows_from(reads, &change);
            due += u64::from(is_due(&reads));
            if after == before {
                continue;
            }
            changed += 1;
            assert!(
                is_due(&reads),
                "seed {seed}: not due, and another answer\n{bundle}\n{}\n{}\n{reads:?}\n{touched:?}\n{change:?}",
                String::from_utf8_lossy(&before),
                String::from_utf8_lossy(&after)
            );
            for kind in KINDS {
                if !found.contains(&kind) && !is_due(&kind.left_out(&reads)) {
                    found.push(kind);
                }
            }
        }
    }
    let runs = 4 * steps;
    say(&format!(
        "{runs} changes: {due} made a run due, {changed} its answer another; {everything} of {steps} read everything"
    ));
    let unseen: Vec<Kind> = KINDS.into_iter().filter(|kind| !found.contains(kind)).collect();
    assert!(unseen.is_empty(), "nothing fails without these reads: {unseen:?}");
    // Most changes are of something else.
    assert!(due < runs * 6 / 10 && everything < steps / 3, "{due} of {runs}, {everything} read everything");
}
