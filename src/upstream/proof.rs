//! Checks the values of `eth_getProof` (EIP-1186) against the state root of their block.

use alloy_primitives::{Address, B256, Bytes, KECCAK256_EMPTY, U64, U256, keccak256};
use alloy_trie::{EMPTY_ROOT_HASH, Nibbles, TrieAccount, proof::verify_proof};
use serde::Deserialize;

use crate::state::{CodeCache, Fetched};

/// The proof of an account and some of its slots.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Proof {
    balance: U256,
    nonce: U64,
    code_hash: B256,
    storage_hash: B256,
    account_proof: Vec<Bytes>,
    storage_proof: Vec<SlotProof>,
}

/// The proof of a slot, from the storage root of its account on.
#[derive(Debug, Deserialize)]
struct SlotProof {
    key: U256,
    value: U256,
    proof: Vec<Bytes>,
}

/// Returns the values of a proof, checked against the block's state root, with the account only if `code` is given.
///
/// # Errors
///
/// Returns a text that names the account or slot whose proof fails, or says that the hash of `code` is wrong.
pub(super) fn check(
    address: Address,
    proof: &Proof,
    root: B256,
    code: Option<Bytes>,
    codes: &CodeCache,
) -> Result<Vec<Fetched>, String> {
    let Proof { balance, nonce, code_hash, storage_hash, account_proof, storage_proof } = proof;
    let account =
        TrieAccount { nonce: nonce.to(), balance: *balance, storage_root: *storage_hash, code_hash: *code_hash };
    let has_code = ![B256::ZERO, KECCAK256_EMPTY].contains(code_hash);
    let has_storage = ![B256::ZERO, EMPTY_ROOT_HASH].contains(storage_hash);
    let exists = !balance.is_zero() || !nonce.is_zero() || has_code || has_storage;
    let expected = exists.then(|| alloy_rlp::encode(account));
    verify_proof(root, Nibbles::unpack(keccak256(address)), expected, account_proof)
        .map_err(|error| format!("account {address}: the proof does not check: {error}"))?;
    let mut values = Vec::new();
    for SlotProof { key, value, proof } in storage_proof {
        let expected = (!value.is_zero()).then(|| alloy_rlp::encode(value));
        if has_storage || !value.is_zero() {
            verify_proof(*storage_hash, Nibbles::unpack(keccak256(B256::from(*key))), expected, proof)
                .map_err(|error| format!("slot {key:#x} of {address}: the proof does not check: {error}"))?;
        }
        values.push(Fetched::Slot { address, slot: *key, value: *value });
    }
    if let Some(code) = code {
        let hash = keccak256(&code);
        if hash != *code_hash && (has_code || !code.is_empty()) {
            return Err(format!("account {address}: the code's hash is {hash}, but the proof has {code_hash}"));
        }
        let (balance, nonce, code) = (*balance, nonce.to(), codes.chain(code));
        values.push(Fetched::Account { address, balance, nonce, code });
    }
    Ok(values)
}
