//! Worlds of a given size, and the changes of a block being built on them.

use alloy_primitives::{Address, Bytes, U256, keccak256};
use presim::testing::{
    ledger::{Record, Snapshot},
    state::{AccountChange, LocalWorld},
};
use revm::{bytecode::Bytecode, state::AccountInfo};
use serde_json::value::RawValue;
use support::TestNode;

/// The number of slots of the contract at [`contract`].
pub const SLOTS: u64 = 100_000;
/// The number of accounts with one slot each.
pub const HOLDERS: u64 = 1_000;

/// The forks up to Cancun, without system contracts, so that a request runs only its own calls.
const GENESIS: &str = r#"{"config":{"chainId":1,"homesteadBlock":0,"eip150Block":0,"eip155Block":0,"eip158Block":0,
    "byzantiumBlock":0,"constantinopleBlock":0,"petersburgBlock":0,"istanbulBlock":0,"berlinBlock":0,"londonBlock":0,
    "terminalTotalDifficulty":0,"terminalTotalDifficultyPassed":true,"shanghaiTime":0,"cancunTime":0},
    "alloc":{},"difficulty":"0x0","gasLimit":"0x1c9c380","baseFeePerGas":"0x7"}"#;

/// Starts a node on `size` accounts as [`build`] makes them, with the first `pending` slots of the contract changed since.
pub fn node(size: u64, pending: u64) -> TestNode {
    let genesis: &RawValue = serde_json::from_str(GENESIS).expect("JSON");
    let node = TestNode::on(&genesis, &["--feed", "static"]);
    let snapshots = node.node.snapshots();
    let (mut world, before) = (build(size), snapshots.newest());
    if pending > 0 {
        world.apply_many(&one_contract(pending, 2));
    }
    let snapshot = Snapshot::new(world, before.head.clone(), None, before.hashes.clone());
    snapshots.apply(Record::SubBlock(snapshot)).expect("it fits");
    node
}

/// Returns the address of account `number`, spread like real addresses and the same in each run.
pub fn address(number: u64) -> Address {
    Address::from_word(keccak256(number.to_be_bytes()))
}

/// Returns the address of the contract, which reads its first sixteen slots and writes one.
pub fn contract() -> Address {
    address(0)
}

/// Builds `size` accounts: the contract with [`SLOTS`] slots, [`HOLDERS`] with one slot each, the rest with ether only.
pub fn build(size: u64) -> LocalWorld {
    let mut world = LocalWorld::default();
    for number in 0..size {
        let slots = if number == 0 { SLOTS } else { u64::from(number <= HOLDERS) };
        world.apply_many(&[change(number, (0..slots).map(|slot| (U256::from(slot), U256::ONE)))]);
    }
    world
}

fn code() -> Bytes {
    // PUSH1 n SLOAD POP, then SSTORE(3, 7) and STOP.
    let mut bytes: Vec<u8> = (0..16).flat_map(|slot| [0x60, slot, 0x54, 0x50]).collect();
    bytes.extend([0x60, 7, 0x60, 3, 0x55, 0x00]);
    bytes.into()
}

/// Changes the first `slots` slots of the contract.
pub fn one_contract(slots: u64, value: u64) -> Vec<AccountChange> {
    vec![change(0, (0..slots).map(|slot| (U256::from(slot), U256::from(value))))]
}

/// Changes the slot of each of `accounts` accounts.
pub fn many_contracts(accounts: u64, value: u64) -> Vec<AccountChange> {
    (1..=accounts).map(|number| change(number, [(U256::ZERO, U256::from(value))])).collect()
}

fn change(account: u64, slots: impl IntoIterator<Item = (U256, U256)>) -> AccountChange {
    let info = AccountInfo::default().with_balance(U256::ONE).with_nonce(1);
    let info = if account == 0 { info.with_code(Bytecode::new_raw(code())) } else { info };
    AccountChange {
        address: address(account),
        info: Some(info),
        storage_cleared: false,
        slots: slots.into_iter().collect(),
    }
}
