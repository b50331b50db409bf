//! Frames: a message as it travels, compressed where that pays, and cut to what a server takes.

use std::{
    io::{self, Read},
    num::NonZeroUsize,
};

use alloy_primitives::Bytes;

/// The version of all that the codec writes. A reader refuses every other.
pub const VERSION: u8 = 7;
/// The bytes from which a message is compressed: below, its headers cost more than it saves.
const MIN_COMPRESSED_BYTES: usize = 512;
/// The level of the compression: a sub-block is compressed within its interval many times over.
const LEVEL: i32 = 1;
/// The most bytes of a message after decompression, which bound the memory that a message can take.
pub const MAX_BYTES: usize = 1 << 31;
/// The most bytes of a beat, an answer about the time, or a verdict.
const MAX_SHORT_BYTES: usize = 1 << 16;

const PLAIN: u8 = 0;
const ZSTD: u8 = 1;

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

/// Returns the message of all parts, in order.
///
/// # Errors
///
/// Returns [`FrameError::Version`] if another version wrote them, and [`FrameError::Malformed`] if they are no message.
pub fn join(parts: &[Bytes]) -> Result<Vec<u8>, FrameError> {
    match parts {
        [part] => unpack(part),
        parts => unpack(&parts.concat()),
    }
}

/// Returns bytes with their version, compressed if that makes them shorter.
pub fn pack(message: &[u8]) -> Vec<u8> {
    let plain = || [&[VERSION, PLAIN], message].concat();
    if message.len() < MIN_COMPRESSED_BYTES {
        return plain();
    }
    match zstd::bulk::compress(message, LEVEL) {
        Ok(short) if short.len() + 8 < message.len() => {
            let length = u64::try_from(message.len()).unwrap_or(u64::MAX).to_be_bytes();
            [&[VERSION, ZSTD], length.as_slice(), &short].concat()
        }
        _ => plain(),
    }
}

/// Reverses [`pack`].
///
/// # Errors
///
/// Returns an error as [`join`] does.
pub fn unpack(body: &[u8]) -> Result<Vec<u8>, FrameError> {
    unpack_within(body, MAX_BYTES)
}

/// Reverses [`pack`] of a message of at most [`MAX_SHORT_BYTES`] bytes, as nodes say to one another outside of the stream.
///
/// # Errors
///
/// Returns an error as [`join`] does, and for a longer message.
pub fn unpack_short(body: &[u8]) -> Result<Vec<u8>, FrameError> {
    unpack_within(body, MAX_SHORT_BYTES)
}

/// Returns the bytes that a packed message has when it is unpacked.
pub fn unpacked_bytes(body: &[u8]) -> u64 {
    match body {
        [_, ZSTD, a, b, c, d, e, f, g, h, ..] => u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]),
        _ => (body.len() as u64).saturating_sub(2),
    }
}

fn unpack_within(body: &[u8], most: usize) -> Result<Vec<u8>, FrameError> {
    let malformed = |problem: &str| FrameError::Malformed(problem.to_owned());
    let (version, rest) = body.split_first().ok_or_else(|| malformed("it is empty"))?;
    if *version != VERSION {
        return Err(FrameError::Version { theirs: *version });
    }
    match rest.split_first() {
        Some((&PLAIN, message)) => Ok(message.to_vec()),
        Some((&ZSTD, rest)) => {
            let (length, short) = rest.split_first_chunk::<8>().ok_or_else(|| malformed("it is too short"))?;
            let length = usize::try_from(u64::from_be_bytes(*length)).unwrap_or(usize::MAX);
            if length > most {
                return Err(malformed("it is too long"));
            }
            decompress(short, length).map_err(|error| FrameError::Malformed(error.to_string()))
        }
        _ => Err(malformed("its compression is unknown")),
    }
}

/// Decompresses bytes that say to become `length`. Memory is taken as they come, and not as they say.
fn decompress(short: &[u8], length: usize) -> io::Result<Vec<u8>> {
    let mut message = Vec::with_capacity(length.min(short.len().saturating_mul(16)));
    zstd::Decoder::new(short)?.take(length as u64 + 1).read_to_end(&mut message)?;
    match message.len() == length {
        true => Ok(message),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "it has another length than it says")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(message: &[u8], most: usize) -> (usize, Result<Vec<u8>, FrameError>) {
        let frames = frames(message, NonZeroUsize::new(most).expect("not zero"));
        assert!(frames.iter().all(|frame| frame.bytes.len() <= most && frame.count as usize == frames.len()));
        let parts: Vec<Bytes> = frames.into_iter().map(|frame| frame.bytes).collect();
        (parts.len(), join(&parts))
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
        body[0] = 9;
        let error = unpack(&body).expect_err("another version");
        assert_eq!(
            error.to_string(),
            format!(
                "it is of version 9, and this presim reads version {VERSION}: run one version of presim in the fleet"
            )
        );
    }

    #[test]
    fn no_bytes_make_the_reader_panic() {
        for body in [
            &[][..],
            &[VERSION],
            &[VERSION, 7],
            &[VERSION, ZSTD, 0],
            &[VERSION, ZSTD, 255, 255, 255, 255, 0, 0, 0, 0, 1],
        ] {
            assert!(unpack(body).is_err(), "{body:?}");
        }
        let mut body = pack(&b"what repeats is compressed".repeat(100));
        body.truncate(40);
        assert!(unpack(&body).is_err());
    }
}
