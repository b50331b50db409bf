//! The methods by which a page uses a browser's wallet: accounts and permissions (EIP-2255), and chains (EIP-3326).

use alloy_primitives::U256;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::rpc::{
    json::{
        hex::{Fixed, Quantity},
        shapes,
    },
    protocol::error::{Result, RpcError},
    run::{Attempt, Backend},
};

/// EIP-3326's code for a chain that the wallet does not have.
const UNRECOGNIZED_CHAIN: i32 = 4902;

/// An example of the client's permissions.
const PERMISSIONS: &str = r#"[{"parentCapability": "eth_accounts", "caveats": [{"type": "restrictReturnedAccounts", "value": ["0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266"]}]}]"#;

without_params! {
    /// The accounts that the client may use (EIP-1102): all of the wallet's. Error 4100 without a token of the wallet where it needs
    /// one, 4001 where the wallet rejects everything.
    RequestAccounts -> Vec<Fixed<20>> = r#"["0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266"]"#, |backend, run| {
        connect(backend, run)?;
        backend.wallet.accounts.addresses()
    };

    /// The client's permissions (EIP-2255): `eth_accounts`, or none if the client may not use the wallet.
    GetPermissions -> Vec<Permission> = PERMISSIONS, |backend, run| {
        connect(backend, run).map(|()| (backend, run.page))
    };
}

queries! {
    /// Grants the permission of `eth_accounts` (EIP-2255), the only one that there is, to a client that may use the wallet. Errors as
    /// for `eth_requestAccounts`.
    RequestPermissions = "1 parameter: an object of permissions by name", {
        #[serde(rename = "permissions")]
        _permissions: PermissionsParam,
    }, r#"[{"eth_accounts": {}}]"# => Vec<Permission> = PERMISSIONS, |_, backend, run| {
        connect(backend, run)?;
        [(backend, run.page)]
    };

    /// null where the chain is the node's own (EIP-3326), else error 4902.
    SwitchChain = "1 parameter: an object with the chainId", { chain: ChainParam },
        r#"[{"chainId": "0x7a69"}]"# => () = "null", |asked, backend, run| {
            backend.wallet.check_use(run.may_use_wallet).map_err(|error| run.dialect.wallet_error(error))?;
            let (chain_id, own) = (asked.chain.chain_id.0, backend.spec.chain_id());
            if chain_id != U256::from(own) {
                return Err(RpcError::with_data(
                    UNRECOGNIZED_CHAIN,
                    format!("Unrecognized chain ID {chain_id:#x}"),
                    format!("params[0].chainId: {chain_id:#x}: expected {own:#x}, the only chain of this node"),
                ));
            }
        };
}

shapes! {
    /// A permission of a client (EIP-2255).
    pub Permission: (&Backend, Option<&str>) => |(backend, page)| {
        /// The origin of the page, where the request names one.
        invoker: Option<String> = page,
        #[schemars(extend("const" = "eth_accounts"))]
        parentCapability: String = "eth_accounts",
        /// Clients take the accounts from the first caveat, as with other wallets.
        #[schemars(length(min = 1, max = 1))]
        caveats: Vec<Caveat> = [backend],
    }

    /// The limit of a permission: the accounts that it is for.
    Caveat: &Backend => |backend| {
        #[schemars(extend("const" = "restrictReturnedAccounts"))]
        r#type: String = "restrictReturnedAccounts",
        value: Vec<Fixed<20>> = backend.wallet.accounts.addresses(),
    }
}

/// Permissions by name.
#[derive(Debug, Deserialize, JsonSchema)]
struct PermissionsParam {
    #[serde(rename = "eth_accounts")]
    _eth_accounts: CaveatsParam,
}

/// Caveats by name. They are ignored.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "an object of caveats by name")]
struct CaveatsParam {
    #[serde(flatten)]
    _caveats: Map<String, Value>,
}

/// A chain.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ChainParam {
    chain_id: Quantity<U256>,
}

/// Checks that the client may use the accounts. Such a client is connected to all of them.
fn connect(backend: &Backend, run: &Attempt<'_>) -> Result<()> {
    let checked = backend.wallet.check_use(run.may_use_wallet).and_then(|()| backend.wallet.check_policy());
    checked.map_err(|error| run.dialect.wallet_error(error))
}
