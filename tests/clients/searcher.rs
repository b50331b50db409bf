use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{B256, U256, address, hex::encode_prefixed, keccak256, utils::parse_ether};
use alloy_provider::{Provider, ProviderBuilder, WsConnect};
use alloy_rpc_types_eth::TransactionRequest;
use alloy_signer_local::PrivateKeySigner;
use alloy_sol_types::{SolCall, sol};
use serde_json::{Value, json};

sol! { function swapExactTokensForTokens(uint256 amount, uint256 min, address[] path, address to, uint256 deadline); }

/// Returns the block of a transaction that is new with a snapshot.
fn block_of(snapshot: &Value, hash: B256) -> Option<&Value> {
    let sealed = snapshot["sealed"].as_array().into_iter().flatten();
    let has = |block: &&Value| block["transactions"].as_array().is_some_and(|hashes| hashes.contains(&json!(hash)));
    Some(&sealed.chain([snapshot]).find(has)?["blockNumber"])
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or("ws://127.0.0.1:8545/standard".into());
    let signer: PrivateKeySigner = "0x92db14e403b83dfe3df233f83dfa3a0d7096f21ca9b0d6d6b8d88b2b4ec1564e".parse()?;
    let account = signer.address();
    let provider = ProviderBuilder::new().wallet(signer).connect_ws(WsConnect::new(url)).await?;
    let weth = address!("0x5FbDB2315678afecb367f032d93F642f64180aa3");
    let alpha = address!("0x9fE46736679d2D9a65F0992F2272dE9f3c7fa6e0");
    let beta = address!("0xe7f1725E7734CE288F8367e1Bb143E90bb3F0512");
    let router = address!("0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9");
    let deposit = TransactionRequest::default().to(weth).value(parse_ether("50")?);
    provider.send_transaction(deposit).await?.get_receipt().await?;
    let mut snapshots = provider.subscribe::<_, Value>(("presim_snapshots",)).await?;
    let mut sent = B256::ZERO;
    loop {
        let mut snapshot = snapshots.recv().await?;
        loop {
            if let Some(block) = block_of(&snapshot, sent) {
                println!("mined in block {block}");
                return Ok(());
            }
            match snapshots.try_recv() {
                Ok(newer) => snapshot = newer,
                Err(_) => break,
            }
        }
        for path in [vec![weth, alpha, beta, weth], vec![weth, beta, alpha, weth]] {
            let (amount, min, to, deadline) = (U256::ZERO, U256::ZERO, account, U256::MAX);
            let mut swap = swapExactTokensForTokensCall { amount, min, path, to, deadline };
            let search = json!({
                "blockStateCalls": [{ "calls": [{ "from": account, "to": router, "gas": "0x7a120", "data": encode_prefixed(swap.abi_encode()) }] }],
                "vary": [{ "path": "blocks[0].calls[0].data", "word": 0, "maximize": { "from": "0x38d7ea4c68000", "to": "0x2b5e3af16b1880000" } }],
                "objective": { "account": account, "token": weth }, "require": { "least": "100000000000000" },
            });
            let state = json!({ "snapshotId": snapshot["id"] });
            let found: Value = provider.raw_request("presim_search".into(), (search, state)).await?;
            let best = &found["best"][0];
            if best["status"] == "0x1" {
                swap.amount = serde_json::from_value(best["values"][0].clone())?;
                swap.min = swap.amount + best["objective"].as_str().unwrap_or_default().parse::<U256>()?;
                println!("block {}: {} wei become {}", snapshot["blockNumber"], swap.amount, swap.min);
                let tx = TransactionRequest::default().to(router).gas_limit(500_000).input(swap.abi_encode().into());
                let tx = tx.nonce(provider.get_transaction_count(account).pending().await?);
                let raw = provider.fill(tx).await?.try_into_envelope()?.encoded_2718();
                sent = keccak256(&raw);
                let bundle = json!([{ "txs": [encode_prefixed(raw)], "blockNumber": snapshot["blockNumber"] }]);
                if let Err(error) = provider.raw_request::<_, Value>("eth_sendBundle".into(), bundle).await {
                    println!("too late: {error}");
                }
            }
        }
    }
}
