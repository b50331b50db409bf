//! Ethereum mainnet (<https://github.com/ethereum/execution-specs/blob/mainnet/README.md#network-upgrades>).

use alloy_genesis::ChainConfig;
use alloy_primitives::{address, uint};

use super::network::{Network, Rules};
use crate::chain::ForkName::*;

/// Ethereum mainnet.
pub(super) const MAINNET: Network = Network {
    id: 1,
    block_ms: 12_000,
    wrapper: Some(address!("C02aaA39b223FE8D0A0e5C4F27eAD9083C756Cc2")),
    rules: Rules::Ethereum { deposits: address!("00000000219ab540356cBB839Cbe05303d7705Fa"), blocks },
    forks: &[
        (Shanghai, 1_681_338_455),
        (Cancun, 1_710_338_135),
        (Prague, 1_746_612_311),
        (Osaka, 1_764_798_551),
        (Bpo1, 1_765_290_071),
        (Bpo2, 1_767_747_671),
    ],
};

const fn blocks(config: &mut ChainConfig) {
    config.homestead_block = Some(1_150_000);
    config.dao_fork_block = Some(1_920_000);
    config.dao_fork_support = true;
    config.eip150_block = Some(2_463_000);
    config.eip155_block = Some(2_675_000);
    config.eip158_block = Some(2_675_000);
    config.byzantium_block = Some(4_370_000);
    config.constantinople_block = Some(7_280_000);
    config.petersburg_block = Some(7_280_000);
    config.istanbul_block = Some(9_069_000);
    config.muir_glacier_block = Some(9_200_000);
    config.berlin_block = Some(12_244_000);
    config.london_block = Some(12_965_000);
    config.arrow_glacier_block = Some(13_773_000);
    config.gray_glacier_block = Some(15_050_000);
    config.terminal_total_difficulty = Some(uint!(58_750_000_000_000_000_000_000_U256));
}
