//! Accounts that clients may send from without their keys.

use crate::rpc::{json::hex::Fixed, protocol::error::RpcError};

const ADDRESS: &str = r#"["0x00000000000000000000000000000000000ba1e0"]"#;

queries! {
    /// With --testing: allows `eth_sendTransaction` to send from an account without its key, contracts included.
    Begin = "1 parameter: address", { address: Fixed<20> }, ADDRESS => () = "null",
        |asked, backend, _| {
            if !backend.impersonated.add(asked.address.into()) {
                let text = "as many accounts as can be are impersonated (--testing-limit): stop one of them";
                return Err(RpcError::limit(text));
            }
        };

    /// With --testing: ends the effect of impersonateAccount.
    Stop = "1 parameter: address", { address: Fixed<20> }, ADDRESS => () = "null",
        |asked, backend, _| backend.impersonated.remove(&asked.address.into());

    /// With --testing: allows `eth_sendTransaction` to send from every account, or ends that.
    SetAll = "1 parameter: whether all accounts are impersonated", { on: bool }, "[true]" => () = "null",
        |asked, backend, _| backend.impersonated.set_all(asked.on);
}
