//! The access lists of blocks (EIP-7928).

use alloy_eips::eip7928::BlockAccessList;
use schemars::JsonSchema;
use serde::Deserialize;

use super::super::{Example, Method};
use crate::{
    ledger::{Selector, UnknownBlock},
    rpc::{
        json::{self, AccountChanges, Lookup, Shape, hex::Data},
        params::SelectorParam,
        protocol::error::{Result, RpcError},
        run::{Attempt, Backend},
    },
};

/// The code of execution-apis for a missing resource.
const NOT_FOUND: i32 = -32001;

/// The accounts and slots that a block has accessed, and their changes by transaction (EIP-7928). Null for an unknown
/// block and at pending; -32001 before Amsterdam.
// Null follows <https://github.com/ethereum/execution-apis/pull/851>.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: block")]
pub struct GetBlockAccessList {
    block: SelectorParam,
}

impl Method for GetBlockAccessList {
    type Answer = Option<Vec<AccountChanges>>;
    const EXAMPLE: Example = Example { params: r#"["pending"]"#, answer: "null" };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<Lookup> {
        with_access_list(backend, run, self.block.into(), |out, list| {
            Ok(json::or_null(out, list, Vec::<AccountChanges>::write))
        })
    }
}

/// The access list of a block (EIP-7928) in RLP; -32001 if there is no such block, or if it is before Amsterdam.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: block")]
pub struct GetRawBlockAccessList {
    block: SelectorParam,
}

impl Method for GetRawBlockAccessList {
    type Answer = Data;
    const EXAMPLE: Example = Example { params: r#"["latest"]"#, answer: r#""0xc0""# };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<Lookup> {
        with_access_list(backend, run, self.block.into(), |out, list| {
            let unknown =
                || RpcError::new(NOT_FOUND, "Resource not found: there is no such block, or it is being built");
            json::data(out, &alloy_rlp::encode(list.ok_or_else(unknown)?));
            Ok(Lookup::Found)
        })
    }
}

/// Calls `write` with the access list of a sealed block, or with `None` if there is no such block.
fn with_access_list(
    backend: &Backend,
    run: &mut Attempt<'_>,
    selector: Selector,
    write: impl FnOnce(&mut Vec<u8>, Option<&BlockAccessList>) -> Result<Lookup>,
) -> Result<Lookup> {
    let found = if selector == Selector::Pending { None } else { backend.block(run.published, selector)? };
    let Some(block) = found.filter(|block| !block.is_open()) else { return write(&mut run.out, None) };
    let number = block.number();
    if block.header().block_access_list_hash.is_none() {
        let text = format!("Resource not found: block {number} is before Amsterdam, and has no access list");
        return Err(RpcError::new(NOT_FOUND, text));
    }
    // An upstream's block has no list.
    let list = block.access_list().ok_or(UnknownBlock::Partial { number })?;
    write(&mut run.out, Some(list))
}
