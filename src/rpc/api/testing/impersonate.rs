//! Accounts in whose names clients send without their keys.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::rpc::{
    api::{Example, Method},
    json::{self, Lookup, hex::Fixed},
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

impl Method for Begin {
    type Answer = ();
    const EXAMPLE: Example = EXAMPLE;

    fn run(self, backend: &Backend, run: &mut Run<'_>) -> Result<Lookup> {
        if !backend.impersonated.add(self.address.into()) {
            let text = "as many accounts as can be are impersonated (--testing-limit): stop one of them";
            return Err(RpcError::limit(text));
        }
        json::value(&mut run.out, &());
        Ok(Lookup::Found)
    }
}

/// With --testing: ends what impersonateAccount began.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: address")]
pub struct Stop {
    address: Fixed<20>,
}

impl Method for Stop {
    type Answer = ();
    const EXAMPLE: Example = EXAMPLE;

    fn run(self, backend: &Backend, run: &mut Run<'_>) -> Result<Lookup> {
        backend.impersonated.remove(&self.address.into());
        json::value(&mut run.out, &());
        Ok(Lookup::Found)
    }
}
