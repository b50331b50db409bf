//! The size of a transaction in a compressed batch, as Fjord estimates it
//! (<https://specs.optimism.io/protocol/fjord/exec-engine.html#fjord-l1-cost-fee-changes-fastlz-estimator>).

/// The factor by which [`estimated_size`] scales bytes.
pub(super) const SIZE_SCALE: u64 = 1_000_000;
/// The linear regression from the size by `FastLZ` to the size in a batch, in millionths of a byte.
const INTERCEPT: u64 = 42_585_600;
const COEFFICIENT: u64 = 836_500;
const LEAST_SIZE: u64 = 100 * SIZE_SCALE;

/// The number of entries in the table of sequences.
const ENTRIES: usize = 1 << 13;
/// The distance from which on a sequence cannot be referred to.
const TOO_FAR: usize = 1 << 13;
/// The end of the data in which no match begins.
const TAIL: usize = 13;
/// The length of the longest literal run, and of the longest match less one, that take one instruction.
const MAX_RUN: usize = 32;
const MAX_MATCH: usize = 262;

/// Returns the estimated size of a transaction with this EIP-2718 encoding, in millionths of a byte.
pub(super) fn estimated_size(encoded: &[u8]) -> u64 {
    let fitted = COEFFICIENT.saturating_mul(compressed_len(encoded) as u64).saturating_sub(INTERCEPT);
    fitted.max(LEAST_SIZE)
}

/// Returns the length of `data` after `FastLZ` compression at level 1. Finds the same matches as the compressor at
/// <https://github.com/ariya/FastLZ/blob/344eb4025f9ae866ebf7a2ec48850f7113a97a42/fastlz.c>, but counts only the length
/// of the output.
fn compressed_len(data: &[u8]) -> usize {
    // The newest position of each sequence of three bytes, by a hash of the sequence.
    let mut newest = [0u32; ENTRIES];
    let mut remember = |at: usize| std::mem::replace(&mut newest[index(sequence(data, at))], at as u32) as usize;
    let limit = data.len().saturating_sub(TAIL);
    let (mut length, mut literals_from, mut at) = (0, 0, 2);
    loop {
        let found = (at..limit.saturating_sub(1)).find_map(|at| {
            let earlier = remember(at);
            (at - earlier < TOO_FAR && sequence(data, earlier) == sequence(data, at)).then_some((at, earlier))
        });
        let Some((start, earlier)) = found else { break };
        length += literals(start - literals_from);
        // The first three bytes are equal. The compressor stops behind the first byte that differs.
        let (before, after) = (&data[earlier + 3..], &data[start + 3..limit + 9]);
        let equal = before.iter().zip(after).take_while(|(one, other)| one == other).count();
        let matched = after.len().min(equal + 1);
        length += a_match(matched - 1);
        at = start + matched;
        remember(at);
        remember(at + 1);
        at += 2;
        literals_from = at;
    }
    length + literals(data.len() - literals_from)
}

/// Returns the length of a run of literal bytes: each instruction has a byte before up to 32 literals.
const fn literals(count: usize) -> usize {
    count + count.div_ceil(MAX_RUN)
}

/// Returns the length of the instructions for a match in which `more` equal bytes follow the third byte.
const fn a_match(more: usize) -> usize {
    let last = if more % MAX_MATCH >= 6 { 3 } else { 2 };
    3 * (more / MAX_MATCH) + last
}

/// Returns the sequence of three bytes at `at`.
fn sequence(data: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([data[at], data[at + 1], data[at + 2], 0])
}

/// Returns the index of a sequence in the table.
const fn index(sequence: u32) -> usize {
    (sequence.wrapping_mul(2_654_435_769) >> 19) as usize & (ENTRIES - 1)
}

#[cfg(test)]
mod tests {
    use alloy_primitives::hex;

    use super::compressed_len;

    #[test]
    fn lengths_are_those_of_the_reference() {
        assert_eq!(compressed_len(&[]), 0);
        assert_eq!(compressed_len(&hex!("facade")), 4);
        assert_eq!(compressed_len(&[0; 1000]), 21);
        assert_eq!(compressed_len(&[42; 1000]), 21);
    }
}
