//! Names of tokens, from the contracts themselves.

use std::collections::{BTreeMap, BTreeSet};

use alloy_dyn_abi::DynSolValue;
use alloy_primitives::{Address, Bytes};
use serde_json::{Value, json};

use super::{link::NodeLink, show::symbol};
use crate::abi::{AbiBook, output};

/// Maximum number of contracts that are asked for their names.
const MAX_TOKENS: usize = 16;

/// Asks a contract one of its views without arguments. Returns `None` if it has none, or answers something else.
pub fn view(contract: Address, view: &str, node: &NodeLink, block: &Value, book: &AbiBook) -> Option<DynSolValue> {
    let function = book.named(view).find(|function| function.inputs.is_empty())?;
    let call = json!({"to": contract, "data": Bytes::from(function.selector().to_vec())});
    let (data, _) = node.ask::<Bytes>("eth_call", (call, block)).ok()?;
    Some(output(function, &data)?.pop()?.value)
}

/// Returns the symbol of a token, escaped.
pub fn token_name(token: Address, node: &NodeLink, block: &Value, book: &AbiBook) -> Option<String> {
    view(token, "symbol", node, block, book)?.as_str().map(symbol).filter(|name| !name.is_empty())
}

/// Returns the symbols of those contracts that have one.
pub fn token_names(
    contracts: BTreeSet<Address>,
    node: &NodeLink,
    block: &Value,
    book: &AbiBook,
) -> BTreeMap<Address, String> {
    let named = contracts.into_iter().take(MAX_TOKENS);
    named.filter_map(|contract| Some((contract, token_name(contract, node, block, book)?))).collect()
}
