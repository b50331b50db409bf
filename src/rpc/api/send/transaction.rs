//! Transactions that the node signs, and the accounts that it signs for.

use std::sync::Arc;

use alloy_consensus::{TxEnvelope, transaction::Recovered};
use alloy_eips::Encodable2718;
use alloy_primitives::{Address, TxKind, U256};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    engine::{Call, CallFees, CallRequest, encode_unsigned},
    ledger::Snapshot,
    pool::{LeastFees, PoolNonce},
    rpc::{
        api::{Example, Method, Serve, call::needed_gas, wallet},
        json::{PreparedTransaction, Shape, data, hex::Fixed},
        params::{CallObject, parse},
        protocol::{
            dialect::Dialect,
            error::{REVERTED, Result, RpcError},
        },
        run::{Attempt, Backend, request::Request, runner::RequestRunner},
    },
    wallet::{
        Asked, BatchCall, BatchRequest, ChosenFields, FeeError, Impersonated, MessageToSign, NONCE_TRIES,
        SignatureRequest, SigningAccount, TxFields, WalletError, with_signature, without_signature,
    },
};

/// The answers to the examples.
const FILLED: &str = r#"{"raw": "0x02ec827a6980843b9aca0084b2d05e008252089400000000000000000000000000000000000000aa0180c0808080", "tx": {"type": "0x2", "chainId": "0x7a69", "nonce": "0x0", "to": "0x00000000000000000000000000000000000000aa", "gas": "0x5208", "gasPrice": null, "maxPriorityFeePerGas": "0x3b9aca00", "maxFeePerGas": "0xb2d05e00", "value": "0x1", "input": "0x", "accessList": [], "v": "0x0", "r": "0x0", "s": "0x0", "yParity": "0x0", "hash": "0x6c3f72458134b1bba689c9fc93ef195e04515dd93f07459816e60dc180ba0498"}}"#;
const SIGNED: &str = r#"{"raw": "0xf8658084773594008252089400000000000000000000000000000000000000aa018082f4f6a049747223d1ebe5ba8f0582868c17790414481aad457a4ec5d62dd6de431e5686a06f7fc1805dca6162553cca12ff3d7babcacc4bcd47ad4a966abb4477e1f5a5d6", "tx": {"type": "0x0", "chainId": "0x7a69", "nonce": "0x0", "to": "0x00000000000000000000000000000000000000aa", "gas": "0x5208", "gasPrice": "0x77359400", "maxPriorityFeePerGas": null, "maxFeePerGas": null, "value": "0x1", "input": "0x", "v": "0xf4f6", "r": "0x49747223d1ebe5ba8f0582868c17790414481aad457a4ec5d62dd6de431e5686", "s": "0x6f7fc1805dca6162553cca12ff3d7babcacc4bcd47ad4a966abb4477e1f5a5d6", "hash": "0x8996783943d668fb3f9103e37188cf29a7af8646790d2bd131640d8e5a7f513e"}}"#;

without_params! {
    /// The accounts that the node signs for: on a devnet, the ones among the test mnemonic's first ten that have
    /// ether; elsewhere none.
    Accounts -> Vec<Fixed<20>> = r#"["0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266"]"#,
        |backend, _| backend.wallet.accounts.addresses();
}

/// Signs a transaction for one of the node's accounts, and does not send it. Error: -32000 if nonce, gas or fees are missing. For an
/// account of a key file an approver decides; errors: 4100 account, 4001 rejected, or without --wallet-approval ask.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: a transaction")]
pub struct SendTransaction {
    /// Absent fields are filled in: the sender by the first account, the nonce, the gas by an estimate on the
    /// pre-confirmed state, the fees from the base fee and the suggested tip, or higher ones if a waiting transaction
    /// has the nonce.
    transaction: CallObject,
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
        let dialect = request.caller.dialect;
        let call = parse::<Self>(&request.params, dialect)
            .and_then(|asked| sent(asked.transaction, "params[0]", &runner.backend, dialect));
        let from = call.ok().map(|call| call.from).filter(|_| dialect.sends_from_wallet);
        wallet::answer(runner, request, from, admit, wallet::send_approved).await
    }
}

/// With --testing: sends a transaction from any account, which need not be impersonated.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: a transaction")]
pub struct SendUnsigned {
    /// Absent fields are filled in as by `eth_sendTransaction`.
    transaction: CallObject,
}

impl Method for SendUnsigned {
    type Answer = Fixed<32>;
    const EXAMPLE: Example = SendTransaction::EXAMPLE;

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let call = sent(self.transaction, "params[0]", backend, run.dialect)?;
        check(backend, &call)?;
        send_from_open(backend, run, None, call)
    }
}

/// A transaction with all its fields, unsigned, to be signed by the client.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: a transaction")]
pub struct FillTransaction {
    /// Absent fields are filled in as by `eth_sendTransaction`. The sender may be any account.
    transaction: CallObject,
}

impl Method for FillTransaction {
    type Answer = PreparedTransaction;
    const EXAMPLE: Example = Example {
        params: r#"[{"from": "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266", "to": "0x00000000000000000000000000000000000000aa", "value": "0x1"}]"#,
        answer: FILLED,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let mut call = sent(self.transaction, "params[0]", backend, run.dialect)?;
        if let CallFees::Market { max_fee: None, max_priority } = call.fees
            && run.dialect.for_tests
            && let Some(base_fee) = run.published.newest.header().base_fee_per_gas
        {
            // Like anvil: the current price, without room for a rising base fee.
            let tip = backend.wallet.fees.tip(run.published);
            let max_fee = Some(u128::from(base_fee).saturating_add(tip));
            call.fees = CallFees::Market { max_fee, max_priority: max_priority.or(Some(tip)) };
        }
        if call.blob_hashes.is_some() {
            return Err(refuse("filling in blob transactions is not supported".to_owned()));
        }
        check(backend, &call)?;
        let nonce = call.nonce.unwrap_or_else(|| {
            let sender = run.overlay.look_up(&run.published.newest.world, call.from);
            backend.pool.next_nonce(call.from, sender.map_or(0, |account| account.nonce))
        });
        let (call, gas) = fill(backend, run, &run.published.newest, call, false)?;
        let fields = TxFields { chain_id: backend.spec.chain_id(), nonce, gas };
        let mut tx = without_signature(call, fields)?;
        let raw = encode_unsigned(&mut tx);
        PreparedTransaction::write(&mut run.out, (&*raw, &tx, None, run.dialect));
        Ok(())
    }
}

/// Signs a transaction for one of the node's accounts with public keys, and does not send it. Error: -32000 for other
/// accounts, and if nonce, gas or fees are missing.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: a transaction")]
pub struct SignTransaction {
    /// Nonce, gas and fees are required. The sender is by default the first account.
    transaction: CallObject,
}

impl Serve for SignTransaction {
    type Part = ();
    type Answer = PreparedTransaction;
    const EXAMPLE: Example = Example {
        params: r#"[{"from": "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266", "to": "0x00000000000000000000000000000000000000aa", "value": "0x1", "nonce": "0x0", "gas": "0x5208", "gasPrice": "0x77359400"}]"#,
        answer: SIGNED,
    };

    async fn serve<'a>((): &'a (), runner: &'a Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        wallet::answer(runner, request, None, admit_signing, write_signed).await
    }
}

/// Signs the transaction if its account is open. For an account of a key file returns it with the question to the approver.
fn admit_signing(backend: &Backend, run: &mut Attempt<'_>) -> Result<Option<(SignatureRequest, Asked)>> {
    let SignTransaction { transaction } = parse(run.params, run.dialect)?;
    let mut call = sent(transaction, "params[0]", backend, run.dialect)?;
    let Some(gas) = call.gas else { return Err(refuse("gas not specified".to_owned())) };
    if matches!(call.fees, CallFees::Market { max_fee: None, .. } | CallFees::Market { max_priority: None, .. }) {
        return Err(refuse("missing gasPrice or maxFeePerGas/maxPriorityFeePerGas".to_owned()));
    }
    let Some(nonce) = call.nonce else { return Err(refuse("nonce not specified".to_owned())) };
    check(backend, &call)?;
    call.fees = fill_fees(backend, run, &call, LeastFees::default())?;
    let Some(account) = backend.wallet.accounts.find(call.from) else {
        return Err(refuse("unknown account".to_owned()));
    };
    let authorizes = call.authorization_list.is_some();
    let tx = without_signature(call, TxFields { chain_id: backend.spec.chain_id(), nonce, gas })?;
    let message = MessageToSign::Transaction(Box::new(tx));
    let request = SignatureRequest { account: account.address(), path: "params[0].from", message };
    if account.is_open {
        return write_signed(backend, run, &request).map(|()| None);
    }
    if authorizes {
        return Err(refuse("the wallet signs no transaction with authorizations: use wallet_sendCalls".to_owned()));
    }
    wallet::admit_signature(backend, run, request, |_, run, request| {
        let problem = format!(
            "{} signs a transaction without sending it only after approval, with --wallet-approval ask: use wallet_sendCalls",
            request.account
        );
        Err(run.dialect.wallet_error(WalletError::Rejected(problem)))
    })
}

/// Signs a transaction that may be signed, and writes it.
fn write_signed(backend: &Backend, run: &mut Attempt<'_>, request: &SignatureRequest) -> Result<()> {
    let MessageToSign::Transaction(tx) = &request.message else {
        return Err(RpcError::internal("a message in the place of a transaction"));
    };
    let signature = backend.wallet.sign_message(request).map_err(|error| run.dialect.wallet_error(error))?;
    let tx = with_signature((**tx).clone(), signature, request.account);
    PreparedTransaction::write(&mut run.out, (&*tx.encoded_2718(), tx.inner(), Some(tx.inner()), run.dialect));
    Ok(())
}

/// Returns a transaction, which is sent from the node's first account if it has no sender.
fn sent(transaction: CallObject, path: &str, backend: &Backend, dialect: &Dialect) -> Result<Call> {
    let first = backend.wallet.accounts.first().map(SigningAccount::address);
    transaction.or_from(first).into_call(path, dialect)
}

/// Sends the transaction, or admits it to the wallet if it is from an account of a key file. Returns it with the question to the
/// approver if the policy requires approval.
fn admit(backend: &Backend, run: &mut Attempt<'_>) -> Result<Option<(wallet::Waiting, Asked)>> {
    let SendTransaction { transaction } = parse(run.params, run.dialect)?;
    let call = sent(transaction, "params[0]", backend, run.dialect)?;
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
    backend.wallet.check_store()?;
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

/// Checks that a transaction of the wallet, which has failed on `snapshot`, can still succeed there. Returns the error
/// of `eth_estimateGas` if it cannot.
fn check_success(backend: &Backend, run: &mut Attempt<'_>, snapshot: &Snapshot, call: Call) -> Result<()> {
    // Without fees, because the account was found to be able to pay.
    let call = Call { fees: CallFees::default(), nonce: None, ..call };
    run.meter = std::mem::take(&mut run.overlay.meter);
    let checked = needed_gas(backend, snapshot, &CallRequest { call, ..CallRequest::default() }, run);
    run.ensure_complete()?;
    checked.map(drop)
}

/// Checks that the call is a transaction of this chain, of a type that the node fills in and signs.
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
    Ok(())
}

/// Fills in the missing fees and gas limit of a call, like geth's `setDefaults`, by an estimate on `on`. A call that
/// `may_fail` gets the gas of a block if it succeeds with no gas limit. Returns the gas limit with the call.
fn fill(
    backend: &Backend,
    run: &mut Attempt<'_>,
    on: &Snapshot,
    mut call: Call,
    may_fail: bool,
) -> Result<(Call, u64)> {
    let least = call.nonce.map(|nonce| backend.pool.least_fees(&call.from, nonce)).unwrap_or_default();
    call.fees = fill_fees(backend, run, &call, least)?;
    let gas = match call.gas {
        Some(gas) => gas,
        None => {
            let request = CallRequest { call: call.clone(), ..CallRequest::default() };
            match needed_gas(backend, on, &request, run) {
                Err(RpcError::Answer(error)) if may_fail && error.code() == REVERTED => {
                    let header = on.header();
                    header.gas_limit.min(backend.spec.most_tx_gas(header.timestamp))
                }
                gas => gas?,
            }
        }
    };
    // The pool chooses the nonce by the sender's account.
    run.overlay.look_up(&on.world, call.from);
    run.ensure_complete()?;
    Ok((call, gas))
}

/// Returns the fees of a call, with missing ones filled in: at least `least`.
fn fill_fees(backend: &Backend, run: &Attempt<'_>, call: &Call, least: LeastFees) -> Result<CallFees> {
    let filled = backend.wallet.fees.fill(call.fees, call.authorization_list.is_some(), least, run.published);
    filled
        .or_else(|error| match error {
            FeeError::TipAboveFee { fee, tip } if run.dialect.for_tests => {
                Ok(CallFees::Market { max_fee: Some(fee), max_priority: Some(tip) })
            }
            error => Err(error),
        })
        .map_err(|error| match error {
            FeeError::PriceWithAuthorizations => RpcError::params(format!("params[0].{error}")),
            other => refuse(other.to_string()),
        })
}

/// Signs a transaction with its account, or sends it unsigned on behalf of its sender if there is none.
fn sign(account: Option<&SigningAccount>, call: Call, fields: TxFields) -> Result<Recovered<TxEnvelope>> {
    Ok(match account {
        Some(account) => account.sign(call, fields)?,
        None => Impersonated::send_as(call.from, call, fields)?,
    })
}

/// Returns a transaction of any account, with missing fields filled in on `on`. `next_nonce` returns the nonce of its
/// sender.
///
/// # Errors
///
/// Returns -32602 with the field's path if the transaction is malformed, and the errors of `eth_estimateGas`.
pub fn sign_on(
    backend: &Backend,
    run: &mut Attempt<'_>,
    on: &Snapshot,
    transaction: CallObject,
    path: &str,
    next_nonce: impl FnOnce(&Attempt<'_>, Address) -> u64,
) -> Result<Recovered<TxEnvelope>> {
    let call = sent(transaction, path, backend, run.dialect)?;
    check(backend, &call)?;
    let nonce = call.nonce.unwrap_or_else(|| next_nonce(run, call.from));
    let account = backend.wallet.accounts.find(call.from).filter(|account| account.is_open);
    let (call, gas) = fill(backend, run, on, call, true)?;
    sign(account, call, TxFields { chain_id: backend.spec.chain_id(), nonce, gas })
}

/// Sends a transaction of an account that is open to all clients, or impersonated.
fn send_from_open(
    backend: &Backend,
    run: &mut Attempt<'_>,
    account: Option<&SigningAccount>,
    call: Call,
) -> Result<()> {
    let chain_id = backend.spec.chain_id();
    // The transaction will run on the pre-confirmed state.
    let (call, gas) = fill(backend, run, &run.published.newest, call, run.dialect.for_tests)?;
    let choosing = account.map_or(&backend.impersonated.choosing, |account| &account.choosing).lock();
    let kind = if call.nonce.is_some() { PoolNonce::Any } else { PoolNonce::Free };
    let mut tries = 0;
    let (hash, commit) = loop {
        let nonce = call.nonce.unwrap_or_else(|| backend.pool.next_nonce(call.from, 0));
        let fields = TxFields { chain_id, nonce, gas };
        let tx = sign(account, call.clone(), fields)?;
        let hash = *tx.tx_hash();
        match backend.pool.add_signed(tx, kind) {
            // Another user of the key has taken the nonce meanwhile.
            Err(error) if error.is_nonce() && kind == PoolNonce::Free && tries < NONCE_TRIES => tries += 1,
            done => break (hash, done?),
        }
    };
    drop(choosing);
    data(&mut run.out, hash.as_slice());
    run.commit = commit;
    Ok(())
}

fn refuse(text: String) -> RpcError {
    RpcError::new(-32000, text)
}
