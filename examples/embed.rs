//! A node inside of a program: the built-in devnet, a bundle of two calls, and the changes of assets that it would cause.
//!
//! `cargo run --release --example embed`

use alloy_primitives::{U256, address};
use alloy_sol_types::{SolCall, sol};
use presim::{
    Config, Node,
    simulation::{Asset, Call, CallOutcome, Outputs, SimBlock, Simulation},
};

sol! {
    function deposit();
    function transfer(address to, uint256 amount) returns (bool);
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let node = Node::start(Config::default().with("traffic", 0)).await?;
    let contract = |name| node.contracts().into_iter().find(|(known, _)| *known == name).map(|(_, address)| address);
    let weth = contract("WETH").ok_or("the devnet has WETH")?;
    let (alice, bob) =
        (address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266"), address!("70997970C51812dc3A010C7d01b50e0d17dc79C8"));

    let one = U256::from(10).pow(U256::from(18));
    let wrap = Call::to(weth).with_from(alice).with_value(one).with_data(depositCall {}.abi_encode());
    let pay = Call::to(weth).with_from(alice).with_data(transferCall { to: bob, amount: one }.abi_encode());
    let outputs = Outputs::STATUS | Outputs::GAS_USED | Outputs::ASSETS;
    let bundle = Simulation::of([SimBlock::of([wrap, pay])]).with_outputs(outputs);

    let snapshot = node.snapshot();
    let simulated = node.simulate_on(&snapshot, &bundle).await?;
    let block = &simulated.blocks[0];
    println!("in block {} under {}, gas {}:", snapshot.header().number, block.fork, simulated.gas_used);
    for (index, call) in block.calls.iter().enumerate() {
        println!("  call {index}: {:?}, gas {}", call.outcome, call.gas_used);
        assert_eq!(call.outcome, CallOutcome::Success);
    }
    for (account, assets) in block.assets.iter().flatten() {
        for (asset, change) in assets {
            let (is_loss, amount) = change.net();
            println!("  {account}: {}{amount} of {asset:?}", if is_loss { "-" } else { "+" });
        }
    }
    let gained = block.assets.as_ref().and_then(|assets| assets.get(&bob)?.get(&Asset::Erc20(weth)).copied());
    assert_eq!(gained.map(|change| change.net()), Some((false, one)));
    node.stop().await;
    Ok(())
}
