//! Drafted roots compared with the roots of the worlds that the same changes make.

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*};
use revm::{
    DatabaseRef,
    state::{Account as RunAccount, AccountStatus},
};

use super::*;
use crate::{chain::BlockHashes, state::Overlay};

#[derive(Clone, Debug)]
enum Op {
    Pay(Address, U256),
    Store(Address, U256, U256),
    Clear(Address),
    Destroy(Address),
    /// Creates a contract at an address, whatever was there.
    Create(Address),
    /// A call that changes nothing.
    Touch(Address),
    EndBlock,
}

/// Returns one of a few addresses, so that operations collide.
fn addresses() -> impl Strategy<Value = Address> {
    (0_u8..20).prop_map(Address::with_last_byte)
}

fn slots() -> impl Strategy<Value = U256> {
    (0_u64..20).prop_map(U256::from)
}

/// Returns zero often, which removes the slot.
fn values() -> impl Strategy<Value = U256> {
    prop_oneof![Just(U256::ZERO), (1_u64..4).prop_map(U256::from), Just(U256::MAX)]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        2 => (addresses(), values()).prop_map(|(address, value)| Op::Pay(address, value)),
        8 => (addresses(), slots(), values()).prop_map(|(address, slot, value)| Op::Store(address, slot, value)),
        1 => addresses().prop_map(Op::Clear),
        2 => addresses().prop_map(Op::Destroy),
        1 => addresses().prop_map(Op::Create),
        1 => addresses().prop_map(Op::Touch),
        2 => Just(Op::EndBlock),
    ];
    vec(op, 0..80)
}

/// Returns an account after a transaction, as revm hands it over.
fn ran(overlay: &Overlay, address: Address, status: AccountStatus) -> AddressMap<RunAccount> {
    let info = overlay.basic_ref(address).unwrap().unwrap_or_default();
    let mut account = RunAccount::from(info);
    account.status = status | AccountStatus::Touched;
    AddressMap::from_iter([(address, account)])
}

proptest! {
    #[test]
    fn drafted_roots_are_those_of_the_changed_world(
        known in vec((addresses(), values(), vec((slots(), values()), 0..20)), 0..20),
        ops in ops(),
    ) {
        let mut base = LocalWorld::default();
        for (address, balance, slots) in known {
            let mut account = Account::default();
            (account.balance, account.nonce) = (balance, 1);
            account.set_slots(&slots.into_iter().collect());
            base.insert(address, account);
        }
        let mut overlay = Overlay::new(base.clone().into(), BlockHashes::default());
        let mut roots = StateRoots::of(&base);
        let mut world = base.clone();
        for op in ops.into_iter().chain([Op::EndBlock]) {
            match op {
                Op::Pay(address, balance) => overlay.set(address, Some(balance), None, None),
                Op::Store(address, slot, value) => {
                    // Code that runs writes slots, so the account exists.
                    overlay.set(address, None, Some(1), None);
                    overlay.set_slot(address, slot, value);
                }
                Op::Clear(address) => {
                    overlay.set(address, None, Some(1), None);
                    overlay.clear_storage(address);
                }
                Op::Destroy(address) => {
                    let mut changes = ran(&overlay, address, AccountStatus::SelfDestructed);
                    overlay.absorb(&mut changes);
                }
                Op::Create(address) => {
                    let mut changes = ran(&overlay, address, AccountStatus::Created);
                    overlay.absorb(&mut changes);
                }
                Op::Touch(address) => {
                    let mut changes = ran(&overlay, address, AccountStatus::empty());
                    overlay.absorb(&mut changes);
                }
                Op::EndBlock => {
                    world.apply_many(&overlay.changes().cloned().collect::<Vec<_>>());
                    prop_assert_eq!(roots.after(overlay.changes()), world.state_root());
                    overlay.restart_changes();
                    prop_assert_eq!(overlay.changes().count(), 0);
                    for address in (0..20).map(Address::with_last_byte) {
                        for slot in (0..20).map(U256::from) {
                            prop_assert_eq!(overlay.storage_ref(address, slot), world.storage_ref(address, slot));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn many_changed_slots_give_the_root_of_one_after_another(
        known in vec((slots(), values()), 0..20),
        written in proptest::collection::btree_map((0_u64..200).prop_map(U256::from), values(), 0..200),
    ) {
        let mut at_once = Account::default();
        at_once.set_slots(&known.into_iter().collect());
        let mut one_by_one = at_once.clone();
        let written: alloy_primitives::map::HashMap<U256, U256> = written.into_iter().collect();
        at_once.set_slots(&written);
        written.iter().for_each(|(key, value)| one_by_one.set_slot(*key, *value));
        prop_assert_eq!(at_once.storage_trie().root_hash(), one_by_one.storage_trie().root_hash());
        let sorted = |account: &Account| account.slots().map(|(key, value)| (*key, *value)).collect::<BTreeMap<_, _>>();
        prop_assert_eq!(sorted(&at_once), sorted(&one_by_one));
    }
}
