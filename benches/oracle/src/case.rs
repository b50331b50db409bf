//! The format of a case: a transaction on a state, and its outcome under each fork. One JSON object a line.
//!
//! The project's tests and its bench read the format by this same file, so it names no type of any revm.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, Bytes, Log, U256};
use serde::{Deserialize, Serialize};

/// The chain id of all cases.
pub const CHAIN_ID: u64 = 901;

/// A transaction, alone in its block, on a state.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Case {
    /// The kind of the transaction, and the number that gives it again; or the name of an edge.
    pub name: String,
    pub block: Block,
    /// The whole state before the transaction.
    pub pre: BTreeMap<Address, PreAccount>,
    /// The sender, whatever the signature in `tx` says. It may be a contract or a vault.
    pub sender: Address,
    /// The transaction as EIP-2718 encodes it.
    pub tx: Bytes,
    /// The outcomes. Forks with equal outcomes share one; no fork is in two.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outcomes: Vec<ForkOutcome>,
}

/// The fields of the block's header that execution reads.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Block {
    /// The block's number, which is small: the hash of ancestor `n` is the Keccak hash of `n` in decimal digits.
    pub number: u64,
    pub timestamp: u64,
    pub base_fee: u64,
    pub beneficiary: Address,
    pub gas_limit: u64,
    pub prev_randao: B256,
    /// From Ecotone on; always 0 on the OP stack.
    pub excess_blob_gas: u64,
}

/// An account before the transaction.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PreAccount {
    pub balance: U256,
    pub nonce: u64,
    #[serde(default, skip_serializing_if = "<[u8]>::is_empty")]
    pub code: Bytes,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub storage: BTreeMap<U256, U256>,
}

/// The outcome under some forks.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct ForkOutcome {
    /// The forks, by their lower-case names.
    pub forks: Vec<String>,
    /// The rules by which op-revm itself would have had another outcome. `README.md` lists them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The outcome of a transaction.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// The transaction is invalid in the block. Contains the name of the error.
    Rejected(String),
    Included(Included),
}

/// The result of a transaction that is in the block.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Included {
    pub status: Status,
    /// The reason of a halt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub gas_used: u64,
    /// The refund, of which `gasUsed` is already free.
    pub refunded: u64,
    /// The part of the block's DA footprint, from Jovian on.
    pub da_footprint: u64,
    #[serde(default, skip_serializing_if = "<[u8]>::is_empty")]
    pub output: Bytes,
    /// The address of the contract that the transaction itself created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Address>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logs: Vec<Log>,
    /// Each account that differs from the state before; `None` if it exists no longer.
    pub post: BTreeMap<Address, Option<PostAccount>>,
}

/// The end of a transaction that is in the block.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Status {
    Success,
    Revert,
    Halt,
}

/// An account after the transaction.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PostAccount {
    pub balance: U256,
    pub nonce: u64,
    pub code_hash: B256,
    /// The slots that differ from the state before.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub storage: BTreeMap<U256, U256>,
}

/// An account as the run left it.
pub struct Changed {
    /// `None` if the account does not exist.
    pub account: Option<PostAccount>,
    /// Whether all slots of the state before were deleted.
    pub cleared: bool,
}

impl Case {
    /// Returns the accounts that differ from the state before, with the slots that differ.
    pub fn diff(&self, changes: impl Iterator<Item = (Address, Changed)>) -> BTreeMap<Address, Option<PostAccount>> {
        diff(&self.pre, changes)
    }
}

/// Returns the accounts that differ from the state before, with the slots that differ.
pub fn diff(
    pre: &BTreeMap<Address, PreAccount>,
    changes: impl Iterator<Item = (Address, Changed)>,
) -> BTreeMap<Address, Option<PostAccount>> {
    changes
        .filter_map(|(address, Changed { account, cleared })| {
            let before = pre.get(&address);
            let Some(mut account) = account else { return before.map(|_| (address, None)) };
            let old = |slot: &U256| before.and_then(|before| before.storage.get(slot)).copied().unwrap_or_default();
            if cleared {
                for slot in before.into_iter().flat_map(|before| before.storage.keys()) {
                    account.storage.entry(*slot).or_default();
                }
            }
            account.storage.retain(|slot, value| *value != old(slot));
            let is_equal = before.is_some_and(|before| {
                let code = alloy_primitives::keccak256(&before.code);
                (before.balance, before.nonce, code) == (account.balance, account.nonce, account.code_hash)
            });
            (!is_equal || !account.storage.is_empty()).then_some((address, Some(account)))
        })
        .collect()
}
