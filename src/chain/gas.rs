//! Gas of a block in two dimensions ([EIP-8037](https://eips.ethereum.org/EIPS/eip-8037)).

use alloy_consensus::Header;
use alloy_eips::eip7825::MAX_TX_GAS_LIMIT_OSAKA;
use alloy_hardforks::EthereumHardforks;
use revm::context_interface::result::ResultGas;

use super::ChainSpec;

/// Gas that transactions of a block have used. Before Amsterdam all of it is regular.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockGas {
    /// Gas for computation: before refunds from Amsterdam on
    /// ([EIP-7778](https://eips.ethereum.org/EIPS/eip-7778)), after them on earlier forks.
    pub regular: u64,
    /// Gas for the growth of the state. Zero before Amsterdam.
    pub state: u64,
}

impl BlockGas {
    /// Returns the gas of a transaction in a block of `header`'s fork.
    pub fn of_transaction(spec: &ChainSpec, header: &Header, gas: &ResultGas) -> Self {
        match spec.is_amsterdam_active_at_timestamp(header.timestamp) {
            true => Self { regular: gas.block_regular_gas_used(), state: gas.block_state_gas_used() },
            false => Self { regular: gas.tx_gas_used(), state: 0 },
        }
    }

    /// Returns the sum.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self { regular: self.regular.saturating_add(other.regular), state: self.state.saturating_add(other.state) }
    }

    /// Returns the block's `gasUsed`: the larger of the two dimensions.
    pub const fn used(self) -> u64 {
        if self.regular > self.state { self.regular } else { self.state }
    }
}

/// Gas that a block has left for transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GasLeft {
    /// Regular gas.
    pub regular: u64,
    /// State gas. Before Amsterdam no transaction is bound by it.
    pub state: u64,
    /// Maximum regular gas of a transaction, regardless of its gas limit (EIP-7825, EIP-8037). `u64::MAX` before
    /// Amsterdam.
    cap: u64,
}

impl GasLeft {
    /// Returns the gas that the block of `header` has left after transactions that used `used`.
    pub fn of(spec: &ChainSpec, header: &Header, used: BlockGas) -> Self {
        let amsterdam = spec.is_amsterdam_active_at_timestamp(header.timestamp);
        Self {
            regular: header.gas_limit.saturating_sub(used.regular),
            state: header.gas_limit.saturating_sub(used.state),
            cap: if amsterdam { MAX_TX_GAS_LIMIT_OSAKA } else { u64::MAX },
        }
    }

    /// Returns the gas that remains after a transaction that used `used`.
    #[must_use]
    pub const fn after(self, used: BlockGas) -> Self {
        Self {
            regular: self.regular.saturating_sub(used.regular),
            state: self.state.saturating_sub(used.state),
            cap: self.cap,
        }
    }

    /// Checks that a transaction with this gas limit fits in the block after others that used `used`.
    ///
    /// # Errors
    ///
    /// Returns the gas used, and the gas that there was before, in the dimension that has too little.
    pub fn check(self, used: BlockGas, gas_limit: u64) -> Result<(), (u64, u64)> {
        let left = self.after(used);
        match (left.fits(gas_limit), gas_limit.min(self.cap) > left.regular) {
            (true, _) => Ok(()),
            (false, true) => Err((used.regular, self.regular)),
            (false, false) => Err((used.state, self.state)),
        }
    }

    /// Returns whether a transaction with this gas limit fits in the block.
    pub fn fits(self, gas_limit: u64) -> bool {
        gas_limit.min(self.cap) <= self.regular && gas_limit <= self.state
    }

    /// Returns whether state gas is counted by itself.
    pub const fn has_two_dimensions(self) -> bool {
        self.cap != u64::MAX
    }

    /// Returns the highest gas limit of a transaction that fits in the block.
    pub fn most(self) -> u64 {
        if self.regular >= self.cap { self.state } else { self.regular.min(self.state) }
    }
}
