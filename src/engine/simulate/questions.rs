//! Questions to contracts in addition to a simulation's calls: tokens' symbols and decimals, and the objective. They
//! change and warm nothing.

use alloy_evm::Evm;
use alloy_primitives::{Address, Bytes, TxKind, U256};
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
    function name() external view returns (string);
    function symbol() external view returns (string);
    function decimals() external view returns (uint8);
}

/// The name of the contract that wraps ether on most chains.
const WRAPPED_ETHER: &str = "Wrapped Ether";
/// Gas that a token may use to return a balance.
const BALANCE_GAS: u64 = 1_000_000;

impl BlockRun {
    /// Adds the deposits and withdrawals of the contract that wraps ether to the assets, after the block's calls. On a
    /// chain whose wrapper is not known, the contract is found by its name.
    pub fn add_wrapped<F: FamilyEvm>(&mut self, wrapper: Option<Address>, evm: &mut RunEvm<'_, F>) {
        if let Some(assets) = &mut self.assets {
            assets.add_wrapped(|token| match wrapper {
                Some(wrapper) => wrapper == token,
                None => text(token, nameCall {}.abi_encode(), evm).is_some_and(|name| name == WRAPPED_ETHER),
            });
        }
    }

    /// Asks the tokens among the assets that are not `known` for their symbols and decimals, after the block's calls.
    pub fn ask_tokens<F: FamilyEvm>(&self, known: &mut Tokens, evm: &mut RunEvm<'_, F>) {
        for token in self.assets.as_ref().map(AssetRecord::tokens).unwrap_or_default() {
            known.entry(token).or_insert_with(|| token_info(token, evm));
        }
    }
}

/// Asks a token for its symbol and decimals.
pub(super) fn token_info<F: FamilyEvm>(token: Address, evm: &mut RunEvm<'_, F>) -> TokenInfo {
    let symbol = text(token, symbolCall {}.abi_encode(), evm);
    let decimals =
        ask(token, TokenInfo::GAS, decimalsCall {}.abi_encode(), evm).and_then(|data| TokenInfo::decimals_of(&data));
    TokenInfo { symbol, decimals }
}

/// Asks a token for a text.
fn text<F: FamilyEvm>(token: Address, question: Vec<u8>, evm: &mut RunEvm<'_, F>) -> Option<String> {
    ask(token, TokenInfo::GAS, question, evm).and_then(|data| TokenInfo::text_of(&data))
}

/// Asks a token a question that it must answer within `gas_limit`.
fn ask<F: FamilyEvm>(token: Address, gas_limit: u64, question: Vec<u8>, evm: &mut RunEvm<'_, F>) -> Option<Bytes> {
    let call = TxEnv { gas_limit, kind: TxKind::Call(token), data: question.into(), ..TxEnv::default() };
    evm.ask(call).ok().filter(ExecutionResult::is_success)?.into_output()
}

/// Returns the current value of the objective.
///
/// # Errors
///
/// Returns [`SimulationError::Params`] if a token does not return a balance.
pub(super) fn measure<F: FamilyEvm>(objective: Objective, evm: &mut RunEvm<'_, F>) -> Result<U256, SimulationError> {
    match objective {
        Objective::Ether(account) => {
            evm.db_mut().note_account(account, AccountReads::BALANCE);
            Ok(evm.db_mut().balance_and_nonce(account).0)
        }
        // The income is summed up block by block.
        Objective::Coinbase => Ok(U256::ZERO),
        Objective::Token { account, token } => {
            let returned = ask(token, BALANCE_GAS, balanceOfCall { account }.abi_encode(), evm);
            let balance = returned.and_then(|data| U256::try_from_be_slice(data.get(..32)?));
            balance.ok_or_else(|| match evm.db_mut().meter.stopped() {
                Some(stopped) => stopped.into(),
                None => SimulationError::Params(format!(
                    "params[0].objective.token: {token}: balanceOf returns no balance: expected an ERC-20 token"
                )),
            })
        }
    }
}
