//! Parameters that name a block.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::ledger::Selector;

/// A parameter that names a block: any selector, or a hash alone.
pub trait NamesBlock: DeserializeOwned + JsonSchema + Into<Selector> {}

impl<B: DeserializeOwned + JsonSchema + Into<Selector>> NamesBlock for B {}
