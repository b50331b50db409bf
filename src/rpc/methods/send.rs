//! Sending: signed transactions, and those of the accounts that the node signs for.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use alloy_consensus::{
    EthereumTxEnvelope, EthereumTypedTransaction, SignableTransaction, TxEip2930, TxEip4844, TxEip4844Variant,
    TxEnvelope, TxLegacy, transaction::Recovered,
};
use alloy_primitives::{Address, B256, TxKind, U256};
use alloy_signer::SignerSync;
use alloy_signer_local::PrivateKeySigner;

use super::{Asked, Backend, Worker, fee};
use crate::{
    engine::{Call, CallFees, CallRequest, market_tx},
    rpc::{encode, error::RpcError, wire},
    state::Published,
    store::Commit,
};

/// How long `eth_sendRawTransactionSync` waits.
#[derive(Clone, Copy, Debug)]
pub struct SyncTimeouts {
    /// Where its client does not say.
    pub usual: Duration,
    /// The most that its client may say; more is cut, as geth does it.
    pub most: Duration,
}

/// A transaction whose client waits for its receipt.
#[derive(Clone, Copy, Debug)]
pub struct Awaited {
    /// The transaction.
    pub hash: B256,
    /// How long its client waits.
    pub timeout: Duration,
}

/// The accounts that the node signs for.
#[derive(Debug, Default)]
pub struct Signers {
    signers: Vec<PrivateKeySigner>,
    /// Held from the choice of a nonce until its transaction is in the pool, so that no two get the same.
    choosing: Mutex<()>,
}

impl Signers {
    /// These accounts.
    pub fn new(signers: Vec<PrivateKeySigner>) -> Self {
        Self { signers, choosing: Mutex::default() }
    }

    /// Their addresses.
    pub fn addresses(&self) -> impl Iterator<Item = Address> {
        self.signers.iter().map(PrivateKeySigner::address)
    }

    fn find(&self, address: Address) -> Option<&PrivateKeySigner> {
        self.signers.iter().find(|signer| signer.address() == address)
    }
}

impl Backend {
    /// `eth_sendRawTransaction`.
    pub(super) fn send_raw(&self, asked: Asked<'_>, out: &mut Vec<u8>) -> Result<Commit, RpcError> {
        let raw = wire::parse_raw(asked.params, asked.dialect)?;
        let (hash, commit) = self.pool.add_raw(&raw)?;
        encode::data(out, hash.as_slice());
        Ok(commit)
    }

    /// The first half of `eth_sendRawTransactionSync` (EIP-7966): the transaction is taken, its receipt is to be waited for.
    ///
    /// # Errors
    /// Those of `eth_sendRawTransaction`; 5 where the transaction waits for another, its hash beside it.
    pub fn send_to_await(&self, asked: Asked<'_>) -> Result<(Awaited, Commit), RpcError> {
        let (raw, timeout) = wire::parse_raw_sync(asked.params, asked.dialect)?;
        let (hash, commit) = self.pool.add_raw(&raw)?;
        if let Some(nonce) = self.pool.gap_before(&hash) {
            return Err(RpcError::unready(
                hash,
                format!(
                    "The transaction was added to the transaction pool but wasn't processed: nonce {nonce} of its sender is missing"
                ),
            ));
        }
        let SyncTimeouts { usual, most } = self.limits.sync;
        Ok((Awaited { hash, timeout: timeout.unwrap_or(usual).min(most) }, commit))
    }

    /// `eth_accounts`.
    pub(super) fn accounts(&self, out: &mut Vec<u8>) {
        encode::list(out, self.signers.addresses(), |out, address| encode::data(out, address.as_slice()));
    }

    /// `eth_sendTransaction`: what the request leaves open is filled in as geth's `setDefaults` does.
    pub(super) fn send_transaction(
        &self,
        asked: Asked<'_>,
        worker: Worker<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Commit, RpcError> {
        let mut call = wire::parse_sending(asked.params, asked.dialect)?;
        let refuse = |text: String| RpcError::new(-32000, text);
        let signer = self.signers.find(call.from).ok_or_else(|| refuse("unknown account".to_owned()))?;
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
        call.fees = self.filled_fees(&call, asked.published)?;
        let gas = match call.gas {
            Some(gas) => gas,
            // On the pre-confirmed state, which it will meet.
            None => {
                let request = CallRequest { call: call.clone(), ..CallRequest::default() };
                self.needed_gas(&asked.published.newest, &request, asked.dialect, worker)?
            }
        };
        let choosing = self.signers.choosing.lock().unwrap_or_else(PoisonError::into_inner);
        let nonce = call.nonce.unwrap_or_else(|| self.pool.next_nonce(call.from, 0));
        let from = call.from;
        let tx = signed(call, Filled { chain_id: want, nonce, gas }, signer)?;
        let hash = *tx.tx_hash();
        let commit = self.pool.add_own([Recovered::new_unchecked(tx, from)], |_| Ok(()))?;
        drop(choosing);
        encode::data(out, hash.as_slice());
        Ok(commit)
    }

    /// What a transaction pays: what it says, else the suggested tip, and twice the base fee beside it.
    fn filled_fees(&self, call: &Call, published: &Published) -> Result<CallFees, RpcError> {
        let base_fee = self.next_base_fee(published);
        let (max_fee, max_priority) = match (call.fees, base_fee) {
            (CallFees::GasPrice(_), _) => {
                if call.authorization_list.is_some() {
                    return Err(RpcError::params(
                        "params[0].gasPrice: not of a transaction with authorizations: expected maxFeePerGas",
                    ));
                }
                return Ok(call.fees);
            }
            (CallFees::Market { max_fee: None, max_priority: None }, None) => {
                return Ok(CallFees::GasPrice(fee::suggested_tip(published)));
            }
            (CallFees::Market { .. }, None) => {
                let text = "maxFeePerGas and maxPriorityFeePerGas are not valid before London is active";
                return Err(RpcError::new(-32000, text));
            }
            (CallFees::Market { max_fee, max_priority }, Some(_)) => (max_fee, max_priority),
        };
        let tip = max_priority.unwrap_or_else(|| fee::suggested_tip(published));
        let twice_base = 2 * u128::from(base_fee.unwrap_or_default());
        let fee = max_fee.unwrap_or_else(|| twice_base.saturating_add(tip));
        if fee < tip {
            return Err(RpcError::new(-32000, format!("maxFeePerGas ({fee}) < maxPriorityFeePerGas ({tip})")));
        }
        Ok(CallFees::Market { max_fee: Some(fee), max_priority: Some(tip) })
    }
}

/// What the node fills in.
struct Filled {
    chain_id: u64,
    nonce: u64,
    gas: u64,
}

fn signed(call: Call, filled: Filled, signer: &PrivateKeySigner) -> Result<TxEnvelope, RpcError> {
    let Filled { chain_id, nonce, gas: gas_limit } = filled;
    let CallFees::GasPrice(gas_price) = call.fees else {
        return sign(market_tx(&call, chain_id, nonce, gas_limit)?, signer);
    };
    let Call { to, value, data: input, access_list, .. } = call;
    let tx = match access_list {
        Some(access_list) => EthereumTypedTransaction::Eip2930(TxEip2930 {
            chain_id,
            nonce,
            gas_price,
            gas_limit,
            to,
            value,
            access_list,
            input,
        }),
        None => EthereumTypedTransaction::Legacy(TxLegacy {
            chain_id: Some(chain_id),
            nonce,
            gas_price,
            gas_limit,
            to,
            value,
            input,
        }),
    };
    sign(tx, signer)
}

fn sign(tx: EthereumTypedTransaction<TxEip4844>, signer: &PrivateKeySigner) -> Result<TxEnvelope, RpcError> {
    let signature =
        signer.sign_hash_sync(&tx.signature_hash()).map_err(|error| RpcError::internal(&error.to_string()))?;
    let signed: EthereumTxEnvelope<TxEip4844> = tx.into_signed(signature).into();
    Ok(signed.map_eip4844(TxEip4844Variant::from))
}
