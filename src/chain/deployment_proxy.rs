//! The deterministic deployment proxy, which gives a contract the same address on every chain
//! ([EIP-7997](https://eips.ethereum.org/EIPS/eip-7997)).

use alloy_primitives::{Address, B256, Bytes, address, bytes};

/// The proxy's address. It is the same on every chain, because the account that creates it has no known key and can
/// send no other transaction (<https://github.com/Arachnid/deterministic-deployment-proxy>).
pub const DEPLOYMENT_PROXY: Address = address!("0x4e59b44847b379578588920cA78FbF26c0B4956C");

/// The proxy's code. The call data is a 32-byte salt and the creation code of a contract, which the proxy creates by
/// CREATE2 with the call's value. It returns the 20-byte address, or reverts without data if the creation fails.
pub const DEPLOYMENT_PROXY_CODE: Bytes = bytes!(
    "0x7fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffe03601600081602082378035828234f58015156039578182fd5b8082525050506014600cf3"
);

/// Returns the call data with which the proxy creates the contract.
pub fn deployment_data(salt: B256, creation_code: &[u8]) -> Bytes {
    [salt.as_slice(), creation_code].concat().into()
}

/// Returns the address at which the proxy creates the contract.
pub fn deployment_address(salt: B256, creation_code: &[u8]) -> Address {
    DEPLOYMENT_PROXY.create2_from_code(salt, creation_code)
}
