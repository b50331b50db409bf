//! The networks whose rules presim knows by their chain id.

use std::collections::BTreeMap;

use alloy_eips::{eip1559::BaseFeeParams, eip7840::BlobParams};
use alloy_genesis::ChainConfig;
use alloy_hardforks::{EthereumChainHardforks, EthereumHardfork as F, EthereumHardforks, ForkCondition};
use alloy_op_hardforks::OpChainHardforks;
use alloy_primitives::{Address, U256, address};

use super::{ChainSpec, op_stack::OpStackParams};

/// Seconds between two blocks.
const ETHEREUM_BLOCK_TIME: u64 = 12;
const OP_STACK_BLOCK_TIME: u64 = 2;

impl ChainSpec {
    /// Returns the rules of Ethereum mainnet, Sepolia, Holesky or Hoodi, or of OP or Base mainnet or Sepolia, by id.
    pub fn known(chain_id: u64) -> Option<Self> {
        type P = BaseFeeParams;
        let ethereum = |forks: EthereumChainHardforks, deposits: Address| {
            Self::ethereum(config(chain_id, &forks, deposits), ETHEREUM_BLOCK_TIME)
        };
        let op_stack = |forks: OpChainHardforks, base_fee: P, canyon: P| {
            let config = ChainConfig { chain_id, ..ChainConfig::default() };
            Self::op_stack(config, OP_STACK_BLOCK_TIME, OpStackParams::known(forks, base_fee, canyon))
        };
        Some(match chain_id {
            1 => ethereum(EthereumChainHardforks::mainnet(), address!("00000000219ab540356cBB839Cbe05303d7705Fa"))
                .with_wrapper(address!("C02aaA39b223FE8D0A0e5C4F27eAD9083C756Cc2")),
            11_155_111 => {
                ethereum(EthereumChainHardforks::sepolia(), address!("7f02C3E3c98b133055B8B348B2Ac625669Ed295D"))
                    .with_wrapper(address!("fFf9976782d46CC05630D1f6eBAb18b2324d6B14"))
            }
            17_000 => ethereum(EthereumChainHardforks::holesky(), address!("4242424242424242424242424242424242424242"))
                .with_wrapper(address!("94373a4919B3240D86eA41593D5eBa789FEF3848")),
            560_048 => ethereum(EthereumChainHardforks::hoodi(), address!("00000000219ab540356cBB839Cbe05303d7705Fa")),
            10 => op_stack(OpChainHardforks::op_mainnet(), P::optimism(), P::optimism_canyon()),
            8_453 => op_stack(OpChainHardforks::base_mainnet(), P::optimism(), P::optimism_canyon()),
            11_155_420 => op_stack(OpChainHardforks::op_sepolia(), P::optimism_sepolia(), P::optimism_sepolia_canyon()),
            84_532 => op_stack(OpChainHardforks::base_sepolia(), P::base_sepolia(), P::base_sepolia_canyon()),
            _ => return None,
        })
    }
}

/// Returns the geth-format `config` of a network with these forks.
fn config(chain_id: u64, forks: &EthereumChainHardforks, deposits: Address) -> ChainConfig {
    let block = |fork| match forks.ethereum_fork_activation(fork) {
        ForkCondition::Block(at) => Some(at),
        _ => None,
    };
    let time = |fork| forks.ethereum_fork_activation(fork).as_timestamp();
    let (merge, difficulty) = match forks.ethereum_fork_activation(F::Paris) {
        ForkCondition::TTD { fork_block, total_difficulty, .. } => (fork_block, total_difficulty),
        _ => (None, U256::ZERO),
    };
    // These networks have the same blob parameter changes (EIP-7892).
    let blobs = [
        ("cancun", BlobParams::cancun()),
        ("prague", BlobParams::prague()),
        ("osaka", BlobParams::osaka()),
        ("bpo1", BlobParams::bpo1()),
        ("bpo2", BlobParams::bpo2()),
    ];
    ChainConfig {
        chain_id,
        homestead_block: block(F::Homestead),
        dao_fork_block: block(F::Dao),
        dao_fork_support: block(F::Dao).is_some(),
        eip150_block: block(F::Tangerine),
        eip155_block: block(F::SpuriousDragon),
        eip158_block: block(F::SpuriousDragon),
        byzantium_block: block(F::Byzantium),
        constantinople_block: block(F::Constantinople),
        petersburg_block: block(F::Petersburg),
        istanbul_block: block(F::Istanbul),
        muir_glacier_block: block(F::MuirGlacier),
        berlin_block: block(F::Berlin),
        london_block: block(F::London),
        arrow_glacier_block: block(F::ArrowGlacier),
        gray_glacier_block: block(F::GrayGlacier),
        merge_netsplit_block: merge.filter(|block| *block > 0),
        terminal_total_difficulty: Some(difficulty),
        terminal_total_difficulty_passed: true,
        shanghai_time: time(F::Shanghai),
        cancun_time: time(F::Cancun),
        prague_time: time(F::Prague),
        osaka_time: time(F::Osaka),
        bpo1_time: time(F::Bpo1),
        bpo2_time: time(F::Bpo2),
        bpo3_time: time(F::Bpo3),
        bpo4_time: time(F::Bpo4),
        bpo5_time: time(F::Bpo5),
        amsterdam_time: time(F::Amsterdam),
        deposit_contract_address: Some(deposits),
        blob_schedule: BTreeMap::from(blobs.map(|(name, params)| (name.to_owned(), params))),
        ..ChainConfig::default()
    }
}
