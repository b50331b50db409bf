//! Random blocks with refunds.
//!
//! A block is written as it is executed: each transaction is valid on the balances that the settlements before it left.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::{Address, B256, Bytes, TxKind, U256};
use op_revm::L1BlockInfo;
use revm::{DatabaseRef, database::WrapDatabaseRef};

use crate::{
    block_case::{BlockCase, BlockFork, BlockTransaction, Parent},
    case::{Block, CHAIN_ID},
    corrections::l1_block,
    dice::Dice,
    execute::{Deposit, State, transaction},
    execute_block::{BlockRun, FORK, next_base_fee},
    generate::{CONTRACTS, L1_BLOCK, L1Fees, NOBODY, VAULTS, accounts, action, authorization, cost_with, mint},
    l1_attributes,
    post_exec::Payload,
    precompiles,
    transactions::{Envelope, Fields, access_list, encode_by, signers},
};

/// The fewest transactions of a block, without the post-execution transaction.
const FEWEST: usize = 3;
/// The most.
const MOST: usize = 12;
/// The transactions that are tried for one block. Those that are invalid are left out.
const TRIES: usize = 80;

/// Returns block `index` of `seed`, without its outcome.
pub fn case(seed: u64, index: u64) -> BlockCase {
    let mut dice = Dice::of(seed, index);
    let dice = &mut dice;
    let parent = parent(dice);
    let block = Block {
        number: parent.number + 1,
        timestamp: parent.timestamp + 2,
        base_fee: next_base_fee(&parent),
        beneficiary: fee_recipient(dice),
        gas_limit: parent.gas_limit,
        prev_randao: B256::from_slice(&dice.bytes(32)),
        excess_blob_gas: 0,
    };
    let mut targets: Vec<Address> =
        [&CONTRACTS[..], &signers(), &VAULTS, &[L1_BLOCK, NOBODY, block.beneficiary, dice.address()]].concat();
    targets.extend(precompiles::ALL.map(precompiles::address));
    let mut pre = accounts(dice, &targets);
    let before = fees(dice, block.gas_limit);
    let sequence_number = dice.number(8);
    pre.insert(L1_BLOCK, l1_attributes::contract(&before, sequence_number));
    let fees = if dice.percent(50) { fees(dice, block.gas_limit) } else { before };
    let attributes = l1_attributes::deposit(dice, &fees, sequence_number + 1);

    let has_refunds = !dice.percent(12);
    let count = FEWEST + dice.below((MOST - FEWEST + 1) as u64) as usize;
    let deposits = 1 + dice.below(3.min(count as u64 - 1)) as usize;
    let run = BlockRun::new(&block, &pre);
    let mut author =
        Author { dice, block: &block, targets, run, transactions: Vec::new(), refunds: BTreeMap::new(), has_refunds };
    assert!(author.include(attributes), "the L1 attributes are a valid deposit");
    while author.transactions.len() < deposits {
        let deposit = author.deposit();
        author.include(deposit);
    }
    for _ in 0..TRIES {
        if author.transactions.len() < count {
            let signed = author.signed();
            author.include(signed);
        }
    }
    for sender in signers() {
        while author.transactions.len() < FEWEST && {
            let transfer = author.transfer(sender);
            author.include(transfer)
        } {}
    }
    let Author { mut transactions, refunds, .. } = author;
    assert!(transactions.len() >= FEWEST, "{seed}/{index}: {} transactions", transactions.len());

    let name = format!(
        "{} deposits, {} signed, {} refunds {seed}/{index}",
        deposits,
        transactions.len() - deposits,
        refunds.len()
    );
    if !refunds.is_empty() {
        let tx = Payload::of(block.number, refunds).encode_2718();
        transactions.push(BlockTransaction { sender: Address::ZERO, tx });
    }
    let extra_data = extra_data(dice);
    BlockCase {
        name,
        chain_id: CHAIN_ID,
        fork: BlockFork::Lagoon,
        parent,
        block,
        extra_data,
        pre,
        transactions,
        outcome: None,
    }
}

fn parent(dice: &mut Dice) -> Parent {
    let gas_limit = dice.pick(&[30_000_000, 30_000_000, 60_000_000, 16_777_216, 5_000_000, 3_000_000]);
    Parent {
        number: dice.below(16),
        timestamp: 1_800_000_000 + dice.number(28),
        gas_limit,
        gas_used: dice.below(gas_limit + 1),
        blob_gas_used: if dice.percent(50) { 0 } else { dice.below(gas_limit + 1) },
        base_fee: match dice.below(6) {
            0 => dice.below(2),
            1 => 1_000_000_000_000,
            _ => dice.number(32),
        },
        extra_data: extra_data(dice),
    }
}

/// Returns the extra data of a header: its version, the denominator and the elasticity of EIP-1559, and the minimum base
/// fee.
fn extra_data(dice: &mut Dice) -> Bytes {
    let (denominator, elasticity): (u32, u32) = (dice.pick(&[8, 50, 250]), dice.pick(&[2, 6, 10]));
    let minimum = if dice.percent(50) { 0 } else { dice.number(30) };
    [&[1][..], &denominator.to_be_bytes(), &elasticity.to_be_bytes(), &minimum.to_be_bytes()].concat().into()
}

fn fee_recipient(dice: &mut Dice) -> Address {
    match dice.below(20) {
        0..=6 => dice.pick(&signers()),
        7..=8 => NOBODY,
        9 => dice.address(),
        10 => dice.pick(&CONTRACTS),
        11..=12 => dice.pick(&VAULTS),
        _ => VAULTS[0],
    }
}

/// Returns parameters of fees of which the operator's scalar is seldom zero, and under which some transactions fit into a
/// block.
fn fees(dice: &mut Dice, gas_limit: u64) -> L1Fees {
    let mut fees = L1Fees::random(dice);
    if fees.operator_scalar == 0 && dice.percent(75) {
        fees.operator_scalar = 1 + dice.number(31) as u32;
    }
    let most = if gas_limit > 50_000_000 { 20_000 } else { 4_000 };
    fees.footprint_scalar = fees.footprint_scalar.min(most);
    fees
}

/// A block that is being written.
struct Author<'a> {
    dice: &'a mut Dice,
    block: &'a Block,
    targets: Vec<Address>,
    run: BlockRun<'a>,
    transactions: Vec<BlockTransaction>,
    refunds: BTreeMap<u64, u64>,
    has_refunds: bool,
}

impl Author<'_> {
    /// Appends a transaction, with a refund or without. Returns whether the transaction is valid.
    fn include(&mut self, transaction: BlockTransaction) -> bool {
        let Ok(run) = self.run.run(&transaction) else { return false };
        let evm_gas = run.ended.result.gas().tx_gas_used();
        let is_refunded = self.has_refunds && !transaction.is_deposit() && self.dice.percent(60);
        let refund = is_refunded.then(|| match self.dice.below(10) {
            0 | 1 => evm_gas,
            2 => 1,
            3 => evm_gas - 1,
            4 => self.dice.number(24).clamp(1, evm_gas),
            _ => 1 + self.dice.below(evm_gas),
        });
        self.run.commit(&transaction, run, refund).expect("a refund that is not above the gas");
        if let Some(refund) = refund {
            self.refunds.insert(self.transactions.len() as u64, refund);
        }
        self.transactions.push(transaction);
        true
    }

    fn balance_and_nonce(&self, address: Address) -> (U256, u64) {
        let info = self.run.state.basic_ref(address).expect("a state in memory").unwrap_or_default();
        (info.balance, info.nonce)
    }

    /// Returns what a transaction does: its receiver, value and input, and the gas that it needs at least.
    fn action(&mut self) -> (TxKind, U256, Bytes, u64) {
        loop {
            // Calls at the limits of precompiles need another contract than the state has.
            let (name, to, value, input, needed) = action(self.dice, &self.targets, &mut BTreeMap::new());
            if name != "limit" {
                return (to, value, input, needed);
            }
        }
    }

    fn deposit(&mut self) -> BlockTransaction {
        let eoas = signers();
        let sender = match self.dice.below(10) {
            0 => self.block.beneficiary,
            1 => self.dice.pick(&VAULTS),
            2 => self.dice.pick(&CONTRACTS),
            3 => self.dice.address(),
            _ => self.dice.pick(&eoas),
        };
        let (to, value, input, needed) = self.action();
        let gas_limit = if self.dice.percent(10) { 30_000 } else { 21_000 + needed + self.dice.number(19) };
        let fields = Fields { gas_limit, to, value, input, ..Fields::default() };
        let source_hash = B256::from_slice(&self.dice.bytes(32));
        let deposit = Deposit { mint: mint(self.dice), ..Deposit::by(sender, source_hash) };
        let tx = encode_by(self.dice, sender, Envelope::Deposit, fields, &deposit);
        BlockTransaction { sender, tx }
    }

    fn signed(&mut self) -> BlockTransaction {
        let refunded: BTreeSet<Address> =
            self.refunds.keys().map(|index| self.transactions[*index as usize].sender).collect();
        let refunded: Vec<Address> = refunded.into_iter().collect();
        if !refunded.is_empty() && self.dice.percent(25) {
            let sender = self.dice.pick(&refunded);
            if let Some(spending) = self.spending(sender) {
                return spending;
            }
        }
        let sender = match self.dice.below(20) {
            0..=3 => self.block.beneficiary,
            4..=6 => self.dice.pick(&VAULTS),
            7 if self.dice.percent(30) => NOBODY,
            8..=10 if !refunded.is_empty() => self.dice.pick(&refunded),
            _ => self.dice.pick(&signers()),
        };
        let envelope = match self.dice.below(20) {
            0..=4 => Envelope::Legacy,
            5 => Envelope::Unprotected,
            6..=8 => Envelope::AccessList,
            9..=15 => Envelope::Market,
            _ => Envelope::Delegations,
        };
        let (to, value, input, needed) = self.action();
        let gas_left = self.run.gas_left();
        // A transaction that uses all that is left is the last.
        let may_fill = !self.refunds.is_empty() && self.transactions.len() + 1 >= FEWEST && gas_left <= 1 << 24;
        let gas_limit = match self.dice.below(20) {
            0..=3 if may_fill => gas_left,
            0 => 21_000,
            1..=6 => 21_000 + needed + self.dice.number(16),
            _ => 60_000 + needed + self.dice.below(600_000),
        };
        let fields = Fields { gas_limit: gas_limit.min(gas_left), to, value, input, ..self.fees(sender) };
        let authorizations = (0..1 + self.dice.below(3))
            .map(|_| {
                let run = &self.run;
                let nonce =
                    |signer| run.state.basic_ref(signer).expect("a state in memory").map_or(0, |account| account.nonce);
                authorization(self.dice, &self.targets, nonce)
            })
            .collect();
        let fields = Fields { authorizations, access_list: access_list(self.dice, &self.targets), ..fields };
        self.encode(sender, envelope, fields)
    }

    /// Returns the nonce and the fees of a transaction. A tenth has no tip.
    fn fees(&mut self, sender: Address) -> Fields {
        let base_fee = u128::from(self.block.base_fee);
        let tip = if self.dice.percent(10) { 0 } else { u128::from(self.dice.number(34)) };
        let max_fee = base_fee + tip;
        let priority_fee = max_fee.min(u128::from(self.dice.number(34)));
        Fields { nonce: self.balance_and_nonce(sender).1, max_fee, priority_fee, ..Fields::default() }
    }

    /// Returns a transaction that spends all that its sender has, or one wei less. `None` if it has too little.
    fn spending(&mut self, sender: Address) -> Option<BlockTransaction> {
        let envelope = self.dice.pick(&[Envelope::Legacy, Envelope::AccessList, Envelope::Market]);
        let to = self.dice.pick(&[&signers()[..], &VAULTS, &[NOBODY, self.block.beneficiary]].concat());
        let gas_limit = 21_000.min(self.run.gas_left());
        let mut fields = Fields { gas_limit, to: to.into(), ..self.fees(sender) };
        let left = U256::from(self.dice.below(2));
        let balance = self.balance_and_nonce(sender).0.checked_sub(left)?;
        // The value is a part of the data that the L1 fee is for.
        for _ in 0..8 {
            let transaction = self.encode(sender, envelope, fields.clone());
            let cost = cost(&transaction, self.block.number, &self.run.state)? - fields.value;
            let value = balance.checked_sub(cost)?;
            if value == fields.value {
                return Some(transaction);
            }
            fields.value = value;
        }
        None
    }

    /// Returns a transfer of nothing.
    fn transfer(&mut self, sender: Address) -> BlockTransaction {
        let fields = Fields { gas_limit: 21_000, to: NOBODY.into(), ..self.fees(sender) };
        self.encode(sender, Envelope::Market, fields)
    }

    fn encode(&mut self, sender: Address, envelope: Envelope, fields: Fields) -> BlockTransaction {
        let none = Deposit::by(sender, B256::ZERO);
        BlockTransaction { sender, tx: encode_by(self.dice, sender, envelope, fields, &none) }
    }
}

/// Returns the most that a transaction may cost its sender, in wei.
pub fn cost(transaction: &BlockTransaction, number: u64, state: &State) -> Option<U256> {
    let l1 = l1_block(number, &transaction.tx, state, FORK).unwrap_or_else(|| {
        L1BlockInfo::try_fetch(&mut WrapDatabaseRef(state), U256::from(number), FORK).expect("a state in memory")
    });
    cost_with(l1, &self::transaction(&transaction.tx, transaction.sender).ok()?, FORK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{block_case::BlockOutcome, execute_block::execute};

    #[test]
    fn random_blocks_are_valid_and_have_the_gas_with_which_they_were_written() {
        for index in 0..100 {
            let case = case(9, index);
            let BlockOutcome::Valid(valid) = execute(&case) else { panic!("{} is invalid", case.name) };
            let sum: u64 = valid.transactions.iter().map(|transaction| transaction.gas_used).sum();
            assert_eq!(valid.gas_used, sum);
            assert!(valid.gas_used <= case.block.gas_limit && valid.blob_gas_used <= case.block.gas_limit);
        }
    }

    #[test]
    fn a_refund_changes_nothing_but_the_balances_of_those_who_settle_it() {
        // A block without its payload differs in the balances alone, if no later transaction depends on them.
        let mut compared = 0;
        for index in 0..400 {
            let mut case = case(10, index);
            let signed = case.transactions.iter().filter(|transaction| !transaction.is_deposit()).count();
            if signed > 2 || !case.transactions.last().is_some_and(BlockTransaction::is_post_exec) {
                continue;
            }
            let BlockOutcome::Valid(with) = execute(&case) else { panic!("{} is invalid", case.name) };
            case.transactions.pop();
            let BlockOutcome::Valid(without) = execute(&case) else { panic!("{} is invalid", case.name) };
            let sender = case.transactions.last().map(|transaction| transaction.sender);
            let settling = [sender, Some(case.block.beneficiary), Some(VAULTS[1]), Some(VAULTS[3])];
            for address in with.post.keys().chain(without.post.keys()) {
                if !settling.contains(&Some(*address)) {
                    assert_eq!(with.post.get(address), without.post.get(address), "{}: {address}", case.name);
                }
            }
            compared += 1;
        }
        assert!(compared > 10, "{compared} blocks were compared");
    }
}
