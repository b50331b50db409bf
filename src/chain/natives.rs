//! Contracts that a chain's nodes execute as native code, and that presim does not have.

use std::sync::Arc;

use alloy_genesis::ChainConfig;
use alloy_primitives::{Address, address};

use super::forks::{ForkName, ForkTimes};

/// The addresses whose code is part of a chain's nodes, beside the precompiles that presim has. A run that reaches one of
/// them cannot be executed here.
#[derive(Clone, Debug, Default)]
pub struct Natives {
    /// Single addresses.
    addresses: Arc<[Address]>,
    /// The first bytes of addresses that are all native.
    prefixes: &'static [[u8; 10]],
}

/// The Base chains. B20 tokens are native from Beryl on: the registries, the factory, and each token, whose address begins
/// with the same ten bytes. The addresses are the same on every chain that has the fork
/// (<https://docs.base.org/base-chain/specs/reference/b20/constants-and-addresses>). Cobalt adds the nonces and the context
/// of EIP-8130's transactions.
const BASE: [u64; 2] = [8_453, 84_532];
const BASE_NATIVES: [Address; 5] = [
    address!("B20f000000000000000000000000000000000000"),
    address!("8453000000000000000000000000000000000001"),
    address!("8453000000000000000000000000000000000002"),
    address!("813000000000000000000000000000000000aa01"),
    address!("813000000000000000000000000000000000aa02"),
];
const B20_TOKENS: [[u8; 10]; 1] = [[0xb2, 0, 0, 0, 0, 0, 0, 0, 0, 0]];

impl Natives {
    /// Returns the native addresses of the chain with this genesis `config`, and `more` that are known to be native.
    pub fn of(config: &ChainConfig, more: &[Address]) -> Self {
        let has_fork = ForkTimes::of(config)
            .is_ok_and(|forks| [ForkName::Beryl, ForkName::Cobalt].into_iter().any(|fork| forks.time(fork).is_some()));
        let (known, prefixes): (&[Address], &'static [[u8; 10]]) =
            if has_fork || BASE.contains(&config.chain_id) { (&BASE_NATIVES, &B20_TOKENS) } else { (&[], &[]) };
        Self { addresses: known.iter().chain(more).copied().collect(), prefixes }
    }

    /// Returns whether no address is native.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.prefixes.is_empty()
    }

    /// Returns whether the address is native.
    pub fn contains(&self, address: &Address) -> bool {
        self.addresses.contains(address) || self.prefixes.iter().any(|prefix| address.starts_with(prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_their_factory_and_registries_are_native_where_base_has_forked() {
        let config = |chain_id| ChainConfig { chain_id, ..ChainConfig::default() };
        let mut forked = config(84_538_453);
        forked.extra_fields.insert("optimism".to_owned(), serde_json::json!({}));
        ForkName::Beryl.write(&mut forked, Some(1));
        let other = Natives::of(&config(10), &[Address::repeat_byte(7)]);
        for base in [Natives::of(&config(8_453), &[]), Natives::of(&forked, &[])] {
            let token = address!("b20000000000000000000078ee7ce2fE4908108C");
            for native in BASE_NATIVES.into_iter().chain([token]) {
                assert!(base.contains(&native) && !other.contains(&native), "{native}");
            }
            for plain in [address!("b20000000000000000010078ee7ce2fE4908108C"), Address::ZERO, Address::repeat_byte(7)]
            {
                assert!(!base.contains(&plain), "{plain}");
            }
        }
        assert!(other.contains(&Address::repeat_byte(7)));
    }
}
