//! The settings of a pool.

/// The limits and minimum prices of a pool. The default takes nothing, for a node that only simulates.
#[derive(Clone, Copy, Debug, Default)]
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
    pub min_tip: u64,
    /// Whether contracts may send transactions, which EIP-3607 forbids.
    pub contracts_may_send: bool,
    /// Whether the transactions of a block are in the order of their arrival, and not of their tips.
    pub is_fifo: bool,
    /// Maximum number of bundles. `bytes` bounds their size together with the transactions.
    pub bundles: usize,
    /// The place where blocks are built, and so where bundles are mined.
    pub built: BlocksBuilt,
}

/// The place where the blocks of a pool's chain are built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlocksBuilt {
    /// The node builds the blocks.
    Here,
    /// Blocks are not built, and the chain does not advance.
    #[default]
    Nowhere,
    /// Builders of the upstream's chain build the blocks.
    Upstream,
}
