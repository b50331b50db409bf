//! Worlds of a given size, and the changes of a block being built on them.

use std::sync::Arc;

use alloy_consensus::Header;
use alloy_genesis::ChainConfig;
use alloy_primitives::{Address, Bytes, U256, keccak256};
use presim::testing::{
    chain::{BlockBody, BlockHashes, ChainSpec, SealedBlock},
    ledger::{OpenBlock, Snapshot},
    state::{Account, AccountChange, Code, LocalWorld},
};
use revm::{bytecode::Bytecode, state::AccountInfo};

/// The number of slots of the contract at [`contract`].
pub const SLOTS: u64 = 100_000;
/// The number of accounts with one slot each.
pub const HOLDERS: u64 = 1_000;

/// Returns a chain with the forks up to Cancun and without system contracts, so that a request runs only its own calls.
pub fn spec() -> ChainSpec {
    let config = r#"{"chainId":1,"homesteadBlock":0,"eip150Block":0,"eip155Block":0,"eip158Block":0,"byzantiumBlock":0,
        "constantinopleBlock":0,"petersburgBlock":0,"istanbulBlock":0,"berlinBlock":0,"londonBlock":0,
        "terminalTotalDifficulty":0,"terminalTotalDifficultyPassed":true,"shanghaiTime":0,"cancunTime":0}"#;
    ChainSpec::new(serde_json::from_str::<ChainConfig>(config).expect("a chain"), std::time::Duration::from_secs(1))
        .expect("a chain")
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
        let mut account = Account::default();
        (account.balance, account.nonce) = (U256::from(1), 1);
        let slots = if number == 0 { SLOTS } else { u64::from(number <= HOLDERS) };
        (0..slots).for_each(|slot| account.set_slot(U256::from(slot), U256::from(1)));
        if number == 0 {
            account.code = code();
        }
        world.insert(address(number), account);
    }
    world
}

fn code() -> Code {
    // PUSH1 n SLOAD POP, then SSTORE(3, 7) and STOP.
    let mut bytes: Vec<u8> = (0..16).flat_map(|slot| [0x60, slot, 0x54, 0x50]).collect();
    bytes.extend([0x60, 7, 0x60, 3, 0x55, 0x00]);
    Code { hash: keccak256(&bytes), bytecode: Bytecode::new_raw(Bytes::from(bytes)) }
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
    let Code { hash: code_hash, bytecode } = if account == 0 { code() } else { Code::default() };
    let info = AccountInfo { balance: U256::from(1), nonce: 1, code_hash, code: Some(bytecode), account_id: None };
    AccountChange {
        address: address(account),
        info: Some(info),
        storage_cleared: false,
        slots: slots.into_iter().collect(),
    }
}

/// Returns a snapshot of a block being built on `world`, which has changed the first `pending` slots of the contract.
pub fn snapshot(world: &LocalWorld, pending: u64) -> Snapshot {
    let parent = Header { gas_limit: 30_000_000, ..Header::default() };
    let head = Arc::new(SealedBlock::new(parent, BlockBody::default()));
    let mut hashes = BlockHashes::default();
    hashes.push(0, head.hash());
    let header = Header {
        number: 1,
        timestamp: 1,
        parent_hash: head.hash(),
        gas_limit: 30_000_000,
        base_fee_per_gas: Some(7),
        excess_blob_gas: Some(0),
        blob_gas_used: Some(0),
        parent_beacon_block_root: Some(Default::default()),
        ..Header::default()
    };
    let mut world = world.clone();
    if pending > 0 {
        world.apply_many(&one_contract(pending, 2));
    }
    Snapshot::new(world, head, Some(OpenBlock::new(header)), hashes)
}
