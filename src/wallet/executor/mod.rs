//! The batch executor: the contract that an account delegates to (EIP-7702) to execute all calls of a batch or none.
//!
//! `src/solidity/compile.mjs` compiles `BatchExecutor.sol` to `BatchExecutor.json`, from which this module is built.

use alloy_primitives::{Address, B256, Bytes, U256, b256};
use alloy_sol_types::{SolCall, SolValue, sol};
use revm::bytecode::Bytecode;

use super::{BatchCall, WalletError};
use crate::{
    chain::{DEPLOYMENT_PROXY, deployment_address, deployment_data},
    ledger::Snapshot,
    state::Overlay,
};

mod contract {
    //! The bindings of the artifact: functions, creation code and runtime code.

    alloy_sol_types::sol!(BatchExecutor, "src/wallet/executor/BatchExecutor.json");
}

sol! {
    // The contract takes calls as bytes, so its ABI does not define this type.
    struct ExecutorCall {
        address to;
        uint256 value;
        bytes data;
    }
}

/// The salt of the deployment by CREATE2.
const SALT: B256 = B256::ZERO;
/// The mode in which `execute` takes `abi.encode(Call[])`, and the callee 0 is the account itself (ERC-7821).
const SINGLE_BATCH: B256 = b256!("0x0100000000000000000000000000000000000000000000000000000000000000");
/// The mode in which `execute` also takes `abi.encode(Call[], bytes opData)`. `opData` holds a gas limit for each call,
/// and the callee 0 is the zero address.
const SINGLE_BATCH_WITH_OP_DATA: B256 = b256!("0x0100000000007821000100000000000000000000000000000000000000000000");

/// The batch executor of a chain, at its address there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchExecutor {
    address: Address,
}

/// The delegation of an account, as its code shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delegation {
    /// The account is delegated to the batch executor (EIP-7702).
    Executor,
    /// The account has no code, or is delegated to another contract. It can be delegated to the executor.
    Possible,
    /// The account is a contract, which has no key and cannot be delegated.
    Contract,
}

impl BatchExecutor {
    /// Returns the executor at `address`, which is trusted to hold this contract, or at
    /// [`default_address`](Self::default_address).
    pub fn new(address: Option<Address>) -> Self {
        Self { address: address.unwrap_or_else(Self::default_address) }
    }

    /// Returns the address at which [`deployment`](Self::deployment) creates the contract, on every chain.
    pub fn default_address() -> Address {
        deployment_address(SALT, &contract::BatchExecutor::BYTECODE)
    }

    /// Returns the address of the executor.
    pub fn address(self) -> Address {
        self.address
    }

    /// Returns the code of the deployed contract.
    pub fn runtime_code() -> &'static Bytes {
        &contract::BatchExecutor::DEPLOYED_BYTECODE
    }

    /// Returns the call that deploys the contract. Any account may make it; it reverts if the contract is already
    /// deployed. It must be in a transaction before the first that delegates to the contract, because delegating to an
    /// account without code has no effect. Returns `None` if the address is not the default one.
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
            None if !code.is_empty() => Delegation::Contract,
            _ => Delegation::Possible,
        }
    }

    /// Returns the call data with which a delegated account calls itself to execute these calls in order, all or none.
    /// The value of that call must be 0, because the account itself pays the value of each call.
    ///
    /// # Errors
    /// Returns [`WalletError::Shape`] if a call creates a contract or has a gas limit of 0.
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
    // For the contract, 0 means no limit.
    if call.gas_limit == Some(0) {
        let problem = "0x0, expected 0x1 or more in a batch that is executed atomically";
        return Err(WalletError::Shape(format!(
            "params[0].calls[{index}].capabilities.gasLimitOverride.value: {problem}"
        )));
    }
    Ok(ExecutorCall { to, value: call.value, data: call.data.clone() })
}

/// Whether an account has code in a snapshot. State of an upstream that is not known is noted in `overlay`.
pub(super) fn has_code(at: &Snapshot, address: Address, overlay: &Overlay) -> bool {
    overlay.look_up(&at.world, address).is_some_and(|account| !account.is_empty_code_hash())
}
