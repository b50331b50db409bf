//! The fields of the OP stack, in what a node shows of its blocks.

use alloy_consensus::{TxType, Typed2718};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, U256};
use op_alloy::consensus::TxDeposit;
use presim::testing::chain::ChainTx;
use serde_json::{Value, json};

use crate::{block_traces::are_of, lagoon::OpChain, live::built::SOMEBODY, op_chain::ATTRIBUTED, support::TestNode};

#[tokio::test]
async fn a_chain_file_with_deposits_is_served_with_the_fields_of_the_op_stack() {
    let mut chain = OpChain::new("jovian");
    let created: ChainTx = TxDeposit {
        from: Address::repeat_byte(0x22),
        mint: 9,
        gas_limit: 100_000,
        source_hash: B256::with_last_byte(2),
        ..TxDeposit::default()
    }
    .into();
    chain.append(vec![ATTRIBUTED.deposit(), created, chain.sent(0, 0, SOMEBODY, U256::from(5))]);
    let (folder, files) = chain.files();
    let sealed = &chain.head.head;
    let data = folder.path().join("data");
    let raw_receipts: Vec<Bytes> = sealed.body().receipts.iter().map(|receipt| receipt.encoded_2718().into()).collect();
    let mut flags: Vec<&str> = files.iter().map(String::as_str).collect();
    flags.extend(["--data-dir", data.to_str().unwrap()]);
    // The second start reads the stored blocks instead of importing, and has the state of the newest alone.
    for first_start in [true, false] {
        let node = TestNode::start(&flags);
        for dialect in ["/", "/standard"] {
            if first_start {
                let traces = node.result(dialect, "debug_traceBlockByNumber", json!(["0x1", {"tracer": "callTracer"}]));
                are_of(&traces.await, &node.result(dialect, "eth_getBlockReceipts", json!(["0x1"])).await);
            }
            let block = node.result(dialect, "eth_getBlockByNumber", json!(["0x1", true])).await;
            assert_eq!(block["hash"], sealed.hash().to_string());
            assert_eq!(block["requestsHash"], alloy_eips::eip7685::EMPTY_REQUESTS_HASH.to_string());
            assert_eq!(block["blobGasUsed"], "0x9c40");
            let first = &block["transactions"][0];
            assert_eq!(first["type"], "0x7e");
            assert_eq!(first["sourceHash"], B256::with_last_byte(1).to_string());
            assert_eq!((&first["nonce"], &first["depositReceiptVersion"]), (&json!("0x0"), &json!("0x1")));
            assert_eq!(first.get("mint"), None);
            let second = &block["transactions"][1];
            assert_eq!((&second["mint"], &second["to"]), (&json!("0x9"), &Value::Null));
            assert_eq!(block["transactions"][2].get("sourceHash"), None);
            // The types of the OP stack's own library accept the block.
            let _typed: Vec<op_alloy::rpc_types::Transaction> =
                serde_json::from_value(block["transactions"].clone()).expect("transactions of the OP stack");

            let raw = node.result(dialect, "debug_getRawBlock", json!(["0x1"])).await;
            assert_eq!(raw, json!(Bytes::from(chain.blocks.clone())));
            let raw = node.result(dialect, "debug_getRawReceipts", json!(["0x1"])).await;
            assert_eq!(raw, json!(raw_receipts));
            for tx in &sealed.body().transactions {
                let raw = node.result(dialect, "eth_getRawTransactionByHash", json!([tx.tx_hash()])).await;
                assert_eq!(raw, json!(Bytes::from(tx.encoded_2718())));
            }

            let receipts = node.result(dialect, "eth_getBlockReceipts", json!(["0x1"])).await;
            let typed: Vec<op_alloy::rpc_types::OpTransactionReceipt> =
                serde_json::from_value(receipts.clone()).expect("receipts of the OP stack");
            assert_eq!(receipts[0]["depositNonce"], "0x0");
            assert_eq!(receipts[0]["depositReceiptVersion"], "0x1");
            assert_eq!(receipts[0].get("l1Fee"), None);
            let contract = Address::repeat_byte(0x22).create(0);
            assert_eq!(receipts[1]["contractAddress"].as_str().unwrap().parse::<Address>().unwrap(), contract);
            let l1 = &typed[2].l1_block_info;
            assert_eq!(l1.l1_fee, Some(ATTRIBUTED.l1_fee().to()));
            assert_eq!(l1.l1_gas_price, Some(u128::from(ATTRIBUTED.base_fee)));
            // 100 bytes of 16 gas each.
            assert_eq!(l1.l1_gas_used, Some(1_600));
            assert_eq!(l1.l1_base_fee_scalar, Some(5_227));
            assert_eq!(l1.l1_blob_base_fee_scalar, Some(1_014_213));
            assert_eq!(l1.l1_blob_base_fee, Some(3_000_000));
            assert_eq!((l1.operator_fee_scalar, l1.operator_fee_constant), (Some(7), Some(1_000)));
            assert_eq!(receipts[2]["daFootprintGasScalar"], "0x190");
            assert_eq!(receipts[2]["blobGasUsed"], "0x9c40");
            assert_eq!(receipts[2]["type"], json!(format!("{:#x}", TxType::Eip1559.ty())));
        }
        node.node.stop();
    }
}
