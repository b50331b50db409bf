//! The parts of their snapshot that runs have read.

use std::collections::BTreeSet;

use alloy_primitives::{Address, U256, map::HashSet};
use bitflags::bitflags;

bitflags! {
    /// The parts of an account that a run read.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct AccountReads: u8 {
        /// The balance.
        const BALANCE = 1;
        /// The nonce.
        const NONCE = 1 << 1;
        /// The code.
        const CODE = 1 << 2;
        /// Whether the account exists, whether it is empty (EIP-161), and whether its balance is so large that a
        /// transfer to it may overflow.
        const EXISTENCE = 1 << 3;
        /// Whether the account has any storage (EIP-7610).
        const STORAGE = 1 << 4;
        /// The parts that an account consists of, besides its storage.
        const INFO = Self::BALANCE.bits() | Self::NONCE.bits() | Self::CODE.bits();
    }
}

bitflags! {
    /// The fields that a run read of the block that it ran in, or that this block follows from.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct BlockReads: u16 {
        /// The number.
        const NUMBER = 1;
        /// The timestamp.
        const TIMESTAMP = 1 << 1;
        /// The fee recipient.
        const FEE_RECIPIENT = 1 << 2;
        /// `prevRandao`, or the difficulty before the merge.
        const PREV_RANDAO = 1 << 3;
        /// The gas limit.
        const GAS_LIMIT = 1 << 4;
        /// The base fee.
        const BASE_FEE = 1 << 5;
        /// The price of blob gas.
        const BLOB_BASE_FEE = 1 << 6;
        /// The gas that the block has left, as a value. Where it is a bound only, [`ReadSet::gas`] has it.
        const GAS_LEFT = 1 << 7;
        /// All else that the header holds, the parent's hash among it.
        const HEADER = 1 << 8;
        /// The slot.
        const SLOT_NUMBER = 1 << 9;
    }
}

/// The values that runs read of their snapshot. Their results are the same on every snapshot that has the same values there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadSet {
    /// Whether the runs may have read anything. The other fields then say nothing.
    pub everything: bool,
    /// The accounts that were accessed, in the order of their addresses, each with its parts and its slots that were
    /// read. Of an account without either, an override gives all that was read.
    pub accounts: Vec<AccountRead>,
    /// The fields of the block.
    pub block: BlockReads,
    /// The numbers of the blocks whose hashes were read.
    pub hashes: BTreeSet<u64>,
    /// The least gas that the block must have left. With less, a call would be rejected.
    pub gas: u64,
}

/// The values that runs read of an account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountRead {
    /// The account's address.
    pub address: Address,
    /// The parts that were read.
    pub parts: AccountReads,
    /// The slots that were read, in order.
    pub slots: Vec<U256>,
}

impl ReadSet {
    /// The number of accounts, slots and block hashes above which runs count as having read everything.
    pub const MAX_READS: usize = 1024;

    /// Returns the set of runs that may have read anything.
    pub fn everything() -> Self {
        Self { everything: true, ..Self::default() }
    }

    /// Returns the union of two sets.
    #[must_use]
    pub fn merge(mut self, other: &Self) -> Self {
        if self.everything || other.everything {
            return Self::everything();
        }
        for read in &other.accounts {
            match self.accounts.binary_search_by_key(&read.address, |account| account.address) {
                Ok(at) => {
                    let account = &mut self.accounts[at];
                    account.parts |= read.parts;
                    account.slots.extend(&read.slots);
                    account.slots.sort_unstable();
                    account.slots.dedup();
                }
                Err(at) => self.accounts.insert(at, read.clone()),
            }
        }
        self.block |= other.block;
        self.hashes.extend(&other.hashes);
        self.gas = self.gas.max(other.gas);
        let slots: usize = self.accounts.iter().map(|account| account.slots.len()).sum();
        if self.accounts.len() + slots + self.hashes.len() > Self::MAX_READS { Self::everything() } else { self }
    }
}

/// The part of a record that belongs to no account. The overlay holds it separately from each account's record.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadRecord {
    /// Whether reads are recorded.
    pub on: bool,
    /// The slots, by their account's number in the overlay.
    pub slots: HashSet<(usize, U256)>,
    pub block: BlockReads,
    pub hashes: BTreeSet<u64>,
    pub gas: u64,
    pub everything: bool,
    /// The reads of runs whose changes were dropped.
    pub passed: Option<Box<ReadSet>>,
}

impl ReadRecord {
    /// Clears the record, and stops recording.
    pub(super) fn clear(&mut self) {
        self.on = false;
        self.slots.clear();
        self.hashes.clear();
        (self.block, self.gas, self.everything, self.passed) = (BlockReads::empty(), 0, false, None);
    }
}
