//! A network, and its genesis `config`.

use std::collections::BTreeMap;

use alloy_eips::eip7840::BlobParams;
use alloy_genesis::ChainConfig;
use alloy_primitives::{Address, U256};
use op_alloy::rpc_types::OpBaseFeeInfo;

use crate::chain::{ForkName, family::OPTIMISM, op::BEDROCK};

/// A network, with the constants of its rules.
pub(super) struct Network {
    pub id: u64,
    /// Milliseconds between two blocks.
    pub block_ms: u64,
    /// The contract that wraps the native currency, if it is known and is not the OP stack's predeploy.
    pub wrapper: Option<Address>,
    pub rules: Rules,
    /// The forks that activate at a time.
    pub forks: &'static [(ForkName, u64)],
}

/// The constants in which the families differ.
pub(super) enum Rules {
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
    pub const STANDARD_OP_STACK: Self =
        Self::OpStack { bedrock: 0, elasticity: 6, denominator: 50, denominator_canyon: 250 };
}

impl Network {
    /// Returns the geth-format `config`.
    pub fn config(&self) -> ChainConfig {
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
pub(super) const fn all_from_genesis(config: &mut ChainConfig) {
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
