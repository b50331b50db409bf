//! Answers of a node to the commands, as far as they are shown.

use std::collections::BTreeMap;

use alloy_primitives::{Address, Bytes, I256, Log, U64, U256};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, value::RawValue};

use crate::objects;

/// The result of a simulation.
#[derive(Debug)]
pub enum SimulationAnswer {
    /// The blocks ran.
    Ran(Vec<BlockAnswer>),
    /// This call broke the bundle's conditions.
    Dropped(CallPosition),
}

/// The position of a call in a bundle.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub struct CallPosition {
    /// Index of the block.
    pub block: usize,
    /// Index of the call in the block.
    pub call: usize,
}

/// A simulated block.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockAnswer {
    pub number: Option<U64>,
    pub timestamp: Option<U64>,
    pub base_fee_per_gas: Option<U256>,
    pub calls: Vec<CallAnswer>,
    #[serde(default)]
    pub assets: BTreeMap<Address, Vec<AssetAnswer>>,
    pub coinbase: Option<CoinbaseAnswer>,
}

/// A simulated call.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallAnswer {
    pub status: Option<U64>,
    pub gas_used: Option<U64>,
    #[serde(default)]
    pub return_data: Bytes,
    pub error: Option<CallErrorAnswer>,
    #[serde(default)]
    pub logs: Vec<Log>,
    /// The frames. Parsed only when they are shown.
    pub trace: Option<Box<RawValue>>,
}

/// The error of a call: a text, or an object in the standard dialect.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum CallErrorAnswer {
    Text(String),
    Object { message: String, data: Option<Value> },
}

/// A net change of an asset.
#[derive(Debug, Deserialize)]
pub struct AssetAnswer {
    #[serde(rename = "type")]
    pub kind: String,
    pub token: Option<Address>,
    pub id: Option<U256>,
    pub change: I256,
    pub symbol: Option<String>,
    pub decimals: Option<U64>,
}

/// The producer's income.
#[derive(Debug, Deserialize)]
pub struct CoinbaseAnswer {
    pub fees: U256,
    pub transfers: I256,
}

/// The newest snapshot.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotAnswer {
    pub id: U64,
    pub block_number: U64,
    pub index: U64,
    pub age_ms: u64,
    pub feed: String,
    pub reason: Option<String>,
}

/// The result of a search.
#[derive(Debug, Deserialize)]
pub struct SearchAnswer {
    pub best: Vec<VariantAnswer>,
    pub runs: u64,
    pub complete: bool,
    pub result: Option<SimulationAnswer>,
}

/// A variant of a search.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VariantAnswer {
    pub values: Vec<U256>,
    pub objective: Option<I256>,
    pub gas_used: Option<U64>,
    pub status: U64,
    pub dropped: Option<CallPosition>,
    pub error: Option<CallErrorAnswer>,
}

/// The answer to `presim_watch`.
#[derive(Debug, Deserialize)]
pub struct WatchAnswer {
    pub watch: String,
    pub id: U64,
}

/// The answer to `presim_results`.
#[derive(Debug, Deserialize)]
pub struct NewsAnswer {
    pub id: U64,
    pub changed: Vec<ChangeAnswer>,
    pub behind: Vec<BehindAnswer>,
}

/// A changed answer of a bundle.
#[derive(Debug, Deserialize)]
pub struct ChangeAnswer {
    pub name: String,
    /// The snapshot for which the answer holds.
    pub id: U64,
    pub result: Option<Box<RawValue>>,
    pub error: Option<CallErrorAnswer>,
    #[serde(default)]
    pub below: bool,
}

/// A bundle that is due.
#[derive(Debug, Deserialize)]
pub struct BehindAnswer {
    pub name: String,
}

impl<'de> Deserialize<'de> for SimulationAnswer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct DroppedAnswer {
            dropped: CallPosition,
        }
        // An untagged enum would not keep the texts of the traces.
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let parsed = if text.get().starts_with('[') {
            objects::from_str(text.get()).map(Self::Ran)
        } else {
            objects::from_str(text.get()).map(|DroppedAnswer { dropped }| Self::Dropped(dropped))
        };
        parsed.map_err(serde::de::Error::custom)
    }
}

impl CallAnswer {
    /// Returns whether the call succeeded.
    pub fn succeeded(&self) -> bool {
        self.status == Some(U64::ONE)
    }

    /// Returns the data of a revert. In the standard dialect it is in the error.
    pub fn revert_data(&self) -> Bytes {
        match &self.error {
            Some(CallErrorAnswer::Object { data: Some(Value::String(data)), .. }) if self.return_data.is_empty() => {
                data.parse().unwrap_or_default()
            }
            _ => self.return_data.clone(),
        }
    }
}

impl CallErrorAnswer {
    /// Returns the message.
    pub fn message(&self) -> &str {
        match self {
            Self::Text(text) | Self::Object { message: text, .. } => text,
        }
    }
}
