//! The tables of the KZG trusted setup, which blobs and the point evaluation precompile need (EIP-4844).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use alloy_eips::eip4844::env_settings::EnvKzgSettings;

static LOADED: AtomicBool = AtomicBool::new(false);

/// Loads the tables, which takes seconds. Whatever needs them earlier waits for them.
pub fn load_kzg_settings() {
    EnvKzgSettings::Default.get();
    LOADED.store(true, Relaxed);
}

/// Returns whether [`load_kzg_settings`] is done, so that nothing waits for the tables.
pub(super) fn has_kzg_settings() -> bool {
    LOADED.load(Relaxed)
}
