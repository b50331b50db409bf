//! The memory that the process has beside its state.

use alloy_primitives::utils::init_keccak_cache;

/// The Keccak hashes of short inputs that are kept, of 128 bytes each, because requests hash the same slots again and again.
const HASHES: usize = 1 << 15;

/// Bounds the memory that the process takes at rest, to be called before anything else. It does nothing the second time.
///
/// Pages stay small: of a huge page each thread would touch a few bytes, which takes 20 to 40 MiB at rest.
pub fn configure_memory() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    let _ = init_keccak_cache(HASHES);
}
