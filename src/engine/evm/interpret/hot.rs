//! The hot codes of a thread, whose frames run [blocks](super::blocks).
//!
//! A code is hot when 2,000 ticks of the meter, which are nearly all jump destinations, have passed in its long frames, of at
//! least 512 ticks. So blocks are for loops. In short frames of many codes, such as the frames of a swap, each code runs a few times
//! in a row, and the processor predicts the jumps of a stretch better.
//! Each thread counts alone, over all requests, and shares nothing with others. Blocks take about 25 bytes for each byte of code that
//! has run in them. A thread keeps at most 16 MiB.

use std::cell::RefCell;

use alloy_primitives::B256;
use revm::{
    interpreter::{Interpreter, interpreter_types::RuntimeFlag},
    primitives::hardfork::SpecId,
};

use super::blocks::Blocks;

/// The number of codes of which a thread knows whether they are hot.
const SLOTS: usize = 1 << u8::BITS;
/// The bytes of blocks beyond which a thread forgets all of them, and begins again. The blocks of a frame that runs are counted
/// at its end. Those of the longest code take about 10 MiB at the most.
const MAX_SIZE: usize = 16 << 20;
/// The length of the longest code that has blocks.
const MAX_CODE: usize = 64 << 10;
/// The ticks after which a code is hot. Tests run all codes in blocks.
const THRESHOLD: u32 = if cfg!(test) { 0 } else { 2_000 };
/// The least ticks of a long frame.
const LONG: u32 = if cfg!(test) { 0 } else { 512 };

thread_local! {
    // No frame runs while the table is borrowed.
    static TABLE: RefCell<Table> = const { RefCell::new(Table { slots: Vec::new(), size: 0, threshold: THRESHOLD, long: LONG }) };
}

struct Table {
    /// The codes by the first byte of the hash and the fork. Empty before the first code has ticked.
    slots: Vec<Slot>,
    /// The bytes that blocks have taken since the table was empty.
    size: usize,
    threshold: u32,
    long: u32,
}

/// The hash of a code, and the fork, of which the gas costs are.
type Key = (B256, SpecId);

#[derive(Default)]
struct Slot {
    key: Key,
    /// The ticks of the code, less the ticks of other codes that contend for the slot.
    ticks: u32,
    /// `None` before the code is hot, and while a frame runs them.
    blocks: Option<Box<Blocks>>,
}

/// Takes the blocks of the frame's code. If it has none, returns the ticks after which it is hot.
pub(super) fn take(frame: &Interpreter) -> Result<Box<Blocks>, u32> {
    let Some((key, index)) = slot_of(frame) else { return Err(u32::MAX) };
    TABLE.with_borrow_mut(|table| {
        let slot = table.slots.get_mut(index).filter(|slot| slot.key == key).ok_or(table.threshold)?;
        let mut blocks = slot.blocks.take().ok_or(table.threshold.saturating_sub(slot.ticks))?;
        // The hash alone is no proof.
        if blocks.are_of(&frame.bytecode) { Ok(blocks) } else { Err(u32::MAX) }
    })
}

/// Counts the ticks of a frame, and keeps the blocks of its code. Of codes that would have one slot, that with more ticks has
/// it.
pub(super) fn put(frame: &Interpreter, ticks: u32, blocks: Option<Box<Blocks>>) {
    let Some((key, index)) = slot_of(frame) else { return };
    TABLE.with_borrow_mut(|table| {
        if ticks < table.long && blocks.is_none() {
            return;
        }
        table.slots.resize_with(SLOTS, Slot::default);
        let slot = &mut table.slots[index];
        if slot.key == key {
            slot.ticks = slot.ticks.saturating_add(ticks).min(table.threshold.saturating_mul(2));
        } else if slot.ticks > ticks {
            slot.ticks -= ticks;
            return;
        } else {
            *slot = Slot { key, ticks, blocks: None };
        }
        if let Some(mut blocks) = blocks {
            table.size += std::mem::take(&mut blocks.uncounted);
            slot.blocks = Some(blocks);
        }
        if table.size > MAX_SIZE {
            (table.slots, table.size) = (Vec::new(), 0);
        }
    });
}

/// Returns the frame's code and the index of its slot, if it may have blocks. The hash of most creations is not known.
fn slot_of(frame: &Interpreter) -> Option<(Key, usize)> {
    let hash = frame.bytecode.hash().filter(|_| frame.bytecode.len() <= MAX_CODE)?;
    let fork = frame.runtime_flag.spec_id();
    Some(((hash, fork), usize::from(hash[0].wrapping_add(fork as u8))))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Forgets all codes of this thread. From now on a code is hot after `threshold` ticks, in frames of any length.
    pub fn forget(threshold: u32) {
        forget_short(threshold, 0);
    }

    /// Forgets all codes of this thread. From now on a code is hot after `threshold` ticks in frames of at least `long`.
    pub fn forget_short(threshold: u32, long: u32) {
        TABLE.set(Table { slots: Vec::new(), size: 0, threshold, long });
    }

    /// Returns how many codes have blocks, and the bytes that these have taken.
    pub fn blocks() -> (usize, usize) {
        TABLE.with_borrow(|table| (table.slots.iter().filter(|slot| slot.blocks.is_some()).count(), table.size))
    }

    pub const MAX_SIZE: usize = super::MAX_SIZE;
}
