//! Simulates a payment on the newest state of a node, and prints how the accounts' assets change.
//!
//! ```sh
//! cargo run -p presim-client --example simulate
//! ```

use alloy_primitives::{U256, address};
use alloy_provider::ProviderBuilder;
use alloy_rpc_types_eth::TransactionRequest;
use presim_client::{BlockSelector, Output, PresimApi, SimulatedBlock, Simulation};

pub async fn simulate(url: &str) -> Result<Vec<SimulatedBlock>, Box<dyn std::error::Error>> {
    let (from, to) = (
        address!("0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"),
        address!("0x70997970C51812dc3A010C7d01b50e0d17dc79C8"),
    );
    let provider = ProviderBuilder::new().connect(url).await?;
    let payment = TransactionRequest::default().from(from).to(to).value(U256::from(1));
    let bundle = Simulation::of([payment]).with_outputs([Output::Status, Output::GasUsed, Output::Assets]);
    let blocks = provider.presim_simulate(&bundle, BlockSelector::PENDING).await?.into_blocks()?;
    println!("gas {:?}, changes {:#?}", blocks[0].calls[0].gas_used, blocks[0].assets);
    Ok(blocks)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or("ws://127.0.0.1:8545/standard".into());
    simulate(&url).await.map(drop)
}
