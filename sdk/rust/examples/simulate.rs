//! Simulates a payment on the newest state of a node, and prints how the accounts' assets change.
//!
//! ```sh
//! cargo run -p presim-client --example simulate
//! ```

use presim_client::{BlockSelector, Output, PresimApi, Simulation};

/// Simulates the payment on the node at `url`, and returns the simulated blocks.
pub(crate) async fn simulate(url: &str) -> Result<Vec<presim_client::SimulatedBlock>, Box<dyn std::error::Error>> {
    let provider = alloy_provider::ProviderBuilder::new().connect(url).await?;
    let payment = alloy_rpc_types_eth::TransactionRequest::default()
        .from("0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266".parse()?)
        .to("0x70997970C51812dc3A010C7d01b50e0d17dc79C8".parse()?)
        .value("1".parse()?);
    let bundle = Simulation::of([payment]).with_outputs([Output::Status, Output::GasUsed, Output::Assets]);
    let blocks = provider.presim_simulate(&bundle, BlockSelector::PENDING).await?.into_blocks()?;
    println!("{:#?}", blocks[0].assets);
    Ok(blocks)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or("ws://127.0.0.1:8545/standard".into());
    simulate(&url).await.map(drop)
}
