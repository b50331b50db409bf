//! Balances and allowances of ERC-20 tokens, which are set in the storage of the token.

use std::sync::Arc;

use alloy_primitives::{Address, Bytes, TxKind, U256};
use alloy_sol_types::{SolCall, sol};
use revm::context::result::ExecutionResult;
use schemars::JsonSchema;
use serde::Deserialize;

use super::changes::Testing;
use crate::{
    engine::{AccountOverride, Call, CallRequest, StorageOverride},
    rpc::{
        api::{Example, Serve},
        json::hex::{Fixed, Number},
        params,
        protocol::error::{Result, RpcError},
        run::{Attempt, Backend, request::Request, runner::RequestRunner},
    },
    source::testing::{AccountEdit, ChainChange},
};

sol! {
    function balanceOf(address account) returns (uint256);
    function allowance(address owner, address spender) returns (uint256);
}

/// With --testing: sets the balance of an account in an ERC-20 token, in the slot from which `balanceOf` reads it. The supply stays.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "3 parameters: account, token, amount")]
pub struct Deal {
    account: Fixed<20>,
    token: Fixed<20>,
    amount: Number<U256>,
}

/// With --testing: sets an allowance in an ERC-20 token, in the slot from which `allowance` reads it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "4 parameters: owner, spender, token, amount")]
pub struct SetAllowance {
    owner: Fixed<20>,
    spender: Fixed<20>,
    token: Fixed<20>,
    amount: Number<U256>,
}

impl Serve for Deal {
    type Part = Testing;
    type Answer = ();
    const EXAMPLE: Example = Example {
        params: r#"["0x00000000000000000000000000000000000000aa", "0x5fbdb2315678afecb367f032d93f642f64180aa3", "0xde0b6b3a7640000"]"#,
        answer: "null",
    };

    async fn serve<'a>(testing: &'a Testing, runner: &'a Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        let Self { account, token, amount } = params::parse(&request.params, request.caller.dialect)?;
        let data = balanceOfCall { account: account.into() }.abi_encode();
        set(testing, runner, request, token.into(), data.into(), amount.0).await
    }
}

impl Serve for SetAllowance {
    type Part = Testing;
    type Answer = ();
    const EXAMPLE: Example = Example {
        params: r#"["0x00000000000000000000000000000000000000aa", "0x00000000000000000000000000000000000000bb", "0x5fbdb2315678afecb367f032d93f642f64180aa3", "0xde0b6b3a7640000"]"#,
        answer: "null",
    };

    async fn serve<'a>(testing: &'a Testing, runner: &'a Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        let Self { owner, spender, token, amount } = params::parse(&request.params, request.caller.dialect)?;
        let data = allowanceCall { owner: owner.into(), spender: spender.into() }.abi_encode();
        set(testing, runner, request, token.into(), data.into(), amount.0).await
    }
}

/// Sets the slot from which the function of `token` reads its result.
async fn set(
    testing: &Testing,
    runner: &Arc<RequestRunner>,
    request: Request,
    token: Address,
    data: Bytes,
    amount: U256,
) -> Result<Vec<u8>> {
    let find = move |backend: &Backend, run: &mut Attempt<'_>| find_slot(backend, run, token, data.clone(), amount);
    let ((contract, slot), _) = runner.run(request.clone(), find).await?;
    let edit = AccountEdit { address: contract, slot: Some((slot, amount)), ..AccountEdit::default() };
    testing.make(&request, ChainChange::Edit(edit)).await?;
    Ok(request.answer::<(), _>(()))
}

/// Returns the slot whose value `amount` becomes the result of the call, and the contract that has the slot. A proxy's
/// slot is the token's own.
fn find_slot(
    backend: &Backend,
    run: &mut Attempt<'_>,
    token: Address,
    data: Bytes,
    amount: U256,
) -> Result<(Address, U256)> {
    let snapshot = run.published.newest.clone();
    let rules = backend.rules(run.dialect);
    let request =
        CallRequest { call: Call { to: TxKind::Call(token), data, ..Call::default() }, ..CallRequest::default() };
    let accessed = backend.engine(&rules, run.reset_to(&snapshot)).create_access_list(snapshot.header(), &request)?;
    run.ensure_complete()?;
    for item in accessed.list.0 {
        for key in item.storage_keys {
            let slot = U256::from_be_bytes(key.0);
            let storage = StorageOverride::Diff(vec![(slot, amount)]);
            let state = vec![(item.address, AccountOverride { storage, ..AccountOverride::default() })];
            let request = CallRequest { state, ..request.clone() };
            run.meter = std::mem::take(&mut run.overlay.meter);
            let ran = backend.engine(&rules, run.reset_to(&snapshot)).call(snapshot.header(), &request)?;
            run.ensure_complete()?;
            if let ExecutionResult::Success { output, .. } = ran
                && output.data().get(..32).is_some_and(|word| U256::from_be_slice(word) == amount)
            {
                return Ok((item.address, slot));
            }
        }
    }
    Err(RpcError::new(-32000, format!("no slot of {token} is what it answers: set its storage by anvil_setStorageAt")))
}
