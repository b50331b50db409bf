//! The contracts and accounts of a recorded world, which a folder describes.

use std::{fs, path::Path};

use alloy_primitives::{Address, U160, U256};
use eyre::{Context, Result};
use serde::Deserialize;

/// The number of funded accounts, which hold both tokens and have approved both routers.
const ACCOUNTS: u64 = 1_000;

/// A world of real contracts: WETH, two tokens, and a pair of Uniswap V2 and a pool of V3 between them.
#[derive(Clone, Debug, Deserialize)]
pub struct RecordedWorld {
    /// The wrapper of ether.
    pub weth: Address,
    /// A token.
    #[serde(rename = "tokenA")]
    pub token_a: Address,
    /// The other token.
    #[serde(rename = "tokenB")]
    pub token_b: Address,
    /// The router of Uniswap V2.
    pub router2: Address,
    /// The router of Uniswap V3.
    pub router3: Address,
    /// The pair of the tokens on V2.
    pub pair: Address,
    /// The pool of the tokens on V3.
    pub pool3: Address,
    /// The first funded accounts. The others follow by their number.
    searchers: Vec<Address>,
}

impl RecordedWorld {
    /// Reads `world.json` of a folder.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, or lacks a contract.
    pub fn read(folder: &Path) -> Result<Self> {
        let file = folder.join("world.json");
        let text = fs::read_to_string(&file).wrap_err_with(|| format!("--world: {} cannot be read", file.display()))?;
        serde_json::from_str(&text)
            .wrap_err_with(|| format!("--world: {} is not a world's description", file.display()))
    }

    /// Returns one of the funded accounts.
    pub fn account(&self, number: u64) -> Address {
        let first = self.searchers.first().copied().unwrap_or_default();
        let next = U256::from_be_slice(first.as_slice()) + U256::from(number % ACCOUNTS);
        Address::from(U160::from(next))
    }
}
