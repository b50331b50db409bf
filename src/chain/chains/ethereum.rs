//! Ethereum mainnet and its testnets.

use alloy_genesis::ChainConfig;
use alloy_primitives::{address, uint};

use super::network::{Network, Rules, all_from_genesis};
use crate::chain::ForkName::*;

/// Ethereum mainnet (<https://github.com/ethereum/execution-specs/blob/mainnet/README.md#network-upgrades>).
pub(super) const MAINNET: Network = Network {
    id: 1,
    block_ms: 12_000,
    wrapper: Some(address!("C02aaA39b223FE8D0A0e5C4F27eAD9083C756Cc2")),
    rules: Rules::Ethereum { deposits: address!("00000000219ab540356cBB839Cbe05303d7705Fa"), blocks: mainnet_blocks },
    forks: &[
        (Shanghai, 1_681_338_455),
        (Cancun, 1_710_338_135),
        (Prague, 1_746_612_311),
        (Osaka, 1_764_798_551),
        (Bpo1, 1_765_290_071),
        (Bpo2, 1_767_747_671),
    ],
};

const fn mainnet_blocks(config: &mut ChainConfig) {
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

/// Sepolia (<https://github.com/eth-clients/sepolia>; Amsterdam:
/// <https://blog.ethereum.org/en/2026/09/17/glamsterdam-testnet-announcement>).
pub(super) const SEPOLIA: Network = Network {
    id: 11_155_111,
    block_ms: 12_000,
    wrapper: Some(address!("fFf9976782d46CC05630D1f6eBAb18b2324d6B14")),
    rules: Rules::Ethereum { deposits: address!("7f02C3E3c98b133055B8B348B2Ac625669Ed295D"), blocks: sepolia_blocks },
    forks: &[
        (Shanghai, 1_677_557_088),
        (Cancun, 1_706_655_072),
        (Prague, 1_741_159_776),
        (Osaka, 1_760_427_360),
        (Bpo1, 1_761_017_184),
        (Bpo2, 1_761_607_008),
        (Amsterdam, 1_791_294_816),
    ],
};

const fn sepolia_blocks(config: &mut ChainConfig) {
    all_from_genesis(config);
    config.merge_netsplit_block = Some(1_735_371);
    config.terminal_total_difficulty = Some(uint!(17_000_000_000_000_000_U256));
}

/// Holesky (<https://github.com/eth-clients/holesky>).
pub(super) const HOLESKY: Network = Network {
    id: 17_000,
    block_ms: 12_000,
    wrapper: Some(address!("94373a4919B3240D86eA41593D5eBa789FEF3848")),
    rules: Rules::Ethereum { deposits: address!("4242424242424242424242424242424242424242"), blocks: all_from_genesis },
    forks: &[
        (Shanghai, 1_696_000_704),
        (Cancun, 1_707_305_664),
        (Prague, 1_740_434_112),
        (Osaka, 1_759_308_480),
        (Bpo1, 1_759_800_000),
        (Bpo2, 1_760_389_824),
    ],
};

/// Hoodi (<https://github.com/eth-clients/hoodi>).
pub(super) const HOODI: Network = Network {
    id: 560_048,
    block_ms: 12_000,
    wrapper: None,
    rules: Rules::Ethereum { deposits: address!("00000000219ab540356cBB839Cbe05303d7705Fa"), blocks: all_from_genesis },
    forks: &[
        (Shanghai, 0),
        (Cancun, 0),
        (Prague, 1_742_999_832),
        (Osaka, 1_761_677_592),
        (Bpo1, 1_762_365_720),
        (Bpo2, 1_762_955_544),
    ],
};
