//! Ethereum mainnet and its testnets, with the forks that alloy lists.

use alloy_hardforks::EthereumHardfork;
use alloy_primitives::{Address, address};

use super::network::{Network, Rules};

/// A network without forks, with the values that all have.
const USUAL: Network = Network {
    id: 0,
    block_ms: 12_000,
    wrapper: None,
    rules: Rules::Ethereum { deposits: None, forks: &[] },
    order: &[],
    times: &[],
};

/// The deposit contract of mainnet and of Hoodi.
const DEPOSITS: Option<Address> = Some(address!("00000000219ab540356cBB839Cbe05303d7705Fa"));

/// Ethereum mainnet (<https://github.com/ethereum/execution-specs/blob/mainnet/README.md#network-upgrades>).
pub(super) const MAINNET: Network = Network {
    id: 1,
    wrapper: Some(address!("C02aaA39b223FE8D0A0e5C4F27eAD9083C756Cc2")),
    rules: Rules::Ethereum { deposits: DEPOSITS, forks: &EthereumHardfork::mainnet() },
    ..USUAL
};

/// Sepolia (<https://github.com/eth-clients/sepolia>; Amsterdam:
/// <https://blog.ethereum.org/en/2026/09/17/glamsterdam-testnet-announcement>).
pub(super) const SEPOLIA: Network = Network {
    id: 11_155_111,
    wrapper: Some(address!("fFf9976782d46CC05630D1f6eBAb18b2324d6B14")),
    rules: Rules::Ethereum {
        deposits: Some(address!("7f02C3E3c98b133055B8B348B2Ac625669Ed295D")),
        forks: &EthereumHardfork::sepolia(),
    },
    ..USUAL
};

/// Holesky (<https://github.com/eth-clients/holesky>).
pub(super) const HOLESKY: Network = Network {
    id: 17_000,
    wrapper: Some(address!("94373a4919B3240D86eA41593D5eBa789FEF3848")),
    rules: Rules::Ethereum {
        deposits: Some(address!("4242424242424242424242424242424242424242")),
        forks: &EthereumHardfork::holesky(),
    },
    ..USUAL
};

/// Hoodi (<https://github.com/eth-clients/hoodi>).
pub(super) const HOODI: Network =
    Network { id: 560_048, rules: Rules::Ethereum { deposits: DEPOSITS, forks: &EthereumHardfork::hoodi() }, ..USUAL };
