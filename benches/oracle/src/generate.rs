//! Random cases.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, Bytes, TxKind, U256, address};
use op_revm::{L1BlockInfo, OpSpecId, OpTransaction};
use revm::{context::TxEnv, database::WrapDatabaseRef};

use crate::{
    case::{Block, CHAIN_ID, Case, PreAccount},
    dice::Dice,
    execute::{DEPOSIT, Deposit, FORKS, state, transaction},
    precompiles, program,
    transactions::{Envelope, Fields, access_list, authorize, encode, forge, signers},
};

pub const L1_BLOCK: Address = address!("4200000000000000000000000000000000000015");
/// The vaults of the priority fees, the base fees, the L1 fees and the operator fees.
pub const VAULTS: [Address; 4] = [
    address!("4200000000000000000000000000000000000011"),
    address!("4200000000000000000000000000000000000019"),
    address!("420000000000000000000000000000000000001a"),
    address!("420000000000000000000000000000000000001b"),
];
/// The account whose deposits set the L1 attributes.
pub const DEPOSITOR: Address = address!("deaddeaddeaddeaddeaddeaddeaddeaddead0001");
/// An account that is in no state.
pub const NOBODY: Address = address!("00000000000000000000000000000000000f00d5");
/// The accounts with random programs.
pub const CONTRACTS: [Address; 3] = [
    address!("c000000000000000000000000000000000000001"),
    address!("c000000000000000000000000000000000000002"),
    address!("c000000000000000000000000000000000000003"),
];

/// The parameters of fees, as `L1Block` stores them.
#[derive(Clone, Copy, Debug, Default)]
pub struct L1Fees {
    pub base_fee: U256,
    pub blob_base_fee: U256,
    /// Bedrock's.
    pub overhead: u64,
    pub scalar: u64,
    /// Ecotone's.
    pub base_fee_scalar: u32,
    pub blob_base_fee_scalar: u32,
    /// Isthmus'.
    pub operator_scalar: u32,
    pub operator_constant: u64,
    /// Jovian's.
    pub footprint_scalar: u16,
}

impl L1Fees {
    /// The fees of a usual chain.
    pub const USUAL: Self = Self {
        base_fee: U256::from_limbs([20_000_000_000, 0, 0, 0]),
        blob_base_fee: U256::from_limbs([3_000_000, 0, 0, 0]),
        overhead: 188,
        scalar: 684_000,
        base_fee_scalar: 5_227,
        blob_base_fee_scalar: 1_014_213,
        operator_scalar: 7,
        operator_constant: 1_000,
        footprint_scalar: 400,
    };

    pub fn random(dice: &mut Dice) -> Self {
        if dice.percent(10) {
            return Self::default();
        }
        if dice.percent(30) {
            return Self::USUAL;
        }
        let narrow = |dice: &mut Dice, usual: u32| match dice.below(6) {
            0 | 1 => 0,
            2 if dice.percent(30) => u32::MAX,
            2 | 3 => usual,
            _ => dice.number(32) as u32,
        };
        let wei = |dice: &mut Dice| match dice.below(8) {
            0 => U256::ZERO,
            1 if dice.percent(50) => dice.pick(&[U256::from(u64::MAX), U256::from(1) << 90]),
            _ => U256::from(dice.number(40)),
        };
        Self {
            base_fee: wei(dice),
            blob_base_fee: wei(dice),
            overhead: dice.pick(&[0, 188, 2_100, 1 << 40]),
            scalar: dice.pick(&[0, 684_000, 1_000_000, 1 << 40]),
            base_fee_scalar: narrow(dice, 5_227),
            blob_base_fee_scalar: narrow(dice, 1_014_213),
            operator_scalar: narrow(dice, 7),
            operator_constant: dice.pick(&[0, 0, 1, 1_000, 1 << 40, u64::MAX]),
            footprint_scalar: dice.pick(&[0, 1, 400, 400, 400, 4_000, u16::MAX]),
        }
    }

    /// Returns the predeploy. `rest` fills the bytes beside the scalars, which hold the sequence number and nothing.
    pub fn account(&self, rest: u64) -> PreAccount {
        let packed = |high: u32, low: u32| (U256::from(high) << 96) | (U256::from(low) << 64) | U256::from(rest);
        let operator = (U256::from(self.footprint_scalar) << 96)
            | (U256::from(self.operator_scalar) << 64)
            | U256::from(self.operator_constant);
        let slots = [
            (1, self.base_fee),
            (3, packed(self.base_fee_scalar, self.blob_base_fee_scalar)),
            (5, U256::from(self.overhead)),
            (6, U256::from(self.scalar)),
            (7, self.blob_base_fee),
            (8, operator),
        ];
        let storage = slots.into_iter().filter(|(_, value)| !value.is_zero());
        PreAccount {
            nonce: 1,
            code: Bytes::from_static(&[0]),
            storage: storage.map(|(slot, value)| (U256::from(slot), value)).collect(),
            ..PreAccount::default()
        }
    }
}

/// Returns case `index` of `seed`, without outcomes.
pub fn case(seed: u64, index: u64) -> Case {
    let mut dice = Dice::of(seed, index);
    let dice = &mut dice;
    let eoas = signers();
    let mut block = block(dice);
    let mut targets: Vec<Address> =
        [&CONTRACTS[..], &eoas, &VAULTS, &[L1_BLOCK, NOBODY, block.beneficiary, dice.address()]].concat();
    targets.extend(precompiles::ALL.map(precompiles::address));
    let mut pre = accounts(dice, &targets);
    pre.insert(L1_BLOCK, L1Fees::random(dice).account(dice.number(64)));

    let envelope = match dice.below(20) {
        0..=3 => Envelope::Legacy,
        4 => Envelope::Unprotected,
        5..=6 => Envelope::AccessList,
        7..=10 => Envelope::Market,
        11..=13 => Envelope::Delegations,
        14 if dice.percent(20) => Envelope::Blobs,
        _ => Envelope::Deposit,
    };
    let sender = match dice.below(20) {
        0..=2 => dice.pick(&VAULTS),
        3 if dice.percent(30) => CONTRACTS[0],
        4 if dice.percent(50) => NOBODY,
        5 if envelope == Envelope::Deposit => DEPOSITOR,
        6 => block.beneficiary,
        _ => dice.pick(&eoas),
    };
    if dice.percent(80) {
        // A vault that sends has no code.
        pre.entry(sender).and_modify(|account| {
            account.code = if CONTRACTS.contains(&sender) { account.code.clone() } else { Bytes::new() }
        });
    }
    let (action, to, value, input, needed) = action(dice, &targets, &mut pre);
    let gas_limit = gas_limit(dice, needed, &mut block);
    let nonce = pre.get(&sender).map_or(0, |account| account.nonce);
    let max_fee = match dice.below(12) {
        0 => u128::from(block.base_fee),
        1 => u128::from(block.base_fee.saturating_sub(1)),
        _ => u128::from(block.base_fee) + u128::from(dice.number(34)),
    };
    let fields = Fields {
        nonce: match dice.below(40) {
            0 => nonce + 1,
            1 => nonce.saturating_sub(1),
            _ => nonce,
        },
        gas_limit,
        max_fee,
        priority_fee: if dice.percent(3) { max_fee + 1 } else { max_fee.min(u128::from(dice.number(34))) },
        to,
        value,
        input,
        access_list: access_list(dice, &targets),
        authorizations: (0..if dice.percent(5) { 0 } else { 1 + dice.below(3) })
            .map(|_| authorization(dice, &targets, |signer| pre.get(&signer).map_or(0, |account| account.nonce)))
            .collect(),
        chain_id: if dice.percent(2) { 1 } else { CHAIN_ID },
    };
    let source_hash = B256::from(U256::from(1 + dice.number(60)));
    let deposit = Deposit { mint: mint(dice), is_system: dice.percent(8), ..Deposit::by(sender, source_hash) };
    let fork = dice.pick(&FORKS);
    let name = format!("{envelope:?} {action} {seed}/{index}");
    let tx = encode(dice, envelope, fields, &deposit);
    let mut case = Case { name, block, pre, sender, tx, outcomes: Vec::new() };
    set_balance(dice, &mut case, fork);
    case
}

/// Returns the wei that a deposit mints.
pub fn mint(dice: &mut Dice) -> u128 {
    match dice.below(5) {
        0 | 1 => 0,
        2 => u128::MAX >> 1,
        _ => u128::from(dice.number(64)),
    }
}

fn block(dice: &mut Dice) -> Block {
    Block {
        number: 1 + dice.below(16),
        timestamp: 1_700_000_000 + dice.number(28),
        base_fee: match dice.below(6) {
            0 => dice.below(2),
            1 => 1_000_000_000_000,
            _ => dice.number(32),
        },
        beneficiary: match dice.below(8) {
            0 => NOBODY,
            1 => dice.pick(&signers()),
            2 => dice.pick(&CONTRACTS),
            _ => VAULTS[0],
        },
        gas_limit: dice.pick(&[30_000_000, 30_000_000, 60_000_000, 16_777_216, 5_000_000]),
        prev_randao: B256::from_slice(&dice.bytes(32)),
        excess_blob_gas: 0,
    }
}

/// Returns the state, without `L1Block`.
pub fn accounts(dice: &mut Dice, targets: &[Address]) -> BTreeMap<Address, PreAccount> {
    let mut pre = BTreeMap::new();
    for contract in CONTRACTS {
        let slots = dice.below(6);
        pre.insert(
            contract,
            PreAccount {
                balance: U256::from(dice.number(60)),
                nonce: 1 + dice.number(4),
                code: program::random(dice, targets).op(program::op::STOP).code(),
                storage: (0..slots).map(|slot| (U256::from(slot), U256::from(1 + dice.number(60)))).collect(),
            },
        );
    }
    for account in signers() {
        let mut account_of = PreAccount { balance: rich(dice), nonce: dice.number(6), ..PreAccount::default() };
        if dice.percent(12) {
            account_of.nonce += 1;
            account_of.code = [&[0xef, 0x01, 0x00], dice.pick(&CONTRACTS).as_slice()].concat().into();
        }
        pre.insert(account, account_of);
    }
    for vault in VAULTS.into_iter().chain([NOBODY]) {
        if dice.percent(60) {
            let code = if dice.percent(25) {
                program::random(dice, targets).op(program::op::STOP).code()
            } else {
                Bytes::new()
            };
            pre.insert(vault, PreAccount { balance: rich(dice), nonce: 1, code, ..PreAccount::default() });
        }
    }
    pre
}

/// Returns a balance, most often one that pays for everything.
fn rich(dice: &mut Dice) -> U256 {
    match dice.below(16) {
        0 => U256::from(1 + dice.number(63)),
        1 => U256::from(10).pow(U256::from(18)),
        _ => U256::from(1) << 180,
    }
}

/// Returns the name of what a transaction does, its receiver, value and input, and the gas that it needs at least.
pub fn action(
    dice: &mut Dice,
    targets: &[Address],
    pre: &mut BTreeMap<Address, PreAccount>,
) -> (&'static str, TxKind, U256, Bytes, u64) {
    let value = match dice.below(10) {
        0..=4 => U256::ZERO,
        5..=8 => U256::from(dice.number(50)),
        _ => dice.word(),
    };
    match dice.below(100) {
        0..=19 => ("transfer", dice.pick(targets).into(), U256::from(dice.number(60)), Bytes::new(), 0),
        20..=26 => {
            let most = if dice.percent(10) { 4_000 } else { 300 };
            ("data", dice.pick(targets).into(), value, dice.data(most), 0)
        }
        27..=66 => ("call", dice.pick(&CONTRACTS).into(), value, dice.data(100), 60_000),
        67..=84 => ("create", TxKind::Create, value, program::init(dice, targets), 90_000),
        85..=88 => {
            let (program, gas) = precompiles::at_limit(dice);
            pre.entry(CONTRACTS[0]).and_modify(|contract| contract.code = program.code());
            ("limit", CONTRACTS[0].into(), U256::ZERO, Bytes::new(), gas)
        }
        _ => {
            let to = dice.pick(&precompiles::ALL);
            let input = precompiles::input(dice, to);
            ("precompile", precompiles::address(to).into(), value, input.into(), 40_000)
        }
    }
}

fn gas_limit(dice: &mut Dice, needed: u64, block: &mut Block) -> u64 {
    if needed > 10_000_000 {
        block.gas_limit = block.gas_limit.max(30_000_000);
        return needed;
    }
    match dice.below(30) {
        0 => 20_990 + dice.below(20),
        1 => 53_000 + dice.below(1_000),
        2 => 16_777_215 + dice.below(3),
        3 => block.gas_limit - 1 + dice.below(3),
        4 => dice.number(24),
        5..=9 => 21_000 + needed + dice.number(16),
        _ => 60_000 + needed + dice.below(600_000),
    }
}

/// Returns an authorization, most often by a signer whose nonce is `nonce`.
pub fn authorization(
    dice: &mut Dice,
    targets: &[Address],
    nonce: impl Fn(Address) -> u64,
) -> alloy_eips::eip7702::SignedAuthorization {
    let to = match dice.below(6) {
        0 => Address::ZERO,
        1 => dice.pick(targets),
        _ => dice.pick(&CONTRACTS),
    };
    if dice.percent(15) {
        return forge(dice, 0, to);
    }
    let signer = dice.below(4) as usize;
    let nonce = nonce(signers()[signer]) + u64::from(dice.percent(30));
    authorize(signer, dice.pick(&[0, CHAIN_ID, CHAIN_ID, 1]), nonce, to)
}

/// Sets the sender's balance to what the transaction costs under `fork`, or one wei more or less, in some cases.
fn set_balance(dice: &mut Dice, case: &mut Case, fork: OpSpecId) {
    let chance = dice.below(100);
    if chance >= 25 || case.tx.first() == Some(&DEPOSIT) {
        return;
    }
    let Some(cost) = cost(case, fork) else { return };
    let balance = match chance {
        0..=4 => cost / U256::from(1 + dice.below(4)),
        5..=11 => cost.saturating_sub(U256::from(1)),
        12..=21 => cost,
        _ => cost + U256::from(1),
    };
    // A state has no account that is empty.
    let account = case.pre.entry(case.sender).or_insert_with(|| PreAccount { nonce: 1, ..PreAccount::default() });
    account.balance = balance.max(U256::from(1));
}

/// Returns the most that the transaction of a case may cost its sender under `fork`, in wei.
pub fn cost(case: &Case, fork: OpSpecId) -> Option<U256> {
    let state = state(&case.pre);
    let l1 = L1BlockInfo::try_fetch(&mut WrapDatabaseRef(&state), U256::from(case.block.number), fork)
        .expect("a state in memory");
    cost_with(l1, &transaction(&case.tx, case.sender).ok()?, fork)
}

/// Returns the most that a transaction may cost its sender with these fees of L1 and of the operator, in wei.
pub fn cost_with(mut l1: L1BlockInfo, tx: &OpTransaction<TxEnv>, fork: OpSpecId) -> Option<U256> {
    let l1 = l1.tx_cost_with_tx(tx, fork)?;
    let gas = U256::from(tx.base.gas_limit).checked_mul(U256::from(tx.base.gas_price))?;
    gas.checked_add(tx.base.value)?.checked_add(l1)
}
