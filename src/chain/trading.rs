//! The contracts of the trading world, which are part of a devnet's genesis.

use alloy_primitives::{Address, address};
use serde::{Deserialize, Serialize};

/// The addresses of the trading world's contracts.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct TradingWorld {
    /// Wrapped ether.
    pub weth: Address,
    /// The token ALPHA.
    pub alpha: Address,
    /// The token BETA.
    pub beta: Address,
    /// The factory of the pairs. Stores of earlier versions do not name it.
    #[serde(default = "usual_factory")]
    pub factory: Address,
    /// The router of the pairs.
    pub router: Address,
    /// The contract that uses gas without doing work, for background traffic. `None` in worlds of earlier versions.
    #[serde(default)]
    pub load: Option<Address>,
}

/// Returns the address of the factory in every trading world, because the first account creates it with its nonce 3.
const fn usual_factory() -> Address {
    address!("0xCf7Ed3AccA5a467e9e704C703E8D87F634fB0Fc9")
}
