//! The headers of pruned blocks.

use std::sync::Arc;

use alloy_consensus::Header;
use alloy_rlp::Decodable;

/// Headers of pruned blocks by number, compressed to a few hundred bytes each because they are never removed. Cheap to
/// clone.
#[derive(Clone, Debug, Default)]
pub struct OldHeaders(imbl::OrdMap<u64, Arc<[u8]>>);

impl OldHeaders {
    /// Adds a header.
    pub fn insert(&mut self, header: &Header) {
        self.0.insert(header.number, pack(&alloy_rlp::encode(header)).into());
    }

    /// Returns the header of block `number`, if it was added.
    pub fn get(&self, number: u64) -> Option<Header> {
        let rlp = unpack(self.0.get(&number)?);
        // The bytes were encoded here, so they decode.
        Header::decode(&mut rlp.as_slice()).ok()
    }
}

/// Replaces each run of zeros by a zero and its length. Blooms are mostly zeros, and some fields only.
fn pack(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for run in bytes.chunk_by(|a, b| (*a == 0) == (*b == 0)) {
        if run[0] != 0 {
            out.extend_from_slice(run);
            continue;
        }
        for zeros in run.chunks(255) {
            out.extend([0, zeros.len() as u8]);
        }
    }
    out
}

/// Reverses [`pack`].
fn unpack(packed: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    let mut rest = packed.iter();
    while let Some(byte) = rest.next() {
        let count = if *byte == 0 { rest.next().copied().unwrap_or_default() } else { 1 };
        out.resize(out.len() + usize::from(count), *byte);
    }
    out
}

#[cfg(test)]
mod tests {
    use alloy_primitives::{B256, Bloom, Bytes};

    use super::*;

    #[test]
    fn headers_come_back_as_they_were() {
        let mut bloom = Bloom::ZERO;
        bloom.0[3] = 7;
        bloom.0[255] = 1;
        let headers = [
            Header::default(),
            Header { number: 1, logs_bloom: bloom, nonce: 5_u64.to_be_bytes().into(), ..Header::default() },
            Header {
                number: 2,
                logs_bloom: Bloom::repeat_byte(0xff),
                mix_hash: B256::repeat_byte(1),
                ..Header::default()
            },
            Header { number: 3, extra_data: Bytes::from(vec![0; 700]), base_fee_per_gas: Some(0), ..Header::default() },
        ];
        let mut kept = OldHeaders::default();
        headers.iter().for_each(|header| kept.insert(header));
        for header in &headers {
            assert_eq!(kept.get(header.number).as_ref(), Some(header));
        }
        assert_eq!(kept.get(4), None);
        assert!(kept.0[&1].len() < 300, "{}", kept.0[&1].len());
    }
}
