//! The milliseconds of a block's time. Base has them since [Denim](https://docs.base.org/upgrades/denim/200ms-blocks).

use std::time::Duration;

use alloy_consensus::{Transaction, Typed2718, transaction::Recovered};
use alloy_primitives::{Address, TxKind, U256, address, hex};
use op_alloy::consensus::DEPOSIT_TX_TYPE_ID;

use crate::chain::ChainTx;

/// The predeploy that keeps the milliseconds.
pub const BASE_TIME: Address = address!("4200000000000000000000000000000000000030");
/// The slot of the predeploy that holds the milliseconds.
pub const BASE_TIME_SLOT: U256 = U256::ZERO;
/// The sender of the deposits that the protocol makes.
const DEPOSITOR: Address = address!("DeaDDEaDDeAdDeAdDEAdDEaddeAddEAdDEAd0001");
/// The selector of `setTimestampMillisPart(uint16)`.
const SET_MILLIS_PART: [u8; 4] = hex!("86bdf394");

/// Returns the milliseconds that the second transaction of a block adds to its timestamp, or `None` if `second` is not
/// the deposit that contains them.
pub fn millis_part(second: &Recovered<ChainTx>) -> Option<u64> {
    let is_deposit = second.ty() == DEPOSIT_TX_TYPE_ID && second.signer() == DEPOSITOR;
    let is_base_time_deposit = is_deposit && second.kind() == TxKind::Call(BASE_TIME);
    let word: [u8; 32] =
        second.input().strip_prefix(&SET_MILLIS_PART).filter(|_| is_base_time_deposit)?.try_into().ok()?;
    let millis = word.starts_with(&[0; 30]).then(|| u64::from(u16::from_be_bytes([word[30], word[31]])))?;
    (millis < 1000).then_some(millis)
}

/// Returns the time of a block since 1970, with the milliseconds that it adds to its timestamp, if any.
pub fn block_instant(timestamp: u64, millis: Option<u64>) -> Duration {
    Duration::from_secs(timestamp).saturating_add(Duration::from_millis(millis.unwrap_or_default()))
}

/// Returns the time of a block in milliseconds.
pub const fn timestamp_ms(timestamp: u64, millis: u64) -> u64 {
    timestamp.saturating_mul(1000).saturating_add(millis)
}
