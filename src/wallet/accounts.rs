//! The accounts that the node signs for.

use std::sync::{Mutex, MutexGuard, PoisonError};

use alloy_consensus::{
    EthereumTxEnvelope, EthereumTypedTransaction, SignableTransaction, TxEip2930, TxEip4844, TxEip4844Variant,
    TxEnvelope, TxLegacy, transaction::Recovered,
};
use alloy_eips::eip7702::{Authorization, SignedAuthorization};
use alloy_primitives::{Address, B256, Signature, U256};
use alloy_signer::SignerSync;
use alloy_signer_local::PrivateKeySigner;

use crate::engine::{Call, CallFees, SimulationError, market_tx};

/// The accounts that the node signs for.
#[derive(Debug, Default)]
pub struct Accounts(Vec<SigningAccount>);

/// An account, and the key that speaks for it.
#[derive(Debug)]
pub struct SigningAccount {
    signer: PrivateKeySigner,
    /// `eth_sendTransaction` signs for it too, which asks nobody: it is one of the devnet's, whose keys everybody knows.
    pub is_open: bool,
    /// Held from the choice of a nonce until its transaction is in the pool, so that no two get the same.
    choosing: Mutex<()>,
}

/// What is filled into a call to make a transaction of it.
#[derive(Clone, Copy, Debug)]
pub struct TxFields {
    /// EIP-155 chain id.
    pub chain_id: u64,
    /// The sender's nonce.
    pub nonce: u64,
    /// Gas limit.
    pub gas: u64,
}

/// Why nothing is signed.
#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    /// The call is no transaction.
    #[error(transparent)]
    Call(#[from] SimulationError),
    /// The key refuses.
    #[error("signing: {0}")]
    Key(#[from] alloy_signer::Error),
}

impl Accounts {
    /// The devnet's own accounts, and those of key files. One that is both is the devnet's.
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

    /// Their addresses.
    pub fn addresses(&self) -> impl Iterator<Item = Address> {
        self.0.iter().map(SigningAccount::address)
    }

    /// The first.
    pub fn first(&self) -> Option<&SigningAccount> {
        self.0.first()
    }

    /// The account at `address`.
    pub fn find(&self, address: Address) -> Option<&SigningAccount> {
        self.0.iter().find(|account| account.address() == address)
    }
}

impl SigningAccount {
    fn new(signer: PrivateKeySigner, is_open: bool) -> Self {
        Self { signer, is_open, choosing: Mutex::default() }
    }

    /// Its address.
    pub const fn address(&self) -> Address {
        self.signer.address()
    }

    /// To be held from the choice of a nonce until its transaction is in the pool.
    pub fn choosing(&self) -> MutexGuard<'_, ()> {
        self.choosing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a transaction of a call: of the type that its fees, lists and authorizations ask for.
    ///
    /// # Errors
    /// Authorizations without a callee; a key that does not sign.
    pub fn sign(&self, call: Call, filled: TxFields) -> Result<Recovered<TxEnvelope>, SigningError> {
        let TxFields { chain_id, nonce, gas: gas_limit } = filled;
        let CallFees::GasPrice(gas_price) = call.fees else {
            return self.signed(market_tx(&call, chain_id, nonce, gas_limit)?);
        };
        let Call { to, value, data: input, access_list, .. } = call;
        self.signed(match access_list {
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

    /// Lets the account be delegated to the code at `address` by its own transaction that has the nonce before `nonce` (EIP-7702).
    ///
    /// # Errors
    /// A key that does not sign.
    pub fn authorize(&self, address: Address, chain_id: u64, nonce: u64) -> Result<SignedAuthorization, SigningError> {
        let authorization = Authorization { chain_id: U256::from(chain_id), address, nonce };
        let signature = self.sign_hash(authorization.signature_hash())?;
        Ok(authorization.into_signed(signature))
    }

    fn signed(&self, tx: EthereumTypedTransaction<TxEip4844>) -> Result<Recovered<TxEnvelope>, SigningError> {
        let signature = self.sign_hash(tx.signature_hash())?;
        let signed: EthereumTxEnvelope<TxEip4844> = tx.into_signed(signature).into();
        Ok(Recovered::new_unchecked(signed.map_eip4844(TxEip4844Variant::from), self.address()))
    }

    fn sign_hash(&self, hash: B256) -> Result<Signature, SigningError> {
        Ok(self.signer.sign_hash_sync(&hash)?)
    }
}
