//! The content of the transaction pool, as geth's `txpool` methods return it. The pool is locked only while its transactions are
//! collected.

use std::{collections::BTreeMap, sync::Arc};

use alloy_consensus::{Transaction, TxEnvelope, transaction::Recovered};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Example, Method};
use crate::{
    meter::Meter,
    pool::{PoolStatus, SenderContent},
    rpc::{
        json::{
            self, Object, Shape,
            hex::{Fixed, Quantity},
            shapes,
        },
        protocol::error::Result,
        run::{Attempt, Backend},
    },
};

/// The transactions of a sender, in order of their nonces.
type Transactions = [Arc<Recovered<TxEnvelope>>];
/// A writer of one transaction in the pool.
type WriteTx = fn(&mut Vec<u8>, &Recovered<TxEnvelope>);

/// Returns the transactions of a sender in one state.
type InState = fn(&SenderContent) -> &Transactions;

/// The states of a transaction in the pool, and the transactions of a sender in them.
const STATES: [(&str, InState); 2] = [("pending", |sender| &sender.pending), ("queued", |sender| &sender.queued)];

shapes! {
    /// The content of the pool by its state: transactions that can be mined now, and transactions behind a nonce gap.
    #[schemars(inline)]
    pub ByState<T>[T: Shape<usize>]: PoolStatus => |status| {
        pending: T = status.pending,
        queued: T = status.queued,
    }
}

without_params! {
    /// The number of transactions in the pool that can be mined now, and the number behind a nonce gap.
    Status -> ByState<Quantity<u64>> = r#"{"pending": "0x3", "queued": "0x0"}"#, |backend, _| backend.pool.status();
}

/// The transactions in the pool by state, sender and nonce. A transaction behind a nonce gap is queued.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "no parameters")]
pub struct Content {}

impl Method for Content {
    type Answer = ByState<BTreeMap<String, BTreeMap<u64, json::Transaction>>>;
    const EXAMPLE: Example = Example { params: "[]", answer: r#"{"pending": {}, "queued": {}}"# };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        by_sender(backend, run, json::pooled_transaction)
    }
}

/// The content of the pool with a line of text for each transaction.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "no parameters")]
pub struct Inspect {}

impl Method for Inspect {
    type Answer = ByState<BTreeMap<String, BTreeMap<u64, String>>>;
    const EXAMPLE: Example = Example {
        params: "[]",
        answer: r#"{"pending": {"0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266": {"0": "0x00000000000000000000000000000000000aBCdE: 1 wei + 21000 gas × 10000000000 wei"}}, "queued": {}}"#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        by_sender(backend, run, |out, tx| {
            let to = tx.to().map_or_else(|| "contract creation".to_owned(), |to| to.to_checksum(None));
            let (value, gas, price) = (tx.value(), tx.gas_limit(), tx.max_fee_per_gas());
            json::string(out, &format!("{to}: {value} wei + {gas} gas × {price} wei"));
        })
    }
}

/// The transactions of one sender in the pool by state and nonce.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: address")]
pub struct ContentFrom {
    address: Fixed<20>,
}

impl Method for ContentFrom {
    type Answer = ByState<BTreeMap<u64, json::Transaction>>;
    const EXAMPLE: Example = Example {
        params: r#"["0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266"]"#,
        answer: r#"{"pending": {}, "queued": {}}"#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let sender = backend.pool.content_from(self.address.into());
        let Attempt { meter, out, .. } = run;
        let mut object = Object::new(out);
        for (state, transactions) in STATES {
            by_nonce(backend, meter, object.key(state), transactions(&sender), json::pooled_transaction)?;
        }
        object.end();
        Ok(())
    }
}

/// Writes all transactions by state, sender and nonce, each by `write`.
fn by_sender(backend: &Backend, run: &mut Attempt<'_>, write: WriteTx) -> Result<()> {
    let (senders, Attempt { meter, out, dialect, .. }) = (backend.pool.content(), run);
    let mut object = Object::new(out);
    for (state, transactions) in STATES {
        let mut object = Object::new(object.key(state));
        for sender in senders.iter().filter(|sender| !transactions(sender).is_empty()) {
            // The checksum (EIP-55) is in the case of the letters, as in geth.
            let key = match dialect.for_tests {
                true => format!("{:#x}", sender.address),
                false => sender.address.to_checksum(None),
            };
            by_nonce(backend, meter, object.key(&key), transactions(sender), write)?;
        }
        object.end();
    }
    object.end();
    Ok(())
}

/// Writes the transactions of a sender by nonce. Returns -32005 if the response becomes too long.
fn by_nonce(
    backend: &Backend,
    meter: &mut Meter,
    out: &mut Vec<u8>,
    transactions: &Transactions,
    write: WriteTx,
) -> Result<()> {
    let mut object = Object::new(out);
    for tx in transactions {
        let out = object.key(itoa::Buffer::new().format(tx.nonce()));
        let start = out.len();
        write(out, tx);
        json::check_length(out, backend.limits.max_response)?;
        json::count_bytes(meter, out.len() - start)?;
    }
    object.end();
    Ok(())
}
