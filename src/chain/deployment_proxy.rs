//! The deterministic deployment proxy, by which a contract has the same address on every chain.

use alloy_primitives::{Address, B256, Bytes, address, bytes};

/// Where it is on every chain that has it: its creator is an account that nobody has the key of, and could send nothing else
/// (<https://github.com/Arachnid/deterministic-deployment-proxy>).
pub const DEPLOYMENT_PROXY: Address = address!("0x4e59b44847b379578588920cA78FbF26c0B4956C");

/// Its code. What it is called with is a salt of 32 bytes and the creation code of a contract, which it makes by CREATE2 with the call's
/// value; it returns the address, 20 bytes, and reverts with nothing where the creation fails.
pub const DEPLOYMENT_PROXY_CODE: Bytes = bytes!(
    "0x7fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffe03601600081602082378035828234f58015156039578182fd5b8082525050506014600cf3"
);

/// What the proxy is called with to create this contract.
pub fn deployment_data(salt: B256, creation_code: &[u8]) -> Bytes {
    [salt.as_slice(), creation_code].concat().into()
}

/// Where the contract is then.
pub fn deployment_address(salt: B256, creation_code: &[u8]) -> Address {
    DEPLOYMENT_PROXY.create2_from_code(salt, creation_code)
}
