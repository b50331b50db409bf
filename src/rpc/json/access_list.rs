//! Block access lists (EIP-7928), as execution-apis has them.

use alloy_eips::eip7928::BlockAccessList;
use alloy_primitives::U256;

use super::{Object, data, list};

/// Writes a list: each account has all six fields, in the order of the list's RLP.
pub fn access_list(out: &mut Vec<u8>, accounts: &BlockAccessList) {
    list(out, accounts, |out, account| {
        let mut object = Object::new(out);
        object.data("address", account.address.as_slice());
        list(object.key("storageChanges"), &account.storage_changes, |out, slot| {
            let mut object = Object::new(out);
            word(object.key("key"), slot.slot);
            list(object.key("changes"), &slot.changes, |out, change| {
                let mut object = Object::new(out);
                object.quantity("index", change.block_access_index.get());
                word(object.key("value"), change.new_value);
                object.end();
            });
            object.end();
        });
        list(object.key("storageReads"), &account.storage_reads, |out, slot| word(out, *slot));
        list(object.key("balanceChanges"), &account.balance_changes, |out, change| {
            let mut object = Object::new(out);
            object.quantity("index", change.block_access_index.get()).u256("value", change.post_balance);
            object.end();
        });
        list(object.key("nonceChanges"), &account.nonce_changes, |out, change| {
            let mut object = Object::new(out);
            object.quantity("index", change.block_access_index.get()).quantity("value", change.new_nonce);
            object.end();
        });
        list(object.key("codeChanges"), &account.code_changes, |out, change| {
            let mut object = Object::new(out);
            object.quantity("index", change.block_access_index.get()).data("code", &change.new_code);
            object.end();
        });
        object.end();
    });
}

fn word(out: &mut Vec<u8>, word: U256) {
    data(out, &word.to_be_bytes::<32>());
}
