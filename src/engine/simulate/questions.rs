//! Questions to contracts beside a simulation's calls: tokens' symbols and decimals, and the objective. They neither
//! change anything nor warm it.

use alloy_evm::Evm;
use alloy_primitives::{Address, TxKind, U256};
use alloy_sol_types::{SolCall, sol};
use revm::context::{TxEnv, result::ExecutionResult};

use super::{
    calls::BlockRun,
    outputs::{AssetRecord, TokenInfo, Tokens},
};
use crate::{
    engine::{
        error::SimulationError,
        evm::{FamilyEvm, RunEvm},
        request::Objective,
    },
    state::AccountReads,
};

sol! {
    function balanceOf(address account) external view returns (uint256);
    function symbol() external view returns (string);
    function decimals() external view returns (uint8);
}

/// Gas that a token may use to tell a balance.
const BALANCE_GAS: u64 = 1_000_000;

impl BlockRun {
    /// Asks the tokens among the assets for their symbols and decimals, after the block's calls.
    pub fn ask_tokens<F: FamilyEvm>(&self, evm: &mut RunEvm<'_, F>) -> Tokens {
        let tokens = self.assets.as_ref().map(AssetRecord::tokens).unwrap_or_default();
        tokens.into_iter().map(|token| (token, token_info(token, evm))).collect()
    }
}

/// Asks a token for its symbol and decimals.
pub(super) fn token_info<F: FamilyEvm>(token: Address, evm: &mut RunEvm<'_, F>) -> TokenInfo {
    let mut ask = |data: Vec<u8>| {
        let call =
            TxEnv { gas_limit: TokenInfo::GAS, kind: TxKind::Call(token), data: data.into(), ..TxEnv::default() };
        evm.ask(call).ok().filter(ExecutionResult::is_success)?.into_output()
    };
    let symbol = ask(symbolCall {}.abi_encode()).and_then(|data| TokenInfo::symbol_of(&data));
    let decimals = ask(decimalsCall {}.abi_encode()).and_then(|data| TokenInfo::decimals_of(&data));
    TokenInfo { symbol, decimals }
}

/// Returns what is measured now.
///
/// # Errors
///
/// Returns [`SimulationError::Params`] if a token does not tell a balance.
pub(super) fn measure<F: FamilyEvm>(objective: Objective, evm: &mut RunEvm<'_, F>) -> Result<U256, SimulationError> {
    match objective {
        Objective::Ether(account) => {
            evm.db_mut().note_account(account, AccountReads::BALANCE);
            Ok(evm.db_mut().balance_and_nonce(account).0)
        }
        // The income is summed up block by block.
        Objective::Coinbase => Ok(U256::ZERO),
        Objective::Token { account, token } => {
            let call = TxEnv {
                gas_limit: BALANCE_GAS,
                kind: TxKind::Call(token),
                data: balanceOfCall { account }.abi_encode().into(),
                ..TxEnv::default()
            };
            let told = evm.ask(call).ok().filter(ExecutionResult::is_success).and_then(ExecutionResult::into_output);
            let balance = told.and_then(|data| U256::try_from_be_slice(data.get(..32)?));
            balance.ok_or_else(|| match evm.db_mut().meter.stopped() {
                Some(stopped) => stopped.into(),
                None => SimulationError::Params(format!(
                    "params[0].objective.token: {token}: balanceOf returns no balance: expected an ERC-20 token"
                )),
            })
        }
    }
}
