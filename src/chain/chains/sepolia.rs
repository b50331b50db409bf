//! Sepolia (<https://github.com/eth-clients/sepolia>; Amsterdam: <https://blog.ethereum.org/en/2026/09/17/glamsterdam-testnet-announcement>).

use alloy_genesis::ChainConfig;
use alloy_primitives::{address, uint};

use super::network::{Network, Rules, all_from_genesis};
use crate::chain::ForkName::*;

/// Sepolia.
pub(super) const SEPOLIA: Network = Network {
    id: 11_155_111,
    block_ms: 12_000,
    wrapper: Some(address!("fFf9976782d46CC05630D1f6eBAb18b2324d6B14")),
    rules: Rules::Ethereum { deposits: address!("7f02C3E3c98b133055B8B348B2Ac625669Ed295D"), blocks },
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

const fn blocks(config: &mut ChainConfig) {
    all_from_genesis(config);
    config.merge_netsplit_block = Some(1_735_371);
    config.terminal_total_difficulty = Some(uint!(17_000_000_000_000_000_U256));
}
