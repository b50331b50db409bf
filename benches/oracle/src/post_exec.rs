//! Post-execution transactions, the payload of Sequencer-Defined Metering (SDM), and the settlement of its refunds.
//!
//! An implementation by the texts of the specification alone, [post-exec.md] and [sdm.md]: it shares nothing with the
//! project's and reads no other client's.
//!
//! [post-exec.md]: https://github.com/ethereum-optimism/specs/blob/main/specs/protocol/lagoon/post-exec.md
//! [sdm.md]: https://github.com/ethereum-optimism/specs/blob/main/specs/protocol/lagoon/sdm.md

use std::collections::BTreeMap;

use alloy_primitives::{Address, Bytes, U256};
use alloy_rlp::{Decodable, Encodable, Header, RlpEncodable};
use revm::{
    DatabaseRef,
    state::{Account, EvmState},
};

use crate::{
    block_case::{BlockCase, BlockFork, BlockRule, BlockTransaction},
    execute::State,
    generate::{L1_BLOCK, VAULTS},
};

/// The type of a post-execution transaction.
pub const POST_EXEC: u8 = 0x7d;

impl BlockTransaction {
    pub fn is_post_exec(&self) -> bool {
        self.tx.first() == Some(&POST_EXEC)
    }

    pub fn is_deposit(&self) -> bool {
        self.tx.first() == Some(&0x7e)
    }
}

const BASE_FEE_VAULT: Address = VAULTS[1];
const OPERATOR_FEE_VAULT: Address = VAULTS[3];

/// The payload of a post-execution transaction (sdm.md, "Payload Schema (Version 1)").
#[derive(Clone, Debug, PartialEq, RlpEncodable)]
pub struct Payload {
    pub version: u64,
    pub block_number: u64,
    pub entries: Vec<Entry>,
}

/// The refund of a transaction (sdm.md, "`SDMGasEntry`").
#[derive(Clone, Copy, Debug, PartialEq, RlpEncodable)]
pub struct Entry {
    /// The index of the transaction in its block.
    pub index: u64,
    /// The refund in gas.
    pub gas_refund: u64,
}

impl Payload {
    pub fn of(block_number: u64, entries: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let entries = entries.into_iter().map(|(index, gas_refund)| Entry { index, gas_refund });
        Self { version: 1, block_number, entries: entries.collect() }
    }

    /// Returns the transaction: its type, and the RLP of the payload (post-exec.md, "Encoding").
    pub fn encode_2718(&self) -> Bytes {
        let mut bytes = vec![POST_EXEC];
        self.encode(&mut bytes);
        bytes.into()
    }

    /// Reads a transaction. The fields after an unknown version are not read, because another schema defines them.
    ///
    /// # Errors
    ///
    /// Returns the violated rule.
    pub fn decode_2718(transaction: &[u8]) -> Result<Self, BlockRule> {
        let mut rest = transaction.strip_prefix(&[POST_EXEC]).ok_or(BlockRule::Malformed)?;
        let mut fields = list(&mut rest)?;
        if !rest.is_empty() {
            return Err(BlockRule::Malformed);
        }
        let (version, block_number) = (integer(&mut fields)?, integer(&mut fields)?);
        let mut payload = Self { version, block_number, entries: Vec::new() };
        if version != 1 {
            return Ok(payload);
        }
        let mut entries = list(&mut fields)?;
        while !entries.is_empty() {
            let mut entry = list(&mut entries)?;
            payload.entries.push(Entry { index: integer(&mut entry)?, gas_refund: integer(&mut entry)? });
            if !entry.is_empty() {
                return Err(BlockRule::ExtraFields);
            }
        }
        if fields.is_empty() { Ok(payload) } else { Err(BlockRule::ExtraFields) }
    }
}

/// Takes a list from the front of `rlp`. Returns its items.
fn list<'a>(rlp: &mut &'a [u8]) -> Result<&'a [u8], BlockRule> {
    Header::decode_bytes(rlp, true).map_err(|_| BlockRule::Malformed)
}

/// Takes an integer from the front of `rlp`.
fn integer(rlp: &mut &[u8]) -> Result<u64, BlockRule> {
    u64::decode(rlp).map_err(|_| BlockRule::Malformed)
}

/// Returns the refunds of a block by the indices of its transactions (post-exec.md, "Block-Level Structural Rules";
/// sdm.md, "Validity Rules").
///
/// # Errors
///
/// Returns all rules that are violated.
pub fn refunds(case: &BlockCase) -> Result<BTreeMap<usize, u64>, Vec<BlockRule>> {
    let transactions = &case.transactions;
    let found: Vec<usize> = (0..transactions.len()).filter(|at| transactions[*at].is_post_exec()).collect();
    let (mut violated, mut refunds) = (Vec::new(), BTreeMap::new());
    if case.fork != BlockFork::Lagoon && !found.is_empty() {
        violated.push(BlockRule::BeforeLagoon);
    }
    if found.len() > 1 {
        violated.push(BlockRule::MoreThanOne);
    }
    if found.iter().any(|at| at + 1 != transactions.len()) {
        violated.push(BlockRule::NotLast);
    }
    for at in found {
        let payload = match Payload::decode_2718(&transactions[at].tx) {
            Ok(payload) => payload,
            Err(rule) => {
                violated.push(rule);
                continue;
            }
        };
        if payload.block_number != case.block.number {
            violated.push(BlockRule::WrongBlockNumber);
        }
        if payload.version != 1 {
            violated.push(BlockRule::UnknownVersion);
            continue;
        }
        if payload.entries.is_empty() {
            violated.push(BlockRule::NoEntries);
        }
        if !payload.entries.is_sorted_by(|one, next| one.index < next.index) {
            violated.push(BlockRule::UnorderedIndices);
        }
        for entry in payload.entries {
            if entry.gas_refund == 0 {
                violated.push(BlockRule::ZeroRefund);
            }
            let index = usize::try_from(entry.index).unwrap_or(usize::MAX);
            match transactions.get(index) {
                None => violated.push(BlockRule::IndexOutOfRange),
                Some(transaction) if transaction.is_deposit() => violated.push(BlockRule::IndexOfDeposit),
                Some(transaction) if transaction.is_post_exec() => violated.push(BlockRule::IndexOfPostExec),
                Some(_) => drop(refunds.insert(index, entry.gas_refund)),
            }
        }
    }
    violated.sort_unstable();
    violated.dedup();
    if violated.is_empty() { Ok(refunds) } else { Err(violated) }
}

/// The parameters of the operator fee ([Jovian](https://specs.optimism.io/protocol/jovian/exec-engine.html), which changed
/// the formula of Isthmus).
#[derive(Clone, Copy, Debug)]
pub struct OperatorFee {
    pub scalar: u32,
    pub constant: u64,
}

impl OperatorFee {
    /// Reads the parameters from the storage of `L1Block`.
    pub fn of(state: &State) -> Self {
        let word = state.storage_ref(L1_BLOCK, U256::from(8)).expect("a state in memory").to_be_bytes::<32>();
        let bytes =
            |from: usize, to: usize| word[from..to].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        Self { scalar: bytes(20, 24) as u32, constant: bytes(24, 32) }
    }

    /// Returns the fee for an amount of gas, in wei.
    pub fn at(self, gas: U256) -> U256 {
        gas * U256::from(self.scalar) * U256::from(100) + U256::from(self.constant)
    }
}

/// The payments for the refund of a transaction, in wei (sdm.md, "Per-Recipient Deltas").
#[derive(Clone, Debug, PartialEq)]
pub struct Settlement {
    /// The sender's gain.
    pub credit: U256,
    /// The loss of the block's fee recipient.
    pub priority: U256,
    /// The loss of the base fee vault.
    pub base: U256,
    /// The loss of the operator fee vault.
    pub operator: U256,
}

impl Settlement {
    /// Returns the payments for `refund` of the `evm_gas` that a transaction used at an effective price of `price`.
    pub fn new(refund: u64, evm_gas: u64, price: u128, base_fee: u64, operator: OperatorFee) -> Self {
        let [refund, evm_gas, base_fee] = [refund, evm_gas, base_fee].map(U256::from);
        let price = U256::from(price);
        // The gas after the refund is below zero only in a block that is invalid for that. Its fee is the formula's, in
        // which the constant cancels out.
        let operator = match evm_gas.checked_sub(refund) {
            Some(canonical_gas) => operator.at(evm_gas) - operator.at(canonical_gas),
            None => operator.at(refund) - operator.at(U256::ZERO),
        };
        let tip = price.checked_sub(base_fee).expect("a price of at least the base fee, as each valid transaction has");
        Self { credit: refund * price + operator, priority: refund * tip, base: refund * base_fee, operator }
    }

    /// Adds the payments to the changes of the refunded transaction before they are committed (sdm.md, "Application
    /// Rules").
    ///
    /// # Errors
    ///
    /// Returns [`BlockRule::DebitBelowZero`] if an account has less than it loses. The gain of the sender does not pay for
    /// a loss of the sender: debits are checked first.
    pub fn apply(
        &self,
        changes: &mut EvmState,
        state: &State,
        sender: Address,
        fee_recipient: Address,
    ) -> Result<(), BlockRule> {
        let debits = [(fee_recipient, self.priority), (BASE_FEE_VAULT, self.base), (OPERATOR_FEE_VAULT, self.operator)];
        for (address, debit) in debits.into_iter().filter(|(_, debit)| !debit.is_zero()) {
            let account = touched(changes, state, address);
            let left = account.info.balance.checked_sub(debit);
            account.info.balance = left.ok_or(BlockRule::DebitBelowZero)?;
        }
        let account = touched(changes, state, sender);
        let sum = account.info.balance.checked_add(self.credit);
        account.info.balance = sum.expect("a sum below the ether that there is");
        Ok(())
    }
}

/// Returns an account among the changes of a transaction, as one that the transaction touched (EIP-161).
fn touched<'a>(changes: &'a mut EvmState, state: &State, address: Address) -> &'a mut Account {
    let account = changes.entry(address).or_insert_with(|| {
        let info = state.basic_ref(address).expect("a state in memory");
        info.unwrap_or_default().into()
    });
    account.mark_touch();
    account
}

#[cfg(test)]
mod tests {
    use alloy_primitives::hex;

    use super::*;

    const OPERATOR: OperatorFee = OperatorFee { scalar: 7, constant: 1_000 };

    #[test]
    fn payments_are_those_of_the_table() {
        let settlement = Settlement::new(5_000, 21_000, 1_010, 1_000, OPERATOR);
        let wei = |wei: u64| U256::from(wei);
        assert_eq!(
            settlement,
            Settlement {
                credit: wei(5_000 * 1_010 + 5_000 * 7 * 100),
                priority: wei(5_000 * 10),
                base: wei(5_000 * 1_000),
                operator: wei(5_000 * 7 * 100),
            }
        );
    }

    #[test]
    fn a_sender_gains_what_the_others_lose() {
        for (refund, price, scalar) in [(1, 1_000, 0), (21_000, 1_000, 7), (20_999, u128::MAX >> 64, u32::MAX)] {
            let operator = OperatorFee { scalar, constant: u64::MAX };
            let settlement = Settlement::new(refund, 21_000, price, 1_000, operator);
            assert_eq!(settlement.credit, settlement.priority + settlement.base + settlement.operator);
        }
    }

    #[test]
    fn a_debit_below_zero_is_invalid_whoever_pays_it() {
        let recipient = Address::repeat_byte(1);
        let sender = Address::repeat_byte(2);
        let settlement = Settlement::new(5_000, 21_000, 1_010, 1_000, OPERATOR);
        let debits = [
            (recipient, settlement.priority),
            (BASE_FEE_VAULT, settlement.base),
            (OPERATOR_FEE_VAULT, settlement.operator),
        ];
        for poor in 0..=debits.len() {
            let mut changes = EvmState::default();
            for (at, (address, debit)) in debits.iter().enumerate() {
                let account = touched(&mut changes, &State::default(), *address);
                account.info.balance = *debit - U256::from(u64::from(at == poor));
            }
            let applied = settlement.apply(&mut changes, &State::default(), sender, recipient);
            if poor < debits.len() {
                assert_eq!(applied, Err(BlockRule::DebitBelowZero));
            } else {
                assert_eq!(applied, Ok(()));
                assert!(debits.iter().all(|(address, _)| changes[address].is_empty()));
                assert_eq!(changes[&sender].info.balance, settlement.credit);
            }
        }
    }

    #[test]
    fn a_payload_is_its_type_and_one_list() {
        let payload = Payload::of(9, [(1, 5_000), (130, 1)]);
        let bytes = payload.encode_2718();
        assert_eq!(bytes[..], hex!("7d cc 01 09 c9 c4 01 821388 c3 8182 01")[..]);
        assert_eq!(Payload::decode_2718(&bytes), Ok(payload));
    }
}
