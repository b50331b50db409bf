//! A block of Amsterdam on a cold cache: executed, and applied from its access list (EIP-7928). All on one thread, so that the time is that
//! of the processor.

use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope};
use alloy_eips::{eip4895::Withdrawals, eip7928::compute_block_access_list_hash};
use alloy_primitives::{Address, B256, TxKind, U256};
use alloy_signer::SignerSync;
use alloy_sol_types::{SolCall, sol};
use presim::{
    chain::{Attributes, BlockHashes, ChainSpec, ChainTx, ForkTime, genesis_block, receipts_root_and_bloom, set_forks},
    engine::{execute_block, open_block, seal},
    ledger::Snapshot,
    source::{
        devnet::world::{add_contracts_of_forks, build, dev_genesis, dev_signers, traffic_signers},
        sub_block::extend,
    },
    state::{CodeCache, RemoteSettings, RemoteState, World, listed_changes},
    upstream::recover,
};

/// The transactions of the block. They take about 300 Mgas.
const TRANSACTIONS: usize = 3_000;
const GAS_LIMIT: u64 = 2_000_000_000;
const TIME: u64 = 1_800_000_000;

sol! {
    function swapExactETHForTokens(uint256 amountOutMin, address[] path, address to, uint256 deadline);
}

/// Prints the medians of so many runs, and returns the ratios of applying to executing: with the recovery of the senders and the roots of
/// receipts, and without.
pub fn run(runs: usize) -> (f64, f64) {
    let signers: Vec<_> = dev_signers().expect("keys").into_iter().chain(traffic_signers().expect("keys")).collect();
    let mut genesis = dev_genesis(&signers, TIME);
    let fork: ForkTime = "amsterdam=0".parse().expect("a fork");
    set_forks(&mut genesis.config, &[fork]).expect("a known fork");
    add_contracts_of_forks(&mut genesis);
    genesis.gas_limit = GAS_LIMIT;
    let spec = ChainSpec::new(genesis.config.clone(), Duration::from_secs(12)).expect("a chain");
    let codes = CodeCache::new(1 << 24);
    let (world, trading) = build(&genesis, &spec, &signers, &codes).expect("a world");
    let block = genesis_block(&genesis, &spec, world.state_root_in_parallel());
    let hash = block.hash();
    let first = Snapshot::sealed(world, Arc::new(block), BlockHashes::default());
    let attributes = Attributes {
        timestamp: TIME + 12,
        fee_recipient: Address::repeat_byte(0xfe),
        prev_randao: B256::ZERO,
        beacon_root: B256::ZERO,
        gas_limit: GAS_LIMIT,
    };
    let opened = open_block(&spec, &first, attributes).expect("it opens").snapshot;
    // Each swap ends at an account of its own.
    let transactions = (0..TRANSACTIONS).map(|at| {
        let to = Address::left_padding_from(&(at as u64 + (1 << 40)).to_be_bytes());
        let (path, deadline) = (vec![trading.weth, trading.alpha], U256::MAX);
        let call = swapExactETHForTokensCall { amountOutMin: U256::ZERO, path, to, deadline };
        let tx = TxEip1559 {
            chain_id: spec.chain_id(),
            nonce: nonce(&first, signers[at % signers.len()].address()) + (at / signers.len()) as u64,
            gas_limit: 500_000,
            max_fee_per_gas: 10_000_000_000,
            max_priority_fee_per_gas: 1_000_000_000,
            to: TxKind::Call(trading.router),
            value: U256::from(1_000_000_000_000_u64),
            input: call.abi_encode().into(),
            ..TxEip1559::default()
        };
        let signature = signers[at % signers.len()].sign_hash_sync(&tx.signature_hash()).expect("a signature");
        ChainTx::Signed(TxEnvelope::Eip1559(tx.into_signed(signature)))
    });
    let raw: Vec<ChainTx> = transactions.collect();
    let sent = recover(raw.clone()).expect("signatures");
    let open = opened.open.as_ref().expect("a block");
    let grown = extend(&spec, &opened, open, |block| {
        sent.iter().for_each(|tx| assert!(block.push(tx.clone()).expect("it fits"), "the state is there"));
    });
    let open = grown.snapshot.open.as_ref().expect("a block");
    let (sealed, _) = seal(&spec, &grown.snapshot, open, Withdrawals::default()).expect("it ends");
    let (header, body) = (sealed.snapshot.head.header.inner().clone(), sealed.snapshot.head.body());
    let list = body.access_list.as_ref().expect("a list");
    println!(
        "  {} transactions, {} Mgas, a list of {} accounts",
        body.transactions.len(),
        header.gas_used / 1_000_000,
        list.len()
    );
    let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
    let timed = |work: &(dyn Fn() + Sync)| {
        let mut times: Vec<f64> = (0..runs)
            .map(|_| {
                one_thread.install(|| {
                    let began = Instant::now();
                    work();
                    began.elapsed().as_secs_f64() * 1e3
                })
            })
            .collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let around = || {
        black_box(recover(raw.clone()).expect("signatures"));
        black_box(receipts_root_and_bloom(&body.receipts));
    };
    let execute = || {
        let none = Withdrawals::default();
        black_box(execute_block(&spec, &first, &header, &sent, &[], Some(&none)).expect("it runs"));
    };
    let apply = || {
        let view = RemoteState::begin(RemoteSettings::of_bytes(256 << 20), 0, hash);
        assert_eq!(Some(compute_block_access_list_hash(list)), header.block_access_list_hash);
        let changes = listed_changes(list, &World::on(view.clone()), &codes);
        black_box(view.advance_by_list(1, sealed.snapshot.head_hash(), &changes).expect("it comes next"));
    };
    let (around, execute, apply) = (timed(&around), timed(&execute), timed(&apply));
    println!("  executing {execute:.1} ms, applying {apply:.1} ms, senders and receipts {around:.1} ms");
    ((around + apply) / (around + execute), apply / execute)
}

fn nonce(on: &Snapshot, account: Address) -> u64 {
    on.world.local().and_then(|world| world.account(&account).map(|account| account.nonce)).unwrap_or_default()
}
