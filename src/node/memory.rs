//! The memory of the process, except its state.

use alloy_primitives::utils::init_keccak_cache;

/// The number of cached Keccak hashes of short inputs, of 128 bytes each. Requests hash the same slots repeatedly.
const HASHES: usize = 1 << 15;

/// Bounds the memory of the process at rest. Must be called before anything else. Further calls do nothing.
///
/// Pages stay small: each thread would touch only a few bytes of a huge page, which costs 20 to 40 MiB at rest.
pub fn configure_memory() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    let _ = init_keccak_cache(HASHES);
}
