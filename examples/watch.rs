//! The price of a pair on each of ten snapshots.
//!
//! `cargo run --release --example watch`

use alloy_primitives::U256;
use alloy_sol_types::{SolCall, sol};
use futures::StreamExt;
use presim::{
    Config, Node,
    simulation::{Call, CallOutcome, CallRequest},
};

sol! { function getAmountsOut(uint256 amount, address[] path) returns (uint256[] amounts); }

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let node = Node::start(Config::default()).await?;
    let contracts = node.contracts();
    let contract = |name| contracts.iter().find(|(known, _)| *known == name).map(|(_, address)| *address);
    let [Some(weth), Some(alpha), Some(router)] = ["WETH", "ALPHA", "router"].map(contract) else {
        return Err("the devnet has a trading world".into());
    };
    let ether = U256::from(10).pow(U256::from(18));
    let quote = Call::to(router).with_data(getAmountsOutCall { amount: ether, path: vec![weth, alpha] }.abi_encode());
    let quote = CallRequest { call: quote, ..CallRequest::default() };

    let mut snapshots = node.watch().take(10);
    while let Some(snapshot) = snapshots.next().await {
        let output = node.call_on(&snapshot, &quote).await?;
        assert_eq!(output.outcome, CallOutcome::Success);
        let amounts = getAmountsOutCall::abi_decode_returns(&output.data)?;
        let (number, index) = (snapshot.header().number, snapshot.index());
        println!("block {number}.{index}: 1 WETH buys {} ALPHA (in its smallest unit)", amounts[1]);
    }
    node.stop().await;
    Ok(())
}
