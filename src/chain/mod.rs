//! The rules and data of a chain: forks, genesis, blocks, transactions, receipts, and the EVM environment of a block.

mod append_trie;
mod base_time;
mod block;
mod chains;
mod deployment_proxy;
mod ethash;
mod forks;
mod genesis;
mod header;
mod keccak;
mod l1;
mod natives;
mod op_stack;
mod ordered;
mod receipt;
mod schedule;
mod spec;
mod tx;

pub use append_trie::AppendTrie;
pub use base_time::{BASE_TIME, BASE_TIME_SLOT, block_instant, millis_part, timestamp_ms};
pub use block::{
    BlockBody, BlockHashes, BlockKeeper, SealedBlock, TransactionLogs, block_rlp, block_size, receipts_root_and_bloom,
    transactions_root,
};
pub use deployment_proxy::{DEPLOYMENT_PROXY, DEPLOYMENT_PROXY_CODE, deployment_address, deployment_data};
pub use forks::{ForkAt, ForkName, ForkTime, set_forks};
pub use genesis::genesis_block;
pub use header::{Attributes, BlockTotals, gas_limit_towards};
pub use keccak::keccak256_each;
pub use l1::{L1Cost, L1Params};
pub use natives::{ActiveNatives, Natives, Unexecutable};
pub use op_stack::ChainSpecError;
pub use ordered::ordered_roots;
pub use receipt::{ChainReceipt, ChainReceiptBuilder};
pub use spec::{ChainSpec, Family, Fork};
pub use tx::{ChainTx, ChainTxType, UnknownTxType};
