//! The devnet: a chain that presim builds itself, a sub-block at a time.

use std::time::{SystemTime, UNIX_EPOCH};

use alloy_evm::block::BlockExecutionError;
use alloy_primitives::{Address, B256, keccak256};

use super::{
    apply::{Attributes, extend, open_block, seal},
    world::Traffic,
};
use crate::{chain::ChainSpec, state::Snapshot};

/// Builds the next snapshot from the last.
#[derive(Debug)]
pub struct Devnet {
    spec: ChainSpec,
    sub_blocks: u32,
    fee_recipient: Address,
    traffic: Option<Traffic>,
}

/// What a tick of the devnet gave.
#[derive(Debug)]
pub struct Step {
    /// The block that was sealed by it, if it was the block's last sub-block.
    pub sealed: Option<Snapshot>,
    /// The newest snapshot: the sub-block, or the empty block opened on the sealed one.
    pub next: Snapshot,
}

impl Devnet {
    /// A devnet with `sub_blocks` sub-blocks a block.
    pub const fn new(spec: ChainSpec, sub_blocks: u32, fee_recipient: Address, traffic: Option<Traffic>) -> Self {
        Self { spec, sub_blocks, fee_recipient, traffic }
    }

    /// Opens the block after the head of `on`.
    pub fn open(&self, on: &Snapshot) -> Result<Snapshot, BlockExecutionError> {
        let parent = on.head.header.inner();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let attributes = Attributes {
            timestamp: now.max(parent.timestamp + 1),
            fee_recipient: self.fee_recipient,
            prev_randao: keccak256(on.head_hash()),
            beacon_root: B256::ZERO,
            gas_limit: parent.gas_limit,
        };
        open_block(&self.spec, on, attributes)
    }

    /// The next sub-block; with the last of a block, its seal and the next block.
    pub fn step(&mut self, on: &Snapshot) -> Result<Step, BlockExecutionError> {
        let Some(open) = &on.open else { return Ok(Step { sealed: None, next: self.open(on)? }) };
        let transactions = self.traffic.as_mut().map_or_else(Vec::new, |traffic| traffic.next(on));
        let (extended, rejected) = extend(&self.spec, on, open, transactions);
        for one in rejected {
            tracing::warn!(hash = %one.hash, reason = %one.reason, "a background transaction was left out");
        }
        match &extended.open {
            Some(open) if open.index >= self.sub_blocks => {
                let sealed = seal(&self.spec, &extended, open)?;
                let next = self.open(&sealed)?;
                Ok(Step { sealed: Some(sealed), next })
            }
            _ => Ok(Step { sealed: None, next: extended }),
        }
    }
}
