//! Background traffic: real signed transactions, so that the pending state differs from the sealed one.

use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope, transaction::Recovered};
use alloy_primitives::{Address, Bytes, TxKind, U256, map::AddressMap};
use alloy_signer::SignerSync;
use alloy_signer_local::PrivateKeySigner;
use alloy_sol_types::SolCall;
use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::{IRouter, ONE, TradingWorld};
use crate::{pool::Pool, state::Snapshot};

/// A generator of transactions for each sub-block. The same seed makes the same choices.
#[derive(Debug)]
pub struct Traffic {
    count: u32,
    chain_id: u64,
    rng: SmallRng,
    signers: Vec<PrivateKeySigner>,
    /// The contracts to trade at; `None` if there are none, in which case ether is transferred.
    world: Option<TradingWorld>,
}

/// Gas of a swap: twice what it uses.
const SWAP_GAS: u64 = 250_000;
/// Gas of a plain transfer.
const TRANSFER_GAS: u64 = 21_000;
/// The priority fee, in wei per unit of gas.
const TIP: u128 = 1_000_000_000;

impl Traffic {
    /// Creates a generator of `count` transactions per sub-block from `signers`.
    pub fn new(
        count: u32,
        seed: u64,
        chain_id: u64,
        signers: Vec<PrivateKeySigner>,
        world: Option<TradingWorld>,
    ) -> Self {
        Self { count, chain_id, rng: SmallRng::seed_from_u64(seed), signers, world }
    }

    /// Returns the transactions of the next sub-block on `snapshot`, as many as fit into `gas`, and calls `give_way`
    /// before each. An account whose transactions are in `pool` is no longer used for traffic, so that traffic never
    /// takes a nonce that its owner relies on.
    pub fn next(
        &mut self,
        snapshot: &Snapshot,
        gas: u64,
        pool: &Pool,
        give_way: impl Fn(),
    ) -> Vec<Recovered<TxEnvelope>> {
        self.signers.retain(|signer| !pool.has_sender(&signer.address()));
        if self.signers.is_empty() {
            return Vec::new();
        }
        let base_fee = snapshot.header().base_fee_per_gas.unwrap_or_default();
        let mut nonces: AddressMap<u64> = AddressMap::default();
        let each = if self.world.is_some() { SWAP_GAS } else { TRANSFER_GAS };
        let count = u64::from(self.count).min(gas / each);
        let one = |_| {
            give_way();
            self.one(snapshot, u128::from(base_fee), &mut nonces)
        };
        (0..count).filter_map(one).collect()
    }

    fn one(
        &mut self,
        snapshot: &Snapshot,
        base_fee: u128,
        nonces: &mut AddressMap<u64>,
    ) -> Option<Recovered<TxEnvelope>> {
        let from = self.rng.random_range(0..self.signers.len());
        let sender = self.signers[from].address();
        let (gas_limit, to, value, input) = self.action(from, snapshot);
        let nonce =
            nonces.entry(sender).or_insert_with(|| snapshot.world.account(&sender).map_or(0, |account| account.nonce));
        let tx = TxEip1559 {
            chain_id: self.chain_id,
            nonce: *nonce,
            gas_limit,
            max_fee_per_gas: 2 * base_fee + TIP,
            max_priority_fee_per_gas: TIP,
            to: TxKind::Call(to),
            value,
            input,
            ..TxEip1559::default()
        };
        let signature = self.signers[from].sign_hash_sync(&tx.signature_hash()).ok()?;
        *nonce += 1;
        Some(Recovered::new_unchecked(tx.into_signed(signature).into(), sender))
    }

    fn action(&mut self, from: usize, snapshot: &Snapshot) -> (u64, Address, U256, Bytes) {
        let amount = U256::from(self.rng.random_range(ONE / 100..50 * ONE));
        let Some(world) = self.world else {
            let to = self.rng.random_range(0..self.signers.len());
            return (TRANSFER_GAS, self.signers[to].address(), amount / U256::from(1_000_000), Bytes::new());
        };
        let path = if self.rng.random() { vec![world.alpha, world.beta] } else { vec![world.beta, world.alpha] };
        let swap = IRouter::swapExactTokensForTokensCall {
            amountIn: amount,
            amountOutMin: U256::ZERO,
            path,
            to: self.signers[from].address(),
            deadline: U256::from(snapshot.header().timestamp + 3600),
        };
        (SWAP_GAS, world.router, U256::ZERO, swap.abi_encode().into())
    }
}
