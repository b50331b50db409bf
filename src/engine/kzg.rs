//! The settings of the KZG trusted setup, which blobs and the point evaluation precompile need (EIP-4844).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use alloy_eips::eip4844::c_kzg::{Bytes32, Bytes48, KzgSettings, ethereum_kzg_settings};
use revm::{
    install_crypto,
    precompile::{Crypto, PrecompileHalt},
};

static LOADED: AtomicBool = AtomicBool::new(false);

/// The width of c-kzg's tables for making the proofs of cells: none. They would take 96 MiB, and presim only verifies.
const NO_TABLES: u64 = 0;

/// Returns the settings. The first use loads them.
pub fn kzg_settings() -> &'static KzgSettings {
    ethereum_kzg_settings(NO_TABLES)
}

/// Loads the settings, which takes a second. Earlier users wait for them.
pub fn load_kzg_settings() {
    kzg_settings();
    LOADED.store(true, Relaxed);
}

/// Returns whether [`load_kzg_settings`] is done, so that nothing waits for the settings.
pub(super) fn has_kzg_settings() -> bool {
    LOADED.load(Relaxed)
}

/// Has the point evaluation precompile of this process verify with [`kzg_settings`]. Before the first transaction runs,
/// because revm's own has the tables.
pub fn install_kzg_verifier() {
    if !install_crypto(KzgVerifier) {
        tracing::debug!("revm's cryptography is installed already");
    }
}

/// revm's cryptography with the settings of this process.
#[derive(Debug)]
struct KzgVerifier;

impl Crypto for KzgVerifier {
    fn verify_kzg_proof(
        &self,
        z: &[u8; 32],
        y: &[u8; 32],
        commitment: &[u8; 48],
        proof: &[u8; 48],
    ) -> Result<(), PrecompileHalt> {
        let [z, y] = [z, y].map(|bytes| Bytes32::new(*bytes));
        let [commitment, proof] = [commitment, proof].map(|bytes| Bytes48::new(*bytes));
        match kzg_settings().verify_kzg_proof(&commitment, &z, &y, &proof) {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(PrecompileHalt::BlobVerifyKzgProofFailed),
        }
    }
}
