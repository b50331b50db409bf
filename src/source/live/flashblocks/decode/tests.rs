//! Messages as builders send them, and malformed ones.

use std::io::Write;

use alloy_primitives::{address, b256};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const LIMIT: usize = 1 << 20;

fn message() -> Value {
    let zero = B256::ZERO;
    json!({
        "payload_id": "0x0000000000000001",
        "index": 0,
        "base": {
            "parent_beacon_block_root": zero, "parent_hash": B256::repeat_byte(2), "fee_recipient": Address::ZERO,
            "prev_randao": zero, "block_number": "0x12d", "gas_limit": "0x3938700", "timestamp": "0x67bf8332",
            "extra_data": "0x00000000fa00000006", "base_fee_per_gas": "0xfa"
        },
        "diff": {
            "state_root": zero, "receipts_root": zero, "logs_bloom": format!("0x{}", "00".repeat(256)),
            "gas_used": "0xb5dd", "block_hash": zero, "transactions": ["0x7e00"], "withdrawals": [],
            "withdrawals_root": zero
        },
        "metadata": {
            "block_number": 301,
            "new_account_balances": {"0x4200000000000000000000000000000000000015": "0x1e"},
            "receipts": {"0x0101010101010101010101010101010101010101010101010101010101010101": {"Deposit": {
                "status": "0x1", "cumulativeGasUsed": "0xb5dd", "logs": [], "depositNonce": "0x12d", "depositReceiptVersion": "0x1"
            }}}
        }
    })
}

fn read(message: &Value) -> Result<Flashblock, DecodeError> {
    Flashblock::from_text(message.to_string().as_bytes(), LIMIT)
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    brotli::CompressorWriter::new(&mut out, 4096, 5, 22).write_all(bytes).unwrap();
    out
}

#[test]
fn text_binary_and_brotli_are_the_same_message() {
    let text = message().to_string();
    let read = Flashblock::from_text(text.as_bytes(), LIMIT).unwrap();
    assert_eq!(Flashblock::from_binary(text.as_bytes(), LIMIT).unwrap(), read);
    assert_eq!(Flashblock::from_binary(&compressed(text.as_bytes()), LIMIT).unwrap(), read);
    let spaced = format!("\n {text}\n");
    assert_eq!(Flashblock::from_binary(spaced.as_bytes(), LIMIT).unwrap().diff, read.diff);

    let base = read.base.as_ref().unwrap();
    assert_eq!((read.index, base.block_number, read.block_number()), (0, 301, Some(301)));
    assert_eq!((base.parent_hash, base.base_fee_per_gas), (B256::repeat_byte(2), U256::from(250)));
    assert_eq!((read.diff.gas_used, read.diff.transactions.len()), (0xb5dd, 1));
    let balances = read.metadata.new_account_balances.unwrap();
    assert_eq!(balances[&address!("4200000000000000000000000000000000000015")], U256::from(30));
    assert_eq!(read.metadata.unread, Vec::<String>::new());
}

#[test]
fn receipts_are_read_in_each_of_their_spellings() {
    let inner = json!({"status": "0x1", "cumulativeGasUsed": "0x5208", "logs": [
        {"address": "0x4200000000000000000000000000000000000015", "topics": [B256::repeat_byte(3)], "data": "0x05"}]});
    let typed = |kind: &str| {
        let mut receipt = inner.clone();
        receipt["type"] = json!(kind);
        receipt
    };
    let hash = b256!("0101010101010101010101010101010101010101010101010101010101010101");
    for (name, number) in [("Legacy", "0x0"), ("Eip2930", "0x1"), ("Eip1559", "0x2"), ("Eip7702", "0x4")] {
        let spellings = [json!({name: inner}), typed(number)].map(|receipt| {
            let mut message = message();
            message["metadata"]["receipts"] = json!({hash.to_string(): receipt});
            let metadata = read(&message).unwrap().metadata;
            assert_eq!(metadata.unread, Vec::<String>::new(), "{receipt}");
            metadata.receipts.unwrap()[&hash].clone()
        });
        assert_eq!(spellings[0], spellings[1]);
        assert_eq!(spellings[0].as_receipt().logs.len(), 1);
        assert_eq!(format!("{:#x}", spellings[0].tx_type() as u8), number);
    }
    let deposit = &read(&message()).unwrap().metadata.receipts.unwrap()[&hash];
    let OpReceipt::Deposit(deposit) = deposit else { panic!("{deposit:?}") };
    assert_eq!((deposit.deposit_nonce, deposit.deposit_receipt_version), (Some(301), Some(1)));
}

#[test]
fn every_field_of_the_metadata_may_be_absent_or_null() {
    for field in ["block_number", "new_account_balances", "receipts"] {
        let (mut absent, mut null) = (message(), message());
        absent["metadata"].as_object_mut().unwrap().remove(field);
        null["metadata"][field] = Value::Null;
        let read = [absent, null].map(|message| read(&message).unwrap());
        for flashblock in read {
            let metadata = &flashblock.metadata;
            let there =
                [metadata.block_number.is_some(), metadata.new_account_balances.is_some(), metadata.receipts.is_some()];
            assert_eq!(there.iter().filter(|there| **there).count(), 2, "{field}");
            assert_eq!((flashblock.block_number(), metadata.unread.len()), (Some(301), 0));
        }
    }
    for metadata in [Value::Null, json!({})] {
        let mut message = message();
        message["metadata"] = metadata;
        assert_eq!(read(&message).unwrap().metadata, Metadata::default());
    }
    let mut without = message();
    without.as_object_mut().unwrap().remove("metadata");
    assert_eq!(read(&without).unwrap().metadata, Metadata::default());
}

#[test]
fn metadata_in_an_unknown_spelling_is_named_and_left_out() {
    let mut message = message();
    message["metadata"]["receipts"] = json!([1, 2]);
    message["metadata"]["access_list"] = json!({"unknown": true});
    message["metadata"]["block_number"] = json!("0x12d");
    let metadata = read(&message).unwrap().metadata;
    assert_eq!((metadata.receipts, metadata.block_number), (None, Some(301)));
    assert!(metadata.unread[0].starts_with("metadata.receipts: "), "{:?}", metadata.unread);
    assert_eq!(metadata.unread.len(), 1);
}

#[test]
fn what_is_wrong_is_named() {
    let wrong = |change: &dyn Fn(&mut Value)| {
        let mut message = message();
        change(&mut message);
        read(&message).unwrap_err().to_string()
    };
    let remove = |message: &mut Value, field: &str| {
        message.as_object_mut().unwrap().remove(field);
    };
    type Change<'a> = &'a dyn Fn(&mut Value);
    let cases: [(Change<'_>, &str); 9] = [
        (&|m| remove(m, "payload_id"), "message: missing field `payload_id`"),
        (&|m| remove(m, "diff"), "message: missing field `diff`"),
        (&|m| remove(m, "base"), "base: missing: index 0 has it"),
        (&|m| m["index"] = json!(-1), "index: "),
        (&|m| m["payload_id"] = json!("0x01"), "payload_id: "),
        (&|m| m["diff"]["gas_used"] = json!("many"), "diff.gas_used: "),
        (&|m| m["diff"]["transactions"][0] = json!("0x7"), "diff.transactions[0]: "),
        (&|m| remove(&mut m["base"], "parent_hash"), "base: missing field `parent_hash`"),
        (&|m| m["metadata"]["block_number"] = json!(302), "metadata.block_number: 302, and base.block_number is 301"),
    ];
    for (change, expected) in cases {
        let error = wrong(change);
        assert!(error.starts_with(expected), "{error}, expected {expected}");
    }
    let garbage = |text: &str| Flashblock::from_text(text.as_bytes(), LIMIT).unwrap_err().to_string();
    for text in ["", "{", "[]", "7", "null", "{} {}"] {
        assert!(garbage(text).starts_with("message: "), "{text}: {}", garbage(text));
    }
}

#[test]
fn a_message_is_never_longer_than_the_limit_once_decompressed() {
    let text = message().to_string();
    let padded = format!("{text}{}", " ".repeat(10 << 20));
    let bomb = compressed(padded.as_bytes());
    assert!(bomb.len() < 10_000, "{}", bomb.len());
    assert_eq!(Flashblock::from_binary(&bomb, LIMIT), Err(DecodeError::TooLarge { limit: LIMIT }));
    assert_eq!(Flashblock::from_text(padded.as_bytes(), LIMIT), Err(DecodeError::TooLarge { limit: LIMIT }));
    // A single byte over the limit is refused.
    let small = compressed(text.as_bytes());
    assert!(Flashblock::from_binary(&small, text.len()).is_ok());
    assert_eq!(Flashblock::from_binary(&small, text.len() - 1), Err(DecodeError::TooLarge { limit: text.len() - 1 }));
    let exact = compressed(&padded.as_bytes()[..LIMIT]);
    assert!(Flashblock::from_binary(&exact, LIMIT).is_ok());
    let over = compressed(&padded.as_bytes()[..=LIMIT]);
    assert_eq!(Flashblock::from_binary(&over, LIMIT), Err(DecodeError::TooLarge { limit: LIMIT }));
}

#[test]
fn a_stream_that_asks_for_a_large_window_is_refused() {
    // RFC 7932 has no such window: 0x11, then 30 bits.
    let large = [0x11, 0x1e, 0x00, 0x00, 0x00];
    assert_eq!(Flashblock::from_binary(&large, LIMIT), Err(DecodeError::Compression { len: 5 }));
}

#[test]
fn binary_messages_that_are_nothing_are_refused() {
    let whole = compressed(message().to_string().as_bytes());
    let half = &whole[..whole.len() / 2];
    assert_eq!(Flashblock::from_binary(half, LIMIT), Err(DecodeError::Truncated { len: half.len() }));
    assert_eq!(Flashblock::from_binary(b"", LIMIT), Err(DecodeError::Truncated { len: 0 }));
    assert_eq!(Flashblock::from_binary(&[0xff; 64], LIMIT), Err(DecodeError::Compression { len: 64 }));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in 0usize..2_000, flip in any::<u8>()) {
        let _ = Flashblock::from_binary(&bytes, 4_096);
        let _ = Flashblock::from_text(&bytes, 4_096);
        for mut message in [message().to_string().into_bytes(), compressed(message().to_string().as_bytes())] {
            let at = at % message.len();
            message[at] ^= flip;
            let _ = Flashblock::from_binary(&message, LIMIT);
        }
    }
}

/// The OP Stack calls them Subblocks now. X Layer leaves parts of the metadata out, and has an access list as RLP.
#[test]
fn messages_of_each_kind_of_builder_are_read() {
    let (mut empty, mut x_layer, mut older) = (message(), message(), message());
    empty["index"] = json!(1);
    empty.as_object_mut().unwrap().remove("base");
    empty["diff"]["transactions"] = json!([]);
    let metadata = x_layer["metadata"].as_object_mut().unwrap();
    metadata.retain(|name, _| name == "block_number");
    metadata.insert("access_list".to_owned(), json!("0xc0"));
    older["diff"]["block_hash"] = json!(B256::repeat_byte(5));
    older["diff"]["state_root"] = json!(B256::repeat_byte(6));
    older["diff"]["withdrawals_root"] = json!(B256::repeat_byte(7));
    for (message, transactions) in [(empty, 0), (x_layer, 1), (older, 1), (message(), 1)] {
        let read = read(&message).unwrap();
        assert_eq!((read.diff.transactions.len(), &read.post_exec), (transactions, &Ok(None)), "{message}");
        assert_eq!((read.metadata.unread.len(), read.metadata.block_number), (0, Some(301)), "{message}");
    }
}

#[test]
fn the_post_execution_transaction_is_read_or_named() {
    // Version 1, block 301, and 5000 gas for the transaction at index 1.
    let raw = "0x7dca0182012dc5c401821388";
    let mut with = message();
    with["diff"]["post_exec_tx"] = json!(raw);
    let flashblock = read(&with).unwrap();
    let tx = flashblock.post_exec.unwrap().unwrap();
    assert_eq!(tx.hash(), alloy_primitives::keccak256(alloy_primitives::hex::decode(raw).unwrap()));
    let entry = &tx.payload.gas_refund_entries[0];
    assert_eq!((tx.payload.block_number, entry.index, entry.gas_refund), (301, 1, 5_000));
    assert!(flashblock.transactions.is_err(), "the other transactions are read on their own");
    with["diff"]["post_exec_tx"] = Value::Null;
    assert_eq!(read(&with).unwrap().post_exec, Ok(None));
    // Another version, more fields, bytes that follow, another type, and nothing.
    for wrong in
        ["0x7dca0282012dc5c401821388", "0x7dcb0182012dc5c401821388c0", "0x7dca0182012dc5c40182138800", "0x02", "0x"]
    {
        with["diff"]["post_exec_tx"] = json!(wrong);
        let error = read(&with).unwrap().post_exec.unwrap_err().to_string();
        assert!(error.starts_with("diff.post_exec_tx: "), "{wrong}: {error}");
    }
}
