//! The rules of an OP-stack chain: its forks, its base fee, and the base fee parameters in its headers.

use alloy_consensus::Header;
use alloy_eips::{calc_next_block_base_fee, eip1559::BaseFeeParams};
use alloy_genesis::ChainConfig;
use alloy_primitives::{B64, Bytes};
use op_alloy::{
    consensus::{
        decode_holocene_extra_data, decode_jovian_extra_data, encode_holocene_extra_data, encode_jovian_extra_data,
    },
    rpc_types::OpBaseFeeInfo,
};

use crate::chain::{ChainSpecError, ForkName, family::OPTIMISM, forks::ForkTimes};

/// The key of the first block of Bedrock.
pub(in crate::chain) const BEDROCK: &str = "bedrockBlock";
/// The values that op-geth uses for constants that the genesis omits.
const DEFAULT_ELASTICITY: u64 = 6;
const DEFAULT_DENOMINATOR: u64 = 50;
const DEFAULT_DENOMINATOR_CANYON: u64 = 250;
/// The first byte of extra data with a minimum base fee
/// (<https://specs.optimism.io/protocol/jovian/exec-engine.html#minimum-base-fee-in-block-header>).
const JOVIAN_VERSION: u8 = 1;

/// The rules of an OP-stack chain that differ from Ethereum's.
#[derive(Clone, Debug)]
pub(in crate::chain) struct OpStackParams {
    pub forks: ForkTimes,
    /// The first block of Bedrock.
    pub bedrock: u64,
    /// The base fee parameters before Canyon, and from Canyon on. From Holocene on, headers carry their own.
    base_fee: BaseFeeParams,
    base_fee_canyon: BaseFeeParams,
}

/// The parameters in a header for the base fee of the next block.
#[derive(Clone, Copy, Debug)]
struct HeaderParams {
    elasticity: u32,
    denominator: u32,
    /// Wei; `None` before Jovian.
    min_base_fee: Option<u64>,
}

impl OpStackParams {
    /// Reads the rules from a geth-format `config`. Returns `None` if the chain is not of the OP stack.
    ///
    /// # Errors
    ///
    /// Returns [`ChainSpecError::Field`] if a field of the OP stack is malformed.
    pub fn of(config: &ChainConfig, forks: ForkTimes) -> Result<Option<Self>, ChainSpecError> {
        let fields = &config.extra_fields;
        let Some(fees) = fields.get_deserialized::<OpBaseFeeInfo>(OPTIMISM) else { return Ok(None) };
        let fees = fees.map_err(|error| ChainSpecError::Field {
            field: OPTIMISM.to_owned(),
            problem: format!(
                "{error}: expected an object with the numbers eip1559Elasticity, eip1559Denominator, eip1559DenominatorCanyon"
            ),
        })?;
        let bedrock = fields.get_deserialized::<Option<u64>>(BEDROCK).transpose().map_err(|error| {
            ChainSpecError::Field { field: BEDROCK.to_owned(), problem: format!("{error}: expected a block number") }
        })?;
        let params = |denominator: Option<u64>, default: u64| {
            let elasticity = fees.eip1559_elasticity.filter(|given| *given > 0).unwrap_or(DEFAULT_ELASTICITY);
            let denominator = denominator.filter(|given| *given > 0).unwrap_or(default);
            BaseFeeParams::new(denominator.into(), elasticity.into())
        };
        Ok(Some(Self {
            forks,
            bedrock: bedrock.flatten().unwrap_or_default(),
            base_fee: params(fees.eip1559_denominator, DEFAULT_DENOMINATOR),
            base_fee_canyon: params(fees.eip1559_denominator_canyon, DEFAULT_DENOMINATOR_CANYON),
        }))
    }

    /// Returns the base fee, in wei, of a block on `parent` at `timestamp`.
    ///
    /// From [Holocene](https://specs.optimism.io/protocol/holocene/exec-engine.html#base-fee-computation) on, the
    /// parameters are in the parent's header. [Jovian](https://specs.optimism.io/protocol/jovian/exec-engine.html) adds
    /// a minimum base fee, and uses the block's DA footprint in place of its gas if the footprint is higher.
    pub fn next_base_fee(&self, parent: &Header, timestamp: u64) -> u64 {
        let said = self.header_params(parent);
        let params = match said {
            Some(said) if said.elasticity > 0 && said.denominator > 0 => {
                BaseFeeParams::new(said.denominator.into(), said.elasticity.into())
            }
            _ => self.params_at(timestamp),
        };
        let jovian = self.forks.is_active(ForkName::Jovian, parent.timestamp);
        let footprint = parent.blob_gas_used.filter(|_| jovian).unwrap_or_default();
        let used = parent.gas_used.max(footprint).min(parent.gas_limit);
        let fee = parent.base_fee_per_gas.unwrap_or_default();
        let target = u128::from(parent.gas_limit) / params.elasticity_multiplier;
        // The target is zero only for a gas limit too low for any checked header.
        let Some(times) = u128::from(used).checked_div(target) else { return fee };
        // A block multiplies the fee by less than `times + 2`: the bound keeps a fee from an override from overflowing.
        let highest = u64::try_from(u128::from(u64::MAX) / (times + 2)).unwrap_or(u64::MAX);
        let fee = fee.min(highest);
        let next = calc_next_block_base_fee(used, parent.gas_limit, fee, params);
        next.max(said.and_then(|said| said.min_base_fee).unwrap_or_default())
    }

    /// Returns the extra data of a block on `parent` at `timestamp`: the parent's base fee parameters, in the form of
    /// the fork that is active at `timestamp`. Empty before Holocene.
    pub fn next_extra_data(&self, parent: &Header, timestamp: u64) -> Bytes {
        if !self.forks.is_active(ForkName::Holocene, timestamp) {
            return Bytes::new();
        }
        let said = self.header_params(parent);
        let mut params = B64::ZERO;
        if let Some(said) = said {
            params.0[..4].copy_from_slice(&said.denominator.to_be_bytes());
            params.0[4..].copy_from_slice(&said.elasticity.to_be_bytes());
        }
        let default = self.params_at(timestamp);
        let encoded = if self.forks.is_active(ForkName::Jovian, timestamp) {
            let min_base_fee = said.and_then(|said| said.min_base_fee).unwrap_or_default();
            encode_jovian_extra_data(params, default, min_base_fee)
        } else {
            encode_holocene_extra_data(params, default)
        };
        // Encoding fails only for constants of more than 32 bits, which no chain has. If it fails, the parent's bytes
        // are used.
        encoded.unwrap_or_else(|_| parent.extra_data.clone())
    }

    /// Returns the chain's base fee parameters at `timestamp`, which apply if the header has none.
    fn params_at(&self, timestamp: u64) -> BaseFeeParams {
        if self.forks.is_active(ForkName::Canyon, timestamp) { self.base_fee_canyon } else { self.base_fee }
    }

    /// Returns the parameters in `header`, or `None` before Holocene or if they are malformed. The version field
    /// determines the format, because the block may have been built under another fork than these rules have at its
    /// time.
    fn header_params(&self, header: &Header) -> Option<HeaderParams> {
        let version = header.extra_data.first();
        if version == Some(&JOVIAN_VERSION) && self.forks.is_active(ForkName::Holocene, header.timestamp) {
            let (elasticity, denominator, min) = decode_jovian_extra_data(&header.extra_data).ok()?;
            Some(HeaderParams { elasticity, denominator, min_base_fee: Some(min) })
        } else if self.forks.is_active(ForkName::Holocene, header.timestamp) {
            let (elasticity, denominator) = decode_holocene_extra_data(&header.extra_data).ok()?;
            Some(HeaderParams { elasticity, denominator, min_base_fee: None })
        } else {
            None
        }
    }
}
