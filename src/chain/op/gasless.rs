//! X Layer's gasless transactions, by the rules of [its
//! client](https://github.com/okx/optimism/blob/main/rust/alloy-op-evm/src/block/xlayer_gasless_contract.rs).
//!
//! A contract decides which transactions are gasless. The engine calls it before each transaction that offers no fee.

use alloy_primitives::{Address, Bytes, address};
use alloy_sol_types::{SolCall, sol};

/// The ids of X Layer and of its test network.
const NETWORKS: [u64; 2] = [196, 1952];
/// The contract that decides which transactions are gasless. Its address is the same on both chains.
const CONTRACT: Address = address!("19787404b0c70021b4752028f7e3a92313885B27");

sol! {
    function getGaslessAllowance(address recipient, bytes input) external view returns (bool allowed, uint64 gas);
}

/// Returns the contract that decides which transactions of a chain are gasless, if the chain has gasless transactions.
pub fn gasless_contract(chain_id: u64) -> Option<Address> {
    NETWORKS.contains(&chain_id).then_some(CONTRACT)
}

/// Returns the input of the call that asks the contract about a transaction.
pub fn gasless_question(recipient: Address, input: &Bytes) -> Vec<u8> {
    getGaslessAllowanceCall { recipient, input: input.clone() }.abi_encode()
}

/// Returns the maximum gas limit of a gasless transaction, according to the contract's answer. `None` if the
/// transaction is not gasless at any limit.
pub fn gasless_allowance(answer: &[u8]) -> Option<u64> {
    let (allowed, gas) = (answer.get(..32)?, answer.get(32..64)?);
    let is_allowed = allowed[..31].iter().all(|byte| *byte == 0) && allowed[31] == 1;
    // Bits above the lowest 64 are ignored, as in the client.
    let gas = gas.last_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    gas.filter(|_| is_allowed)
}
