//! The batch executor: the contract that an account delegates to by EIP-7702, so that one transaction of it makes all calls of a batch or none.
//!
//! Its source is `BatchExecutor.sol`. `src/solidity/compile.mjs` makes `BatchExecutor.json` of it, from which this module is built.

use alloy_primitives::{Address, B256, Bytes, U256, b256};
use alloy_sol_types::{SolCall, SolValue, sol};
use revm::bytecode::Bytecode;

use super::{BatchCall, WalletError};
use crate::chain::{DEPLOYMENT_PROXY, deployment_address, deployment_data};

mod contract {
    //! What the artifact says: its functions, its creation code and its code.

    alloy_sol_types::sol!(BatchExecutor, "src/wallet/executor/BatchExecutor.json");
}

sol! {
    // The contract takes calls as bytes: its ABI does not say what they are.
    struct ExecutorCall {
        address to;
        uint256 value;
        bytes data;
    }
}

/// The salt that it is deployed with.
const SALT: B256 = B256::ZERO;
/// `execute` takes `abi.encode(Call[])`, and 0 is the account itself (ERC-7821).
const SINGLE_BATCH: B256 = b256!("0x0100000000000000000000000000000000000000000000000000000000000000");
/// `execute` takes `abi.encode(Call[], bytes opData)` too. `opData` is a gas limit for each call, and 0 is an address like others.
const SINGLE_BATCH_WITH_OP_DATA: B256 = b256!("0x0100000000007821000100000000000000000000000000000000000000000000");

/// The batch executor of a chain: where it is, and what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchExecutor {
    address: Address,
}

/// What an account's code says of who executes for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delegation {
    /// It has no code: a key alone speaks for it.
    None,
    /// It has delegated to the batch executor (EIP-7702).
    Executor,
    /// It has delegated to another contract.
    Other(Address),
    /// It is a contract: no key speaks for it, and it can delegate to nobody.
    Contract,
}

impl BatchExecutor {
    /// The one at this address, or at [`default_address`](Self::default_address). What a setting names is taken to be this contract.
    pub fn new(address: Option<Address>) -> Self {
        Self { address: address.unwrap_or_else(Self::default_address) }
    }

    /// Where [`deployment`](Self::deployment) puts it, on every chain.
    pub fn default_address() -> Address {
        deployment_address(SALT, &contract::BatchExecutor::BYTECODE)
    }

    /// Where it is.
    pub fn address(self) -> Address {
        self.address
    }

    /// Its code once it is deployed.
    pub fn runtime_code() -> &'static Bytes {
        &contract::BatchExecutor::DEPLOYED_BYTECODE
    }

    /// The call that deploys it, which anybody may make once; it reverts where the contract is there already. It has to be in a transaction
    /// before the first that delegates to it, as delegating to an account without code does nothing. None where its address is not the
    /// default: nothing is known that would put it there.
    pub fn deployment(self) -> Option<BatchCall> {
        (self.address == Self::default_address()).then(|| BatchCall {
            to: Some(DEPLOYMENT_PROXY),
            value: U256::ZERO,
            data: deployment_data(SALT, &contract::BatchExecutor::BYTECODE),
            gas_limit: None,
            capabilities: Vec::new(),
        })
    }

    /// What an account of this code has delegated to.
    pub fn delegation(self, code: &Bytecode) -> Delegation {
        match code.eip7702_address() {
            Some(address) if address == self.address => Delegation::Executor,
            Some(address) => Delegation::Other(address),
            None if code.is_empty() => Delegation::None,
            None => Delegation::Contract,
        }
    }

    /// What an account that has delegated to it calls itself with, to make these calls in order, all or none. Its value is to be 0: each
    /// call's is paid by the account.
    ///
    /// [`WalletError::Shape`] names a call that is not of an atomic batch: one that creates a contract, or one with a gas limit of 0.
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
