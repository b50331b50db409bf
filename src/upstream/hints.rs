//! Predicts the state that a request will read, before it runs.

use alloy_consensus::{Transaction, transaction::Recovered};
use alloy_primitives::{Address, U256, map::HashSet};
use serde_json::{Map, Value, json};

use crate::chain::ChainTx;

/// A prediction of the state that a request will read, from its parameters. Only the number of rounds depends on it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hints {
    /// The calls of the request, for `eth_createAccessList`.
    pub(super) calls: Vec<Value>,
    /// The words in the data of the calls that look like addresses.
    pub(super) addresses: Vec<Address>,
}

impl Hints {
    /// The most calls and addresses that are taken from one request.
    const MAX_CALLS: usize = 8;
    const MAX_ADDRESSES: usize = 64;
    /// The most transactions of a sub-block that are taken, and the most addresses from all of them.
    const MAX_TRANSACTIONS: usize = 256;
    /// The most bytes of parameters that are searched. The rounds of a larger request do not matter.
    const MAX_BYTES: usize = 1 << 18;
    /// The depth to which parameters are searched for calls.
    const MAX_DEPTH: usize = 6;

    /// Returns the hints in a request's parameters. In every method, an object with data and a target is a call.
    pub fn of(params: &str) -> Self {
        let mut hints = Self::default();
        if params.len() <= Self::MAX_BYTES
            && let Ok(value) = serde_json::from_str::<Value>(params)
        {
            hints.visit(&value, Self::MAX_DEPTH);
            let mut seen = HashSet::<Address>::default();
            hints.addresses.retain(|address| seen.insert(*address));
            hints.addresses.truncate(Self::MAX_ADDRESSES);
        }
        hints
    }

    /// Returns the hints in transactions, each of which is a call.
    pub fn of_transactions<'a>(transactions: impl Iterator<Item = &'a Recovered<ChainTx>>) -> Self {
        let mut hints = Self::default();
        for tx in transactions.filter(|tx| !tx.input().is_empty()).take(Self::MAX_TRANSACTIONS) {
            let words = tx.input().get(4..).unwrap_or_default().chunks_exact(32);
            hints.addresses.extend(words.filter_map(address_in).take(Self::MAX_ADDRESSES));
            if let Some(to) = tx.to() {
                hints.calls.push(json!({ "from": tx.signer(), "to": to, "value": tx.value(), "data": tx.input() }));
            }
        }
        hints.addresses.truncate(Self::MAX_TRANSACTIONS);
        hints
    }

    /// Returns whether there are no hints.
    pub const fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.addresses.is_empty()
    }

    fn visit(&mut self, value: &Value, depth: usize) {
        if depth == 0 {
            return;
        }
        match value {
            Value::Array(all) => all.iter().for_each(|value| self.visit(value, depth - 1)),
            Value::Object(fields) => {
                let data = fields.get("input").or_else(|| fields.get("data")).and_then(Value::as_str);
                match (fields.get("to").and_then(Value::as_str), data) {
                    (Some(_), Some(data)) => self.add_call(fields, data),
                    _ => fields.values().for_each(|value| self.visit(value, depth - 1)),
                }
            }
            _ => {}
        }
    }

    fn add_call(&mut self, fields: &Map<String, Value>, data: &str) {
        if let Ok(bytes) = const_hex::decode(data) {
            let words = bytes.get(4..).unwrap_or_default().chunks_exact(32);
            self.addresses.extend(words.filter_map(address_in).take(Self::MAX_ADDRESSES));
        }
        if self.calls.len() < Self::MAX_CALLS {
            let kept = ["from", "to", "value"].iter().filter_map(|key| {
                let value = fields.get(*key).filter(|value| !value.is_null())?;
                Some(((*key).to_owned(), value.clone()))
            });
            let mut call: Map<_, _> = kept.collect();
            call.insert("data".to_owned(), Value::from(data));
            self.calls.push(Value::Object(call));
        }
    }
}

/// Returns the address in a word, or `None` for small numbers and amounts.
fn address_in(word: &[u8]) -> Option<Address> {
    let (zeros, address) = word.split_at(12);
    let is_number = U256::from_be_slice(address) < U256::ONE << 96;
    (zeros.iter().all(|byte| *byte == 0) && !is_number).then(|| Address::from_slice(address))
}
