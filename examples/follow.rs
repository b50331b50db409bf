//! Follows a node, and shows five of its states with the balance of an account.
//!
//! `cargo run --release --example follow -- http://127.0.0.1:8545 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266`

use alloy_primitives::{Address, address, utils::format_ether};
use futures::StreamExt;
use presim::{Config, Node, StartError};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "http://127.0.0.1:8545".to_owned());
    let account: Address = match args.next() {
        Some(account) => account.parse()?,
        None => address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266"),
    };
    let node = match Node::start(Config::following(&url)).await {
        Ok(node) => node,
        Err(StartError::Chain(problem)) => return Err(format!("{url} cannot be followed: {problem}").into()),
        Err(error) => return Err(error.into()),
    };
    println!("chain {}", node.chain_id());
    let mut snapshots = node.watch().take(5);
    while let Some(snapshot) = snapshots.next().await {
        // What the node does not know yet it fetches, from the block of the snapshot.
        let balance = node.account_on(&snapshot, account).await?.balance;
        let (number, age) = (snapshot.header().number, snapshot.age());
        println!("block {number}, {} ms old: {} ether", age.as_millis(), format_ether(balance));
    }
    node.stop().await;
    Ok(())
}
