//! The reads of a run, as they are noted in its overlay if that records reads. The record may exceed what decides the
//! result, never fall short of it.

mod blocks;
mod opcodes;

pub(super) use blocks::{RunReads, note_plan, unrecorded};
pub(super) use opcodes::{record, seen_info};
