//! The access lists of blocks (EIP-7928).

use alloy_eips::eip7928::BlockAccessList;

use super::{Backend, Run};
use crate::{
    ledger::{Selector, UnknownBlock},
    rpc::{
        encode,
        error::{Result, RpcError},
    },
};

/// The code of execution-apis for what does not exist.
const NOT_FOUND: i32 = -32001;

impl Backend {
    /// Answers `eth_getBlockAccessList`. The list of an unknown block, and at `pending`, is null
    /// (<https://github.com/ethereum/execution-apis/pull/851>).
    pub(super) fn get_block_access_list(&self, run: &mut Run<'_>, selector: Selector) -> Result<()> {
        self.with_access_list(run, selector, |out, list| {
            encode::or_null(out, list, encode::access_list);
            Ok(())
        })
    }

    /// Answers `debug_getRawBlockAccessList`: the RLP of which a header has the hash.
    pub(super) fn get_raw_block_access_list(&self, run: &mut Run<'_>, selector: Selector) -> Result<()> {
        self.with_access_list(run, selector, |out, list| {
            let unknown =
                || RpcError::new(NOT_FOUND, "Resource not found: there is no such block, or it is being built");
            encode::data(out, &alloy_rlp::encode(list.ok_or_else(unknown)?));
            Ok(())
        })
    }

    /// Calls `write` with the access list of a sealed block, or with `None` if there is no such block.
    fn with_access_list(
        &self,
        run: &mut Run<'_>,
        selector: Selector,
        write: impl FnOnce(&mut Vec<u8>, Option<&BlockAccessList>) -> Result<()>,
    ) -> Result<()> {
        let found = if selector == Selector::Pending { None } else { self.block(run.published, selector)? };
        let Some(block) = found.filter(|block| !block.is_open()) else { return write(&mut run.out, None) };
        let number = block.number();
        if block.header().block_access_list_hash.is_none() {
            let text = format!("Resource not found: block {number} is before Amsterdam, and has no access list");
            return Err(RpcError::new(NOT_FOUND, text));
        }
        // An upstream's block comes without its list.
        let list = block.access_list().ok_or(UnknownBlock::Partial { number })?;
        write(&mut run.out, Some(list))
    }
}
