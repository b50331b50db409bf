//! A block without differences under another fork: executed, and shadowed. All on one thread, so that the time is that of the processor.

use std::hint::black_box;

use alloy_eips::eip4895::Withdrawals;
use presim::testing::{
    engine::{execute_block, shadow_block},
    ledger::Block,
    state::Overlay,
};

use crate::full_block::{Doing, FullBlock, timed};

/// The transactions of a block.
const TRANSACTIONS: usize = 3_000;

/// Prints the medians of so many runs for a block of `doing`, and returns the ratio of shadowing to executing.
pub async fn run(runs: usize, doing: Doing) -> f64 {
    let FullBlock { node, before, after, sent, .. } = FullBlock::new(&[], TRANSACTIONS, doing).await;
    let spec = node.node.runner().backend.spec.clone();
    let under = spec.under("amsterdam").expect("the next fork");
    let header = after.head.header.inner().clone();
    let block = Block::sealed(&after.head).expect("its body");
    let execute = || {
        let none = Withdrawals::default();
        black_box(execute_block(&spec, &before, &header, &sent, &[], Some(&none)).expect("it runs"));
    };
    let shadow = || {
        let mut overlay = Overlay::new(before.world.clone(), before.hashes.clone());
        let shadowed = shadow_block::<eyre::Report>(&spec, under, &block, 1 << 20, &mut overlay, |_, tx| {
            assert!(tx.difference.is_none(), "{tx:?}");
            Ok(())
        });
        shadowed.expect("it runs");
    };
    let (execute, shadow) = (timed(runs, &execute), timed(runs, &shadow));
    println!("  executing {execute:.1} ms, shadowing {shadow:.1} ms");
    shadow / execute
}
