//! A bound on what data decode to: they may name a part of themselves many times, so that little data has many values.

use alloy_dyn_abi::{DynSolType, Specifier};
use alloy_primitives::U256;

/// Maximum words that values have once they are decoded.
const MAX_WORDS: usize = 4096;

/// Returns whether data that encode values of these types decode to at most 4,096 words.
pub fn is_short(types: &[DynSolType], data: &[u8]) -> bool {
    DecodedWords(MAX_WORDS).take_all(types, data).is_some()
}

/// Returns whether the data of these parameters decode to at most 4,096 words.
pub(super) fn are_short<'a, P: Specifier<DynSolType> + 'a>(
    params: impl IntoIterator<Item = &'a P>,
    data: &[u8],
) -> bool {
    let types: Result<Vec<DynSolType>, _> = params.into_iter().map(Specifier::resolve).collect();
    types.is_ok_and(|types| is_short(&types, data))
}

/// The words that may still be decoded.
struct DecodedWords(usize);

impl DecodedWords {
    /// Takes the words of values of these types, whose encoding begins with `data`. Returns `None` if there are too
    /// many, or if the data end before.
    fn take_all<'a>(&mut self, types: impl IntoIterator<Item = &'a DynSolType>, data: &[u8]) -> Option<()> {
        let mut at = 0_usize;
        for ty in types {
            match head_words(ty) {
                Some(words) => {
                    self.take(words)?;
                    at = at.checked_add(words)?;
                }
                None => {
                    self.take(1)?;
                    self.take_tail(ty, data.get(word(data, at)?..)?)?;
                    at += 1;
                }
            }
        }
        Some(())
    }

    /// Takes the words of a value of dynamic length.
    fn take_tail(&mut self, ty: &DynSolType, data: &[u8]) -> Option<()> {
        match ty {
            DynSolType::Array(ty) => self.take_all(std::iter::repeat_n(&**ty, word(data, 0)?), data.get(32..)?),
            DynSolType::FixedArray(ty, length) => self.take_all(std::iter::repeat_n(&**ty, *length), data),
            DynSolType::Tuple(types) => self.take_all(types, data),
            _ => self.take(word(data, 0)?.div_ceil(32)),
        }
    }

    fn take(&mut self, words: usize) -> Option<()> {
        self.0 = self.0.checked_sub(words)?;
        Some(())
    }
}

/// Returns the number of words of a value, at least one because no tuple is empty; `None` if its length is in the data.
pub fn head_words(ty: &DynSolType) -> Option<usize> {
    match ty {
        DynSolType::Bytes | DynSolType::String | DynSolType::Array(_) => None,
        DynSolType::FixedArray(ty, length) => Some(head_words(ty)?.saturating_mul(*length)),
        DynSolType::Tuple(types) | DynSolType::CustomStruct { tuple: types, .. } => {
            types.iter().try_fold(0_usize, |sum, ty| Some(sum.saturating_add(head_words(ty)?)))
        }
        _ => Some(1),
    }
}

/// Returns a word of the data, as a length or an offset.
fn word(data: &[u8], at: usize) -> Option<usize> {
    let start = at.checked_mul(32)?;
    let word = data.get(start..start.checked_add(32)?)?;
    U256::from_be_slice(word).try_into().ok()
}
