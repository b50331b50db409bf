use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use alloy_primitives::{Address, B256, U256, keccak256};
use proptest::prelude::*;
use revm::state::AccountInfo;

use super::{Fetched, Miss, RemoteSettings, RemoteState, RemoteView};
use crate::state::{AccountChange, CodeCache};

const ACCOUNTS: u8 = 3;
const SLOTS: u8 = 4;

/// An account: its balance, whether its storage is cleared, and the slots that are written then.
type Change = (u8, u64, bool, Vec<(u8, u64)>);

/// An operation on the chain or the cache.
#[derive(Clone, Debug)]
enum Step {
    /// Appends a block with these changes. A cleared storage is cleared before its slots are written.
    Advance(Vec<Change>),
    /// Appends a block with these changes, which the cache is not given.
    Cut(Vec<Change>),
    Touch(Vec<Change>),
    /// Appends a block with these changes, but for those of storage that is cleared, in its access list.
    List(Vec<Change>),
    /// Fetches a value at the block so far behind the head, or behind the last of those that reorgs have removed.
    Fetch {
        behind: usize,
        account: u8,
        slot: Option<u8>,
        is_removed: bool,
    },
    /// Removes so many blocks.
    Revert(usize),
}

/// The whole state after a block.
#[derive(Clone, Debug, Default)]
struct Plain {
    balances: HashMap<u8, u64>,
    slots: HashMap<(u8, u8), u64>,
}

impl Plain {
    fn apply(&mut self, changes: &[Change]) {
        for (account, balance, cleared, slots) in changes {
            self.balances.insert(*account, *balance);
            if *cleared {
                self.slots.retain(|(of, _), _| of != account);
            }
            for (slot, value) in slots {
                self.slots.insert((*account, *slot), *value);
            }
        }
    }
}

fn address(account: u8) -> Address {
    Address::with_last_byte(account + 1)
}

fn changes(of: &[Change]) -> Vec<AccountChange> {
    let change = |(account, balance, cleared, slots): &Change| AccountChange {
        address: address(*account),
        // Balance zero means that the account does not exist.
        info: (*balance != 0).then(|| AccountInfo { balance: U256::from(*balance), ..AccountInfo::default() }),
        storage_cleared: *cleared,
        slots: slots.iter().map(|(slot, value)| (U256::from(*slot), U256::from(*value))).collect(),
    };
    of.iter().map(change).collect()
}

fn some_changes() -> impl Strategy<Value = Vec<Change>> {
    let slots = prop::collection::hash_map(0..SLOTS, 0..3_u64, 0..3).prop_map(|slots| slots.into_iter().collect());
    let one = (0..3_u64, prop::bool::weighted(0.2), slots);
    prop::collection::hash_map(0..ACCOUNTS, one, 0..3)
        .prop_map(|all| all.into_iter().map(|(of, (balance, cleared, slots))| (of, balance, cleared, slots)).collect())
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => some_changes().prop_map(Step::Advance),
        1 => some_changes().prop_map(Step::Cut),
        1 => some_changes().prop_map(Step::Touch),
        2 => some_changes().prop_map(Step::List),
        8 => (0..4_usize, 0..ACCOUNTS, prop::option::weighted(0.7, 0..SLOTS), prop::bool::weighted(0.3))
            .prop_map(|(behind, account, slot, is_removed)| Step::Fetch { behind, account, slot, is_removed }),
        1 => (1..4_usize).prop_map(Step::Revert),
    ];
    prop::collection::vec(step, 1..60)
}

fn check(view: &RemoteView, plain: &Plain) -> Result<usize, TestCaseError> {
    let mut known = 0;
    for account in 0..ACCOUNTS {
        if let Some(info) = view.account(&address(account)) {
            let balance = plain.balances.get(&account).copied().unwrap_or_default();
            prop_assert_eq!(info.map(|info| info.balance), (balance != 0).then(|| U256::from(balance)));
            known += 1;
        }
        for slot in 0..SLOTS {
            if let Some(value) = view.slot(&address(account), &U256::from(slot)) {
                let expected = plain.slots.get(&(account, slot)).copied().unwrap_or_default();
                prop_assert_eq!(value, U256::from(expected), "slot {} of {} at {:?}", slot, account, view);
                known += 1;
            }
        }
    }
    Ok(known)
}

fn hash(salt: u64) -> B256 {
    keccak256(salt.to_be_bytes())
}

fn begin(bytes: usize, number: u64, hash: B256) -> RemoteView {
    RemoteState::begin(RemoteSettings::of_bytes(bytes), number, hash)
}

/// Returns a piece of the state of a block, as an upstream has it.
fn fetched(plain: &Plain, account: u8, slot: Option<u8>) -> Fetched {
    let address = address(account);
    match slot {
        None => Fetched::Account {
            address,
            balance: U256::from(plain.balances.get(&account).copied().unwrap_or_default()),
            nonce: 0,
            code: Default::default(),
        },
        Some(slot) => Fetched::Slot {
            address,
            slot: U256::from(slot),
            value: U256::from(plain.slots.get(&(account, slot)).copied().unwrap_or_default()),
        },
    }
}

/// Runs the operations on a cache and on a plain model of every block, and checks all that the cache returns for any
/// block, also of those that a reorg has removed. Returns the view of the newest block.
fn run(bytes: usize, blocks: usize, steps: &[Step]) -> Result<RemoteView, TestCaseError> {
    let first = 1_000;
    let settings = RemoteSettings { blocks, ..RemoteSettings::of_bytes(bytes) };
    let mut canonical = vec![(RemoteState::begin(settings, first, hash(0)), Plain::default())];
    let mut removed: Vec<(RemoteView, Plain)> = Vec::new();
    for (salt, step) in steps.iter().enumerate() {
        let number = first + canonical.len() as u64;
        let hash = hash(salt as u64 + 1);
        let (head, mut plain) = canonical.last().cloned().unwrap();
        match step {
            Step::Advance(of) | Step::Cut(of) | Step::Touch(of) => {
                plain.apply(of);
                let view = match step {
                    Step::Advance(_) => head.advance(number, hash, &changes(of)),
                    Step::Touch(_) => head.touch(number, hash, &changes(of)),
                    _ => head.push_unknown_block(number, hash),
                };
                canonical.push((view.expect("it comes next"), plain));
            }
            Step::List(of) => {
                let of: Vec<_> =
                    of.iter().cloned().map(|(of, balance, _, slots)| (of, balance, false, slots)).collect();
                plain.apply(&of);
                let mut listed = changes(&of);
                // Of an account that is not known, the list has not all that is to be known.
                for change in listed.iter_mut().filter(|change| head.account(&change.address).is_none()) {
                    change.info = None;
                }
                canonical.push((head.advance_by_list(number, hash, &listed).expect("it comes next"), plain));
            }
            Step::Fetch { behind, account, slot, is_removed } => {
                let of = if *is_removed && !removed.is_empty() { &removed } else { &canonical };
                let (view, plain) = &of[of.len().saturating_sub(1 + behind)];
                let miss = match slot {
                    None => Miss::Account(address(*account)),
                    Some(slot) => Miss::Slot(address(*account), U256::from(*slot)),
                };
                let held = view.insert_held([fetched(plain, *account, *slot)]);
                prop_assert!(view.knows(&miss), "what is held at {view:?} is not known there");
                check(view, plain)?;
                drop(held);
                prop_assert!(view.knows(&miss) || bytes < 100_000, "what was fetched at {view:?} is not known there");
            }
            Step::Revert(count) => {
                let left = canonical.len().saturating_sub(*count).max(1);
                let fork = canonical[left - 1].0.clone();
                if !fork.go_back() {
                    prop_assert!(blocks < 256, "{fork:?} is retained");
                    continue;
                }
                removed.extend(canonical.drain(left..));
            }
        }
        for (view, plain) in canonical.iter().chain(&removed) {
            check(view, plain)?;
        }
        prop_assert!(removed.iter().all(|(view, _)| view.is_abandoned()));
        prop_assert!(removed.iter().all(|(view, _)| view.advance(view.number() + 1, hash, &[]).is_none()));
        let stats = canonical[0].0.state().stats();
        prop_assert!(stats.bytes <= bytes, "{stats:?}");
        // The views of the oldest are dropped, and what they alone have goes with them.
        removed.drain(..removed.len().saturating_sub(6));
    }
    Ok(canonical.pop().unwrap().0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn what_is_known_of_a_block_is_what_it_was(steps in steps()) {
        run(1 << 20, 256, &steps)?;
    }

    #[test]
    fn what_is_known_of_a_block_that_is_no_longer_retained_is_what_it_was(steps in steps()) {
        run(1 << 20, 2, &steps)?;
    }

    #[test]
    fn the_bound_holds_and_what_is_left_is_right(steps in steps()) {
        run(1_500, 256, &steps)?;
    }

    #[test]
    fn what_a_block_does_not_change_stays_known(fetched in prop::collection::vec((0..ACCOUNTS, 0..SLOTS), 1..8), after in some_changes()) {
        let view = begin(1 << 20, 7, hash(0));
        for (account, slot) in &fetched {
            let value = Fetched::Slot { address: address(*account), slot: U256::from(*slot), value: U256::from(5) };
            view.insert([value]);
        }
        let next = view.advance(8, hash(1), &changes(&after)).unwrap();
        for (account, slot) in &fetched {
            let change = after.iter().find(|(of, ..)| of == account);
            let (cleared, written) = change.map_or((false, None), |(_, _, cleared, slots)| {
                (*cleared, slots.iter().find(|(of, _)| of == slot).map(|(_, value)| U256::from(*value)))
            });
            let expected = written.or((!cleared).then(|| U256::from(5)));
            prop_assert_eq!(next.slot(&address(*account), &U256::from(*slot)), expected);
            prop_assert_eq!(view.slot(&address(*account), &U256::from(*slot)), Some(U256::from(5)));
        }
    }

    #[test]
    fn an_image_brings_back_what_was_known(steps in steps()) {
        let view = run(1 << 20, 256, &steps)?;
        let image = view.export();
        let encoded = alloy_rlp::encode(&image);
        let image = alloy_rlp::decode_exact(&encoded).expect("it is as it was written");
        let new = begin(1 << 20, view.number(), view.hash());
        prop_assert!(new.import(image, &CodeCache::new(1 << 20)));
        for account in 0..ACCOUNTS {
            prop_assert_eq!(new.account(&address(account)), view.account(&address(account)));
            for slot in 0..SLOTS {
                let slot = U256::from(slot);
                prop_assert_eq!(new.slot(&address(account), &slot), view.slot(&address(account), &slot));
            }
        }
    }
}

#[test]
fn a_value_fetched_late_ends_where_the_next_block_changed_it() {
    let late = begin(1 << 20, 7, hash(0));
    let middle = late.advance(8, hash(1), &changes(&[(0, 1, false, vec![(0, 2)])])).unwrap();
    let newest = middle.advance(9, hash(2), &[]).unwrap();
    let slot =
        |slot: u64, value: u64| Fetched::Slot { address: address(0), slot: U256::from(slot), value: U256::from(value) };
    late.insert([slot(0, 1), slot(1, 4)]);
    let at = |view: &RemoteView, slot: u64| view.slot(&address(0), &U256::from(slot));
    assert_eq!(
        [at(&late, 0), at(&middle, 0), at(&newest, 0)],
        [Some(U256::from(1)), Some(U256::from(2)), Some(U256::from(2))]
    );
    assert_eq!([at(&late, 1), at(&middle, 1), at(&newest, 1)], [Some(U256::from(4)); 3]);
}

/// Returns a slot of the first account.
fn slot_at(view: &RemoteView, slot: u64) -> Option<U256> {
    view.slot(&address(0), &U256::from(slot))
}

/// Returns changes that write a slot of the first account.
fn writes(slot: u8, value: u64) -> Vec<AccountChange> {
    changes(&[(0, 1, false, vec![(slot, value)])])
}

#[test]
fn a_chain_that_begins_anew_knows_nothing_of_before_and_what_was_before_stays_readable() {
    let before = begin(1 << 20, 7, hash(0));
    before.insert([fetched(&Plain { slots: HashMap::from([((0, 0), 1)]), ..Plain::default() }, 0, Some(0))]);
    let after = before.begin_anew(7, hash(9));
    assert!(before.is_abandoned() && !after.is_abandoned());
    assert_eq!([slot_at(&before, 0), slot_at(&after, 0)], [Some(U256::from(1)), None]);
    let both = after.state().stats();
    drop(before);
    assert!(after.state().stats().bytes < both.bytes && after.state().stats().entries == 0);
}

#[test]
fn removed_blocks_stay_readable_through_the_reorgs_after_theirs() {
    let fork = begin(1 << 20, 7, hash(0));
    fork.insert([fetched(&Plain { slots: HashMap::from([((0, 3), 5)]), ..Plain::default() }, 0, Some(3))]);
    let one = fork.advance(8, hash(1), &writes(0, 10)).unwrap();
    let two = one.advance(9, hash(2), &writes(1, 11)).unwrap();
    assert!(one.go_back());
    let other = one.advance(9, hash(3), &writes(1, 12)).unwrap();
    assert!(fork.go_back());
    let newest = fork.advance(8, hash(4), &writes(0, 13)).unwrap();
    let last = newest.advance(9, hash(5), &writes(3, 14)).unwrap();
    let values = |view: &RemoteView| [0, 1, 3].map(|slot| slot_at(view, slot).map(|value| value.to::<u64>()));
    assert_eq!(values(&two), [Some(10), Some(11), Some(5)]);
    assert_eq!(values(&other), [Some(10), Some(12), Some(5)]);
    assert_eq!(values(&one), [Some(10), None, Some(5)]);
    assert_eq!(values(&last), [Some(13), None, Some(14)]);
    assert_eq!([7, 8, 9].map(|number| two.block_hash(number)), [Some(hash(0)), Some(hash(1)), Some(hash(2))]);
    assert_eq!([7, 8, 9].map(|number| last.block_hash(number)), [Some(hash(0)), Some(hash(4)), Some(hash(5))]);
    // A value that is fetched for one of them is known there alone.
    two.insert([fetched(&Plain { slots: HashMap::from([((0, 2), 6)]), ..Plain::default() }, 0, Some(2))]);
    assert_eq!([&two, &one, &other, &last].map(|view| slot_at(view, 2)), [Some(U256::from(6)), None, None, None]);
    let all = last.state().stats();
    drop([one, two, other]);
    assert!(last.state().stats().bytes < all.bytes, "the branches go with their last views");
}

#[test]
fn a_removed_block_knows_what_it_did_not_change() {
    let fork = begin(1 << 20, 7, hash(0));
    let plain = Plain { balances: HashMap::from([(0, 1)]), ..Plain::default() };
    fork.insert([fetched(&plain, 0, None)]);
    // The account is among the changes of both branches, and only a slot of it differs.
    let dead = fork.advance(8, hash(1), &writes(0, 2)).unwrap();
    assert!(fork.go_back());
    let live = fork.advance(8, hash(2), &writes(0, 3)).unwrap();
    for view in [&fork, &dead, &live] {
        assert_eq!(view.account(&address(0)).flatten().map(|info| info.balance), Some(U256::from(1)), "{view:?}");
    }
}

#[test]
fn a_reader_of_a_block_that_is_being_removed_sees_its_values_throughout() {
    for round in 0..200 {
        let fork = begin(1 << 20, 7, hash(0));
        let dead = fork.advance(8, hash(1), &writes(0, 10)).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !is_over.load(Relaxed) {
                    assert_eq!(slot_at(&dead, 0), Some(U256::from(10)), "round {round}");
                }
            });
            let (is_back, live) = (fork.go_back(), fork.advance(8, hash(2), &writes(0, 11)));
            is_over.store(true, Relaxed);
            assert!(is_back);
            assert_eq!(slot_at(&live.unwrap(), 0), Some(U256::from(11)));
        });
    }
}

#[test]
fn what_a_removed_branch_keeps_is_within_the_bound_of_all() {
    let bytes = 400_000;
    let fork = begin(bytes, 7, hash(0));
    let (mut dead, mut live) = (fork.clone(), fork.clone());
    let all = |value: u64| {
        changes(
            &(0..ACCOUNTS)
                .map(|of| (of, value, false, (0..200).map(|slot| (slot, value)).collect()))
                .collect::<Vec<_>>(),
        )
    };
    for number in 8..12 {
        dead = dead.advance(number, hash(number), &all(number)).unwrap();
    }
    assert!(fork.go_back());
    let kept = |view: &RemoteView| (0..200).filter(|slot| slot_at(view, *slot) == Some(U256::from(11))).count();
    assert_eq!(kept(&dead), 200);
    for number in 8..12 {
        live = live.advance(number, hash(number + 100), &all(number + 100)).unwrap();
        for account in 10..250 {
            live.insert([fetched(&Plain::default(), account, Some(0))]);
        }
        assert!(live.state().stats().bytes <= bytes, "{:?}", live.state().stats());
    }
    assert!(live.state().stats().evicted > 0);
    assert!(kept(&dead) > 50, "the larger cache gives way: {}", kept(&dead));
}

#[test]
fn a_held_value_is_known_whatever_the_cache_keeps() {
    let view = RemoteState::begin(RemoteSettings { blocks: 1, ..RemoteSettings::of_bytes(1) }, 7, hash(0));
    let plain = Plain { balances: HashMap::from([(0, 3)]), slots: HashMap::from([((0, 0), 4)]) };
    let held = view.insert_held([fetched(&plain, 0, None), fetched(&plain, 0, Some(0))]);
    let twice = view.insert_held([fetched(&plain, 0, Some(0))]);
    let next = view.advance(8, hash(1), &[]).unwrap();
    assert_eq!(view.state().stats().entries, 0);
    assert_eq!(view.account(&address(0)).flatten().map(|info| info.balance), Some(U256::from(3)));
    assert_eq!([slot_at(&view, 0), slot_at(&next, 0)], [Some(U256::from(4)), None]);
    drop(held);
    assert_eq!((view.account(&address(0)), slot_at(&view, 0)), (None, Some(U256::from(4))));
    drop(twice);
    assert_eq!(slot_at(&view, 0), None);
}

/// Returns the resident memory of this process in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn a_hundred_thousand_slots_are_less_than_64_mib() {
    // The test runs in a process of its own, so that other tests do not change its memory.
    const ALONE: &str = "PRESIM_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let test = "state::remote::tests::a_hundred_thousand_slots_are_less_than_64_mib";
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let output = alone.args([test, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
        let (text, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && text.contains("1 passed"), "{text}{said}");
        return;
    }
    let before = resident();
    let view = RemoteState::begin(RemoteSettings::of_bytes(64 << 20), 1, B256::ZERO);
    for account in 0..10_000_u64 {
        let address = Address::left_padding_from(&(account + 1).to_be_bytes());
        let fields = Fetched::Account { address, balance: U256::from(account), nonce: 1, code: Default::default() };
        let slots = (0..10).map(|slot| Fetched::Slot { address, slot: U256::from(slot), value: U256::from(account) });
        view.insert(slots.chain([fields]));
    }
    let (stats, grown) = (view.state().stats(), resident().saturating_sub(before));
    assert_eq!((stats.entries, stats.evicted), (110_000, 0));
    assert!(grown < 64 << 20, "{grown} bytes");
    assert!(grown < stats.bytes * 2, "{grown} bytes, and {} are counted", stats.bytes);
}
