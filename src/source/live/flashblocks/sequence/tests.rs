//! The rules as tables, and on random histories.

use alloy_primitives::{B64, Bytes, Sealable, Sealed, keccak256};
use op_alloy::{
    consensus::post_exec::{PostExecPayload, SDMGasEntry, TxPostExec},
    rpc_types_engine::{OpFlashblockPayloadBase, OpFlashblockPayloadDelta},
};
use proptest::prelude::*;

use super::*;
use crate::source::live::flashblocks::{block::MAX_SUB_BLOCKS, decode::Metadata};

/// A builder's block in the test: its number, its name, and the name of its parent (0: canonical block `number - 1`).
#[derive(Clone, Copy, Debug)]
struct Built {
    number: u64,
    name: u8,
    parent: B256,
}

fn canonical_hash(number: u64) -> B256 {
    B256::with_last_byte(u8::try_from(number).unwrap())
}

fn on_canonical(number: u64, name: u8) -> Built {
    Built { number, name, parent: canonical_hash(number - 1) }
}

impl Built {
    /// Returns the block's hash after this sub-block.
    fn hash(self, index: u64) -> B256 {
        keccak256([self.name, 1, u8::try_from(index).unwrap()])
    }

    /// Returns the block that is built on it after this sub-block.
    fn next(self, index: u64, name: u8) -> Self {
        Self { number: self.number + 1, name, parent: self.hash(index) }
    }

    fn transaction(self, index: u64) -> Bytes {
        Bytes::from(vec![2, self.name, u8::try_from(index).unwrap()])
    }

    fn sub(self, index: u64) -> Flashblock {
        let base = (index == 0).then(|| OpFlashblockPayloadBase {
            parent_hash: self.parent,
            block_number: self.number,
            ..Default::default()
        });
        let diff = OpFlashblockPayloadDelta {
            state_root: B256::repeat_byte(7),
            receipts_root: keccak256([self.name, 3, u8::try_from(index).unwrap()]),
            block_hash: self.hash(index),
            gas_used: 21_000 * (index + 1),
            transactions: vec![self.transaction(index)],
            ..Default::default()
        };
        let payload_id = B64::with_last_byte(self.name);
        let transactions = Ok(Default::default());
        Flashblock {
            payload_id,
            index,
            base,
            diff,
            transactions,
            post_exec: Ok(None),
            metadata: Metadata::default(),
            size: 1_000,
        }
    }

    /// Returns the canonical block that this block becomes after this sub-block.
    fn canonical(self, index: u64) -> CanonicalBlock {
        CanonicalBlock {
            number: self.number,
            hash: self.hash(index),
            parent_hash: self.parent,
            receipts_root: self.sub(index).diff.receipts_root,
            transactions: (0..=index).map(|index| keccak256(self.transaction(index))).collect(),
            post_exec: None,
        }
    }
}

fn plain(number: u64) -> CanonicalBlock {
    CanonicalBlock {
        number,
        hash: canonical_hash(number),
        parent_hash: canonical_hash(number - 1),
        receipts_root: B256::ZERO,
        transactions: Vec::new(),
        post_exec: None,
    }
}

/// An event.
#[derive(Clone, Debug)]
enum On {
    Sub(Built, u64),
    /// A sub-block that the test has altered.
    Changed(Arc<Flashblock>),
    Canonical(CanonicalBlock),
    Disconnected,
    /// A message may have been lost.
    Missed,
}

fn apply(rules: &mut FlashblockSequence, on: On) -> Vec<Action> {
    match on {
        On::Sub(built, index) => rules.flashblock(Arc::new(built.sub(index))),
        On::Changed(flashblock) => rules.flashblock(flashblock),
        On::Canonical(block) => rules.canonical(&block),
        On::Disconnected => rules.fail(FeedProblem::Disconnected),
        On::Missed => {
            rules.missed();
            Vec::new()
        }
    }
}

/// Returns the actions in a few words.
fn words(actions: &[Action]) -> String {
    let word = |action: &Action| match action {
        Action::Add { flashblock, .. } if flashblock.index == 0 => format!("open {}", name(flashblock)),
        Action::Add { flashblock, .. } => format!("extend {}.{}", name(flashblock), flashblock.index),
        Action::Ignore(why) => format!("ignore {why:?}").to_lowercase(),
        Action::FallBack(problem) => format!("fall back {}", problem.as_str()),
        Action::Retire { number } => format!("retire {number}"),
        Action::Replace { number, by } => format!("replace {number} {by:?}"),
    };
    actions.iter().map(word).collect::<Vec<_>>().join(", ")
}

fn name(flashblock: &Flashblock) -> u8 {
    flashblock.payload_id.0[7]
}

/// Runs a history and compares each answer.
fn history(steps: impl IntoIterator<Item = (On, &'static str)>) -> FlashblockSequence {
    let mut rules = FlashblockSequence::new(3, 20_000);
    for (at, (on, expected)) in steps.into_iter().enumerate() {
        let asked = format!("step {at}: {on:?}");
        assert_eq!(words(&apply(&mut rules, on)), expected, "{asked}");
    }
    rules
}

fn changed(mut flashblock: Flashblock, change: impl FnOnce(&mut Flashblock)) -> On {
    change(&mut flashblock);
    On::Changed(Arc::new(flashblock))
}

fn begun() -> (Built, Vec<(On, &'static str)>) {
    let a = on_canonical(11, 1);
    let steps =
        vec![(On::Canonical(plain(10)), "ignore canonical"), (On::Sub(a, 0), "open 1"), (On::Sub(a, 1), "extend 1.1")];
    (a, steps)
}

#[test]
fn sub_blocks_in_order_are_followed_and_their_canonical_block_retires_them() {
    let (a, mut steps) = begun();
    let b = a.next(1, 2);
    steps.extend([
        (On::Sub(b, 0), "open 2"),
        (On::Canonical(a.canonical(1)), "retire 11"),
        (On::Sub(b, 1), "extend 2.1"),
        (On::Canonical(b.canonical(1)), "retire 12"),
        (On::Sub(b.next(1, 3), 0), "open 3"),
    ]);
    assert_eq!(history(steps).blocks_ahead(), 1);
}

#[test]
fn a_duplicate_is_ignored_wherever_it_is_in_the_chain_ahead() {
    let (a, mut steps) = begun();
    steps.extend([
        (On::Sub(a, 1), "ignore duplicate"),
        (On::Sub(a, 0), "ignore duplicate"),
        (On::Sub(a.next(1, 2), 0), "open 2"),
        (On::Sub(a, 1), "ignore duplicate"),
        (On::Canonical(a.canonical(1)), "retire 11"),
        (On::Sub(a, 1), "ignore stale"),
        (On::Sub(a, 0), "ignore stale"),
    ]);
    history(steps);
}

#[test]
fn a_gap_falls_back_until_the_next_index_0() {
    let (a, mut steps) = begun();
    let b = a.next(4, 2);
    steps.extend([
        (On::Sub(a, 3), "fall back gap"),
        (On::Sub(a, 2), "ignore waiting"),
        (On::Sub(a, 4), "ignore waiting"),
        (On::Sub(b, 0), "ignore held"),
        (On::Sub(b, 1), "ignore held"),
        (On::Canonical(a.canonical(4)), "open 2, extend 2.1"),
        (On::Sub(b, 2), "extend 2.2"),
    ]);
    assert_eq!(history(steps).problem(), None);
}

#[test]
fn a_whole_block_that_is_missing_is_a_gap() {
    let (a, mut steps) = begun();
    let c = a.next(1, 2).next(0, 3);
    steps.extend([(On::Sub(c, 0), "fall back gap, ignore held")]);
    history(steps);

    let (a, mut steps) = begun();
    let next = changed(a.next(1, 2).sub(1), |sub| sub.metadata.block_number = Some(12));
    steps.extend([(next, "fall back gap")]);
    history(steps);
}

#[test]
fn an_index_again_with_other_content_is_out_of_order() {
    let (a, mut steps) = begun();
    steps.push((changed(a.sub(1), |sub| sub.diff.gas_used += 1), "fall back out_of_order"));
    history(steps);
}

#[test]
fn another_payload_in_the_middle_of_a_block_is_out_of_order() {
    let (_, mut steps) = begun();
    steps.push((On::Sub(on_canonical(11, 9), 2), "fall back out_of_order"));
    history(steps);
}

#[test]
fn a_sub_block_that_names_another_block_than_its_own_is_out_of_order() {
    let (a, mut steps) = begun();
    steps.push((changed(a.sub(2), |sub| sub.metadata.block_number = Some(12)), "fall back out_of_order"));
    history(steps);
    let (a, mut steps) = begun();
    let base = OpFlashblockPayloadBase { block_number: 11, ..Default::default() };
    steps.push((changed(a.sub(2), |sub| sub.base = Some(base)), "fall back out_of_order"));
    history(steps);
}

#[test]
fn a_sub_block_for_a_block_that_was_built_on_is_out_of_order() {
    let (a, mut steps) = begun();
    steps.extend([(On::Sub(a.next(1, 2), 0), "open 2"), (On::Sub(a, 2), "fall back out_of_order")]);
    history(steps);
}

#[test]
fn a_lost_connection_falls_back_and_an_index_0_recovers() {
    let (a, mut steps) = begun();
    steps.extend([
        (On::Disconnected, "fall back disconnected"),
        (On::Sub(a, 2), "ignore waiting"),
        (On::Sub(a, 0), "open 1"),
        (On::Sub(a, 1), "extend 1.1"),
        (On::Disconnected, "fall back disconnected"),
    ]);
    assert_eq!(history(steps).problem(), Some(FeedProblem::Disconnected));
}

#[test]
fn a_base_on_an_unknown_parent_falls_back_and_is_held() {
    let (_, mut steps) = begun();
    let stranger = Built { number: 12, name: 5, parent: B256::repeat_byte(9) };
    steps.extend([
        (On::Sub(stranger, 0), "fall back unknown_parent, ignore held"),
        (On::Sub(stranger, 1), "ignore held"),
        (On::Sub(stranger, 3), "ignore waiting"),
        (On::Sub(stranger, 0), "ignore held"),
        (On::Canonical(plain(11)), "ignore canonical"),
        (On::Canonical(CanonicalBlock { hash: B256::repeat_byte(9), ..plain(11) }), "open 5"),
    ]);
    history(steps);
}

#[test]
fn a_builder_that_begins_a_block_anew_replaces_it_and_what_is_on_it() {
    let (a, mut steps) = begun();
    let again = on_canonical(11, 9);
    steps.extend([
        (On::Sub(a.next(1, 2), 0), "open 2"),
        (On::Sub(again, 0), "replace 11 Restart, open 9"),
        (On::Sub(a, 2), "ignore stale"),
        (On::Sub(a, 0), "ignore stale"),
        (On::Sub(again, 1), "extend 9.1"),
        (changed(again.sub(0), |sub| sub.diff.gas_used += 1), "replace 11 Restart, open 9"),
        (On::Sub(again, 1), "extend 9.1"),
    ]);
    history(steps);
}

#[test]
fn a_block_that_follows_one_that_was_begun_anew_stands_on_the_new_one() {
    let (a, mut steps) = begun();
    let b = a.next(1, 2);
    let c = a.next(1, 3);
    steps.extend([
        (On::Sub(b, 0), "open 2"),
        (On::Sub(c, 0), "replace 12 Restart, open 3"),
        (On::Sub(b, 1), "ignore stale"),
    ]);
    history(steps);
}

#[test]
fn a_canonical_block_that_differs_replaces_all_that_was_ahead() {
    let (a, mut steps) = begun();
    let b = a.next(1, 2);
    steps.extend([
        (On::Sub(b, 0), "open 2"),
        (On::Canonical(plain(11)), "replace 11 Canonical, fall back mismatch"),
        (On::Sub(b, 1), "ignore stale"),
        (On::Sub(on_canonical(12, 4), 0), "open 4"),
    ]);
    history(steps);
}

#[test]
fn a_canonical_block_that_came_before_its_last_sub_blocks_overtakes_them() {
    let (a, mut steps) = begun();
    steps.extend([
        (On::Canonical(a.canonical(4)), "replace 11 Overtaken"),
        (On::Sub(a, 2), "ignore stale"),
        (On::Sub(a.next(4, 2), 0), "open 2"),
    ]);
    assert_eq!(history(steps).problem(), None);
}

/// Returns a sub-block whose block refunds this much gas to its second transaction so far.
fn refunded(built: Built, index: u64, gas_refund: u64) -> On {
    changed(built.sub(index), |sub| sub.post_exec = Ok(Some(post_exec(built, gas_refund))))
}

fn post_exec(built: Built, gas_refund: u64) -> Sealed<TxPostExec> {
    let gas_refund_entries = vec![SDMGasEntry { index: 1, gas_refund }];
    let payload = PostExecPayload { version: 1, block_number: built.number, gas_refund_entries };
    TxPostExec::new(payload).seal_slow()
}

/// Returns the canonical block that this block becomes after this sub-block, with this refund. Its builder left out the hash.
fn canonical_refunded(built: Built, index: u64, gas_refund: u64) -> CanonicalBlock {
    let (post_exec, receipts_root) = (Some(post_exec(built, gas_refund).hash()), B256::repeat_byte(0x33));
    CanonicalBlock { post_exec, receipts_root, hash: B256::repeat_byte(0x44), ..built.canonical(index) }
}

#[test]
fn a_block_is_its_canonical_block_only_with_the_last_refunds() {
    let a = on_canonical(11, 1);
    // Whether the root of the receipts covers the receipt of the post-execution transaction is up to the builder.
    let start = || [(refunded(a, 0, 5), "open 1"), (refunded(a, 1, 7), "extend 1.1")];
    let mut steps = vec![(On::Canonical(plain(10)), "ignore canonical")];
    steps.extend(start());
    steps.extend([(refunded(a, 1, 7), "ignore duplicate"), (On::Canonical(canonical_refunded(a, 1, 7)), "retire 11")]);
    assert_eq!(history(steps).problem(), None);
    for canonical in [canonical_refunded(a, 1, 5), CanonicalBlock { hash: B256::repeat_byte(0x44), ..a.canonical(1) }] {
        let mut steps = vec![(On::Canonical(plain(10)), "ignore canonical")];
        steps.extend(start());
        steps.push((On::Canonical(canonical), "replace 11 Overtaken"));
        assert_eq!(history(steps).problem(), None);
    }
    // The block after it was built on something else.
    let b = a.next(1, 2);
    let mut steps = vec![(On::Canonical(plain(10)), "ignore canonical")];
    steps.extend(start());
    let canonical = canonical_refunded(a, 1, 5);
    steps.extend([(On::Sub(b, 0), "open 2"), (On::Canonical(canonical), "replace 11 Canonical, fall back mismatch")]);
    history(steps);
}

#[test]
fn an_index_again_with_other_refunds_is_out_of_order() {
    let (a, mut steps) = begun();
    steps.push((refunded(a, 1, 5), "fall back out_of_order"));
    history(steps);
}

#[test]
fn canonical_blocks_that_jump_over_all_that_is_ahead_overtake_it() {
    let (a, mut steps) = begun();
    steps.extend([
        (On::Canonical(plain(20)), "replace 11 Overtaken"),
        (On::Sub(a, 2), "ignore stale"),
        (On::Sub(on_canonical(21, 2), 0), "open 2"),
    ]);
    history(steps);
}

#[test]
fn the_child_of_what_is_ahead_retires_it() {
    let (a, mut steps) = begun();
    let b = a.next(1, 2);
    steps.extend([
        (On::Sub(b, 0), "open 2"),
        (On::Canonical(b.next(0, 3).canonical(0)), "retire 11, retire 12"),
        (On::Sub(b.next(0, 3).next(0, 4), 0), "open 4"),
    ]);
    history(steps);
}

#[test]
fn a_canonical_block_further_on_retires_those_before_it() {
    let (a, mut steps) = begun();
    let b = a.next(1, 2);
    steps.extend([(On::Sub(b, 0), "open 2"), (On::Canonical(b.canonical(0)), "retire 11, retire 12")]);
    history(steps);
}

#[test]
fn another_branch_below_what_is_ahead_is_a_reorg() {
    let (_, mut steps) = begun();
    let other = CanonicalBlock { hash: B256::repeat_byte(8), ..plain(10) };
    steps.extend([
        (On::Canonical(other), "fall back reorg"),
        (On::Sub(Built { number: 11, name: 4, parent: B256::repeat_byte(8) }, 0), "open 4"),
    ]);
    history(steps);

    let (a, mut steps) = begun();
    let other = CanonicalBlock { parent_hash: B256::repeat_byte(8), hash: B256::repeat_byte(6), ..a.canonical(1) };
    steps.push((On::Canonical(other), "replace 11 Canonical, fall back reorg"));
    history(steps);
}

#[test]
fn a_head_that_is_told_again_changes_nothing() {
    let (a, mut steps) = begun();
    steps.extend([
        (On::Canonical(plain(10)), "ignore canonical"),
        (On::Canonical(a.canonical(1)), "retire 11"),
        (On::Sub(a.next(1, 2), 0), "open 2"),
        (On::Canonical(plain(10)), "ignore canonical"),
        (On::Sub(a.next(1, 2), 1), "extend 2.1"),
    ]);
    history(steps);
}

#[test]
fn no_more_blocks_are_kept_ahead_than_allowed() {
    let (a, mut steps) = begun();
    let (b, c, d, e) = {
        let b = a.next(1, 2);
        (b, b.next(0, 3), b.next(0, 3).next(0, 4), b.next(0, 3).next(0, 4).next(0, 5))
    };
    steps.extend([
        (On::Sub(b, 0), "open 2"),
        (On::Sub(c, 0), "open 3"),
        (On::Sub(d, 0), "fall back upstream, ignore held"),
        (On::Sub(e, 0), "ignore held"),
        (On::Canonical(c.canonical(0)), "open 4, open 5"),
    ]);
    history(steps);
}

#[test]
fn no_more_bytes_are_held_than_allowed() {
    let stranger = Built { number: 12, name: 5, parent: B256::repeat_byte(9) };
    let mut rules = FlashblockSequence::new(3, 20_000);
    for index in 0..40 {
        let expected = if index < 20 { "ignore held" } else { "ignore waiting" };
        assert_eq!(words(&apply(&mut rules, On::Sub(stranger, index))), expected, "{index}");
    }
}

#[test]
fn no_more_sub_blocks_are_taken_for_one_block_than_allowed() {
    let mut rules: FlashblockSequence = FlashblockSequence::new(3, 0);
    rules.canonical(&plain(10));
    let mut sub = on_canonical(11, 1).sub(0);
    for index in 0..MAX_SUB_BLOCKS as u64 {
        sub.index = index;
        assert!(!words(&rules.flashblock(Arc::new(sub.clone()))).contains("fall back"), "{index}");
        sub.base = None;
    }
    sub.index += 1;
    assert_eq!(words(&rules.flashblock(Arc::new(sub))), "fall back out_of_order");
}

#[test]
fn a_builder_that_gives_no_state_roots_is_matched_by_what_is_in_its_blocks() {
    let no_root = |built: Built, index| changed(built.sub(index), |sub| sub.diff.state_root = B256::ZERO);
    let a = on_canonical(11, 1);
    let sealed = |transactions: u64| CanonicalBlock { hash: B256::repeat_byte(5), ..a.canonical(transactions) };
    let b = Built { number: 12, name: 2, parent: B256::repeat_byte(5) };
    let steps = [
        (On::Canonical(plain(10)), "ignore canonical"),
        (no_root(a, 0), "open 1"),
        (no_root(a, 1), "extend 1.1"),
        (no_root(b, 0), "open 2"),
        (On::Canonical(sealed(1)), "retire 11"),
        (no_root(b, 1), "extend 2.1"),
    ];
    history(steps);
    // The last sub-block was never received, so the next block was built on another state.
    let steps = [
        (On::Canonical(plain(10)), "ignore canonical"),
        (no_root(a, 0), "open 1"),
        (no_root(b, 0), "open 2"),
        (On::Canonical(sealed(1)), "replace 11 Canonical, fall back mismatch"),
    ];
    history(steps);
    // The next block was built on another block with the same content.
    let steps = [
        (On::Canonical(plain(10)), "ignore canonical"),
        (no_root(a, 0), "open 1"),
        (no_root(a.next(0, 2), 0), "open 2"),
        (On::Canonical(sealed(0)), "retire 11, replace 12 Canonical, fall back mismatch"),
    ];
    history(steps);
}

#[test]
fn what_the_caller_cannot_do_falls_back() {
    let (a, steps) = begun();
    let mut rules = history(steps);
    assert_eq!(words(&rules.fail(FeedProblem::Execution)), "fall back execution");
    assert_eq!(words(&apply(&mut rules, On::Sub(a, 2))), "ignore waiting");
    assert_eq!(words(&apply(&mut rules, On::Sub(a, 0))), "open 1");
}

#[test]
fn a_message_that_may_be_missing_costs_nothing_if_the_next_is_the_one_that_was_due() {
    let (a, mut steps) = begun();
    let b = a.next(2, 2);
    steps.extend([
        (On::Missed, ""),
        (On::Sub(a, 1), "ignore duplicate"),
        (On::Sub(a, 2), "extend 1.2"),
        // The next block names the one before it, so that nothing of that is missing.
        (On::Missed, ""),
        (On::Sub(b, 0), "open 2"),
        (On::Missed, ""),
        (On::Sub(b, 2), "fall back gap"),
    ]);
    history(steps);
}

#[test]
fn a_block_whose_end_may_be_missing_is_not_built_on() {
    // The builder computes no hashes, so that the block may have more sub-blocks than have arrived.
    let no_root = |built: Built, index| changed(built.sub(index), |flashblock| flashblock.diff.state_root = B256::ZERO);
    let a = on_canonical(11, 1);
    let steps = [
        (On::Canonical(plain(10)), "ignore canonical"),
        (no_root(a, 0), "open 1"),
        (On::Missed, ""),
        (no_root(a.next(0, 2), 0), "fall back gap, ignore held"),
    ];
    history(steps);
    // A block that is started again has a parent that was complete.
    let steps = [
        (On::Canonical(plain(10)), "ignore canonical"),
        (no_root(a, 0), "open 1"),
        (no_root(a.next(0, 2), 0), "open 2"),
        (On::Missed, ""),
        (no_root(a.next(0, 3), 0), "replace 12 Restart, open 3"),
    ];
    history(steps);
}

#[test]
fn nothing_is_given_out_before_a_canonical_block_is_known() {
    let a = on_canonical(11, 1);
    let steps = [
        (On::Sub(a, 3), "ignore waiting"),
        (On::Sub(a, 0), "ignore held"),
        (On::Canonical(plain(9)), "ignore canonical"),
        (On::Canonical(plain(10)), "open 1"),
    ];
    history(steps);
}

/// The pre-confirmed blocks of a caller that follows the rules, with their numbers of sub-blocks.
#[derive(Debug, Default)]
struct PreconfirmedByCaller {
    head: Option<u64>,
    blocks: Vec<(u64, B64, u64)>,
}

impl PreconfirmedByCaller {
    fn act(&mut self, action: &Action) {
        match action {
            Action::Add { number, flashblock } if flashblock.index == 0 => {
                assert_eq!(*number, flashblock.base.as_ref().unwrap().block_number);
                let below = self.blocks.last().map_or_else(|| self.head.unwrap(), |last| last.0);
                assert_eq!(*number, below + 1, "{self:?}");
                self.blocks.push((*number, flashblock.payload_id, 1));
            }
            Action::Add { number, flashblock } => {
                assert_eq!(*number, self.blocks.last().unwrap().0);
                let (_, id, subs) = self.blocks.last_mut().unwrap();
                assert_eq!((flashblock.payload_id, flashblock.index), (*id, *subs));
                *subs += 1;
            }
            Action::Ignore(_) => {}
            Action::FallBack(_) => self.blocks.clear(),
            Action::Retire { number } => {
                assert_eq!(self.blocks.remove(0).0, *number);
                assert!(self.head.unwrap() >= *number);
            }
            Action::Replace { number, .. } => {
                assert!(self.blocks.iter().any(|block| block.0 == *number), "{self:?}");
                self.blocks.retain(|block| block.0 < *number);
            }
        }
    }
}

fn events() -> impl Strategy<Value = On> {
    // Two builders, whose blocks fit each other in part. The parent's last sub-block is 1 or 2.
    let built = (11u64..16, 0u8..2, 0u64..4).prop_map(|(number, builder, tip)| {
        let name = |number: u64| u8::try_from(number).unwrap() * 4 + builder;
        match tip {
            0 | 3 => on_canonical(number, name(number)),
            tip => Built { number: number - 1, name: name(number - 1), parent: B256::ZERO }.next(tip, name(number) + 2),
        }
    });
    let sub = (built.clone(), 0u64..4);
    prop_oneof![
        8 => sub.prop_map(|(built, index)| On::Sub(built, index)),
        2 => (10u64..16).prop_map(|number| On::Canonical(plain(number))),
        2 => (built, 0u64..4).prop_map(|(built, index)| On::Canonical(built.canonical(index))),
        1 => Just(On::Disconnected),
        2 => Just(On::Missed),
    ]
}

proptest! {
    #[test]
    fn whatever_comes_nothing_stands_on_what_is_not_there_and_the_next_index_0_recovers(
        history in proptest::collection::vec(events(), 0..80),
    ) {
        let mut rules = FlashblockSequence::new(3, 8_000);
        let mut caller = PreconfirmedByCaller::default();
        for on in history {
            if let On::Canonical(block) = &on
                && !rules.canonical.contains(&(block.number, block.hash))
            {
                caller.head = Some(block.number);
            }
            for action in apply(&mut rules, on) {
                caller.act(&action);
            }
            prop_assert_eq!(caller.blocks.len(), rules.blocks_ahead());
            prop_assert!(rules.problem().is_none() || caller.blocks.is_empty());
            prop_assert!(rules.ahead.len() <= 3 && rules.gone.len() <= REMEMBERED);
        }
        let held: usize = rules.ahead.iter().flat_map(|block| &block.held).map(|sub| sub.size).sum();
        prop_assert!(held <= 8_000);
        apply(&mut rules, On::Canonical(plain(100)));
        prop_assert_eq!(words(&apply(&mut rules, On::Sub(on_canonical(101, 1), 0))), "open 1");
    }
}
