//! Transactions that the node signs, and the accounts that it signs for.

use std::sync::Arc;

use alloy_primitives::{TxKind, U256};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    engine::{Call, CallFees, CallRequest},
    ledger::Snapshot,
    pool::PoolNonce,
    rpc::{
        api::{Example, Query, Serve, call::needed_gas, wallet},
        json::{self, hex::Fixed},
        params::{CallObject, parse},
        protocol::{
            dialect::Dialect,
            error::{Result, RpcError},
        },
        run::{
            Backend, Run, leader,
            request::{Request, begin},
            runner::RequestRunner,
        },
    },
    wallet::{
        Asked, BatchCall, BatchRequest, ChosenFields, FeeError, Impersonated, NONCE_TRIES, SigningAccount,
        SigningError, TxFields,
    },
};

/// The accounts that the node signs for: on a devnet those of the test mnemonic's first ten that have ether, else none.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "no parameters")]
pub struct Accounts {}

impl Query for Accounts {
    type Answer = Vec<Fixed<20>>;
    const EXAMPLE: Example = Example { params: "[]", answer: r#"["0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266"]"# };

    fn answer(self, backend: &Backend, _: &mut Run<'_>) -> Result<Self::Answer> {
        Ok(backend.wallet.accounts.addresses().map(|address| Fixed(address.0.0)).collect())
    }
}

/// Signs a transaction for one of the node's accounts, and takes it into the pool.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: a transaction")]
pub struct SendTransaction {
    /// Absent fields are filled in: the sender by the first account, the nonce, the gas by an estimate on the pre-confirmed state, the
    /// fees from the base fee and the suggested tip, or higher ones where the nonce is that of a transaction that waits.
    transaction: CallObject,
}

impl SendTransaction {
    /// Parses the transaction. One without a sender is sent from the account `first`.
    fn parse(params: &str, dialect: &Dialect, first: Option<&SigningAccount>) -> Result<Call> {
        let Self { transaction } = parse(params, dialect)?;
        transaction.or_from(first.map(SigningAccount::address)).into_call("params[0]", dialect)
    }
}

impl Serve for SendTransaction {
    type Part = ();
    type Answer = Fixed<32>;
    const EXAMPLE: Example = Example {
        params: r#"[{"from": "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266", "to": "0x00000000000000000000000000000000000000aa", "value": "0x1"}]"#,
        answer: r#""0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421""#,
    };

    /// From an account of the wallet, a transaction is sent as a batch of one call. Returns -32000 if the transaction is rejected,
    /// and the wallet's error.
    async fn serve<'a>((): &'a (), runner: &'a Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        let call = Self::parse(&request.params, request.caller.dialect, runner.wallet().accounts.first()).ok();
        let from = call.map(|call| call.from).filter(|_| request.caller.dialect.sends_from_wallet);
        // Of a fleet one node has the wallet, and signs for its accounts alone, so that no nonce is signed for twice.
        let is_of_wallet = |address| runner.wallet().accounts.find(address).is_some_and(|account| !account.is_open);
        if from.is_some_and(is_of_wallet)
            && let Some(leader) = runner.leader.as_deref().filter(|leader| leader.publishes())
            && leader.leaves_wallet_to_leader().await?
        {
            let mut out = begin(&request.id, "result");
            out.extend_from_slice(leader::ask(leader, &request).await?.get().as_bytes());
            return Ok(out);
        }
        wallet::answer(runner, request, from, admit, wallet::send_approved).await
    }
}

/// Sends the transaction, or admits it to the wallet if it is from an account of a key file. Returns it with the question to the
/// approver if the policy requires approval.
fn admit(backend: &Backend, run: &mut Run<'_>) -> Result<Option<(wallet::Waiting, Asked)>> {
    let call = SendTransaction::parse(run.params, run.dialect, backend.wallet.accounts.first())?;
    let account = backend.wallet.accounts.find(call.from);
    if account.is_none() && !backend.impersonated.contains(&call.from) {
        return Err(refuse("unknown account".to_owned()));
    }
    let is_of_wallet = account.is_some_and(|account| !account.is_open);
    if is_of_wallet && !run.dialect.sends_from_wallet {
        return Err(refuse(format!(
            "{} is an account of the wallet, which signs batches and messages: use wallet_sendCalls",
            call.from
        )));
    }
    check(backend, &call)?;
    if !is_of_wallet {
        return send_from_open(backend, run, account, call).map(|()| None);
    }
    if call.authorization_list.is_some() {
        return Err(refuse("the wallet signs no transaction with authorizations: use wallet_sendCalls".to_owned()));
    }
    let Call { from, to, value, data, gas: gas_limit, fees, nonce, access_list, .. } = call.clone();
    let batch = BatchRequest {
        id: None,
        from: Some(from),
        chain_id: Some(backend.spec.chain_id()),
        atomic_required: false,
        calls: vec![BatchCall { to: to.into_to(), value, data, gas_limit, capabilities: Vec::new() }],
        capabilities: Vec::new(),
        transaction: Some(ChosenFields { fees, nonce, access_list }),
    };
    let prepared = wallet::prepare(backend, run, batch)?;
    if let Some(snapshot) = prepared.failed_on() {
        check_success(backend, run, snapshot, call)?;
    }
    wallet::send_or_ask(backend, run, prepared)
}

/// Checks that a transaction of the wallet, which has failed on `snapshot`, succeeds there all the same. Returns the error of
/// `eth_estimateGas` if it does not.
fn check_success(backend: &Backend, run: &mut Run<'_>, snapshot: &Snapshot, call: Call) -> Result<()> {
    // Without fees, because the account was found to be able to pay.
    let call = Call { fees: CallFees::default(), nonce: None, ..call };
    run.meter = std::mem::take(&mut run.overlay.meter);
    let checked = needed_gas(backend, snapshot, &CallRequest { call, ..CallRequest::default() }, run);
    run.ensure_complete()?;
    checked.map(drop)
}

fn check(backend: &Backend, call: &Call) -> Result<()> {
    let want = backend.spec.chain_id();
    if let Some(have) = call.chain_id.filter(|have| *have != U256::from(want)) {
        return Err(refuse(format!("chainId does not match node's (have={have}, want={want})")));
    }
    if call.blob_hashes.is_some() {
        return Err(refuse("signing blob transactions not supported".to_owned()));
    }
    if call.to == TxKind::Create && call.data.is_empty() {
        return Err(refuse("contract creation without any data provided".to_owned()));
    }
    Ok(backend.wallet.check_store()?)
}

/// Sends a transaction of an account that is open to all clients, or impersonated. Fields that the request leaves open are
/// filled in as by geth's `setDefaults`.
fn send_from_open(
    backend: &Backend,
    run: &mut Run<'_>,
    account: Option<&SigningAccount>,
    mut call: Call,
) -> Result<()> {
    let want = backend.spec.chain_id();
    let authorizes = call.authorization_list.is_some();
    let least = call.nonce.map(|nonce| backend.pool.least_fees(&call.from, nonce)).unwrap_or_default();
    let filled = backend.wallet.fees.fill(call.fees, authorizes, least, run.published);
    call.fees = filled.map_err(|error| match error {
        FeeError::PriceWithAuthorizations => RpcError::params(format!("params[0].{error}")),
        other => refuse(other.to_string()),
    })?;
    let gas = match call.gas {
        Some(gas) => gas,
        // The estimate uses the pre-confirmed state, which the transaction will run on.
        None => {
            let request = CallRequest { call: call.clone(), ..CallRequest::default() };
            needed_gas(backend, &run.published.newest, &request, run)?
        }
    };
    run.ensure_complete()?;
    let choosing = account.map_or(&backend.impersonated.choosing, |account| &account.choosing).lock();
    let kind = if call.nonce.is_some() { PoolNonce::Any } else { PoolNonce::Free };
    let mut tries = 0;
    let (hash, commit) = loop {
        let nonce = call.nonce.unwrap_or_else(|| backend.pool.next_nonce(call.from, 0));
        let fields = TxFields { chain_id: want, nonce, gas };
        let signed = match account {
            Some(account) => account.sign(call.clone(), fields),
            None => Impersonated::send_as(call.from, call.clone(), fields).map_err(SigningError::from),
        };
        let tx = signed.map_err(|error| match error {
            SigningError::Call(error) => error.into(),
            SigningError::Key(error) => RpcError::internal(&error.to_string()),
        })?;
        let hash = *tx.tx_hash();
        match backend.pool.add_signed(tx, kind) {
            // Another user of the key has taken the nonce meanwhile.
            Err(error) if error.is_nonce() && kind == PoolNonce::Free && tries < NONCE_TRIES => tries += 1,
            done => break (hash, done?),
        }
    };
    drop(choosing);
    json::data(&mut run.out, hash.as_slice());
    run.commit = commit.into();
    Ok(())
}

fn refuse(text: String) -> RpcError {
    RpcError::new(-32000, text)
}
