//! The L1 cost of an OP-stack transaction, from the L1 parameters in the first transaction of its block.

use alloy_primitives::{U256, hex};
use op_revm::{L1BlockInfo, OpSpecId, estimate_tx_compressed_size};

/// The selector of `setL1BlockValues`, whose arguments take one word each.
const BEDROCK: [u8; 4] = hex!("015d8eb9");
/// The selectors of `setL1BlockValuesEcotone`, `…Isthmus` and `…Jovian`, with packed arguments, each list longer than
/// the one before (<https://specs.optimism.io/protocol/jovian/l1-attributes.html>).
const ECOTONE: [u8; 4] = hex!("440a5e20");
const ISTHMUS: [u8; 4] = hex!("098999be");
const JOVIAN: [u8; 4] = hex!("3db6be2b");
/// The divisor of the fee scalar before Ecotone.
const SCALAR_DECIMALS: f64 = 1e6;
/// The factor by which [`estimate_tx_compressed_size`] scales its result in bytes.
const SIZE_DECIMALS: u64 = 1_000_000;

/// The L1 parameters of a block, from the call data of its first transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct L1Params {
    info: L1BlockInfo,
    /// The fork whose cost function applies. The first block of Ecotone still uses Bedrock's.
    spec: OpSpecId,
}

/// The L1 cost of a transaction, as its receipt reports it.
#[derive(Clone, Copy, Debug, PartialEq)]
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

impl L1Params {
    /// Returns the parameters that the call data `input` sets in a block of fork `spec`, or `None` if it sets none.
    pub fn of(input: &[u8], spec: OpSpecId) -> Option<Self> {
        let at = Bytes(input);
        let selector = at.read::<4>(0)?;
        let mut info = L1BlockInfo::default();
        if selector == BEDROCK {
            info.l1_base_fee = at.word(4 + 2 * 32)?;
            info.l1_fee_overhead = Some(at.word(4 + 6 * 32)?);
            info.l1_base_fee_scalar = at.word(4 + 7 * 32)?;
            let spec = if spec.is_enabled_in(OpSpecId::ECOTONE) { OpSpecId::CANYON } else { spec };
            return Some(Self { info, spec });
        }
        if ![ECOTONE, ISTHMUS, JOVIAN].contains(&selector) {
            return None;
        }
        info.l1_base_fee_scalar = U256::from(u32::from_be_bytes(at.read(4)?));
        info.l1_blob_base_fee_scalar = Some(U256::from(u32::from_be_bytes(at.read(8)?)));
        info.l1_base_fee = at.word(36)?;
        info.l1_blob_base_fee = Some(at.word(68)?);
        if selector != ECOTONE {
            info.operator_fee_scalar = Some(U256::from(u32::from_be_bytes(at.read(164)?)));
            info.operator_fee_constant = Some(U256::from(u64::from_be_bytes(at.read(168)?)));
        }
        if selector == JOVIAN {
            info.da_footprint_gas_scalar = Some(u16::from_be_bytes(at.read(176)?));
        }
        Some(Self { info, spec })
    }

    /// Returns the L1 cost of the signed transaction with this EIP-2718 encoding.
    pub fn cost(&self, encoded: &[u8]) -> L1Cost {
        let Self { info, spec } = self;
        let ecotone = info.l1_blob_base_fee.is_some();
        let small = |value: U256| value.saturating_to::<u64>();
        let operator_fee = info.operator_fee_scalar.zip(info.operator_fee_constant);
        let footprint = |scalar: u16| {
            (scalar, (estimate_tx_compressed_size(encoded) / SIZE_DECIMALS).saturating_mul(u64::from(scalar)))
        };
        L1Cost {
            gas_price: info.l1_base_fee,
            gas_used: info.data_gas(encoded, *spec).saturating_add(info.l1_fee_overhead.unwrap_or_default()),
            fee: info.clone().calculate_tx_l1_cost(encoded, *spec),
            fee_scalar: (!ecotone).then(|| small(info.l1_base_fee_scalar) as f64 / SCALAR_DECIMALS),
            base_fee_scalar: ecotone.then(|| small(info.l1_base_fee_scalar)),
            blob_base_fee: info.l1_blob_base_fee,
            blob_base_fee_scalar: info.l1_blob_base_fee_scalar.map(small),
            operator_fee: operator_fee
                .map(|(scalar, constant)| (small(scalar), small(constant)))
                .filter(|fee| *fee != (0, 0)),
            da_footprint: info.da_footprint_gas_scalar.map(footprint),
        }
    }
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
