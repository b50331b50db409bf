//! The milliseconds of a block's time, which Base has from [Denim](https://docs.base.org/upgrades/denim/200ms-blocks) on.

use alloy_consensus::{Transaction, Typed2718};
use alloy_primitives::{Address, TxKind, address, hex};
use op_alloy::consensus::DEPOSIT_TX_TYPE_ID;

use super::ChainTx;

/// The predeploy that keeps the milliseconds.
const BASE_TIME: Address = address!("4200000000000000000000000000000000000030");
/// The sender of the deposits that the protocol makes.
const DEPOSITOR: Address = address!("DeaDDEaDDeAdDeAdDEAdDEaddeAddEAdDEAd0001");
/// The selector of `setTimestampMillisPart(uint16)`.
const SET_MILLIS_PART: [u8; 4] = hex!("86bdf394");

/// Returns the milliseconds that the second transaction of a block adds to its timestamp, or `None` if `second`, by
/// `sender`, is not the deposit that tells them.
pub fn millis_part(second: &ChainTx, sender: Address) -> Option<u64> {
    let is_told = second.ty() == DEPOSIT_TX_TYPE_ID && sender == DEPOSITOR && second.kind() == TxKind::Call(BASE_TIME);
    let word: [u8; 32] = second.input().strip_prefix(&SET_MILLIS_PART).filter(|_| is_told)?.try_into().ok()?;
    let millis = word.starts_with(&[0; 30]).then(|| u64::from(u16::from_be_bytes([word[30], word[31]])))?;
    (millis < 1000).then_some(millis)
}
