//! The difficulty of blocks before the merge. The seal of proof of work itself is not checked.

use alloy_consensus::{EMPTY_OMMER_ROOT_HASH, Header};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::U256;

use super::ChainSpec;

/// The lowest difficulty.
const MINIMUM: u64 = 131_072;
/// The divisor of the parent's difficulty that gives the step by which a block changes it.
const STEP_DIVISOR: u64 = 2048;
/// The number of blocks in which the difficulty bomb doubles.
const BOMB_PERIOD: u64 = 100_000;

impl ChainSpec {
    /// Returns the difficulty of the block on `parent` at `timestamp`, before the merge (yellow paper, 4.3.4; EIP-2,
    /// EIP-100, and the delays of the bomb by EIP-649, EIP-1234, EIP-2384, EIP-3554, EIP-4345 and EIP-5133).
    pub fn next_difficulty(&self, parent: &Header, timestamp: u64) -> U256 {
        let number = parent.number + 1;
        let passed = timestamp.saturating_sub(parent.timestamp);
        let step = parent.difficulty / U256::from(STEP_DIVISOR);
        // The step counts from `most` down to -99 by the time that has passed.
        let (most, periods) = if self.is_byzantium_active_at_block(number) {
            (if parent.ommers_hash == EMPTY_OMMER_ROOT_HASH { 1 } else { 2 }, passed / 9)
        } else if self.is_homestead_active_at_block(number) {
            (1, passed / 10)
        } else {
            (1, if passed < 13 { 0 } else { 2 })
        };
        let changed = if periods <= most {
            parent.difficulty + step * U256::from(most - periods)
        } else {
            parent.difficulty.saturating_sub(step * U256::from((periods - most).min(99)))
        };
        let bombed = number.saturating_sub(self.bomb_delay(number)) / BOMB_PERIOD;
        let bomb = if bombed >= 2 { U256::from(1) << (bombed - 2) } else { U256::ZERO };
        changed.max(U256::from(MINIMUM)) + bomb
    }

    /// Returns the number of blocks by which the difficulty bomb is delayed at `number`.
    fn bomb_delay(&self, number: u64) -> u64 {
        let config = &self.config;
        let delays = [
            (config.gray_glacier_block, 11_400_000),
            (config.arrow_glacier_block, 10_700_000),
            (config.london_block, 9_700_000),
            (config.muir_glacier_block, 9_000_000),
            (config.constantinople_block, 5_000_000),
            (config.byzantium_block, 3_000_000),
        ];
        let active = delays.iter().find(|(fork, _)| fork.is_some_and(|fork| fork <= number));
        active.map_or(0, |(_, delay)| delay - 1)
    }
}
