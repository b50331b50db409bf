//! The state of a chain in anvil's format, to be loaded by another: JSON, in requests gzipped.

use std::{collections::BTreeMap, io::Read};

use alloy_consensus::Header;
use alloy_genesis::GenesisAccount;
use alloy_primitives::{Address, Bytes, U64, U256};
use flate2::{Compression, bufread::GzDecoder, read::GzEncoder};
use revm::{context::BlockEnv, context_interface::block::BlobExcessGasAndPrice};
use serde::{Deserialize, Serialize};

use crate::{
    ledger::Snapshot,
    objects,
    state::{CodeCache, Overlay},
};

/// The first bytes of gzipped data (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// The most bytes of a state's JSON.
const MOST: u64 = 1 << 30;

/// The state after a block.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StateFile {
    /// The block, of which a chain that loads the state takes nothing.
    #[serde(skip_deserializing)]
    block: Option<BlockEnv>,
    accounts: BTreeMap<Address, StoredAccount>,
    #[serde(skip_deserializing)]
    best_block_number: U64,
    /// Only the head block, without its transactions, because anvil requires it.
    #[serde(skip_deserializing)]
    blocks: Vec<HeadBlock>,
    #[serde(skip_deserializing)]
    transactions: [(); 0],
}

/// A block as anvil stores it.
#[derive(Clone, Debug, Serialize)]
struct HeadBlock {
    header: Header,
    transactions: [(); 0],
    ommers: [(); 0],
}

/// An account.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct StoredAccount {
    nonce: u64,
    balance: U256,
    #[serde(default)]
    code: Bytes,
    #[serde(default)]
    storage: BTreeMap<U256, U256>,
}

/// The reason why a state cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// The bytes look gzipped, and are not.
    #[error("no gzipped data: {0}")]
    Gzip(#[from] std::io::Error),
    /// The JSON is longer than may be.
    #[error("expected at most {MOST} bytes of JSON")]
    TooLong,
    /// The JSON does not describe a state.
    #[error("no state as anvil dumps it: {0}")]
    Json(#[from] serde_json::Error),
}

impl StateFile {
    /// Returns the state of a snapshot; on an upstream's state, the accounts that were changed here.
    pub fn of(snapshot: &Snapshot) -> Self {
        let header = snapshot.header();
        let accounts = snapshot.world.accounts().map(|(address, account)| {
            let storage = account.slots().map(|(key, value)| (*key, *value)).collect();
            let code = account.code.bytecode.original_bytes();
            (*address, StoredAccount { nonce: account.nonce, balance: account.balance, code, storage })
        });
        Self {
            block: Some(BlockEnv {
                number: U256::from(header.number),
                beneficiary: header.beneficiary,
                timestamp: U256::from(header.timestamp),
                gas_limit: header.gas_limit,
                basefee: header.base_fee_per_gas.unwrap_or_default(),
                difficulty: header.difficulty,
                prevrandao: Some(header.mix_hash),
                // Without blobs, the price is the least.
                blob_excess_gas_and_price: Some(BlobExcessGasAndPrice { excess_blob_gas: 0, blob_gasprice: 1 }),
                slot_num: header.slot_number.unwrap_or_default(),
            }),
            accounts: accounts.collect(),
            best_block_number: U64::from(header.number),
            blocks: vec![HeadBlock { header: header.clone(), transactions: [], ommers: [] }],
            transactions: [],
        }
    }

    /// Reads a state from its JSON, gzipped or not.
    ///
    /// # Errors
    ///
    /// Returns [`StateFileError`] if the bytes are none.
    pub fn read(bytes: &[u8]) -> Result<Self, StateFileError> {
        if !bytes.starts_with(&GZIP) {
            return Ok(objects::from_slice(bytes)?);
        }
        let mut json = Vec::new();
        GzDecoder::new(bytes).take(MOST + 1).read_to_end(&mut json)?;
        if json.len() as u64 > MOST {
            return Err(StateFileError::TooLong);
        }
        Ok(objects::from_slice(&json)?)
    }

    /// Returns the JSON.
    ///
    /// # Errors
    ///
    /// Returns an error for a map whose keys are not strings. There is none.
    pub fn json(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(self)
    }

    /// Returns the gzipped JSON.
    ///
    /// # Errors
    ///
    /// Returns [`StateFileError::Json`] as [`json`](Self::json) does.
    pub fn gzipped(&self) -> Result<Vec<u8>, StateFileError> {
        let (json, mut gzipped) = (self.json()?, Vec::new());
        GzEncoder::new(&json[..], Compression::fast()).read_to_end(&mut gzipped)?;
        Ok(gzipped)
    }

    /// Sets the accounts. The others stay.
    pub fn set_in(&self, overlay: &mut Overlay, codes: &CodeCache) {
        for (address, GenesisAccount { balance, nonce, code, storage, .. }) in self.accounts() {
            overlay.set(address, Some(balance), nonce, Some(codes.chain(code.unwrap_or_default())));
            let storage = storage.into_iter().flatten().map(|(key, value)| (key.into(), value.into()));
            overlay.set_slots(address, &storage.collect::<Vec<_>>());
        }
    }

    /// Returns the accounts as a genesis has them.
    pub fn accounts(&self) -> impl Iterator<Item = (Address, GenesisAccount)> {
        self.accounts.iter().map(|(address, StoredAccount { nonce, balance, code, storage })| {
            let storage = storage.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
            let account = GenesisAccount {
                nonce: Some(*nonce),
                balance: *balance,
                code: Some(code.clone()).filter(|code| !code.is_empty()),
                storage: Some(storage),
                private_key: None,
            };
            (*address, account)
        })
    }
}
