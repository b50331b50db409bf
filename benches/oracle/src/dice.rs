//! The random choices of a case, all from one number.

use alloy_primitives::{Address, Bytes, U256};
use rand::{Rng, RngCore, SeedableRng, rngs::SmallRng};

/// A source of random choices.
pub struct Dice(SmallRng);

impl Dice {
    /// Returns the choices of case `index` of `seed`, which depend on no other case.
    pub fn of(seed: u64, index: u64) -> Self {
        let mut mixed = SmallRng::seed_from_u64(seed);
        Self(SmallRng::seed_from_u64(mixed.next_u64() ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.random_range(0..end)
    }

    /// Returns true in this many of a hundred cases.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.fill_bytes(&mut bytes);
        bytes
    }

    /// Returns data as transactions have it: words, many of whose bytes are zero.
    pub fn data(&mut self, most: u64) -> Bytes {
        let length = self.below(most + 1) as usize;
        let mut data = self.bytes(length);
        if self.percent(60) {
            let (kept, of) = (self.below(4), 4);
            for byte in &mut data {
                if self.0.random_range(0..of) >= kept {
                    *byte = 0;
                }
            }
        }
        data.into()
    }

    /// Returns a number of a random length in bits, so that small ones are frequent.
    pub fn number(&mut self, bits: u64) -> u64 {
        let bits = self.below(bits + 1);
        if bits == 0 { 0 } else { self.0.next_u64() >> (64 - bits) }
    }

    /// As [`Self::number`], in a word.
    pub fn word(&mut self) -> U256 {
        match self.below(6) {
            0 => U256::MAX,
            1 => U256::from(1) << self.below(256),
            2 => U256::from_be_slice(&self.bytes(32)),
            3 => U256::ZERO,
            _ => U256::from(self.number(64)),
        }
    }

    pub fn address(&mut self) -> Address {
        Address::from_slice(&self.bytes(20))
    }
}
