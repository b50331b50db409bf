//! The transaction pool: transactions that were sent and are not yet in a block.
//!
//! The pool rejects the same transactions as geth's pools, with the same messages. It has none of geth's protections
//! against floods from a public network: one transaction in flight for delegated accounts, accounts reserved to blobs
//! or to all other types, and a maximum age of transactions. Bundles wait in memory, separate from the transactions.

mod account;
mod aside;
mod best;
mod bundles;
mod content;
mod decode;
mod drops;
mod error;
mod on_arrival;
mod outcomes;
mod own;
mod queue;
mod rules;
mod settings;
mod table;
mod transactions;

pub use self::{
    account::{LeastFees, Pooled},
    best::{Best, BlockFees, BlockSpace},
    bundles::{BundleName, BundleRefusal, Bundles, SentBundle},
    content::{PoolStatus, SenderContent},
    decode::SentTransaction,
    drops::{DropReason, DroppedTransaction, PoolDrops},
    error::PoolError,
    on_arrival::OnArrival,
    outcomes::BundleOutcome,
    queue::PoolNonce,
    settings::{BlocksBuilt, Settings},
    table::forget,
    transactions::{BROADCAST_CAPACITY, Pool},
};
