//! The accounts that the node signs for.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use alloy_consensus::{
    EthereumTxEnvelope, EthereumTypedTransaction, SignableTransaction, TxEip2930, TxEip4844, TxEip4844Variant,
    TxEnvelope, TxLegacy, transaction::Recovered,
};
use alloy_eips::{
    Encodable2718,
    eip7702::{Authorization, SignedAuthorization},
};
use alloy_primitives::{Address, B256, Signature, U256, keccak256, map::AddressSet};
use alloy_signer::SignerSync;
use alloy_signer_local::PrivateKeySigner;

use super::ahead::AheadState;
use crate::engine::{Call, CallFees, SimulationError, market_tx};
use crate::lock::Mutex;

/// The accounts that the node signs for.
#[derive(Debug, Default)]
pub struct Accounts(Vec<SigningAccount>);

/// An account with its signing key.
#[derive(Debug)]
pub struct SigningAccount {
    signer: PrivateKeySigner,
    /// Whether `eth_sendTransaction` signs for the account too, without approval: its key, the devnet's, is public.
    pub is_open: bool,
    /// Locked from the choice of a nonce until its transaction is in the pool, so that no two transactions get the same one.
    pub choosing: Mutex<()>,
    /// The state after its transactions that wait.
    pub(super) ahead: Mutex<Option<AheadState>>,
}

/// The fields that a call lacks to be a transaction.
#[derive(Clone, Copy, Debug)]
pub struct TxFields {
    /// EIP-155 chain id.
    pub chain_id: u64,
    /// The sender's nonce.
    pub nonce: u64,
    /// Gas limit of the transaction.
    pub gas: u64,
}

impl Accounts {
    /// Creates the set of the devnet's accounts (`open`) and the accounts of key files. An account in both counts as
    /// the devnet's.
    pub fn new(open: Vec<PrivateKeySigner>, keyed: Vec<PrivateKeySigner>) -> Self {
        let mut accounts: Vec<SigningAccount> =
            open.into_iter().map(|signer| SigningAccount::new(signer, true)).collect();
        for signer in keyed {
            if !accounts.iter().any(|account| account.address() == signer.address()) {
                accounts.push(SigningAccount::new(signer, false));
            }
        }
        Self(accounts)
    }

    /// Returns the addresses of the accounts.
    pub fn addresses(&self) -> impl Iterator<Item = Address> {
        self.0.iter().map(SigningAccount::address)
    }

    /// Returns the first account, or `None` if there is none.
    pub fn first(&self) -> Option<&SigningAccount> {
        self.0.first()
    }

    /// Returns the account at `address`, or `None` if the node does not sign for it.
    pub fn find(&self, address: Address) -> Option<&SigningAccount> {
        self.0.iter().find(|account| account.address() == address)
    }
}

impl SigningAccount {
    fn new(signer: PrivateKeySigner, is_open: bool) -> Self {
        Self { signer, is_open, choosing: Mutex::default(), ahead: Mutex::default() }
    }

    /// Returns the address of the account.
    pub const fn address(&self) -> Address {
        self.signer.address()
    }

    /// Signs a call as a transaction of the type that its fees, lists and authorizations require.
    ///
    /// # Errors
    /// Returns [`SimulationError::Params`] for authorizations without a callee, and [`SimulationError::Internal`] if signing fails.
    pub fn sign(&self, call: Call, filled: TxFields) -> Result<Recovered<TxEnvelope>, SimulationError> {
        let tx = without_signature(call, filled)?;
        let signature = self.sign_hash(tx.signature_hash())?;
        Ok(with_signature(tx, signature, self.address()))
    }

    /// Signs a delegation to the code at `address` (EIP-7702), for the account's transaction with the nonce before
    /// `nonce`.
    ///
    /// # Errors
    /// Returns [`SimulationError::Internal`] if the key fails to sign.
    pub fn authorize(
        &self,
        address: Address,
        chain_id: u64,
        nonce: u64,
    ) -> Result<SignedAuthorization, SimulationError> {
        let authorization = Authorization { chain_id: U256::from(chain_id), address, nonce };
        let signature = self.sign_hash(authorization.signature_hash())?;
        Ok(authorization.into_signed(signature))
    }

    /// Signs a hash.
    ///
    /// # Errors
    /// Returns [`SimulationError::Internal`] if the key fails to sign.
    pub fn sign_hash(&self, hash: B256) -> Result<Signature, SimulationError> {
        let failed = |error| SimulationError::Internal(format!("signing failed: {error}"));
        self.signer.sign_hash_sync(&hash).map_err(failed)
    }
}

/// The accounts in whose names clients of a testing devnet send without their keys.
#[derive(Debug)]
pub struct Impersonated {
    most: usize,
    accounts: Mutex<AddressSet>,
    /// Whether all accounts are impersonated.
    all: AtomicBool,
    /// Locked as [`SigningAccount::choosing`] is.
    pub choosing: Mutex<()>,
}

impl Impersonated {
    /// Creates a set of at most `most` accounts: of all, or of none yet.
    pub fn new(most: usize, all: bool) -> Self {
        Self { most, accounts: Mutex::default(), all: AtomicBool::new(all), choosing: Mutex::default() }
    }

    /// Adds an account. Returns false, and adds nothing, if the set is full.
    pub fn add(&self, account: Address) -> bool {
        let mut accounts = self.accounts.lock();
        if accounts.len() < self.most {
            accounts.insert(account);
        }
        accounts.contains(&account)
    }

    /// Removes an account.
    pub fn remove(&self, account: &Address) {
        self.accounts.lock().remove(account);
    }

    /// Sets whether transactions may be sent in the name of every account.
    pub fn set_all(&self, all: bool) {
        self.all.store(all, Relaxed);
    }

    /// Returns whether transactions may be sent in the name of `account`.
    pub fn contains(&self, account: &Address) -> bool {
        self.all.load(Relaxed) || self.accounts.lock().contains(account)
    }

    /// Makes a call a transaction of `from`. In place of a signature it has the sender's address, so that the
    /// transactions of two senders never have the same hash.
    ///
    /// # Errors
    ///
    /// Returns a [`SimulationError`] for authorizations without a callee.
    pub fn send_as(from: Address, call: Call, filled: TxFields) -> Result<Recovered<TxEnvelope>, SimulationError> {
        let placeholder = Signature::new(U256::from_be_bytes(from.into_word().0), U256::ONE, false);
        Ok(with_signature(without_signature(call, filled)?, placeholder, from))
    }
}

/// Returns the encoding of a call as a signed transaction, with a signature of the usual entropy in place of the real one.
pub(super) fn encoded(call: Call, filled: TxFields) -> Result<Vec<u8>, SimulationError> {
    let sender = call.from;
    let word = |salt: u8| U256::from_be_bytes(keccak256([salt]).0) >> 1;
    Ok(with_signature(without_signature(call, filled)?, Signature::new(word(1), word(2), false), sender).encoded_2718())
}

/// Returns the transaction of the type that a call's fees, lists and authorizations require.
///
/// # Errors
///
/// Returns a [`SimulationError`] for authorizations without a callee.
pub fn without_signature(call: Call, filled: TxFields) -> Result<EthereumTypedTransaction<TxEip4844>, SimulationError> {
    let TxFields { chain_id, nonce, gas: gas_limit } = filled;
    let CallFees::GasPrice(gas_price) = call.fees else {
        return market_tx(&call, chain_id, nonce, gas_limit);
    };
    let Call { to, value, data: input, access_list, .. } = call;
    Ok(match access_list {
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
    })
}

/// Returns a transaction of `sender` with its signature.
pub fn with_signature(
    tx: EthereumTypedTransaction<TxEip4844>,
    signature: Signature,
    sender: Address,
) -> Recovered<TxEnvelope> {
    let signed: EthereumTxEnvelope<TxEip4844> = tx.into_signed(signature).into();
    Recovered::new_unchecked(signed.map_eip4844(TxEip4844Variant::from), sender)
}
