//! Names of contracts: the names of the node's contracts, and the symbols of tokens, read from the token contracts.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
};

use alloy_dyn_abi::DynSolValue;
use alloy_primitives::{Address, Bytes, U256};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    error::CommandError,
    link::{NodeArgs, NodeLink, NodeTarget},
};
use crate::{
    abi::{AbiBook, output},
    nearest::nearest,
    shown::printable,
    wallet::units,
};

/// Maximum number of characters of a symbol that are shown.
const MAX_SYMBOL: usize = 20;
/// Maximum number of contracts that are asked for their names.
const MAX_TOKENS: usize = 16;
/// The functions and events whose numbers are amounts of the token that declares them.
const OF_AMOUNTS: [&str; 14] = [
    "transfer",
    "transferFrom",
    "approve",
    "allowance",
    "balanceOf",
    "totalSupply",
    "mint",
    "burn",
    "deposit",
    "withdraw",
    "Transfer",
    "Approval",
    "Deposit",
    "Withdrawal",
];

/// The names of contracts, and the decimals of tokens.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    names: BTreeMap<Address, String>,
    decimals: BTreeMap<Address, u8>,
}

/// The node of a command. Connects on first use, so that bad input is rejected before.
pub struct LazyLink<'a> {
    args: &'a NodeArgs,
    target: NodeTarget,
    link: OnceCell<NodeLink>,
    contracts: OnceCell<Vec<NamedContract>>,
}

/// A contract that the node knows by name.
#[derive(Debug, Deserialize)]
struct NamedContract {
    name: String,
    address: Address,
}

#[derive(Debug, Deserialize)]
struct StatusAnswer {
    #[serde(default)]
    contracts: Vec<NamedContract>,
}

impl<'a> LazyLink<'a> {
    /// Names the node, without looking for it.
    pub fn new(args: &'a NodeArgs, target: NodeTarget) -> Self {
        Self { args, target, link: OnceCell::new(), contracts: OnceCell::new() }
    }

    /// Returns whether the node is one of the command's own.
    pub const fn is_own(&self) -> bool {
        matches!(self.target, NodeTarget::Own(_))
    }

    /// Returns the connection.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`NodeLink::open`].
    pub fn open(&self) -> Result<&NodeLink, CommandError> {
        match self.link.get() {
            Some(link) => Ok(link),
            None => {
                let link = NodeLink::open(self.args, self.target.clone())?;
                Ok(self.link.get_or_init(|| link))
            }
        }
    }

    /// Returns the address that a flag has: in hexadecimal, or the name of one of the node's contracts.
    ///
    /// # Errors
    ///
    /// Returns [`CommandError::Input`] with the flag if it is neither, and the errors of [`open`](Self::open).
    pub fn address(&self, flag: &str, text: &str) -> Result<Address, CommandError> {
        let error = match text.parse() {
            Ok(address) => return Ok(address),
            Err(error) => error,
        };
        if !is_name(text) {
            let text = format!("{flag}: {text:?}: no address: {error}: expected 0x and 40 hex digits");
            return Err(CommandError::Input(text));
        }
        let contracts = self.contracts()?;
        if let Some(found) = contracts.iter().find(|contract| contract.name.eq_ignore_ascii_case(text)) {
            return Ok(found.address);
        }
        let names = || contracts.iter().map(|contract| contract.name.as_str());
        let tip = match nearest(text, names()) {
            Some(near) => format!("did you mean {near}?"),
            None if contracts.is_empty() => {
                "the node has no contracts with names: expected 0x and 40 hex digits".to_owned()
            }
            None => format!("expected 0x and 40 hex digits, or one of {}", names().collect::<Vec<_>>().join(", ")),
        };
        Err(CommandError::Input(format!("{flag}: {text:?}: no contract has this name: {tip}")))
    }

    /// Returns a value of an argument with the addresses of the contracts that it names.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`address`](Self::address).
    pub fn with_addresses(&self, flag: &str, text: &str) -> Result<String, CommandError> {
        let mut written = String::with_capacity(text.len());
        let is_end = |char: char| "[](), ".contains(char);
        let mut rest = text;
        while !rest.is_empty() {
            let word = &rest[..rest.find(is_end).unwrap_or(rest.len())];
            match is_name(word) {
                true => written.push_str(&self.address(flag, word)?.to_string()),
                false => written.push_str(word),
            }
            rest = &rest[word.len()..];
            let others = &rest[..rest.find(|char| !is_end(char)).unwrap_or(rest.len())];
            written.push_str(others);
            rest = &rest[others.len()..];
        }
        Ok(written)
    }

    /// Returns the names of the node's contracts. Empty if the node does not return them.
    pub fn labels(&self) -> Labels {
        let contracts = self.contracts().map(Vec::as_slice).unwrap_or_default();
        let names = contracts.iter().map(|contract| (contract.address, symbol(&contract.name)));
        Labels { names: names.collect(), decimals: BTreeMap::new() }
    }

    fn contracts(&self) -> Result<&Vec<NamedContract>, CommandError> {
        if let Some(contracts) = self.contracts.get() {
            return Ok(contracts);
        }
        let (status, _) = self.open()?.ask::<StatusAnswer>("presim_status", ())?;
        Ok(self.contracts.get_or_init(|| status.contracts))
    }
}

impl Labels {
    /// Adds a token by its own name, unless the node has one for it.
    pub fn add_token(&mut self, token: Address, symbol: String, decimals: Option<u8>) {
        self.names.entry(token).or_insert(symbol);
        self.decimals.extend(decimals.map(|decimals| (token, decimals)));
    }

    /// Returns the name of a contract.
    pub fn name(&self, address: &Address) -> Option<&str> {
        self.names.get(address).map(String::as_str)
    }

    /// Formats a number of `function` of a token as an amount of it, like `1.5 WETH`. `function` may also be an event.
    pub fn amount(&self, token: &Address, function: &str, value: &DynSolValue) -> Option<String> {
        let (amount, 256) = value.as_uint()? else { return None };
        let (decimals, name) = (self.decimals.get(token)?, self.names.get(token)?);
        let is_amount = OF_AMOUNTS.contains(&function) && amount != U256::MAX;
        is_amount.then(|| format!("{} {name}", units(amount, *decimals)))
    }
}

/// Returns a contract's name for its token, escaped and cut.
pub fn symbol(text: &str) -> String {
    printable(&text.chars().take(MAX_SYMBOL).collect::<String>())
}

/// Returns whether a word may be a name: an address begins with a digit.
fn is_name(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_alphabetic())
        && word.chars().all(|char| char.is_ascii_alphanumeric() || "/_-.".contains(char))
}

/// Calls a view of a contract without arguments. Returns `None` if there is no such view, or its answer has another
/// type.
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

/// Adds the contracts that have a symbol.
pub fn add_tokens(labels: &mut Labels, contracts: BTreeSet<Address>, node: &NodeLink, block: &Value, book: &AbiBook) {
    for contract in contracts.into_iter().take(MAX_TOKENS) {
        let Some(name) = token_name(contract, node, block, book) else { continue };
        let decimals = view(contract, "decimals", node, block, book).and_then(|value| value.as_uint());
        labels.add_token(contract, name, decimals.and_then(|(decimals, _)| decimals.try_into().ok()));
    }
}
