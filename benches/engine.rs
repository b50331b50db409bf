//! What a simulation costs, beside what revm alone costs for the same calls.
//!
//! The bodies of `../shared/bench`, each body one request on its genesis. `engine` is [`engine::simulate`] in a reused overlay, all
//! results built. `bare_revm` is the least anybody could do: the same calls in the same order on a `CacheDB`, committed, and their
//! results thrown away. `answer` is what a worker does with a request: parse, simulate, encode.

use std::{
    hint::black_box,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_eips::{
    eip2935::HISTORY_STORAGE_ADDRESS, eip4788::BEACON_ROOTS_ADDRESS, eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
    eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
};
use alloy_evm::EvmEnv;
use alloy_genesis::Genesis;
use alloy_primitives::{Address, B256, Bytes, TxKind, U256};
use criterion::{Criterion, Throughput};
use presim::{
    chain::{BlockHashes, ChainSpec, genesis_block, genesis_world},
    engine::{
        self, AccountOverride, BaseFeeRule, Call, Rules, SimBlock, SimulatedBlock, Simulation, StorageOverride,
        lift_checks,
    },
    feed::{
        apply::stand_on,
        pool::{Pool, PoolLimits},
    },
    rpc::{Asked, Backend, Filters, GasCounter, Method, RequestLimits, ShapeLimits, SyncTimeouts, dialect::PROJECT},
    state::{CodeCache, FeedState, Meter, Overlay, Published, Snapshot, Snapshots},
    store::Store,
    telemetry::Metrics,
    wallet::{Accounts, Approvals, Fees, Ledger, Policy, Wallet},
};
use revm::{
    Context, ExecuteCommitEvm, MainBuilder, MainContext, SystemCallCommitEvm,
    bytecode::Bytecode,
    context::{ContextTr, TxEnv, transaction::TransactionType},
    database::CacheDB,
};
use serde::Deserialize;
use serde_json::value::RawValue;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BODIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/bench");
const WORKLOADS: [&str; 4] = ["sim_swap", "sim_sandwich", "sim_multi", "sim_big"];
const GAS_CAP: u64 = 1 << 40;
/// The most that presim may cost, as a multiple of bare revm.
const TARGET: f64 = 1.25;

fn main() {
    let Some(chain) = Chain::load(Path::new(BODIES)) else {
        println!("engine: skipped: no genesis.json in {BODIES}");
        return;
    };
    let mut criterion = Criterion::default()
        .sample_size(15)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1200))
        .configure_from_args();
    // A profile of one bench should show that bench alone.
    let profiling = std::env::args().any(|argument| argument == "--profile-time");
    let mut ratios = Vec::new();
    for name in WORKLOADS {
        let path = Path::new(BODIES).join(name).with_extension("ndjson");
        let Ok(text) = std::fs::read_to_string(&path) else {
            println!("{name}: skipped: no {}", path.display());
            continue;
        };
        let requests: Vec<Request> = text.lines().map(|line| Request::new(&chain, line)).collect();
        bench(&mut criterion, name, &chain, &requests);
        if !profiling {
            ratios.push((name, interleaved(&chain, &requests)));
        }
    }
    println!(
        "\ntimes a body, medians of {ROUNDS} interleaved rounds (bare+system: with the system calls of each block)"
    );
    println!("{:14}{:>12}{:>12}{:>14}{:>12}{:>18}", "", "engine", "bare", "bare+system", "answer", "engine, no trace");
    for (name, [engine, bare, system, answer, untraced]) in &ratios {
        let us = |time: &f64| format!("{:.1} µs", time * 1e6);
        println!("{name:14}{:>12}{:>12}{:>14}{:>12}{:>18}", us(engine), us(bare), us(system), us(answer), us(untraced));
    }
    println!("\nratios, target engine/bare at most {TARGET}");
    for (name, [engine, bare, system, answer, untraced]) in &ratios {
        let verdict = if engine / bare <= TARGET { "met" } else { "MISSED" };
        println!(
            "{name:14} engine/bare {:.3} ({verdict})   engine/(bare+system) {:.3}   no trace/(bare+system) {:.3}   answer/engine {:.3}",
            engine / bare,
            engine / system,
            untraced / system,
            answer / engine
        );
    }
    criterion.final_summary();
}

fn bench(criterion: &mut Criterion, name: &str, chain: &Chain, requests: &[Request]) {
    let calls: usize = requests.iter().map(Request::calls).sum();
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Elements(calls as u64));
    let mut overlay = Overlay::default();
    group.bench_function("engine", |bencher| {
        bencher
            .iter(|| requests.iter().for_each(|request| drop(black_box(chain.simulate(&request.sim, &mut overlay)))));
    });
    group.bench_function("bare_revm", |bencher| {
        bencher.iter(|| requests.iter().for_each(|request| chain.bare::<false>(request, |_| {})));
    });
    let mut out = Vec::new();
    group.bench_function("answer", |bencher| {
        bencher.iter(|| requests.iter().for_each(|request| chain.answer(request, &mut overlay, &mut out)));
    });
    group.finish();
}

const ROUNDS: usize = 9;

/// Seconds a request: engine, bare revm, bare revm with system calls, answer, and the engine without traced transfers. One after
/// the other in each round, so that what disturbs the machine disturbs them alike.
fn interleaved(chain: &Chain, requests: &[Request]) -> [f64; 5] {
    let untraced: Vec<Simulation> =
        requests.iter().map(|request| Simulation { trace_transfers: false, ..request.sim.clone() }).collect();
    let (mut overlay, mut out) = (Overlay::default(), Vec::new());
    let mut rounds: [Vec<f64>; 5] = Default::default();
    for _ in 0..ROUNDS {
        let times = [
            time(requests, |request| drop(black_box(chain.simulate(&request.sim, &mut overlay)))),
            time(requests, |request| chain.bare::<false>(request, |_| {})),
            time(requests, |request| chain.bare::<true>(request, |_| {})),
            time(requests, |request| chain.answer(request, &mut overlay, &mut out)),
            time(&untraced, |sim| drop(black_box(chain.simulate(sim, &mut overlay)))),
        ];
        rounds.iter_mut().zip(times).for_each(|(all, time)| all.push(time));
    }
    rounds.map(|mut all| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    })
}

fn time<T>(items: &[T], mut run: impl FnMut(&T)) -> f64 {
    const AT_LEAST: Duration = Duration::from_millis(60);
    let (start, mut passes) = (Instant::now(), 0);
    while passes == 0 || start.elapsed() < AT_LEAST {
        items.iter().for_each(&mut run);
        passes += items.len();
    }
    start.elapsed().as_secs_f64() / passes as f64
}

/// The chain of the bodies, standing still at its genesis.
struct Chain {
    backend: Backend,
    rules: Rules,
    snapshot: Arc<Snapshot>,
    published: Arc<Published>,
}

/// A body, parsed, and what the bare loop needs to know beforehand.
struct Request {
    params: Box<RawValue>,
    sim: Simulation,
    /// The environment of each block, as the engine's own headers have it; and the parent's hash.
    envs: Vec<(EvmEnv, B256)>,
}

impl Chain {
    fn load(folder: &Path) -> Option<Self> {
        let text = std::fs::read(folder.join("genesis.json")).ok()?;
        let genesis: Genesis = serde_json::from_slice(&text).expect("a genesis");
        let spec = ChainSpec::new(genesis.config.clone(), 1);
        let codes = CodeCache::new(1 << 26);
        let world = genesis_world(&genesis, &codes);
        let block = genesis_block(&genesis, &spec, world.state_root());
        let mut hashes = BlockHashes::default();
        hashes.push(block.number(), block.hash());
        let first = stand_on(world, Arc::new(block), hashes);
        let snapshots = Arc::new(Snapshots::new(first, FeedState::Static, 1, 1));
        let shape = ShapeLimits { max_blocks: 256, max_block_calls: 5_000, max_calls: 10_000 };
        let rules = Rules {
            base_fee: BaseFeeRule::Block,
            block_time: spec.block_time(),
            state_roots: false,
            gas_cap: GAS_CAP,
            max_blocks: shape.max_blocks as u64,
            estimate_tolerance: 0.0,
        };
        let limits = PoolLimits { transactions: 0, per_account: 0, bytes: 0, price_bump: 0, min_tip: 0 };
        let (pool, codes) = (Arc::new(Pool::new(spec.clone(), limits, snapshots.clone(), None)), Arc::new(codes));
        let metrics = Metrics::default();
        let policy = Policy {
            ask: false,
            deny: true,
            max_calls: 0,
            max_bytes: 0,
            allow_upgrade: false,
            refuse_reverts: true,
            gas_margin: 0,
            executor: None,
        };
        let wallet = Wallet {
            spec: spec.clone(),
            codes: codes.clone(),
            pool: pool.clone(),
            accounts: Accounts::default(),
            fees: Fees::new(spec.clone(), limits.min_tip),
            approvals: Arc::new(Approvals::new(0, Duration::ZERO, &metrics)),
            ledger: Ledger::new(Store::in_memory(&metrics).expect("memory"), 0),
            policy,
            rules,
        };
        let backend = Backend {
            pool,
            wallet,
            filters: Filters::new(0),
            spec,
            codes,
            limits: RequestLimits {
                shape,
                gas_cap: GAS_CAP,
                max_response: 1 << 28,
                max_log_blocks: 1,
                max_logs: 1,
                max_trace: 1,
                sync: SyncTimeouts { usual: Duration::ZERO, most: Duration::ZERO },
            },
            strict_pending: false,
            gas: GasCounter(metrics::Counter::noop()),
        };
        Some(Self { backend, rules, snapshot: snapshots.newest(), published: snapshots.load() })
    }

    fn simulate(&self, simulation: &Simulation, overlay: &mut Overlay) -> Vec<SimulatedBlock> {
        let Backend { spec, codes, .. } = &self.backend;
        overlay.reset(self.snapshot.world.clone(), self.snapshot.hashes.clone(), meter());
        engine::simulate(spec, &self.snapshot, simulation, &self.rules, codes, overlay).expect("a simulation")
    }

    fn answer(&self, request: &Request, overlay: &mut Overlay, out: &mut Vec<u8>) {
        out.clear();
        let asked = Asked {
            params: request.params.get(),
            published: &self.published,
            dialect: &PROJECT,
            may_use_wallet: false,
        };
        let _ = self.backend.answer(Method::Simulate, asked, overlay, meter(), out).expect("an answer");
        black_box(out);
    }

    /// The calls of `request` in revm and nothing else; with `SYSTEM`, also the system calls that begin and end each block.
    /// `seen` gets the gas of each call.
    fn bare<const SYSTEM: bool>(&self, request: &Request, mut seen: impl FnMut(u64)) {
        let mut evm = Context::mainnet().with_db(CacheDB::new(&self.snapshot.world)).build_mainnet();
        let mut gas_left = GAS_CAP;
        for (block, (env, parent)) in request.sim.blocks.iter().zip(&request.envs) {
            evm.ctx.cfg = env.cfg_env.clone();
            evm.ctx.block = env.block_env.clone();
            let db = evm.ctx.db_mut();
            block.state.iter().for_each(|(address, account)| override_account(db, *address, account));
            let mut system = |address: Address, data: Bytes| {
                if SYSTEM {
                    evm.system_call_commit(address, data).expect("a system call");
                }
            };
            system(HISTORY_STORAGE_ADDRESS, (*parent).into());
            system(BEACON_ROOTS_ADDRESS, B256::ZERO.into());
            let mut used = 0;
            for call in &block.calls {
                let tx = TxEnv {
                    tx_type: TransactionType::Eip1559 as u8,
                    caller: call.from,
                    gas_limit: (env.block_env.gas_limit - used).min(gas_left),
                    kind: call.to,
                    value: call.value,
                    data: call.data.clone(),
                    chain_id: Some(self.backend.spec.chain_id()),
                    gas_priority_fee: Some(0),
                    ..TxEnv::default()
                };
                let gas = evm.transact_commit(tx).expect("a call").tx_gas_used();
                (used, gas_left) = (used + gas, gas_left - gas);
                seen(gas);
            }
            let mut system = |address: Address| {
                if SYSTEM {
                    evm.system_call_commit(address, Bytes::new()).expect("a system call");
                }
            };
            system(WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS);
            system(CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS);
        }
    }
}

/// As long as a worker of the node would let a request run.
fn meter() -> Meter {
    Meter::until(Instant::now() + Duration::from_secs(60), Arc::default(), None)
}

fn override_account<D: revm::DatabaseRef<Error: std::fmt::Debug>>(
    db: &mut CacheDB<D>,
    address: Address,
    account: &AccountOverride,
) {
    let known = db.load_account(address).expect("an account");
    known.info.balance = account.balance.unwrap_or(known.info.balance);
    known.info.nonce = account.nonce.unwrap_or(known.info.nonce);
    if let Some(code) = &account.code {
        known.info =
            known.info.clone().with_code_and_hash(Bytecode::new_raw(code.clone()), alloy_primitives::keccak256(code));
    }
    match &account.storage {
        StorageOverride::Keep => {}
        StorageOverride::Replace(slots) => {
            db.replace_account_storage(address, slots.iter().copied().collect()).expect("slots");
        }
        StorageOverride::Diff(slots) => known.storage.extend(slots.iter().copied()),
    }
}

impl Request {
    fn new(chain: &Chain, line: &str) -> Self {
        let body: Body = serde_json::from_str(line).expect("a request");
        let Params(payload, _) = serde_json::from_str(body.params.get()).expect("parameters as the bench knows them");
        let sim = payload.into();
        let blocks = chain.simulate(&sim, &mut Overlay::default());
        let envs = blocks
            .iter()
            .map(|block| {
                let mut env = chain.backend.spec.evm_env(&block.header);
                lift_checks(&mut env);
                env.cfg_env.disable_base_fee = true;
                (env, block.header.parent_hash)
            })
            .collect();
        let request = Self { params: body.params, sim, envs };
        request.check(chain, &blocks);
        request
    }

    fn calls(&self) -> usize {
        self.sim.blocks.iter().map(|block| block.calls.len()).sum()
    }

    /// That all three ways do the same work.
    fn check(&self, chain: &Chain, blocks: &[SimulatedBlock]) {
        let engine: Vec<u64> = blocks.iter().flat_map(|block| &block.calls).map(|call| call.gas_used).collect();
        let (mut bare, mut with_system) = (Vec::new(), Vec::new());
        chain.bare::<false>(self, |gas| bare.push(gas));
        chain.bare::<true>(self, |gas| with_system.push(gas));
        assert_eq!(engine, bare, "the engine and bare revm use the same gas");
        assert_eq!(engine, with_system, "system calls change no call's gas");
    }
}

/// A body as `../shared/bench` has them. A field that is not here stops the bench.
#[derive(Deserialize)]
struct Body {
    params: Box<RawValue>,
}

#[derive(Deserialize)]
struct Params(Payload, #[expect(dead_code, reason = "all bodies run on `latest`")] String);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Payload {
    block_state_calls: Vec<BlockParam>,
    #[serde(default)]
    trace_transfers: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct BlockParam {
    calls: Vec<CallParam>,
    #[serde(default)]
    state_overrides: std::collections::BTreeMap<Address, AccountParam>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallParam {
    from: Address,
    to: Address,
    data: Bytes,
    #[serde(default)]
    value: U256,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AccountParam {
    balance: Option<U256>,
    code: Option<Bytes>,
}

impl From<Payload> for Simulation {
    fn from(payload: Payload) -> Self {
        let blocks = payload.block_state_calls.into_iter().map(SimBlock::from).collect();
        Self { blocks, trace_transfers: payload.trace_transfers, validation: false }
    }
}

impl From<BlockParam> for SimBlock {
    fn from(block: BlockParam) -> Self {
        let overrides = block.state_overrides.into_iter().map(|(address, AccountParam { balance, code })| {
            (address, AccountOverride { balance, code, ..AccountOverride::default() })
        });
        let calls = block.calls.into_iter().map(|CallParam { from, to, data, value }| Call {
            from,
            to: TxKind::Call(to),
            data,
            value,
            ..Call::default()
        });
        Self { state: overrides.collect(), calls: calls.collect(), ..Self::default() }
    }
}
