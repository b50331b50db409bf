//! Accounts in whose names clients send without their keys.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::rpc::{
    api::{Example, Query},
    json::hex::Fixed,
    protocol::error::{Result, RpcError},
    run::{Backend, Run},
};

const EXAMPLE: Example = Example { params: r#"["0x00000000000000000000000000000000000ba1e0"]"#, answer: "null" };

/// With --testing: lets `eth_sendTransaction` send in the name of an account, contracts included.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: address")]
pub struct Begin {
    address: Fixed<20>,
}

impl Query for Begin {
    type Answer = ();
    const EXAMPLE: Example = EXAMPLE;

    fn answer(self, backend: &Backend, _: &mut Run<'_>) -> Result<Self::Answer> {
        if !backend.impersonated.add(self.address.into()) {
            let text = "as many accounts as can be are impersonated (--testing-limit): stop one of them";
            return Err(RpcError::limit(text));
        }
        Ok(())
    }
}

/// With --testing: ends what impersonateAccount began.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: address")]
pub struct Stop {
    address: Fixed<20>,
}

impl Query for Stop {
    type Answer = ();
    const EXAMPLE: Example = EXAMPLE;

    fn answer(self, backend: &Backend, _: &mut Run<'_>) -> Result<Self::Answer> {
        backend.impersonated.remove(&self.address.into());
        Ok(())
    }
}

/// With --testing: lets `eth_sendTransaction` send in the name of every account, or ends that.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: whether all accounts are impersonated")]
pub struct SetAll {
    on: bool,
}

impl Query for SetAll {
    type Answer = ();
    const EXAMPLE: Example = Example { params: "[true]", answer: "null" };

    fn answer(self, backend: &Backend, _: &mut Run<'_>) -> Result<Self::Answer> {
        backend.impersonated.set_all(self.on);
        Ok(())
    }
}
