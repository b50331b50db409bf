//! Signatures of messages, `personal_sign` (EIP-191) and `eth_signTypedData_v4` (EIP-712), and of transactions that are not sent.

use alloy_consensus::{EthereumTypedTransaction, SignableTransaction, Transaction, TxEip4844};
use alloy_primitives::{Address, B256, Bytes, Signature, U256, eip191_hash_message};

use super::{SigningAccount, TypedMessage, Wallet, WalletError};

/// A message that an account is to sign. Its form has been checked.
#[derive(Clone, Debug, PartialEq)]
pub struct SignatureRequest {
    /// The account.
    pub account: Address,
    /// The path of the account in the parameters.
    pub path: &'static str,
    /// The message.
    pub message: MessageToSign,
}

/// A message to sign.
#[derive(Clone, Debug, PartialEq)]
pub enum MessageToSign {
    /// Bytes, which are signed after the prefix of EIP-191.
    Personal(Bytes),
    /// Typed data of EIP-712.
    Typed(Box<TypedMessage>),
    /// A transaction, which is signed and not sent.
    Transaction(Box<EthereumTypedTransaction<TxEip4844>>),
}

impl MessageToSign {
    /// Returns the hash that is signed.
    pub fn hash(&self) -> B256 {
        match self {
            Self::Personal(message) => eip191_hash_message(message),
            Self::Typed(message) => message.hash,
            Self::Transaction(tx) => tx.signature_hash(),
        }
    }
}

impl Wallet {
    /// Checks a request for a signature by the rules of a batch that apply to it. `client`: whether its client may use
    /// the wallet.
    ///
    /// # Errors
    /// Returns [`WalletError::Unauthorized`] if the client may not use the wallet or the account is not the wallet's,
    /// [`WalletError::Rejected`] if the policy rejects everything, and [`WalletError::Shape`] if the message is too long
    /// or its domain belongs to another chain.
    pub fn check_signature(&self, request: &SignatureRequest, client: bool) -> Result<(), WalletError> {
        self.check_use(client)?;
        self.own(request.path, request.account)?;
        self.check_policy()?;
        let (length, chain_id) = match &request.message {
            MessageToSign::Personal(message) => (message.len(), None),
            MessageToSign::Typed(message) => (message.length, message.domain.chain_id),
            MessageToSign::Transaction(tx) => (tx.input().len(), tx.chain_id().map(U256::from)),
        };
        let (most, own) = (self.policy.max_bytes, self.spec.chain_id());
        if length > most {
            let problem = format!("the message: {length} bytes: expected at most {most} (--wallet-max-bytes)");
            return Err(WalletError::Shape(problem));
        }
        match chain_id {
            // Tests have messages of any chain signed.
            Some(id) if id != U256::from(own) && !self.spec.lifted().contracts_may_send => {
                let problem = format!("params[1].domain.chainId: {id}: expected {own}, the wallet's chain");
                Err(WalletError::Shape(problem))
            }
            _ => Ok(()),
        }
    }

    /// Signs a message that was checked and, if the policy asks for it, approved.
    ///
    /// # Errors
    /// Returns [`WalletError::Unauthorized`] if the account is not the wallet's, and the error of the signer.
    pub fn sign_message(&self, request: &SignatureRequest) -> Result<Signature, WalletError> {
        Ok(self.own(request.path, request.account)?.sign_hash(request.message.hash())?)
    }

    /// Returns an account of the wallet, which the parameter at `path` names.
    pub(super) fn own(&self, path: &str, account: Address) -> Result<&SigningAccount, WalletError> {
        self.accounts.find(account).ok_or_else(|| WalletError::foreign_account(path, account))
    }

    /// Checks that a client may use the wallet.
    ///
    /// # Errors
    /// Returns [`WalletError::Unauthorized`] if it may not.
    pub fn check_use(&self, client: bool) -> Result<(), WalletError> {
        if client { Ok(()) } else { Err(WalletError::no_wallet_token()) }
    }

    /// Checks that the policy does not reject everything.
    ///
    /// # Errors
    /// Returns [`WalletError::Rejected`] if it does.
    pub fn check_policy(&self) -> Result<(), WalletError> {
        match self.policy.deny {
            true => Err(WalletError::Rejected("the wallet rejects every request: --wallet-approval is deny".into())),
            false => Ok(()),
        }
    }
}
