//! A block of Amsterdam on a cold cache: executed, and applied from its access list (EIP-7928). All on one thread, so that the time is that
//! of the processor.

use std::hint::black_box;

use alloy_eips::{eip4895::Withdrawals, eip7928::compute_block_access_list_hash};
use presim::testing::{
    chain::receipts_root_and_bloom,
    engine::execute_block,
    state::{RemoteSettings, RemoteState, World, listed_changes},
    upstream::recover,
};

use crate::full_block::{Doing, FullBlock, timed};

/// The transactions of the block. They take about 300 Mgas.
const TRANSACTIONS: usize = 3_000;

/// Prints the medians of so many runs, and returns the ratios of applying to executing: with the recovery of the senders and the roots of
/// receipts, and without.
pub async fn run(runs: usize) -> (f64, f64) {
    let FullBlock { node, before, after, raw, sent } =
        FullBlock::new(&["--fork", "amsterdam=0"], TRANSACTIONS, Doing::Swap).await;
    let backend = node.node.runner().backend.clone();
    let (header, body) = (after.head.header.inner().clone(), after.head.body());
    let list = body.access_list.as_ref().expect("a list");
    println!("  a list of {} accounts", list.len());
    let around = || {
        black_box(recover(raw.clone()).expect("signatures"));
        black_box(receipts_root_and_bloom(&body.receipts));
    };
    let execute = || {
        let none = Withdrawals::default();
        black_box(execute_block(&backend.spec, &before, &header, &sent, &[], Some(&none)).expect("it runs"));
    };
    let apply = || {
        let view = RemoteState::begin(RemoteSettings::of_bytes(256 << 20), 0, before.head_hash());
        assert_eq!(Some(compute_block_access_list_hash(list)), header.block_access_list_hash);
        let changes = listed_changes(list, &World::on(view.clone()), &backend.codes);
        black_box(view.advance_by_list(1, after.head_hash(), &changes).expect("it comes next"));
    };
    let (around, execute, apply) = (timed(runs, &around), timed(runs, &execute), timed(runs, &apply));
    println!("  executing {execute:.1} ms, applying {apply:.1} ms, senders and receipts {around:.1} ms");
    ((around + apply) / (around + execute), apply / execute)
}
