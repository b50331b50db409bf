//! The name of standing bundles.

use std::fmt;

/// The name of a client's standing bundles: 128 random bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WatchId(pub [u8; 16]);

impl fmt::Display for WatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#034x}", u128::from_be_bytes(self.0))
    }
}
