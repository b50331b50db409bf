//! The parts of chains that presim cannot execute: contracts that a chain's nodes have as native code, and forks.

use std::sync::Arc;

use alloy_primitives::{Address, address};

use super::{
    ForkAt,
    forks::{ForkName, ForkTimes},
};

/// The addresses whose code is part of a chain's nodes, in addition to the precompiles that presim implements, with the
/// forks that introduce them. presim cannot execute a run that reaches one of these addresses, or any run in a block of
/// a fork whose rules it does not implement.
#[derive(Clone, Debug, Default)]
pub struct Natives {
    beryl: Option<u64>,
    cobalt: Option<u64>,
    /// The first fork whose rules presim does not execute.
    fork: Option<ForkAt>,
    /// Addresses that are native at any time. `None` if there are none, so that runs share no counter.
    more: Option<Arc<[Address]>>,
    /// The fork whose rules were requested, if they differ from the chain's own.
    under: Option<&'static str>,
}

/// The reason why a run cannot be executed here. An upstream may execute it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unexecutable {
    /// The run reaches this native contract.
    #[error("execution reaches {0}, a native contract of the chain, which presim cannot execute")]
    Native(Address),
    /// The run reaches this native contract under the rules of a fork that its block does not have, so no upstream can
    /// execute it.
    #[error("under {1}, execution reaches {0}, a native contract of the chain, which presim cannot execute")]
    Under(Address, &'static str),
    /// The block has the rules of this fork.
    #[error("the block has the rules of {0}, which presim does not execute")]
    Fork(ForkAt),
}

/// The native addresses in one block, and the fork whose rules presim does not have, if one is active.
#[derive(Clone, Debug, Default)]
pub struct ActiveNatives {
    fork: Option<ForkAt>,
    /// The addresses of [`BASE_NATIVES`] that are native.
    known: &'static [Address],
    more: Option<Arc<[Address]>>,
    under: Option<&'static str>,
}

/// The native contracts of Base. B20 tokens are native from Beryl on: the factory, the registries, and each token, whose
/// address begins with the same ten bytes. The addresses are the same on every chain that has the fork
/// (<https://docs.base.org/base-chain/specs/reference/b20/constants-and-addresses>). Cobalt adds the nonces and the context
/// of EIP-8130's transactions.
const BASE_NATIVES: [Address; 5] = [
    address!("B20f000000000000000000000000000000000000"),
    address!("8453000000000000000000000000000000000001"),
    address!("8453000000000000000000000000000000000002"),
    address!("813000000000000000000000000000000000aa01"),
    address!("813000000000000000000000000000000000aa02"),
];
const OF_BERYL: &[Address] = BASE_NATIVES.split_at(3).0;
const B20_TOKEN: [u8; 10] = [0xb2, 0, 0, 0, 0, 0, 0, 0, 0, 0];

impl Natives {
    /// Returns the native addresses that forks at these times bring.
    pub(super) fn of(forks: &ForkTimes) -> Self {
        let (beryl, cobalt) = (forks.time(ForkName::Beryl), forks.time(ForkName::Cobalt));
        Self { beryl, cobalt, fork: forks.unexecuted(), more: None, under: None }
    }

    /// Returns the first fork whose rules presim does not execute.
    pub(super) const fn fork(&self) -> Option<ForkAt> {
        self.fork
    }

    /// Sets `more` addresses that are native at any time.
    pub(super) fn with(self, more: &[Address]) -> Self {
        Self { more: (!more.is_empty()).then(|| more.into()), ..self }
    }

    /// Sets that these are the native addresses under a fork that is asked for, on a chain that has `own`.
    pub(super) fn under(self, fork: &'static str, own: &Self) -> Self {
        Self { more: own.more.clone(), under: Some(fork), ..self }
    }

    /// Returns whether everything can be executed at any time.
    pub const fn is_empty(&self) -> bool {
        self.beryl.is_none() && self.cobalt.is_none() && self.fork.is_none() && self.more.is_none()
    }

    /// Returns the contracts and the fork that presim cannot execute in a block at `timestamp`.
    pub fn at(&self, timestamp: u64) -> ActiveNatives {
        let is_active = |time: Option<u64>| time.is_some_and(|time| time <= timestamp);
        let known: &'static [Address] = match (is_active(self.cobalt), is_active(self.beryl)) {
            (true, _) => &BASE_NATIVES,
            (false, true) => OF_BERYL,
            (false, false) => &[],
        };
        let fork = self.fork.filter(|fork| fork.time <= timestamp);
        ActiveNatives { fork, known, more: self.more.clone(), under: self.under }
    }
}

impl ActiveNatives {
    /// Returns the reason why no run can use this account, if there is one. In a block of an unexecuted fork, no
    /// account can be used.
    pub fn find(&self, address: &Address) -> Option<Unexecutable> {
        let is_native = || {
            self.known.contains(address)
                || !self.known.is_empty() && address.starts_with(&B20_TOKEN)
                || self.more.as_ref().is_some_and(|more| more.contains(address))
        };
        match self.fork {
            Some(fork) => Some(Unexecutable::Fork(fork)),
            None if !is_native() => None,
            None => Some(self.under.map_or(Unexecutable::Native(*address), |fork| Unexecutable::Under(*address, fork))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::{ChainSpec, ForkTime};

    #[test]
    fn tokens_their_factory_and_registries_are_native_where_base_has_forked() {
        let token = address!("b20000000000000000000078ee7ce2fE4908108C");
        let base = ChainSpec::known(8_453).expect("it is known");
        let never = [ForkName::Beryl, ForkName::Cobalt, ForkName::Denim].map(|fork| ForkTime { fork, time: None });
        let plain = ChainSpec::known_with(8_453, &never).expect("it is known").expect("its forks are in order");
        let other = ChainSpec::known(10).expect("it is known").with_natives(&[Address::repeat_byte(7)]);
        let (beryl, cobalt) = (1_782_410_400, 1_790_791_200);
        for (index, native) in BASE_NATIVES.iter().chain([&token]).enumerate() {
            let fork = if (3..5).contains(&index) { cobalt } else { beryl };
            assert!(
                base.natives().at(fork).find(native).is_some() && base.natives().at(u64::MAX).find(native).is_some(),
                "{native}"
            );
            assert!(base.natives().at(fork - 1).find(native).is_none(), "{native}");
            assert!(plain.natives().at(u64::MAX).find(native).is_none(), "{native}");
            assert!(other.natives().at(u64::MAX).find(native).is_none(), "{native}");
        }
        for foreign in [address!("b20000000000000000010078ee7ce2fE4908108C"), Address::ZERO, Address::repeat_byte(7)] {
            assert!(base.natives().at(u64::MAX).find(&foreign).is_none(), "{foreign}");
        }
        assert!(other.natives().at(0).find(&Address::repeat_byte(7)).is_some());
    }
}
