//! Frames: a message in transit, compressed where that pays, and split into parts that a server accepts.

use std::{io::Read, num::NonZeroUsize};

use alloy_primitives::Bytes;
use alloy_rlp::{Decodable, Encodable};

use zstd::zstd_safe::get_frame_content_size;

use super::items::ItemBudget;
use crate::store::{encode, problem_of};

/// The version of all that the codec writes. A reader refuses every other.
pub const VERSION: u8 = 11;
/// The level of the compression: a sub-block is compressed within its interval many times over.
const LEVEL: i32 = 1;
/// The most bytes of a beat, an answer about the time, or a verdict, after decompression.
pub const MAX_SHORT_BYTES: usize = 1 << 16;
/// The maximum bytes of a message of the stream, before and after decompression. A leader with more than 64 MiB of
/// changes sends their net effect, which is smaller. A reader that finds a longer message loads an image again.
pub const MAX_STREAM_BYTES: usize = 1 << 28;
/// The most bytes of an image, before and after decompression.
pub const MAX_IMAGE_BYTES: usize = 1 << 31;

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The index of the part, from 0.
    pub index: u32,
    /// The number of parts.
    pub count: u32,
    /// The bytes.
    pub bytes: Bytes,
}

/// The reason why parts are not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Another version of presim wrote it.
    #[error(
        "it is of version {theirs}, and this presim reads version {VERSION}: run one version of presim in the fleet"
    )]
    Version { theirs: u8 },
    /// The bytes are no frame.
    #[error("it cannot be read: {0}")]
    Malformed(String),
}

/// Returns a message in parts of at most `most` bytes.
pub fn frames(message: &[u8], most: NonZeroUsize) -> Vec<Frame> {
    let body = pack(message);
    let count = u32::try_from(body.len().div_ceil(most.get())).unwrap_or(u32::MAX);
    let parts = (0..).zip(body.chunks(most.get()));
    parts.map(|(index, part)| Frame { index, count, bytes: Bytes::copy_from_slice(part) }).collect()
}

/// Joins all parts, in order, to a message of at most `most` bytes.
///
/// # Errors
///
/// Returns [`FrameError::Version`] if another version wrote the parts, and [`FrameError::Malformed`] if they are not a
/// message, or exceed `most`.
pub fn join(parts: &[Bytes], most: usize) -> Result<Vec<u8>, FrameError> {
    match parts {
        [part] => unpack(part, most),
        parts => unpack(&parts.concat(), most),
    }
}

/// Returns bytes with their version, compressed.
pub fn pack(message: &[u8]) -> Vec<u8> {
    let mut body = vec![VERSION];
    // Compressing into memory does not fail.
    body.extend(zstd::bulk::compress(message, LEVEL).unwrap_or_default());
    body
}

/// Returns a value as a packed message.
pub fn write(value: &impl Encodable) -> Vec<u8> {
    pack(&encode(value))
}

/// Reverses [`write`]. The message has at most `most` bytes, and its value the [items](ItemBudget) that fit them.
///
/// # Errors
///
/// Returns an error as [`join`] does, and if the message is no such value.
pub fn read<T: Decodable>(body: &[u8], most: usize) -> Result<T, FrameError> {
    let message = unpack(body, most)?;
    ItemBudget::of(most).decode(&message).map_err(|error| FrameError::Malformed(problem_of(error)))
}

/// Returns the length of a packed message after decompression, as its header declares it.
pub fn unpacked_bytes(body: &[u8]) -> u64 {
    body.get(1..).and_then(|short| get_frame_content_size(short).ok().flatten()).unwrap_or_default()
}

/// Reverses [`pack`]. No memory is taken for a message that has more than `most` bytes, or says so.
///
/// # Errors
///
/// Returns an error as [`join`] does.
pub fn unpack(body: &[u8], most: usize) -> Result<Vec<u8>, FrameError> {
    let malformed = FrameError::Malformed;
    let (version, short) = body.split_first().ok_or_else(|| malformed("it is empty".to_owned()))?;
    if *version != VERSION {
        return Err(FrameError::Version { theirs: *version });
    }
    let bytes = unpacked_bytes(body);
    if bytes > most as u64 {
        return Err(malformed(format!("it has {bytes} bytes: expected at most {most}")));
    }
    // Memory is allocated as data arrives, not as declared.
    let mut message = Vec::with_capacity((bytes as usize).min(short.len().saturating_mul(16)));
    let read = zstd::Decoder::new(short).and_then(|frame| frame.take(bytes + 1).read_to_end(&mut message));
    match read.map_err(|error| malformed(error.to_string()))? as u64 == bytes {
        true => Ok(message),
        false => Err(malformed("it has another length than it says".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(message: &[u8], most: usize) -> (usize, Result<Vec<u8>, FrameError>) {
        let frames = frames(message, NonZeroUsize::new(most).expect("not zero"));
        assert!(frames.iter().all(|frame| frame.bytes.len() <= most && frame.count as usize == frames.len()));
        let parts: Vec<Bytes> = frames.into_iter().map(|frame| frame.bytes).collect();
        (parts.len(), join(&parts, message.len()))
    }

    #[test]
    fn a_message_comes_back_from_its_parts_whatever_their_size() {
        let repeated = b"what repeats is compressed".repeat(1_000);
        let random: Vec<u8> = (0..5_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for message in [&b""[..], b"short", &repeated, &random] {
            for most in [1, 7, 1_000, 1 << 20] {
                assert_eq!(round(message, most).1.as_deref(), Ok(message));
            }
        }
        assert_eq!(round(&repeated, 1_000).0, 1, "26 kB of repetition fit one part");
    }

    #[test]
    fn another_version_is_refused_with_both() {
        let mut body = pack(b"a message");
        body[0] = VERSION + 1;
        let error = unpack(&body, 9).expect_err("another version");
        assert_eq!(
            error.to_string(),
            format!(
                "it is of version {}, and this presim reads version {VERSION}: run one version of presim in the fleet",
                VERSION + 1
            )
        );
    }

    #[test]
    fn a_message_that_exceeds_its_bound_is_rejected_before_it_is_unpacked() {
        let mut body = pack(&[0; 1_001]);
        // Only the header of the compression, so that an attempt would be reported.
        body.truncate(8);
        let error = unpack(&body, 1_000).expect_err("it has a byte too many");
        assert_eq!(error.to_string(), "it cannot be read: it has 1001 bytes: expected at most 1000");
    }

    #[test]
    fn a_list_whose_items_take_more_memory_than_the_bound_allows_is_not_decoded() {
        let short = write(&vec![0_u64; 64]);
        assert_eq!(read::<Vec<u64>>(&short, 1 << 11), Ok(vec![0; 64]));
        let error = read::<Vec<u64>>(&short, 1 << 10).expect_err("it has 65 items, and 1 KiB has room for 64");
        assert_eq!(error.to_string(), "it cannot be read: it has too many items: expected at most 64");
        let nested = write(&vec![vec![Vec::<u64>::new(); 100]; 100]);
        assert!(read::<Vec<Vec<Vec<u64>>>>(&nested, 1 << 17).is_err(), "10,101 items");
        assert!(read::<Vec<Vec<Vec<u64>>>>(&nested, 1 << 18).is_ok());
    }

    #[test]
    fn no_bytes_make_the_reader_panic() {
        for body in [&[][..], &[VERSION, 7], &[VERSION, 255, 255, 255, 255, 0, 0, 0, 0, 1]] {
            assert!(unpack(body, usize::MAX).is_err(), "{body:?}");
        }
        let whole = pack(&b"what repeats is compressed".repeat(100));
        for length in [1, 5, 8, whole.len() - 1] {
            assert!(unpack(&whole[..length], usize::MAX).is_err());
        }
    }
}
