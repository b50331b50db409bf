//! Converts a call into the transaction that the EVM runs, and into the one that a simulated block lists.

use alloy_consensus::{
    EthereumTypedTransaction, SignableTransaction, Transaction, TxEip1559, TxEip4844, TxEip7702, TxEnvelope, TxLegacy,
    transaction::RlpEcdsaEncodableTx,
};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Signature, TxKind, U256};
use revm::{
    context::{TxEnv, transaction::TransactionType},
    context_interface::either::Either,
};

use super::{
    error::SimulationError,
    request::{Call, CallFees},
};
use crate::chain::{ChainSpec, Family};

/// The values with which a call runs, after the block has filled in the fields that the request left open.
#[derive(Clone, Copy, Debug)]
pub(super) struct FilledCall {
    pub gas: u64,
    pub nonce: u64,
    pub chain_id: u64,
    /// Whether the block has a base fee: from London on.
    pub market: bool,
}

impl FilledCall {
    /// Returns the fees that the call pays. Before London, a call without a gas price pays nothing.
    fn fees(&self, call: &Call) -> CallFees {
        match call.fees {
            CallFees::Market { .. } if !self.market => CallFees::GasPrice(0),
            fees => fees,
        }
    }
}

/// Refuses the id of another chain, and blobs on the OP stack.
pub(super) fn check_chain(call: &Call, spec: &ChainSpec) -> Result<(), SimulationError> {
    if call.blob_hashes.is_some() && spec.family() == Family::OpStack {
        return Err(SimulationError::Params(
            "blobVersionedHashes: a chain of the OP stack has no blob transactions: expected none".into(),
        ));
    }
    let chain_id = spec.chain_id();
    match call.chain_id {
        Some(have) if have != U256::from(chain_id) => {
            Err(SimulationError::Refused(format!("chainId does not match node's (have={have}, want={chain_id})")))
        }
        _ => Ok(()),
    }
}

/// Refuses a signed transaction of another chain.
pub(super) fn check_signer_chain(tx: &TxEnvelope, spec: &ChainSpec) -> Result<(), String> {
    let want = spec.chain_id();
    match tx.chain_id().filter(|have| *have != want) {
        Some(have) => Err(format!("invalid chain id for signer: have {have} want {want}")),
        None => Ok(()),
    }
}

/// Refuses a signed transaction with blobs on the OP stack.
pub(super) fn check_blob_type(tx: &TxEnvelope, spec: &ChainSpec) -> Result<(), String> {
    match tx.is_eip4844() && spec.family() == Family::OpStack {
        true => Err("a chain of the OP stack has no blob transactions: expected a type other than 0x3".to_owned()),
        false => Ok(()),
    }
}

/// Refuses a signed transaction whose blobs do not fit in the block. `used` of its `most` blob gas is used (EIP-4844).
pub(super) fn check_blob_gas(tx: &TxEnvelope, used: u64, most: u64) -> Result<(), String> {
    match tx.blob_gas_used() {
        Some(needs) if needs > 0 && needs > most.saturating_sub(used) => {
            Err(format!("blob gas limit reached: {used} used of {most}, the transaction needs {needs}"))
        }
        _ => Ok(()),
    }
}

pub(super) fn tx_env(call: &Call, filled: FilledCall) -> TxEnv {
    let (price, priority) = match filled.fees(call) {
        CallFees::GasPrice(price) => (price, None),
        CallFees::Market { max_fee, max_priority } => {
            (max_fee.unwrap_or_default(), filled.market.then(|| max_priority.unwrap_or_default()))
        }
    };
    // A call with blobs or delegations keeps its type with a plain gas price, which is then both fee and priority fee.
    let (kind, priority) = if call.authorization_list.is_some() {
        (TransactionType::Eip7702, priority.or(Some(price)))
    } else if call.blob_hashes.is_some() {
        (TransactionType::Eip4844, priority.or(Some(price)))
    } else if priority.is_some() {
        (TransactionType::Eip1559, priority)
    } else if call.access_list.is_some() {
        (TransactionType::Eip2930, None)
    } else {
        (TransactionType::Legacy, None)
    };
    TxEnv {
        tx_type: kind as u8,
        caller: call.from,
        gas_limit: filled.gas,
        gas_price: price,
        kind: call.to,
        value: call.value,
        data: call.data.clone(),
        nonce: filled.nonce,
        chain_id: Some(filled.chain_id),
        access_list: call.access_list.clone().unwrap_or_default(),
        gas_priority_fee: priority,
        blob_hashes: call.blob_hashes.clone().unwrap_or_default(),
        max_fee_per_blob_gas: call.max_fee_per_blob_gas.unwrap_or_default(),
        authorization_list: call.authorization_list.iter().flatten().cloned().map(Either::Left).collect(),
    }
}

/// The transaction that a simulated block lists for a call.
#[derive(Clone, Debug)]
pub struct ListedTx {
    /// The transaction's fields.
    pub tx: EthereumTypedTransaction<TxEip4844>,
    /// The signed transaction. `None` for a call, which is listed with a signature of zeros.
    pub signed: Option<Box<TxEnvelope>>,
    /// The transaction's encoding (EIP-2718), with the signature.
    pub encoded: Vec<u8>,
}

impl ListedTx {
    /// Returns a signed transaction as its block lists it.
    pub(super) fn signed(tx: &TxEnvelope) -> Self {
        let listed = EthereumTypedTransaction::from(tx.clone());
        Self { tx: listed.map_eip4844(Into::into), signed: Some(Box::new(tx.clone())), encoded: tx.encoded_2718() }
    }
}

/// Returns the call as a transaction without a signature. The type is geth's choice: dynamic fee, unless the call has a
/// gas price, blobs or delegations.
pub(super) fn unsigned_tx(call: &Call, filled: FilledCall) -> Result<ListedTx, SimulationError> {
    let FilledCall { gas: gas_limit, nonce, chain_id, .. } = filled;
    let mut tx = match filled.fees(call) {
        CallFees::GasPrice(gas_price) => {
            let (chain_id, value, input) = (Some(chain_id), call.value, call.data.clone());
            TxLegacy { chain_id, nonce, gas_price, gas_limit, to: call.to, value, input }.into()
        }
        CallFees::Market { .. } => market_tx(call, chain_id, nonce, gas_limit)?,
    };
    let encoded = encode_unsigned(&mut tx);
    Ok(ListedTx { tx, signed: None, encoded })
}

/// Encodes a transaction with zeros in the places of v, r and s. If it is a legacy one, its chain id becomes zero, because without a
/// signature nothing names the chain.
pub fn encode_unsigned(tx: &mut EthereumTypedTransaction<TxEip4844>) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(160 + tx.input().len());
    match tx {
        EthereumTypedTransaction::Legacy(legacy) => {
            // With chain id zero, the form that EIP-155 signs ends in three zeros.
            legacy.chain_id = Some(0);
            legacy.encode_for_signing(&mut encoded);
        }
        typed => typed.eip2718_encode(&Signature::new(U256::ZERO, U256::ZERO, false), &mut encoded),
    }
    encoded
}

/// Returns the transaction of a call with market fees: EIP-7702 for delegations, EIP-4844 for blobs, else EIP-1559.
///
/// # Errors
///
/// Returns [`SimulationError::Params`] if the call has blobs or delegations, and no callee.
pub fn market_tx(
    call: &Call,
    chain_id: u64,
    nonce: u64,
    gas_limit: u64,
) -> Result<EthereumTypedTransaction<TxEip4844>, SimulationError> {
    let callee = || match call.to {
        TxKind::Call(to) => Ok(to),
        TxKind::Create => Err(SimulationError::Params(
            "to: blobs and authorizations need a callee, they cannot create a contract".into(),
        )),
    };
    let (max_fee_per_gas, max_priority_fee_per_gas) = match call.fees {
        CallFees::GasPrice(_) => (0, 0),
        CallFees::Market { max_fee, max_priority } => (max_fee.unwrap_or_default(), max_priority.unwrap_or_default()),
    };
    let (value, input) = (call.value, call.data.clone());
    let access_list = call.access_list.clone().unwrap_or_default();
    /// A transaction with the fields that all three types have, and these others.
    macro_rules! tx {
        ($type:ident { to: $to:expr $(, $field:ident: $value:expr)* }) => {
            $type {
                chain_id,
                nonce,
                gas_limit,
                max_fee_per_gas,
                max_priority_fee_per_gas,
                to: $to,
                value,
                access_list,
                input,
                $($field: $value,)*
            }
            .into()
        };
    }
    Ok(match (&call.authorization_list, &call.blob_hashes) {
        (Some(list), _) => tx!(TxEip7702 { to: callee()?, authorization_list: list.clone() }),
        (None, Some(hashes)) => tx!(TxEip4844 {
            to: callee()?,
            blob_versioned_hashes: hashes.clone(),
            max_fee_per_blob_gas: call.max_fee_per_blob_gas.unwrap_or_default()
        }),
        (None, None) => tx!(TxEip1559 { to: call.to }),
    })
}
