//! `wallet_getCapabilities` (EIP-5792).

use std::collections::BTreeMap;

use alloy_primitives::U256;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    rpc::json::{
        Json,
        hex::{Fixed, Quantity},
    },
    wallet::AtomicSupport,
};

queries! {
    /// The capabilities of the wallet for an account, by chain (EIP-5792). Error 4100 where the account is not the wallet's.
    #[serde(rename_all = "camelCase")]
    GetCapabilities = "1 or 2 parameters: the account, chain ids", {
        account: Fixed<20>,
        /// All chains where it is absent.
        #[serde(default)]
        chain_ids: Option<Vec<Quantity<U256>>>,
    }, r#"["0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266", ["0x7a69"]]"#
        => BTreeMap<String, ChainCapabilities>
        = r#"{"0x7a69": {"atomic": {"status": "ready"}, "gasLimitOverride": {"supported": true}}}"#,
        |asked, backend, run| {
            let allowed = backend.wallet.check_use(run.may_use_wallet);
            let account = asked.account.into();
            let support = allowed.and_then(|()| backend.wallet.support(account, run.published, run.overlay));
            let status = support.map_err(|error| run.dialect.wallet_error(error))?;
            let own = backend.spec.chain_id();
            let is_asked = asked.chain_ids.is_none_or(|chains| chains.contains(&Quantity(U256::from(own))));
            let support =
                ChainCapabilities { atomic: Atomic { status }, gas_limit_override: Supported { supported: true } };
            Json(BTreeMap::from_iter(is_asked.then(|| (format!("{own:#x}"), support))))
        };
}

/// The capabilities of an account on a chain.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChainCapabilities {
    atomic: Atomic,
    gas_limit_override: Supported,
}

/// Whether batches can be atomic.
#[derive(Serialize, JsonSchema)]
struct Atomic {
    status: AtomicSupport,
}

/// A capability that the wallet has.
#[derive(Serialize, JsonSchema)]
struct Supported {
    supported: bool,
}
