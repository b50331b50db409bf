//! The L1 parameters of a block, and the fees that follow from them for a transaction: for its data on L1, and for the
//! chain's operator.

use alloy_primitives::{Address, U256, address, hex};
use revm::Database;

use super::{
    OpFork,
    fastlz::{SIZE_SCALE, estimated_size},
};

/// The predeploy that keeps the L1 parameters (<https://specs.optimism.io/protocol/predeploys.html#l1block>).
pub const L1_BLOCK: Address = address!("4200000000000000000000000000000000000015");

/// The slots of [`L1_BLOCK`] (<https://specs.optimism.io/protocol/exec-engine.html#l1-cost-fees-l1-fee-vault>).
mod slot {
    use alloy_primitives::U256;

    pub(super) const BASE_FEE: U256 = U256::from_limbs([1, 0, 0, 0]);
    /// The scalars from Ecotone on.
    pub(super) const SCALARS: U256 = U256::from_limbs([3, 0, 0, 0]);
    pub(super) const OVERHEAD: U256 = U256::from_limbs([5, 0, 0, 0]);
    /// The scalar before Ecotone.
    pub(super) const SCALAR: U256 = U256::from_limbs([6, 0, 0, 0]);
    pub(super) const BLOB_BASE_FEE: U256 = U256::from_limbs([7, 0, 0, 0]);
    /// The operator fee's parameters from Isthmus on, and the DA footprint's from Jovian on.
    pub(super) const OPERATOR: U256 = U256::from_limbs([8, 0, 0, 0]);
}

/// The selector of `setL1BlockValues`, whose arguments take one word each.
const BEDROCK: [u8; 4] = hex!("015d8eb9");
/// The selectors of `setL1BlockValuesEcotone`, `…Isthmus` and `…Jovian`, with packed arguments, each list longer than
/// the one before (<https://specs.optimism.io/protocol/jovian/l1-attributes.html>).
const ECOTONE: [u8; 4] = hex!("440a5e20");
const ISTHMUS: [u8; 4] = hex!("098999be");
const JOVIAN: [u8; 4] = hex!("3db6be2b");

/// The gas of a nonzero byte in the call data of a transaction on L1, and of a zero byte.
const BYTE_GAS: u64 = 16;
const ZERO_BYTE_GAS: u64 = 4;
/// The bytes that every transaction is charged for before Regolith.
const BYTES_BEFORE_REGOLITH: u64 = 68;
/// The divisor of scalars.
const SCALAR_DECIMALS: u64 = 1_000_000;
/// The factor of the operator fee's scalar from Jovian on.
const JOVIAN_OPERATOR_FACTOR: u64 = 100;

/// The L1 parameters of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct L1BlockInfo {
    fork: OpFork,
    /// The base fee of L1, in wei.
    base_fee: U256,
    terms: DataTerms,
    operator: Option<OperatorTerms>,
    /// Gas per byte of the DA footprint. `None` before Jovian.
    da_footprint_scalar: Option<u16>,
}

/// The parameters of the fee for data on L1, besides the base fee of L1.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DataTerms {
    /// Before Ecotone: gas for each transaction, and a scalar in millionths.
    Bedrock { overhead: U256, scalar: U256 },
    /// From Ecotone on: the blob base fee of L1 in wei, and scalars in millionths.
    Ecotone { base_fee_scalar: u32, blob_base_fee: U256, blob_base_fee_scalar: u32 },
}

impl Default for DataTerms {
    fn default() -> Self {
        Self::Bedrock { overhead: U256::ZERO, scalar: U256::ZERO }
    }
}

/// The parameters of the operator fee (<https://specs.optimism.io/protocol/isthmus/exec-engine.html#operator-fee>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OperatorTerms {
    /// Millionths of a wei per gas in Isthmus, hundreds of wei from Jovian on.
    scalar: u32,
    /// Wei.
    constant: u64,
}

/// The L1 cost of a transaction, as its receipt reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct L1Cost {
    /// The base fee of L1, in wei.
    pub gas_price: U256,
    /// Gas that the transaction's bytes would use on L1.
    pub gas_used: U256,
    /// The L1 fee that the transaction pays, in wei.
    pub fee: U256,
    /// The fee scalar; `None` from Ecotone on.
    pub fee_scalar: Option<f64>,
    /// The scalar of the L1 base fee, in millionths; `None` before Ecotone.
    pub base_fee_scalar: Option<u64>,
    /// The blob base fee of L1, in wei; `None` before Ecotone.
    pub blob_base_fee: Option<U256>,
    /// The scalar of the L1 blob base fee, in millionths; `None` before Ecotone.
    pub blob_base_fee_scalar: Option<u64>,
    /// The operator fee's scalar and its constant in wei; `None` before Isthmus, or if both are zero.
    pub operator_fee: Option<(u64, u64)>,
    /// The DA footprint: gas per byte, and gas of the transaction's bytes; `None` before Jovian.
    pub da_footprint: Option<(u16, u64)>,
}

impl L1BlockInfo {
    /// Returns the parameters that the call data `input` sets in a block of `fork`, or `None` if it sets none.
    ///
    /// The first block of Ecotone still has Bedrock's call data, and Bedrock's fee.
    pub fn of_call(input: &[u8], fork: OpFork) -> Option<Self> {
        let at = Bytes(input);
        let selector = at.read::<4>(0)?;
        if selector == BEDROCK {
            return Some(Self {
                fork: fork.min(OpFork::Canyon),
                base_fee: at.word(4 + 2 * 32)?,
                terms: DataTerms::Bedrock { overhead: at.word(4 + 6 * 32)?, scalar: at.word(4 + 7 * 32)? },
                ..Self::default()
            });
        }
        if ![ECOTONE, ISTHMUS, JOVIAN].contains(&selector) {
            return None;
        }
        let mut info = Self {
            fork,
            base_fee: at.word(36)?,
            terms: DataTerms::Ecotone {
                base_fee_scalar: u32::from_be_bytes(at.read(4)?),
                blob_base_fee_scalar: u32::from_be_bytes(at.read(8)?),
                blob_base_fee: at.word(68)?,
            },
            ..Self::default()
        };
        if selector != ECOTONE {
            let (scalar, constant) = (u32::from_be_bytes(at.read(164)?), u64::from_be_bytes(at.read(168)?));
            info.operator = Some(OperatorTerms { scalar, constant });
        }
        if selector == JOVIAN {
            info.da_footprint_scalar = Some(u16::from_be_bytes(at.read(176)?));
        }
        Some(info)
    }

    /// Reads the parameters of a block of `fork` from the storage of [`L1_BLOCK`], as it is after the block's first
    /// transaction.
    ///
    /// # Errors
    ///
    /// Returns the database's error.
    pub fn read<D: Database>(db: &mut D, fork: OpFork) -> Result<Self, D::Error> {
        // Some databases read the slots of loaded accounts only.
        db.basic(L1_BLOCK)?;
        let mut slot = |slot| db.storage(L1_BLOCK, slot);
        let base_fee = slot(slot::BASE_FEE)?;
        let mut info = Self { fork, base_fee, ..Self::default() };
        if fork >= OpFork::Ecotone {
            let scalars = slot(slot::SCALARS)?.to_be_bytes::<32>();
            let blob_base_fee = slot(slot::BLOB_BASE_FEE)?;
            let (base_fee_scalar, blob_base_fee_scalar) = (be_u32(&scalars, 16), be_u32(&scalars, 20));
            // Until the first call that sets Ecotone's parameters, Bedrock's fee is due, as op-geth has it.
            if !blob_base_fee.is_zero() || base_fee_scalar != 0 || blob_base_fee_scalar != 0 {
                info.terms = DataTerms::Ecotone { base_fee_scalar, blob_base_fee, blob_base_fee_scalar };
            }
        }
        if let DataTerms::Bedrock { overhead, scalar } = &mut info.terms {
            (*overhead, *scalar) = (slot(slot::OVERHEAD)?, slot(slot::SCALAR)?);
        }
        if fork >= OpFork::Isthmus {
            let operator = slot(slot::OPERATOR)?.to_be_bytes::<32>();
            let constant = u64::from_be_bytes(std::array::from_fn(|index| operator[24 + index]));
            info.operator = Some(OperatorTerms { scalar: be_u32(&operator, 20), constant });
            // <https://specs.optimism.io/protocol/jovian/exec-engine.html#scalar-loading>
            let scalar = u16::from_be_bytes([operator[18], operator[19]]);
            info.da_footprint_scalar = (fork >= OpFork::Jovian).then_some(scalar);
        }
        Ok(info)
    }

    /// Returns the fee in wei for the data of a signed transaction with this EIP-2718 encoding. Nothing is due for no
    /// bytes.
    ///
    /// The formulas are [Bedrock's](https://specs.optimism.io/protocol/exec-engine.html#pre-ecotone),
    /// [Ecotone's](https://specs.optimism.io/protocol/exec-engine.html#ecotone-l1-cost-fee-changes-eip-4844-da) and
    /// [Fjord's](https://specs.optimism.io/protocol/fjord/exec-engine.html#fjord-l1-cost-fee-changes-fastlz-estimator).
    pub fn data_fee(&self, encoded: &[u8]) -> U256 {
        if encoded.is_empty() {
            return U256::ZERO;
        }
        match self.terms {
            DataTerms::Bedrock { overhead, scalar } => {
                let gas = U256::from(self.call_data_gas(encoded)).saturating_add(overhead);
                gas.saturating_mul(self.base_fee).saturating_mul(scalar) / U256::from(SCALAR_DECIMALS)
            }
            DataTerms::Ecotone { base_fee_scalar, blob_base_fee, blob_base_fee_scalar } => {
                let calls = self.base_fee.saturating_mul(U256::from(BYTE_GAS * u64::from(base_fee_scalar)));
                let blobs = blob_base_fee.saturating_mul(U256::from(blob_base_fee_scalar));
                let price = calls.saturating_add(blobs);
                if price.is_zero() {
                    return U256::ZERO;
                }
                let (size, scale) = if self.fork >= OpFork::Fjord {
                    (estimated_size(encoded), SCALAR_DECIMALS * SIZE_SCALE)
                } else {
                    (self.call_data_gas(encoded), SCALAR_DECIMALS * BYTE_GAS)
                };
                price.saturating_mul(U256::from(size)) / U256::from(scale)
            }
        }
    }

    /// Returns the operator's fee in wei for this gas
    /// ([Isthmus](https://specs.optimism.io/protocol/isthmus/exec-engine.html#fee-formula),
    /// [Jovian](https://specs.optimism.io/protocol/jovian/exec-engine.html#fee-formula-update)). Zero before Isthmus.
    pub fn operator_fee(&self, gas: u64) -> U256 {
        let Some(OperatorTerms { scalar, constant }) = self.operator else { return U256::ZERO };
        // The product has at most 103 bits.
        let product = u128::from(gas) * u128::from(scalar);
        let fee = if self.fork >= OpFork::Jovian {
            product * u128::from(JOVIAN_OPERATOR_FACTOR)
        } else {
            product / u128::from(SCALAR_DECIMALS)
        };
        U256::from(fee + u128::from(constant))
    }

    /// Returns the DA footprint in gas of a signed transaction with this EIP-2718 encoding
    /// (<https://specs.optimism.io/protocol/jovian/exec-engine.html#da-footprint-block-limit>), or `None` before Jovian.
    pub fn da_footprint(&self, encoded: &[u8]) -> Option<u64> {
        let scalar = self.da_footprint_scalar?;
        Some((estimated_size(encoded) / SIZE_SCALE).saturating_mul(scalar.into()))
    }

    /// Returns the L1 cost of the signed transaction with this EIP-2718 encoding, as its receipt reports it.
    pub fn cost(&self, encoded: &[u8]) -> L1Cost {
        let gas = if self.fork >= OpFork::Fjord {
            estimated_size(encoded) * BYTE_GAS / SIZE_SCALE
        } else {
            self.call_data_gas(encoded)
        };
        let cost = L1Cost {
            gas_price: self.base_fee,
            gas_used: U256::from(gas),
            fee: self.data_fee(encoded),
            operator_fee: self.operator.map(|fee| (fee.scalar.into(), fee.constant)).filter(|fee| *fee != (0, 0)),
            da_footprint: self.da_footprint_scalar.zip(self.da_footprint(encoded)),
            ..L1Cost::default()
        };
        match self.terms {
            DataTerms::Bedrock { overhead, scalar } => L1Cost {
                gas_used: cost.gas_used.saturating_add(overhead),
                fee_scalar: Some(scalar.saturating_to::<u64>() as f64 / SCALAR_DECIMALS as f64),
                ..cost
            },
            DataTerms::Ecotone { base_fee_scalar, blob_base_fee, blob_base_fee_scalar } => L1Cost {
                base_fee_scalar: Some(base_fee_scalar.into()),
                blob_base_fee: Some(blob_base_fee),
                blob_base_fee_scalar: Some(blob_base_fee_scalar.into()),
                ..cost
            },
        }
    }

    /// Returns the gas that the bytes would use as call data on L1, uncompressed.
    fn call_data_gas(&self, encoded: &[u8]) -> u64 {
        let zeros = encoded.iter().filter(|byte| **byte == 0).count() as u64;
        let others = encoded.len() as u64 - zeros;
        let more = if self.fork < OpFork::Regolith { BYTES_BEFORE_REGOLITH } else { 0 };
        zeros * ZERO_BYTE_GAS + (others + more) * BYTE_GAS
    }
}

/// Returns the big-endian number at `at` in a word.
fn be_u32(word: &[u8; 32], at: usize) -> u32 {
    u32::from_be_bytes([word[at], word[at + 1], word[at + 2], word[at + 3]])
}

/// Call data that is read by offset.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn read<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at + N)?.try_into().ok()
    }

    fn word(&self, at: usize) -> Option<U256> {
        self.read::<32>(at).map(U256::from_be_bytes)
    }
}
