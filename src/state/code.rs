//! The bytecode cache. A contract's code is hashed and analysed once, not once per request.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use alloy_primitives::{Bytes, KECCAK256_EMPTY, keccak256, map::DefaultHashBuilder};
use crossbeam::queue::SegQueue;
use dashmap::DashMap;
use revm::bytecode::Bytecode;

use super::account::Code;

/// Analysed bytecode by its bytes, bounded in bytes.
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
    bytes: AtomicUsize,
}

/// The number of bytes a [`CodeCache`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeStats {
    /// Bytes of code from the chain.
    pub chain_bytes: usize,
    /// Bytes of code from overrides.
    pub override_bytes: usize,
}

impl CodeCache {
    /// Creates a cache of up to `limit` bytes of code.
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

    /// Returns the cache's current size.
    pub fn stats(&self) -> CodeStats {
        CodeStats { chain_bytes: self.chain.bytes.load(Relaxed), override_bytes: self.overrides.bytes.load(Relaxed) }
    }

    fn get(&self, part: &CodeShard, code: Bytes) -> Code {
        if code.is_empty() {
            return Code { hash: KECCAK256_EMPTY, bytecode: Bytecode::default() };
        }
        if let Some(known) = part.codes.get(&code) {
            return known.clone();
        }
        // Bytes that look like a delegation (EIP-7702) but are not valid ones are ordinary code, which fails when it
        // runs.
        let bytecode = Bytecode::new_raw_checked(code.clone()).unwrap_or_else(|_| Bytecode::new_legacy(code.clone()));
        let made = Code { hash: keccak256(&code), bytecode };
        if code.len() <= self.limit {
            part.insert(code, made.clone());
            self.evict();
        }
        made
    }

    fn evict(&self) {
        while self.overrides.bytes.load(Relaxed) + self.chain.bytes.load(Relaxed) > self.limit {
            if !self.overrides.drop_oldest() && !self.chain.drop_oldest() {
                break;
            }
        }
    }
}

impl CodeShard {
    fn insert(&self, code: Bytes, made: Code) {
        // The key is a copy, because the bytes may be a view into a request body of megabytes.
        let key = Bytes::copy_from_slice(&code);
        if self.codes.insert(key.clone(), made).is_none() {
            self.bytes.fetch_add(key.len(), Relaxed);
            self.order.push(key);
        }
    }

    fn drop_oldest(&self) -> bool {
        let Some(oldest) = self.order.pop() else { return false };
        if self.codes.remove(&oldest).is_some() {
            self.bytes.fetch_sub(oldest.len(), Relaxed);
        }
        true
    }
}
