//! The pool of a chain under test: transactions that leave it because a client says so, and its lowest price.

use alloy_primitives::{Address, B256};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::rpc::{
    api::{Example, Query},
    json::hex::{Fixed, Number},
    protocol::error::{Result, RpcError},
    run::{Backend, Run},
};

const EXAMPLE: &str = r#"["0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"]"#;

/// With --testing: removes a transaction from the pool. Returns its hash; null if it is not in the pool.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: the hash of a transaction")]
pub struct Drop {
    hash: Fixed<32>,
}

impl Query for Drop {
    type Answer = Option<Fixed<32>>;
    const EXAMPLE: Example =
        Example { params: EXAMPLE, answer: r#""0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421""# };

    fn answer(self, backend: &Backend, _: &mut Run<'_>) -> Result<Self::Answer> {
        let hash = B256::from(self.hash);
        Ok(backend.pool.withdraw(|tx| *tx.tx_hash() == hash).first().map(|hash| Fixed(hash.0)))
    }
}

/// With --testing: removes a transaction from the pool. Returns whether it was there.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: the hash of a transaction")]
pub struct DropIfThere {
    hash: Fixed<32>,
}

impl Query for DropIfThere {
    type Answer = bool;
    const EXAMPLE: Example = Example { params: EXAMPLE, answer: "true" };

    fn answer(self, backend: &Backend, run: &mut Run<'_>) -> Result<Self::Answer> {
        Drop { hash: self.hash }.answer(backend, run).map(|dropped| dropped.is_some())
    }
}

/// With --testing: removes all transactions from the pool.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "no parameters")]
pub struct DropAll {}

impl Query for DropAll {
    type Answer = ();
    const EXAMPLE: Example = Example { params: "[]", answer: "null" };

    fn answer(self, backend: &Backend, _: &mut Run<'_>) -> Result<Self::Answer> {
        backend.pool.withdraw(|_| true);
        Ok(())
    }
}

/// With --testing: removes the transactions of an account from the pool.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: address")]
pub struct DropFrom {
    address: Fixed<20>,
}

impl Query for DropFrom {
    type Answer = ();
    const EXAMPLE: Example = Example { params: r#"["0x00000000000000000000000000000000000000aa"]"#, answer: "null" };

    fn answer(self, backend: &Backend, _: &mut Run<'_>) -> Result<Self::Answer> {
        let sender = Address::from(self.address);
        backend.pool.withdraw(|tx| tx.signer() == sender);
        Ok(())
    }
}

/// With --testing: sets the lowest price of a transaction. Refused from London on, where base fees are the chain's.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: wei per unit of gas")]
pub struct SetMinGasPrice {
    price: Number<u64>,
}

impl Query for SetMinGasPrice {
    type Answer = ();
    const EXAMPLE: Example = Example { params: r#"["0x1"]"#, answer: "null" };

    fn answer(self, backend: &Backend, run: &mut Run<'_>) -> Result<Self::Answer> {
        if run.published.newest.header().base_fee_per_gas.is_some() {
            return Err(RpcError::params("anvil_setMinGasPrice is not supported when EIP-1559 is active"));
        }
        backend.pool.set_min_tip(self.price.0);
        Ok(())
    }
}
