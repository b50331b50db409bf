//! What a chain is: its forks, its genesis, its blocks and how they are sealed, and the EVM environment of each.

mod block;
mod deployment_proxy;
mod genesis;
mod schedule;
mod spec;

pub use block::{
    BlockBody, BlockHashes, BodyKeeper, SealedBlock, block_size, receipts_root_and_bloom, transactions_root,
};
pub use deployment_proxy::{DEPLOYMENT_PROXY, DEPLOYMENT_PROXY_CODE, deployment_address, deployment_data};
pub use genesis::{genesis_block, genesis_world};
pub use spec::ChainSpec;
