//! The bytecode cache. A contract's code is hashed and analysed once, not once per request.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use alloy_primitives::{Bytes, keccak256, map::DefaultHashBuilder};
use crossbeam::queue::SegQueue;
use dashmap::DashMap;
use revm::bytecode::Bytecode;

use super::account::Code;

/// Analysed bytecode by its bytes, bounded by the bytes of the code, of its padded copy and of its jump table.
///
/// Two parts share the bound: code of the chain, and code that requests bring as overrides. Override code is evicted
/// first, oldest first, so that a flood of made-up contracts cannot evict the code that is really called. The key is
/// the code itself, because finding 24 KiB by a fast hash and one comparison costs a tenth of its Keccak hash.
///
/// A world holds its own references to the code of its accounts, so evicting an entry only drops the shortcut.
#[derive(Debug)]
pub struct CodeCache {
    chain: CodeShard,
    overrides: CodeShard,
    limit: usize,
}

#[derive(Debug, Default)]
struct CodeShard {
    codes: DashMap<Bytes, Code, DefaultHashBuilder>,
    order: SegQueue<Bytes>,
    /// Bytes of all entries, as [`size`] counts them.
    bytes: AtomicUsize,
}

/// Bytes of an entry in addition to its code: the entries of map and queue, and the allocator's overhead.
const ENTRY: usize = 384;

impl CodeCache {
    /// Creates a cache of up to `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { chain: CodeShard::default(), overrides: CodeShard::default(), limit }
    }

    /// Returns the analysed form of code that belongs to the chain's state.
    pub fn chain(&self, code: Bytes) -> Code {
        self.get(&self.chain, code)
    }

    /// Returns the analysed form of code that a request sets as an account's override.
    pub fn overriding(&self, code: Bytes) -> Code {
        if let Some(known) = self.chain.codes.get(&code) {
            return known.clone();
        }
        self.get(&self.overrides, code)
    }

    /// Returns the bytes of code from the chain, and the bytes of code from overrides.
    pub fn bytes(&self) -> [usize; 2] {
        [&self.chain, &self.overrides].map(|part| part.bytes.load(Relaxed))
    }

    fn get(&self, part: &CodeShard, code: Bytes) -> Code {
        if code.is_empty() {
            return Code::default();
        }
        if let Some(known) = part.codes.get(&code) {
            return known.clone();
        }
        // The key is a copy, because the bytes may be a view into a request body of megabytes. The analysed form shares it
        // unless it needs padding.
        let key = Bytes::copy_from_slice(&code);
        // Bytes that look like a delegation (EIP-7702) but are not a valid one are ordinary code, which fails when it
        // runs.
        let bytecode = Bytecode::new_raw_checked(key.clone()).unwrap_or_else(|_| Bytecode::new_legacy(key.clone()));
        let analysed = Code { hash: keccak256(&key), bytecode };
        if size(&key, &analysed) <= self.limit {
            part.insert(key, analysed.clone());
            self.evict();
        }
        analysed
    }

    fn evict(&self) {
        while self.bytes().iter().sum::<usize>() > self.limit {
            if !self.overrides.drop_oldest() && !self.chain.drop_oldest() {
                break;
            }
        }
    }
}

impl CodeShard {
    fn insert(&self, key: Bytes, analysed: Code) {
        let bytes = size(&key, &analysed);
        if self.codes.insert(key.clone(), analysed).is_none() {
            self.bytes.fetch_add(bytes, Relaxed);
            self.order.push(key);
        }
    }

    fn drop_oldest(&self) -> bool {
        let Some(oldest) = self.order.pop() else { return false };
        if let Some((key, analysed)) = self.codes.remove(&oldest) {
            self.bytes.fetch_sub(size(&key, &analysed), Relaxed);
        }
        true
    }
}

/// Returns the bytes that an entry holds.
fn size(key: &Bytes, analysed: &Code) -> usize {
    let padded = analysed.bytecode.bytes_ref();
    let copy = if padded.as_ptr() == key.as_ptr() { 0 } else { padded.len() };
    let jumps = analysed.bytecode.legacy_jump_table().map_or(0, |jumps| jumps.as_slice().len());
    ENTRY + key.len() + copy + jumps
}
