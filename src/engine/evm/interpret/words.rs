//! The arithmetic of words that stretches and blocks share, the words of the call's data, and the growth of the memory.

use alloy_primitives::{U256, ruint::algorithms};
use revm::{
    context_interface::cfg::GasParams,
    interpreter::{CallInput, Gas, SharedMemory, interpreter::resize_memory},
};

/// Has revm grow the memory, so that a word at `at` is within it. Returns the gas that is left of `left`, or `None` if
/// `left` is not enough. Then the memory and its cost are unchanged.
#[inline(never)]
pub(super) fn grow(gas: &mut Gas, memory: &mut SharedMemory, params: &GasParams, at: usize, left: u64) -> Option<u64> {
    const WORD: usize = size_of::<U256>();
    let words = at.checked_add(WORD)?.div_ceil(WORD);
    let cost = params.memory_cost(words).checked_sub(gas.memory().expansion_cost)?;
    let after = left.checked_sub(cost)?;
    gas.set_remaining(left);
    resize_memory(gas, memory, params, at, WORD).ok()?;
    Some(after)
}

/// Returns the word at an offset of the call's data, which zeros follow.
#[inline(never)]
pub(super) fn call_data(input: &CallInput, memory: &SharedMemory, at: &U256) -> U256 {
    // The place of no data may be one that no memory has.
    if input.is_empty() {
        return U256::ZERO;
    }
    let data = input.as_bytes_memory(memory);
    let rest = small(at).and_then(|at| data.get(at..)).unwrap_or_default();
    match rest.first_chunk() {
        Some(word) => U256::from_be_bytes::<32>(*word),
        None => U256::from_be_slice(rest) << (8 * (size_of::<U256>() - rest.len())),
    }
}

/// Returns `word`, read limb by limb.
///
/// Arithmetic writes a word as four stores of one limb each. A load that is wider than the store it depends on waits
/// until the store has reached the cache, some dozen cycles. The compiler emits such loads where it sees four limbs
/// copied or compared; this function hides that.
#[inline(always)]
pub(super) fn by_limbs(word: U256) -> U256 {
    U256::from_limbs(word.into_limbs().map(|mut limb| {
        // SAFETY: the assembly has no instruction, and its operand is a limb in a register.
        unsafe { std::arch::asm!("/* {0} */", inout(reg) limb, options(pure, nomem, nostack, preserves_flags)) };
        limb
    }))
}

#[inline(always)]
pub(super) fn is_zero(word: &U256) -> bool {
    let [a, b, c, d] = by_limbs(*word).into_limbs();
    a | b | c | d == 0
}

/// Returns a word as an index, or `None` if it is too large.
#[inline(always)]
pub(super) fn small(word: &U256) -> Option<usize> {
    let [low, b, c, d] = by_limbs(*word).into_limbs();
    if b | c | d == 0 { usize::try_from(low).ok() } else { None }
}

/// Returns whether `a` is less than `b`, by the borrow of their difference.
#[inline(always)]
pub(super) fn less(a: U256, b: U256) -> bool {
    let mut borrow = false;
    for (a, b) in a.into_limbs().into_iter().zip(b.into_limbs()) {
        borrow = a.borrowing_sub(b, borrow).1;
    }
    borrow
}

/// Returns whether `a` is less than `b`, as signed words. For two of the same sign, that is the unsigned order.
#[inline(always)]
pub(super) fn is_less_signed(a: U256, b: U256) -> bool {
    if a.bit(255) == b.bit(255) { less(a, b) } else { a.bit(255) }
}

/// Replaces `a` and `b`, which is not zero, by their quotient and remainder, in place: words that move wait for their limbs
/// (see [`by_limbs`]).
#[inline(never)]
pub(super) fn divide(a: &mut U256, b: &mut U256) {
    // SAFETY: all limbs of a word of 256 bits are its bits.
    unsafe { algorithms::div(a.as_limbs_mut(), b.as_limbs_mut()) }
}

/// Returns `word` shifted to the left by `by` bits.
#[inline(always)]
pub(super) fn shift_left(word: U256, by: U256) -> U256 {
    let Some((limbs, bits)) = shift(&by) else { return U256::ZERO };
    let [a, b, c, d] = word.into_limbs();
    let wide = [0, 0, 0, 0, a, b, c, d];
    let limb = |at: usize| wide[at - limbs] << bits | wide[at - limbs - 1] >> 1 >> (63 - bits);
    U256::from_limbs([wide[4 - limbs] << bits, limb(5), limb(6), limb(7)])
}

/// Returns `word` shifted to the right by `by` bits.
#[inline(always)]
pub(super) fn shift_right(word: U256, by: U256) -> U256 {
    let Some((limbs, bits)) = shift(&by) else { return U256::ZERO };
    let [a, b, c, d] = word.into_limbs();
    let wide = [a, b, c, d, 0, 0, 0, 0];
    let limb = |at: usize| wide[at + limbs] >> bits | wide[at + limbs + 1] << 1 << (63 - bits);
    U256::from_limbs([limb(0), limb(1), limb(2), wide[3 + limbs] >> bits])
}

/// Returns by how many limbs and bits a word shifts another, or `None` if the shift leaves nothing.
#[inline(always)]
fn shift(by: &U256) -> Option<(usize, usize)> {
    small(by).filter(|by| *by < 256).map(|by| (by / 64, by % 64))
}
