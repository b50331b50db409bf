//! What a transaction of the OP stack costs on L1: the parameters that its block begins with, and what follows from them.

use alloy_primitives::{U256, hex};
use op_revm::{L1BlockInfo, OpSpecId, estimate_tx_compressed_size};

/// `setL1BlockValues`: each argument a word.
const BEDROCK: [u8; 4] = hex!("015d8eb9");
/// `setL1BlockValuesEcotone`, `…Isthmus` and `…Jovian`: packed, each longer than the one before
/// (<https://specs.optimism.io/protocol/jovian/l1-attributes.html>).
const ECOTONE: [u8; 4] = hex!("440a5e20");
const ISTHMUS: [u8; 4] = hex!("098999be");
const JOVIAN: [u8; 4] = hex!("3db6be2b");
/// The scale of the scalar before Ecotone.
const SCALAR_DECIMALS: f64 = 1e6;
/// How [`estimate_tx_compressed_size`] scales bytes.
const SIZE_DECIMALS: u64 = 1_000_000;

/// The L1 parameters of a block, from the call data of its first transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct L1Params {
    info: L1BlockInfo,
    /// Whose cost function holds: in the first block of Ecotone it is still Bedrock's.
    spec: OpSpecId,
}

/// What a receipt says of its transaction's cost on L1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct L1Cost {
    /// Base fee of L1, in wei.
    pub gas_price: U256,
    /// Gas that its bytes would use there.
    pub gas_used: U256,
    /// What it pays for it, in wei.
    pub fee: U256,
    /// Before Ecotone.
    pub fee_scalar: Option<f64>,
    /// From Ecotone on, in parts of a million.
    pub base_fee_scalar: Option<u64>,
    /// From Ecotone on, in wei.
    pub blob_base_fee: Option<U256>,
    /// From Ecotone on, in parts of a million.
    pub blob_base_fee_scalar: Option<u64>,
    /// From Isthmus on, where the chain has an operator fee: its two parameters, the second in wei.
    pub operator_fee: Option<(u64, u64)>,
    /// From Jovian on: gas a byte, and the gas that its bytes count.
    pub da_footprint: Option<(u16, u64)>,
}

impl L1Params {
    /// Those that `input` sets, in a block of fork `spec`; none where it sets none.
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

    /// What a signed transaction of these bytes (EIP-2718) costs.
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

/// Call data, read by offset.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn read<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at + N)?.try_into().ok()
    }

    fn word(&self, at: usize) -> Option<U256> {
        self.read::<32>(at).map(U256::from_be_bytes)
    }
}
