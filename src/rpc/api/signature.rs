//! The methods by which a page uses a browser's wallet: accounts and permissions (EIP-2255), chains (EIP-3326), and
//! signatures of messages (EIP-191, EIP-712).

use std::sync::Arc;

use alloy_primitives::U256;

use super::wallet::asker;
use crate::rpc::run::{Backend, Run};
use crate::{
    rpc::{
        json,
        protocol::error::{Result, RpcError},
    },
    wallet::{Asked, SignatureRequest, WalletError},
};

/// EIP-3326's code for a chain that the wallet does not have.
const UNRECOGNIZED_CHAIN: i32 = 4902;

/// The state of a message that satisfies the rules.
#[derive(Debug)]
pub enum AdmittedSignature {
    /// The message is signed, and its signature written.
    Signed,
    /// The message requires approval before it is signed.
    ToAsk(Arc<SignatureRequest>, Box<Asked>),
}

impl Backend {
    /// Answers `eth_requestAccounts`. A client that may use the wallet is connected to all of its accounts.
    pub fn request_accounts(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        self.connect(run)?;
        self.accounts(run, ())
    }

    /// Answers `wallet_requestPermissions` with the only permission that there is, that of `eth_accounts`.
    pub fn request_permissions(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        self.connect(run)?;
        json::permissions(&mut run.out, run.page, Some(self.wallet.accounts.addresses()));
        Ok(())
    }

    /// Answers `wallet_getPermissions`. A client that may not use the wallet has no permission.
    pub fn get_permissions(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        let is_connected = self.connect(run).is_ok();
        json::permissions(&mut run.out, run.page, is_connected.then(|| self.wallet.accounts.addresses()));
        Ok(())
    }

    /// Answers `wallet_switchEthereumChain`: the node has one chain.
    pub fn switch_chain(&self, run: &mut Run<'_>, chain_id: U256) -> Result<()> {
        self.wallet.check_use(run.may_use_wallet).map_err(|error| run.dialect.wallet_error(error))?;
        let own = self.spec.chain_id();
        if chain_id != U256::from(own) {
            return Err(RpcError::with_data(
                UNRECOGNIZED_CHAIN,
                format!("Unrecognized chain ID {chain_id:#x}"),
                format!("params[0].chainId: {chain_id:#x}: expected {own:#x}, the only chain of this node"),
            ));
        }
        run.out.extend_from_slice(b"null");
        Ok(())
    }

    /// Checks that the client may use the accounts.
    fn connect(&self, run: &Run<'_>) -> Result<()> {
        let checked = self.wallet.check_use(run.may_use_wallet).and_then(|()| self.wallet.check_policy());
        checked.map_err(|error| run.dialect.wallet_error(error))
    }

    /// Runs the first half of a request for a signature: checks the message, and signs it unless it requires approval.
    ///
    /// # Errors
    ///
    /// Returns the wallet's error with the dialect's code.
    pub fn admit_signature(&self, run: &mut Run<'_>, request: SignatureRequest) -> Result<AdmittedSignature> {
        let refuse = |error: WalletError| run.dialect.wallet_error(error);
        self.wallet.check_signature(&request, run.may_use_wallet).map_err(refuse)?;
        if !self.wallet.policy.ask {
            return self.sign_message(run, &request).map(|()| AdmittedSignature::Signed);
        }
        let meter = std::mem::take(&mut run.meter);
        let asked = self.wallet.signature_question(&request, asker(run), run.published, run.overlay, meter);
        run.ensure_complete()?;
        Ok(AdmittedSignature::ToAsk(Arc::new(request), Box::new(asked.map_err(refuse)?)))
    }

    /// Signs a message that was checked and approved, and writes the signature.
    ///
    /// # Errors
    ///
    /// Returns the wallet's error with the dialect's code.
    pub fn sign_message(&self, run: &mut Run<'_>, request: &SignatureRequest) -> Result<()> {
        let signature = self.wallet.sign_message(request).map_err(|error| run.dialect.wallet_error(error))?;
        json::data(&mut run.out, &signature.as_bytes());
        Ok(())
    }
}
