use std::{collections::HashMap, sync::Arc};

use alloy_primitives::{Address, B256, U256, keccak256};
use proptest::prelude::*;
use revm::state::AccountInfo;

use super::{Fetched, RemoteState, RemoteView};
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
    /// Fetches a value at the block so far behind the head.
    Fetch { behind: usize, account: u8, slot: Option<u8> },
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
        8 => (0..4_usize, 0..ACCOUNTS, prop::option::weighted(0.7, 0..SLOTS))
            .prop_map(|(behind, account, slot)| Step::Fetch { behind, account, slot }),
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

/// Runs the operations on a cache and on a plain model of every block, and checks all that the cache returns for any
/// block.
fn run(limit: usize, steps: &[Step]) -> Result<Arc<RemoteState>, TestCaseError> {
    let first = 1_000;
    let state = RemoteState::new(limit, first, hash(0));
    let mut blocks = vec![(state.newest().unwrap(), Plain::default())];
    let mut dead: Vec<RemoteView> = Vec::new();
    for (salt, step) in steps.iter().enumerate() {
        let number = first + blocks.len() as u64;
        let hash = hash(salt as u64 + 1);
        let mut plain = blocks.last().unwrap().1.clone();
        match step {
            Step::Advance(of) | Step::Cut(of) => {
                plain.apply(of);
                let view = match step {
                    Step::Advance(_) => state.advance(number, hash, &changes(of)),
                    _ => state.cut(number, hash),
                };
                blocks.push((view.expect("it comes next"), plain));
            }
            Step::Fetch { behind, account, slot } => {
                let (view, plain) = &blocks[blocks.len().saturating_sub(1 + behind)];
                let address = address(*account);
                let value = match slot {
                    None => Fetched::Account {
                        address,
                        balance: U256::from(plain.balances.get(account).copied().unwrap_or_default()),
                        nonce: 0,
                        code: Default::default(),
                    },
                    Some(slot) => Fetched::Slot {
                        address,
                        slot: U256::from(*slot),
                        value: U256::from(plain.slots.get(&(*account, *slot)).copied().unwrap_or_default()),
                    },
                };
                prop_assert!(state.insert(view, [value]));
                let is_known = match slot {
                    None => view.account(&address).is_some(),
                    Some(slot) => view.slot(&address, &U256::from(*slot)).is_some(),
                };
                prop_assert!(is_known || limit < 100_000, "what was fetched at {view:?} is not known there");
            }
            Step::Revert(count) => {
                let left = blocks.len().saturating_sub(*count).max(1);
                dead.extend(blocks.drain(left..).map(|(view, _)| view));
                let (head, _) = blocks.last().unwrap();
                prop_assert!(state.revert_to(head.number(), head.hash()).as_ref() == Some(head));
            }
        }
        for (view, plain) in &blocks {
            check(view, plain)?;
        }
        for view in &dead {
            prop_assert!(!view.is_alive() && check(view, &Plain::default())? == 0);
            let value = Fetched::Slot { address: address(0), slot: U256::ZERO, value: U256::from(99) };
            prop_assert!(!state.insert(view, [value]), "a dead block's value came in");
        }
        prop_assert!(state.stats().bytes <= limit);
    }
    Ok(state)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn what_is_known_of_a_block_is_what_it_was(steps in steps()) {
        run(1 << 20, &steps)?;
    }

    #[test]
    fn the_bound_holds_and_what_is_left_is_right(steps in steps()) {
        run(1_500, &steps)?;
    }

    #[test]
    fn what_a_block_does_not_change_stays_known(fetched in prop::collection::vec((0..ACCOUNTS, 0..SLOTS), 1..8), after in some_changes()) {
        let state = RemoteState::new(1 << 20, 7, hash(0));
        let view = state.newest().unwrap();
        for (account, slot) in &fetched {
            let value = Fetched::Slot { address: address(*account), slot: U256::from(*slot), value: U256::from(5) };
            state.insert(&view, [value]);
        }
        let next = state.advance(8, hash(1), &changes(&after)).unwrap();
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
        let state = run(1 << 20, &steps)?;
        let view = state.newest().unwrap();
        let image = state.export(&view);
        let encoded = alloy_rlp::encode(&image);
        let image = alloy_rlp::decode_exact(&encoded).expect("it is as it was written");
        let again = RemoteState::new(1 << 20, view.number(), view.hash());
        let new = again.newest().unwrap();
        prop_assert!(again.import(&new, image, &CodeCache::new(1 << 20)));
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
    let state = RemoteState::new(1 << 20, 7, hash(0));
    let late = state.newest().unwrap();
    let middle = state.advance(8, hash(1), &changes(&[(0, 1, false, vec![(0, 2)])])).unwrap();
    let newest = state.advance(9, hash(2), &[]).unwrap();
    let slot =
        |slot: u64, value: u64| Fetched::Slot { address: address(0), slot: U256::from(slot), value: U256::from(value) };
    state.insert(&late, [slot(0, 1), slot(1, 4)]);
    let at = |view: &RemoteView, slot: u64| view.slot(&address(0), &U256::from(slot));
    assert_eq!(
        [at(&late, 0), at(&middle, 0), at(&newest, 0)],
        [Some(U256::from(1)), Some(U256::from(2)), Some(U256::from(2))]
    );
    assert_eq!([at(&late, 1), at(&middle, 1), at(&newest, 1)], [Some(U256::from(4)); 3]);
}

#[test]
fn a_chain_that_begins_again_leaves_nothing_of_before() {
    let state = RemoteState::new(1 << 20, 7, hash(0));
    let before = state.newest().unwrap();
    state.insert(&before, [Fetched::Slot { address: address(0), slot: U256::ZERO, value: U256::from(1) }]);
    let after = state.restart(7, hash(9));
    assert!(!before.is_alive() && after.is_alive());
    assert_eq!([before.slot(&address(0), &U256::ZERO), after.slot(&address(0), &U256::ZERO)], [None, None]);
}
