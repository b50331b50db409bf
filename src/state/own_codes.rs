//! A thread's own copies of the codes that it runs.

use alloy_primitives::{B256, Bytes, KECCAK256_EMPTY};
use revm::{
    bytecode::{Bytecode, JumpTable, opcode},
    state::AccountInfo,
};

use super::account::Code;

/// Copies of the codes that one thread runs repeatedly, only for its own runs.
///
/// A [`Bytecode`] has its reference count next to its jump table, and each frame changes the count. Threads that run
/// the same contract would therefore invalidate each other's cache line of the table. A code is copied when it is seen
/// a second time before another code takes its slot.
#[derive(Debug)]
pub(super) struct OwnCodes {
    /// The code of an account without code.
    empty: Bytecode,
    /// The copies by the first byte of the hash.
    slots: Vec<Option<CachedCode>>,
}

/// The code that was seen last in its slot.
#[derive(Debug)]
struct CachedCode {
    hash: B256,
    copy: Option<Bytecode>,
}

impl OwnCodes {
    /// The number of copies. At the size that EIP-170 allows, they take 7 MiB.
    const SLOTS: usize = 1 << u8::BITS;

    pub(super) fn new() -> Self {
        let stop = Bytes::from_static(&[opcode::STOP]);
        Self {
            // SAFETY: The bytes are the analysis result of empty code: STOP has no immediate, so nothing behind it is
            // read.
            empty: unsafe { Bytecode::new_analyzed(stop, 0, JumpTable::default()) },
            slots: std::iter::repeat_with(|| None).take(Self::SLOTS).collect(),
        }
    }

    /// Returns the copy of `code`, or `code` itself if it has none yet.
    pub(super) fn of(&mut self, code: &Code) -> Bytecode {
        self.find(&code.hash, &code.bytecode).unwrap_or_else(|| code.bytecode.clone())
    }

    /// Replaces the account's code by its copy, if there is one.
    pub(super) fn replace(&mut self, info: &mut AccountInfo) {
        if let Some(code) = &mut info.code
            && let Some(copy) = self.find(&info.code_hash, code)
        {
            *code = copy;
        }
    }

    fn find(&mut self, hash: &B256, code: &Bytecode) -> Option<Bytecode> {
        if *hash == KECCAK256_EMPTY {
            return Some(self.empty.clone());
        }
        let slot = &mut self.slots[usize::from(hash[0])];
        match slot {
            Some(seen) if seen.hash == *hash => Some(seen.copy.get_or_insert_with(|| copy(code)).clone()),
            _ => {
                *slot = Some(CachedCode { hash: *hash, copy: None });
                None
            }
        }
    }
}

fn copy(code: &Bytecode) -> Bytecode {
    match code.legacy_jump_table() {
        Some(_) => Bytecode::new_legacy(Bytes::copy_from_slice(code.original_byte_slice())),
        // A delegation (EIP-7702) is followed, not run.
        None => code.clone(),
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::keccak256;

    use super::*;

    fn code(bytes: &'static [u8]) -> Code {
        let bytes = Bytes::from_static(bytes);
        Code { hash: keccak256(&bytes), bytecode: Bytecode::new_raw(bytes) }
    }

    fn is_same(one: &Bytecode, other: &Bytecode) -> bool {
        std::ptr::eq(one.bytes_ref(), other.bytes_ref())
    }

    #[test]
    fn a_code_is_copied_when_it_is_seen_again() {
        let (mut own, code) = (OwnCodes::new(), code(&[0x60, 0x03, 0x56, 0x5b]));
        assert!(is_same(&own.of(&code), &code.bytecode));
        let copied = own.of(&code);
        assert!(!is_same(&copied, &code.bytecode) && is_same(&copied, &own.of(&code)));
        assert_eq!(copied, code.bytecode);
        assert_eq!(copied.bytes_slice(), code.bytecode.bytes_slice());
        assert_eq!(copied.legacy_jump_table(), code.bytecode.legacy_jump_table());
    }

    #[test]
    fn an_account_has_the_copy_of_its_code() {
        let mut own = OwnCodes::new();
        let mut info = AccountInfo::default();
        own.replace(&mut info);
        assert!(info.code.as_ref().is_some_and(|code| code.is_empty() && is_same(code, &own.empty)));
        let Code { hash, bytecode } = code(&[0x5b, 0x00]);
        let mut with_code = AccountInfo { code_hash: hash, code: Some(bytecode.clone()), ..info };
        own.replace(&mut with_code);
        own.replace(&mut with_code);
        assert!(with_code.code.is_some_and(|code| code == bytecode && !is_same(&code, &bytecode)));
    }

    #[test]
    fn a_delegation_stays_one() {
        let mut own = OwnCodes::new();
        let delegation = Bytecode::new_eip7702(alloy_primitives::Address::repeat_byte(7));
        let code = Code { hash: delegation.hash_slow(), bytecode: delegation };
        assert_eq!(own.of(&code).eip7702_address(), own.of(&code).eip7702_address());
        assert!(own.of(&code).is_eip7702());
    }

    #[test]
    fn two_codes_in_one_place_are_not_confused() {
        let (mut own, one) = (OwnCodes::new(), code(&[0x00]));
        let mut bytes = (0..=u16::MAX).map(|number| Bytes::copy_from_slice(&number.to_be_bytes()));
        let other = bytes.find(|bytes| keccak256(bytes)[0] == one.hash[0]).expect("one in 256 is");
        let other = Code { hash: keccak256(&other), bytecode: Bytecode::new_raw(other) };
        for _ in 0..3 {
            assert_eq!(own.of(&one), one.bytecode);
            assert_eq!(own.of(&one), one.bytecode);
            assert_eq!(own.of(&other), other.bytecode);
        }
    }
}
