//! The batch executor: the contract to which an account delegates by EIP-7702, so that one transaction makes all calls
//! of a batch or none.
//!
//! Its source is `BatchExecutor.sol`. `src/solidity/compile.mjs` compiles it to `BatchExecutor.json`, from which this
//! module is built.

use alloy_primitives::{Address, B256, Bytes, U256, b256};
use alloy_sol_types::{SolCall, SolValue, sol};
use revm::bytecode::Bytecode;

use super::{BatchCall, WalletError};
use crate::chain::{DEPLOYMENT_PROXY, deployment_address, deployment_data};

mod contract {
    //! The artifact: functions, creation code and runtime code.

    alloy_sol_types::sol!(BatchExecutor, "src/wallet/executor/BatchExecutor.json");
}

sol! {
    // The contract takes calls as bytes, so its ABI does not describe them.
    struct ExecutorCall {
        address to;
        uint256 value;
        bytes data;
    }
}

/// The salt of the deployment.
const SALT: B256 = B256::ZERO;
/// The mode in which `execute` takes `abi.encode(Call[])`, and address 0 is the account itself (ERC-7821).
const SINGLE_BATCH: B256 = b256!("0x0100000000000000000000000000000000000000000000000000000000000000");
/// The mode in which `execute` also takes `abi.encode(Call[], bytes opData)`. `opData` is a gas limit for each call,
/// and address 0 is an address like others.
const SINGLE_BATCH_WITH_OP_DATA: B256 = b256!("0x0100000000007821000100000000000000000000000000000000000000000000");

/// The batch executor of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchExecutor {
    address: Address,
}

/// The delegation of an account, by its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delegation {
    /// The account has no code.
    None,
    /// The account is delegated to the batch executor (EIP-7702).
    Executor,
    /// The account is delegated to another contract.
    Other(Address),
    /// The account is a contract, which cannot be delegated.
    Contract,
}

impl BatchExecutor {
    /// Returns the executor at this address, or at [`default_address`](Self::default_address). An address from the
    /// settings is trusted to be this contract.
    pub fn new(address: Option<Address>) -> Self {
        Self { address: address.unwrap_or_else(Self::default_address) }
    }

    /// Returns the address at which [`deployment`](Self::deployment) creates it, on every chain.
    pub fn default_address() -> Address {
        deployment_address(SALT, &contract::BatchExecutor::BYTECODE)
    }

    /// Returns the address.
    pub fn address(self) -> Address {
        self.address
    }

    /// Returns the code of the deployed contract.
    pub fn runtime_code() -> &'static Bytes {
        &contract::BatchExecutor::DEPLOYED_BYTECODE
    }

    /// Returns the call that deploys the contract. Anybody may make it once; it reverts if the contract exists. It has
    /// to be in an earlier transaction than the first delegation, because delegating to an account without code has no
    /// effect. `None` unless the address is the default, because no call is known that deploys to another address.
    pub fn deployment(self) -> Option<BatchCall> {
        (self.address == Self::default_address()).then(|| BatchCall {
            to: Some(DEPLOYMENT_PROXY),
            value: U256::ZERO,
            data: deployment_data(SALT, &contract::BatchExecutor::BYTECODE),
            gas_limit: None,
            capabilities: Vec::new(),
        })
    }

    /// Returns the delegation of an account with this code.
    pub fn delegation(self, code: &Bytecode) -> Delegation {
        match code.eip7702_address() {
            Some(address) if address == self.address => Delegation::Executor,
            Some(address) => Delegation::Other(address),
            None if code.is_empty() => Delegation::None,
            None => Delegation::Contract,
        }
    }

    /// Returns the call data with which a delegated account calls itself to make these calls in order, all or none. The
    /// value of that call must be 0: the account pays the value of each inner call.
    ///
    /// # Errors
    ///
    /// Returns [`WalletError::Shape`] for a call that cannot be in an atomic batch: one that creates a contract, or one
    /// with a gas limit of 0.
    pub fn execute_calldata(calls: &[BatchCall]) -> Result<Bytes, WalletError> {
        let encoded =
            calls.iter().enumerate().map(|(index, call)| encode(index, call)).collect::<Result<Vec<_>, _>>()?;
        let literal = calls.iter().any(|call| call.gas_limit.is_some() || call.to == Some(Address::ZERO));
        let (mode, data) = if literal {
            let limits: Vec<U256> = calls.iter().map(|call| U256::from(call.gas_limit.unwrap_or_default())).collect();
            (SINGLE_BATCH_WITH_OP_DATA, (encoded, Bytes::from(limits.abi_encode())).abi_encode_params())
        } else {
            (SINGLE_BATCH, encoded.abi_encode())
        };
        Ok(contract::BatchExecutor::executeCall { mode, executionData: data.into() }.abi_encode().into())
    }
}

fn encode(index: usize, call: &BatchCall) -> Result<ExecutorCall, WalletError> {
    let Some(to) = call.to else {
        let problem =
            "null or absent, expected an address: a batch that is executed atomically cannot create a contract";
        return Err(WalletError::Shape(format!("params[0].calls[{index}].to: {problem}")));
    };
    // The contract takes 0 for no limit.
    if call.gas_limit == Some(0) {
        let problem = "0x0, expected 0x1 or more in a batch that is executed atomically";
        return Err(WalletError::Shape(format!(
            "params[0].calls[{index}].capabilities.gasLimitOverride.value: {problem}"
        )));
    }
    Ok(ExecutorCall { to, value: call.value, data: call.data.clone() })
}
