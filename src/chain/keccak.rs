//! Keccak-256 of several messages in parallel.
//!
//! One hash is a chain of dependent permutations. The hashes of several messages are independent: with vectors of eight
//! words, one pass over the rounds permutes eight states in one and a half times the time of a single one.

use alloy_primitives::{B256, keccak256};

/// Bytes of a message that one permutation absorbs.
const RATE: usize = 136;

/// Returns the hash of each message, in order.
pub fn keccak256_each(messages: &[&[u8]]) -> Vec<B256> {
    #[cfg(target_arch = "x86_64")]
    if lanes::pay_for(messages) && std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has AVX-512F, the only feature that the function requires.
        return unsafe { lanes::keccak256_each(messages) };
    }
    messages.iter().map(keccak256).collect()
}

#[cfg(target_arch = "x86_64")]
mod lanes {
    use std::{arch::x86_64::*, cmp::Reverse};

    use alloy_primitives::B256;

    use super::RATE;

    /// Messages that are hashed at once.
    const LANES: usize = 8;

    /// The states of all messages: vector `x + 5 * y` holds word (x, y) of each, which
    /// [FIPS 202](https://doi.org/10.6028/NIST.FIPS.202), 3.1, calls a lane.
    type State = [__m512i; 25];

    /// The constants that ι xors into the first word, by round (FIPS 202, 3.2.5).
    const IOTA: [i64; 24] = iota();

    /// The number of bits by which ρ rotates each word (FIPS 202, 3.2.2).
    const RHO: [i64; 25] = rho();

    /// The ternary function that xors all three operands.
    const XOR: i32 = 0b1001_0110;

    /// The ternary function that xors the first operand with the third where the second is 0.
    const CHI: i32 = 0b1101_0010;

    /// Returns whether hashing in parallel is faster. A pass takes up to one and a half times a single permutation.
    pub fn pay_for(messages: &[&[u8]]) -> bool {
        let blocks = |message: &&[u8]| message.len() / RATE + 1;
        let all: usize = messages.iter().map(blocks).sum();
        let longest = messages.iter().map(blocks).max().unwrap_or_default();
        2 * all >= 3 * longest.max(all.div_ceil(LANES))
    }

    /// A message that is being hashed.
    #[derive(Clone, Copy)]
    struct HashLane {
        message: usize,
        /// Bytes that the state has absorbed.
        taken: usize,
    }

    /// Returns the hash of each message, in order.
    #[target_feature(enable = "avx512f")]
    pub fn keccak256_each(messages: &[&[u8]]) -> Vec<B256> {
        let mut hashes = vec![B256::ZERO; messages.len()];
        // Longest first, so that the lanes finish at about the same time.
        let mut waiting: Vec<usize> = (0..messages.len()).collect();
        waiting.sort_unstable_by_key(|message| Reverse(messages[*message].len()));
        let mut waiting = waiting.into_iter();
        let mut lanes: [Option<HashLane>; LANES] = [None; LANES];
        let mut state: State = [_mm512_setzero_si512(); 25];
        loop {
            for lane in &mut lanes {
                if lane.is_none() {
                    *lane = waiting.next().map(|message| HashLane { message, taken: 0 });
                }
            }
            if lanes.iter().all(Option::is_none) {
                return hashes;
            }
            let mut padded = [[0; RATE]; LANES];
            let mut blocks = [&[0; RATE]; LANES];
            let mut ended = [None; LANES];
            for (index, (lane, padded)) in lanes.iter_mut().zip(&mut padded).enumerate() {
                let Some(HashLane { message, taken }) = lane else { continue };
                let rest = &messages[*message][*taken..];
                if let Some(block) = rest.first_chunk() {
                    blocks[index] = block;
                    *taken += RATE;
                } else {
                    padded[..rest.len()].copy_from_slice(rest);
                    padded[rest.len()] = 1;
                    padded[RATE - 1] |= 1 << 7;
                    blocks[index] = padded;
                    ended[index] = Some(*message);
                    *lane = None;
                }
            }
            absorb(&mut state, blocks.map(|block| block.as_chunks().0));
            permute(&mut state);
            let mut done = 0;
            for (index, message) in ended.into_iter().enumerate() {
                let Some(message) = message else { continue };
                done |= 1 << index;
                for (bytes, word) in hashes[message].as_chunks_mut().0.iter_mut().zip(state) {
                    *bytes = word_of(word, index as i64).to_le_bytes();
                }
            }
            for word in &mut state {
                *word = _mm512_maskz_mov_epi64(!done, *word);
            }
        }
    }

    /// Absorbs one block into each lane's state.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn absorb(state: &mut State, blocks: [&[[u8; 8]]; LANES]) {
        for (index, word) in state[..RATE / 8].iter_mut().enumerate() {
            let [a, b, c, d, e, f, g, h] = blocks.map(|block| i64::from_le_bytes(block[index]));
            *word = _mm512_xor_epi64(*word, _mm512_set_epi64(h, g, f, e, d, c, b, a));
        }
    }

    /// Returns the word of one lane.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn word_of(word: __m512i, lane: i64) -> i64 {
        _mm_cvtsi128_si64(_mm512_castsi512_si128(_mm512_permutexvar_epi64(_mm512_set1_epi64(lane), word)))
    }

    /// Applies Keccak-f\[1600\] to the state of each lane (FIPS 202, 3.3 and 3.4).
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn permute(state: &mut State) {
        for iota in IOTA {
            let mut columns = [_mm512_setzero_si512(); 5];
            for x in 0..5 {
                let three = _mm512_ternarylogic_epi64::<XOR>(state[x], state[x + 5], state[x + 10]);
                columns[x] = _mm512_ternarylogic_epi64::<XOR>(three, state[x + 15], state[x + 20]);
            }
            // θ, ρ and π mix each word with two columns, rotate it, and move it.
            let mut turned = *state;
            for y in 0..5 {
                for x in 0..5 {
                    let (before, after) = (columns[(x + 4) % 5], _mm512_rol_epi64::<1>(columns[(x + 1) % 5]));
                    let mixed = _mm512_ternarylogic_epi64::<XOR>(state[x + 5 * y], before, after);
                    turned[y + 5 * ((2 * x + 3 * y) % 5)] = _mm512_rolv_epi64(mixed, _mm512_set1_epi64(RHO[x + 5 * y]));
                }
            }
            for y in 0..5 {
                for x in 0..5 {
                    let row = &turned[5 * y..5 * y + 5];
                    state[x + 5 * y] = _mm512_ternarylogic_epi64::<CHI>(row[x], row[(x + 1) % 5], row[(x + 2) % 5]);
                }
            }
            state[0] = _mm512_xor_epi64(state[0], _mm512_set1_epi64(iota));
        }
    }

    /// Returns the ι constants: bit 2^j - 1 of round i is bit 0 of FIPS 202's algorithm 5 register after j + 7 i steps.
    const fn iota() -> [i64; 24] {
        let mut constants = [0; 24];
        let mut register = 1_u8;
        let mut round = 0;
        while round < 24 {
            let mut j = 0;
            while j < 7 {
                constants[round] |= ((register & 1) as i64) << ((1 << j) - 1);
                register = register << 1 ^ if register >> 7 == 1 { 0x71 } else { 0 };
                j += 1;
            }
            round += 1;
        }
        constants
    }

    /// Returns the offsets of ρ: from (1, 0) on, step t rotates by (t + 1)(t + 2) / 2 and moves to (y, 2 x + 3 y).
    const fn rho() -> [i64; 25] {
        let mut offsets = [0; 25];
        let (mut x, mut y, mut t) = (1, 0, 0);
        while t < 24 {
            offsets[x + 5 * y] = (t + 1) * (t + 2) / 2 % 64;
            (x, y) = (y, (2 * x + 3 * y) % 5);
            t += 1;
        }
        offsets
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn each_message_has_its_own_hash() {
        #[cfg(target_arch = "x86_64")]
        let has_lanes = std::arch::is_x86_feature_detected!("avx512f");
        #[cfg(not(target_arch = "x86_64"))]
        let has_lanes = false;
        if !has_lanes {
            // Not `eprintln!`, because the test harness shows its output only if the test fails.
            let told = "SKIPPED chain::keccak::tests: the processor has no AVX-512F, so only single hashes are tested";
            let _ = writeln!(std::io::stderr(), "{told}");
        }
        // Lengths around the ends of blocks, and more messages than lanes, so that lanes finish at different times.
        let text: Vec<u8> = (0..2_000_u32).map(|at| (at * at % 251) as u8).collect();
        let lengths = [0, 1, 31, 32, 134, 135, 136, 137, 271, 272, 273, 407, 408, 900, 1_999, 2_000];
        for count in 0..=lengths.len() {
            let messages: Vec<&[u8]> = lengths[..count].iter().map(|length| &text[..*length]).collect();
            let expected: Vec<B256> = messages.iter().map(keccak256).collect();
            assert_eq!(keccak256_each(&messages), expected, "{count} messages");
        }
    }
}
