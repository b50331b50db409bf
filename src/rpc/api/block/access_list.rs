//! The access lists of blocks (EIP-7928).

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::{Example, Method};
use crate::{
    ledger::{Block, Selector, UnknownBlock},
    rpc::{
        json::{AccountChanges, Shape, hex::Data},
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

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
        let block = block_with_list(backend, run, self.block)?;
        Self::Answer::write(&mut run.out, block.as_ref().and_then(Block::access_list));
        Ok(())
    }
}

queries! {
    /// The access list of a block (EIP-7928) in RLP; -32001 if there is no such block, or if it is before Amsterdam.
    GetRawBlockAccessList = "1 parameter: block", { block: SelectorParam }, r#"["latest"]"# => Data = r#""0xc0""#,
        |asked, backend, run| {
            let block = block_with_list(backend, run, asked.block)?;
            alloy_rlp::encode(block.as_ref().and_then(Block::access_list).ok_or_else(|| {
                RpcError::new(NOT_FOUND, "Resource not found: there is no such block, or it is being built")
            })?)
        };
}

/// Returns a sealed block that has an access list, or `None` if there is no such block.
fn block_with_list(backend: &Backend, run: &Attempt<'_>, block: SelectorParam) -> Result<Option<Block>> {
    let selector = Selector::from(block);
    let found = if selector == Selector::Pending { None } else { backend.block(run.published, selector)? };
    let Some(block) = found.filter(|block| !block.is_open()) else { return Ok(None) };
    let number = block.number();
    if block.header().block_access_list_hash.is_none() {
        let text = format!("Resource not found: block {number} is before Amsterdam, and has no access list");
        return Err(RpcError::new(NOT_FOUND, text));
    }
    // An upstream's block has no list.
    if block.access_list().is_none() {
        return Err(UnknownBlock::Partial { number }.into());
    }
    Ok(Some(block))
}
