//! A network, and its genesis `config`.

use std::{collections::BTreeMap, str::FromStr};

use alloy_eips::eip7840::BlobParams;
use alloy_genesis::ChainConfig;
use alloy_hardforks::{EthereumHardfork, ForkCondition};
use alloy_primitives::{Address, U256};
use op_alloy::rpc_types::OpBaseFeeInfo;

use crate::chain::{ForkName, family::OPTIMISM, forks::set_block_forks, op::BEDROCK};

/// A network, with the constants of its rules.
pub(super) struct Network {
    pub id: u64,
    /// Milliseconds between two blocks.
    pub block_ms: u64,
    /// The contract that wraps the native currency, if it is known and is not the OP stack's predeploy.
    pub wrapper: Option<Address>,
    pub rules: Rules,
    /// The forks of the OP stack, in the order of activation, and the times of the first of them. Empty on a chain of Ethereum's
    /// family.
    pub order: &'static [ForkName],
    pub times: &'static [u64],
}

/// The constants in which the families differ.
pub(super) enum Rules {
    Ethereum {
        /// The deposit contract (EIP-6110), if the chain has one.
        deposits: Option<Address>,
        /// The forks of Ethereum, in the order of activation. A fork by block number that is left out activates with the
        /// one before it.
        forks: &'static [(EthereumHardfork, ForkCondition)],
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
            Rules::Ethereum { deposits, forks } => {
                // These networks have the same blob parameter changes (EIP-7892).
                let blobs = [
                    ("cancun", BlobParams::cancun()),
                    ("prague", BlobParams::prague()),
                    ("osaka", BlobParams::osaka()),
                    ("bpo1", BlobParams::bpo1()),
                    ("bpo2", BlobParams::bpo2()),
                ];
                config.blob_schedule = BTreeMap::from(blobs.map(|(name, params)| (name.to_owned(), params)));
                config.deposit_contract_address = deposits;
                config.terminal_total_difficulty = Some(U256::ZERO);
                config.terminal_total_difficulty_passed = true;
                set_block_forks(&mut config, |fork| {
                    forks.iter().rev().find(|(known, _)| *known <= fork).and_then(|(_, at)| at.block_number())
                });
                for (fork, at) in forks {
                    match *at {
                        // In a genesis there are no balances to move.
                        ForkCondition::Block(number) if *fork == EthereumHardfork::Dao && number > 0 => {
                            (config.dao_fork_block, config.dao_fork_support) = (Some(number), true);
                        }
                        ForkCondition::TTD { fork_block, total_difficulty, .. } => {
                            config.merge_netsplit_block = fork_block.filter(|block| *block > 0);
                            config.terminal_total_difficulty = Some(total_difficulty);
                        }
                        ForkCondition::Timestamp(time) => {
                            if let Ok(fork) = ForkName::from_str(fork.name()) {
                                fork.write(&mut config, Some(time));
                            }
                        }
                        ForkCondition::Block(_) | ForkCondition::Never => {}
                    }
                }
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
        for (fork, time) in self.order.iter().zip(self.times) {
            fork.write(&mut config, Some(*time));
        }
        config
    }
}
