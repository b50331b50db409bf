//! Sending of signed transactions, and of transactions that the node signs.

pub mod wait;

use std::time::Duration;

use alloy_primitives::{B256, Bytes, TxKind, U256};

use super::call::needed_gas;
use super::wallet::Admitted;
use crate::rpc::run::{Backend, Run};
use crate::{
    engine::{Call, CallFees, CallRequest},
    ledger::Snapshot,
    pool::PoolPlace,
    rpc::{
        json, params,
        protocol::error::{Result, RpcError},
    },
    wallet::{
        BatchCall, BatchRequest, ChosenFields, FeeError, Impersonated, NONCE_TRIES, SigningAccount, SigningError,
        TxFields,
    },
};

/// A sent transaction whose client waits for its receipt.
#[derive(Clone, Copy, Debug)]
pub struct Awaited {
    /// The hash of the transaction.
    pub hash: B256,
    /// The time that the client waits at most.
    pub timeout: Duration,
}

impl Backend {
    /// Answers `eth_sendRawTransaction`.
    pub fn send_raw(&self, run: &mut Run<'_>, raw: Bytes) -> Result<()> {
        let (hash, commit) = self.pool.add_raw(&raw)?;
        json::data(&mut run.out, hash.as_slice());
        run.commit = commit;
        Ok(())
    }

    /// Runs the first half of `eth_sendRawTransactionSync` (EIP-7966): adds the transaction to the pool.
    ///
    /// # Errors
    ///
    /// Returns the errors of `eth_sendRawTransaction`, or 5 with the hash if an earlier nonce of the sender is missing.
    pub fn send_to_await(&self, run: &mut Run<'_>) -> Result<Awaited> {
        let (raw, timeout) = params::parse_raw_sync(run.params, run.dialect)?;
        let (hash, commit) = self.pool.add_raw(&raw)?;
        run.commit = commit;
        if let Some(nonce) = self.pool.gap_before(&hash) {
            return Err(RpcError::unready(
                hash,
                format!(
                    "The transaction was added to the transaction pool but wasn't processed: nonce {nonce} of its sender is missing"
                ),
            ));
        }
        Ok(Awaited { hash, timeout: self.limits.sync.choose(timeout) })
    }

    pub fn accounts(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        let addresses = self.wallet.accounts.addresses();
        json::list(&mut run.out, addresses, |out, address| json::data(out, address.as_slice()));
        Ok(())
    }

    /// Runs the first half of `eth_sendTransaction`: sends the transaction, or admits it to the wallet if it is from an account
    /// of a key file.
    ///
    /// # Errors
    ///
    /// Returns -32000 if the transaction is rejected, and the wallet's error with the dialect's code.
    pub fn admit_transaction(&self, run: &mut Run<'_>) -> Result<Admitted> {
        let call = params::parse_sending(run.params, run.dialect)?;
        let account = self.wallet.accounts.find(call.from);
        if account.is_none() && !self.impersonated.contains(&call.from) {
            return Err(refuse("unknown account".to_owned()));
        }
        let is_of_wallet = account.is_some_and(|account| !account.is_open);
        if is_of_wallet && !run.dialect.sends_from_wallet {
            return Err(refuse(format!(
                "{} is an account of the wallet, which signs batches and messages: use wallet_sendCalls",
                call.from
            )));
        }
        self.check_sending(&call)?;
        if !is_of_wallet {
            return self.send_from_open(run, account, call).map(|()| Admitted::Sent);
        }
        if call.authorization_list.is_some() {
            return Err(refuse("the wallet signs no transaction with authorizations: use wallet_sendCalls".to_owned()));
        }
        let Call { from, to, value, data, gas: gas_limit, fees, nonce, access_list, .. } = call;
        let to = to.into_to();
        self.admit_to_wallet(
            run,
            BatchRequest {
                id: None,
                from: Some(from),
                chain_id: Some(self.spec.chain_id()),
                atomic_required: false,
                calls: vec![BatchCall { to, value, data, gas_limit, capabilities: Vec::new() }],
                capabilities: Vec::new(),
                transaction: Some(ChosenFields { fees, nonce, access_list }),
            },
        )
    }

    /// Checks that a transaction of the wallet, which has failed on `snapshot`, succeeds there all the same.
    ///
    /// # Errors
    ///
    /// Returns the error of `eth_estimateGas` if it does not.
    pub fn check_success(&self, run: &mut Run<'_>, snapshot: &Snapshot) -> Result<()> {
        let call = params::parse_sending(run.params, run.dialect)?;
        // Without fees, because the account was found to be able to pay.
        let call = Call { fees: CallFees::default(), nonce: None, ..call };
        run.meter = std::mem::take(&mut run.overlay.meter);
        let checked = needed_gas(self, snapshot, &CallRequest { call, ..CallRequest::default() }, run);
        run.ensure_complete()?;
        checked.map(drop)
    }

    fn check_sending(&self, call: &Call) -> Result<()> {
        let want = self.spec.chain_id();
        if let Some(have) = call.chain_id.filter(|have| *have != U256::from(want)) {
            return Err(refuse(format!("chainId does not match node's (have={have}, want={want})")));
        }
        if call.blob_hashes.is_some() {
            return Err(refuse("signing blob transactions not supported".to_owned()));
        }
        if call.to == TxKind::Create && call.data.is_empty() {
            return Err(refuse("contract creation without any data provided".to_owned()));
        }
        Ok(self.wallet.check_store()?)
    }

    /// Sends a transaction of an account that is open to all clients, or impersonated. Fields that the request leaves open are
    /// filled in as by geth's `setDefaults`.
    fn send_from_open(&self, run: &mut Run<'_>, account: Option<&SigningAccount>, mut call: Call) -> Result<()> {
        let want = self.spec.chain_id();
        let filled = self.wallet.fees.fill(call.fees, call.authorization_list.is_some(), run.published);
        call.fees = filled.map_err(|error| match error {
            FeeError::PriceWithAuthorizations => RpcError::params(format!("params[0].{error}")),
            other => refuse(other.to_string()),
        })?;
        let gas = match call.gas {
            Some(gas) => gas,
            // The estimate uses the pre-confirmed state, which the transaction will run on.
            None => {
                let request = CallRequest { call: call.clone(), ..CallRequest::default() };
                needed_gas(self, &run.published.newest, &request, run)?
            }
        };
        run.ensure_complete()?;
        let choosing = account.map_or_else(|| self.impersonated.choosing(), SigningAccount::choosing);
        let place = if call.nonce.is_some() { PoolPlace::Any } else { PoolPlace::Free };
        let mut tries = 0;
        let (hash, commit) = loop {
            let nonce = call.nonce.unwrap_or_else(|| self.pool.next_nonce(call.from, 0));
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
            match self.pool.add_signed(tx, place) {
                // Another user of the key has taken the nonce meanwhile.
                Err(error) if error.is_nonce() && place == PoolPlace::Free && tries < NONCE_TRIES => tries += 1,
                done => break (hash, done?),
            }
        };
        drop(choosing);
        json::data(&mut run.out, hash.as_slice());
        run.commit = commit.into();
        Ok(())
    }
}

fn refuse(text: String) -> RpcError {
    RpcError::new(-32000, text)
}
