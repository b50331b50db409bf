//! The settings of a pool.

/// The limits and minimum prices of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Maximum number of transactions.
    pub transactions: usize,
    /// Maximum number of transactions of one account.
    pub per_account: usize,
    /// Maximum length of all transactions together, in bytes.
    pub bytes: usize,
    /// Minimum price increase of a replacement, in percent.
    pub price_bump: u32,
    /// Minimum priority fee, in wei per gas.
    pub min_tip: u128,
    /// Whether contracts may send transactions, which EIP-3607 forbids.
    pub contracts_may_send: bool,
    /// Maximum number of bundles. Their bytes are bounded by `bytes`, beside those of the transactions.
    pub bundles: usize,
    /// The place where the blocks are built, which is where bundles are mined.
    pub built: BlocksBuilt,
}

impl Settings {
    /// The settings of a pool that takes nothing, for a node that only simulates.
    pub const NOTHING: Self = Self {
        transactions: 0,
        per_account: 0,
        bytes: 0,
        price_bump: 0,
        min_tip: 0,
        contracts_may_send: false,
        bundles: 0,
        built: BlocksBuilt::Nowhere,
    };
}

/// The place where the blocks of a pool's chain are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlocksBuilt {
    /// The node builds the blocks.
    Here,
    /// The chain stands still.
    Nowhere,
    /// Builders of the upstream's chain build the blocks.
    Upstream,
}
