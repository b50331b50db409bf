//! A block of many swaps, or of many transfers, on the devnet's world, and how long work on it takes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_consensus::transaction::Recovered;
use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope};
use alloy_eips::eip4895::Withdrawals;
use alloy_primitives::{Address, B256, Bytes, TxKind, U256};
use alloy_signer::SignerSync;
use alloy_sol_types::{SolCall, sol};
use presim::testing::{
    chain::{Attributes, BlockHashes, ChainSpec, ChainTx, ForkTime, genesis_block, set_forks},
    engine::{open_block, seal},
    ledger::Snapshot,
    source::{
        devnet::world::{add_contracts_of_forks, build, dev_genesis, dev_signers, traffic_signers},
        sub_block::extend,
    },
    state::CodeCache,
    upstream::recover,
};

const GAS_LIMIT: u64 = 2_000_000_000;
const TIME: u64 = 1_800_000_000;

sol! {
    function swapExactETHForTokens(uint256 amountOutMin, address[] path, address to, uint256 deadline);
}

/// The work of the transactions of a block. Each ends at an account of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    Swap,
    Transfer,
}

/// A block, and the state before it.
pub struct FullBlock {
    pub spec: ChainSpec,
    pub codes: CodeCache,
    pub before: Arc<Snapshot>,
    pub after: Snapshot,
    /// The transactions as they were sent, and with their senders.
    pub raw: Vec<ChainTx>,
    pub sent: Vec<Recovered<ChainTx>>,
}

impl FullBlock {
    /// Builds a block of so many transactions on a chain with these forks beside its usual ones.
    pub fn new(forks: &[&str], count: usize, doing: Doing) -> Self {
        let signers: Vec<_> =
            dev_signers().expect("keys").into_iter().chain(traffic_signers().expect("keys")).collect();
        let mut genesis = dev_genesis(&signers, TIME);
        let forks: Vec<ForkTime> = forks.iter().map(|fork| fork.parse().expect("a fork")).collect();
        set_forks(&mut genesis.config, &forks).expect("known forks");
        add_contracts_of_forks(&mut genesis);
        genesis.gas_limit = GAS_LIMIT;
        let spec = ChainSpec::new(genesis.config.clone(), Duration::from_secs(12)).expect("a chain");
        let codes = CodeCache::new(1 << 24);
        let (world, trading) = build(&genesis, &spec, &signers, &codes).expect("a world");
        let block = genesis_block(&genesis, &spec, world.state_root_in_parallel());
        let before = Arc::new(Snapshot::sealed(world, Arc::new(block), BlockHashes::default()));
        let attributes = Attributes {
            timestamp: TIME + 12,
            fee_recipient: Address::repeat_byte(0xfe),
            prev_randao: B256::ZERO,
            beacon_root: B256::ZERO,
            gas_limit: GAS_LIMIT,
        };
        let opened = open_block(&spec, &before, attributes).expect("it opens").snapshot;
        let raw = (0..count).map(|at| {
            let own = Address::left_padding_from(&(at as u64 + (1 << 40)).to_be_bytes());
            let (to, input) = match doing {
                Doing::Transfer => (own, Bytes::new()),
                Doing::Swap => {
                    let (path, deadline) = (vec![trading.weth, trading.alpha], U256::MAX);
                    let call = swapExactETHForTokensCall { amountOutMin: U256::ZERO, path, to: own, deadline };
                    (trading.router, call.abi_encode().into())
                }
            };
            let tx = TxEip1559 {
                chain_id: spec.chain_id(),
                nonce: nonce(&before, signers[at % signers.len()].address()) + (at / signers.len()) as u64,
                gas_limit: 500_000,
                max_fee_per_gas: 10_000_000_000,
                max_priority_fee_per_gas: 1_000_000_000,
                to: TxKind::Call(to),
                value: U256::from(1_000_000_000_000_u64),
                input,
                ..TxEip1559::default()
            };
            let signature = signers[at % signers.len()].sign_hash_sync(&tx.signature_hash()).expect("a signature");
            ChainTx::Signed(TxEnvelope::Eip1559(tx.into_signed(signature)))
        });
        let raw: Vec<ChainTx> = raw.collect();
        let sent = recover(raw.clone()).expect("signatures");
        let open = opened.open.as_ref().expect("a block");
        let grown = extend(&spec, &opened, open, |block| {
            sent.iter().for_each(|tx| assert!(block.push(tx.clone()).expect("it fits"), "the state is there"));
        });
        let open = grown.snapshot.open.as_ref().expect("a block");
        let (sealed, _) = seal(&spec, &grown.snapshot, open, Withdrawals::default()).expect("it ends");
        println!(
            "  {} transactions, {} Mgas",
            sealed.snapshot.head.body().transactions.len(),
            sealed.snapshot.head.header.gas_used / 1_000_000
        );
        Self { spec, codes, before, after: sealed.snapshot, raw, sent }
    }
}

/// Returns the median time of so many runs on one thread, in milliseconds.
pub fn timed(runs: usize, work: &(dyn Fn() + Sync)) -> f64 {
    let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
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
}

fn nonce(on: &Snapshot, account: Address) -> u64 {
    on.world.local().and_then(|world| world.account(&account).map(|account| account.nonce)).unwrap_or_default()
}
