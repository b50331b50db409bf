//! The networks that presim knows by their chain id: a file a network, with its forks by name and time.
//!
//! A network is its genesis `config`, as geth and op-geth have it, so that a known chain and a chain of a genesis file
//! follow the same code, and [`set_forks`](super::set_forks) changes either.

mod base;
mod ethereum;
mod holesky;
mod hoodi;
mod ink;
mod lisk;
mod metal;
mod mode;
mod op_mainnet;
mod op_sepolia;
mod sepolia;
mod soneium;
mod unichain;
mod world_chain;
mod x_layer;
mod zora;

use std::{collections::BTreeMap, time::Duration};

use alloy_eips::eip7840::BlobParams;
use alloy_genesis::ChainConfig;
use alloy_primitives::{Address, U256};
use op_alloy::rpc_types::OpBaseFeeInfo;

use super::{
    ChainSpec, ChainSpecError, ForkName, ForkTime,
    op::{BEDROCK, OPTIMISM},
    set_forks,
};

const NETWORKS: [&Network; 17] = [
    &ethereum::MAINNET,
    &sepolia::SEPOLIA,
    &holesky::HOLESKY,
    &hoodi::HOODI,
    &op_mainnet::OP_MAINNET,
    &op_sepolia::OP_SEPOLIA,
    &base::BASE,
    &base::BASE_SEPOLIA,
    &world_chain::WORLD_CHAIN,
    &unichain::UNICHAIN,
    &ink::INK,
    &soneium::SONEIUM,
    &x_layer::X_LAYER,
    &mode::MODE,
    &zora::ZORA,
    &lisk::LISK,
    &metal::METAL,
];

/// A network, with the constants of its rules.
struct Network {
    id: u64,
    /// Milliseconds between two blocks.
    block_ms: u64,
    /// The contract that wraps the native currency, if it is known and is not the OP stack's predeploy.
    wrapper: Option<Address>,
    rules: Rules,
    /// The forks that activate at a time.
    forks: &'static [(ForkName, u64)],
}

/// The constants in which the families differ.
enum Rules {
    Ethereum {
        /// The deposit contract (EIP-6110).
        deposits: Address,
        /// Sets the forks that activate at a block.
        blocks: fn(&mut ChainConfig),
    },
    OpStack {
        /// The first block of Bedrock.
        bedrock: u64,
        /// The base fee parameters that apply where a header has none.
        elasticity: u64,
        denominator: u64,
        denominator_canyon: u64,
    },
}

impl Rules {
    /// Most chains of the superchain registry (<https://github.com/ethereum-optimism/superchain-registry>).
    const STANDARD_OP_STACK: Self =
        Self::OpStack { bedrock: 0, elasticity: 6, denominator: 50, denominator_canyon: 250 };
}

impl ChainSpec {
    /// Returns the rules of the network with this id, or `None` if presim does not know it.
    pub fn known(chain_id: u64) -> Option<Self> {
        Self::known_with(chain_id, &[])?.ok()
    }

    /// Returns the rules of the network with this id, with these forks instead of its own, or `None` if presim does not
    /// know it.
    ///
    /// # Errors
    ///
    /// Returns a [`ChainSpecError`] if the network's family does not have a fork, or a fork activates before one that
    /// it follows.
    pub fn known_with(chain_id: u64, forks: &[ForkTime]) -> Option<Result<Self, ChainSpecError>> {
        let network = NETWORKS.into_iter().find(|network| network.id == chain_id)?;
        let mut config = network.config();
        let spec = set_forks(&mut config, forks)
            .and_then(|()| Self::new(config, Duration::from_millis(network.block_ms)))
            .map(|spec| match network.wrapper {
                Some(wrapper) => spec.with_wrapper(wrapper),
                None => spec,
            });
        Some(spec)
    }

    /// Returns the ids of the networks that presim knows.
    pub fn known_ids() -> impl Iterator<Item = u64> {
        NETWORKS.into_iter().map(|network| network.id)
    }
}

impl Network {
    /// Returns the geth-format `config`.
    fn config(&self) -> ChainConfig {
        let mut config = ChainConfig { chain_id: self.id, ..ChainConfig::default() };
        match self.rules {
            Rules::Ethereum { deposits, blocks } => {
                // These networks have the same blob parameter changes (EIP-7892).
                let blobs = [
                    ("cancun", BlobParams::cancun()),
                    ("prague", BlobParams::prague()),
                    ("osaka", BlobParams::osaka()),
                    ("bpo1", BlobParams::bpo1()),
                    ("bpo2", BlobParams::bpo2()),
                ];
                config.blob_schedule = BTreeMap::from(blobs.map(|(name, params)| (name.to_owned(), params)));
                config.deposit_contract_address = Some(deposits);
                config.terminal_total_difficulty = Some(U256::ZERO);
                config.terminal_total_difficulty_passed = true;
                blocks(&mut config);
            }
            Rules::OpStack { bedrock, elasticity, denominator, denominator_canyon } => {
                let fees = OpBaseFeeInfo {
                    eip1559_elasticity: Some(elasticity),
                    eip1559_denominator: Some(denominator),
                    eip1559_denominator_canyon: Some(denominator_canyon),
                };
                let fees = serde_json::to_value(fees).unwrap_or_default();
                config.extra_fields.insert(OPTIMISM.to_owned(), fees);
                config.extra_fields.insert(BEDROCK.to_owned(), bedrock.into());
                ForkName::Regolith.write(&mut config, Some(0));
            }
        }
        for (fork, time) in self.forks {
            fork.write(&mut config, Some(*time));
        }
        config
    }
}

/// Sets all forks that activate at a block to the first.
const fn all_from_genesis(config: &mut ChainConfig) {
    config.homestead_block = Some(0);
    config.eip150_block = Some(0);
    config.eip155_block = Some(0);
    config.eip158_block = Some(0);
    config.byzantium_block = Some(0);
    config.constantinople_block = Some(0);
    config.petersburg_block = Some(0);
    config.istanbul_block = Some(0);
    config.muir_glacier_block = Some(0);
    config.berlin_block = Some(0);
    config.london_block = Some(0);
    config.arrow_glacier_block = Some(0);
    config.gray_glacier_block = Some(0);
}
