//! The headers of pruned blocks.

use std::sync::Arc;

use alloy_consensus::Header;
use alloy_rlp::Decodable;

/// The level of the compression: a header has few bytes that repeat, but runs of zeros.
const LEVEL: i32 = 1;

/// Headers of pruned blocks by number, compressed to a few hundred bytes each because they are never removed. Cheap to
/// clone.
#[derive(Clone, Debug, Default)]
pub struct OldHeaders(imbl::OrdMap<u64, Arc<[u8]>>);

impl OldHeaders {
    /// Adds a header.
    pub fn insert(&mut self, header: &Header) {
        // Compressing into memory does not fail.
        let packed = zstd::bulk::compress(&alloy_rlp::encode(header), LEVEL).unwrap_or_default();
        self.0.insert(header.number, packed.into());
    }

    /// Returns the header of block `number`, if it was added.
    pub fn get(&self, number: u64) -> Option<Header> {
        // The bytes were encoded here, so they decode.
        let rlp = zstd::decode_all(&self.0.get(&number)?[..]).ok()?;
        Header::decode(&mut rlp.as_slice()).ok()
    }
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
