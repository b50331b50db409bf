//! On each snapshot of the devnet, the amount that earns the most in a circle of three pairs, until one earns something.
//!
//! `cargo run --release --example arbitrage`

use alloy_primitives::{Address, I256, U256, address};
use alloy_sol_types::{SolCall, sol};
use futures::StreamExt;
use presim::{
    Config, Node, Search,
    simulation::{Call, Objective, SimBlock, Simulation, VariantEnd},
};

sol! {
    function deposit();
    function swapExactTokensForTokens(uint256 amount, uint256 min, address[] path, address to, uint256 deadline);
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let node = Node::start(Config::default()).await?;
    let contracts = node.contracts();
    let contract = |name| contracts.iter().find(|(known, _)| *known == name).map(|(_, address)| *address);
    let [Some(weth), Some(alpha), Some(beta), Some(router)] = ["WETH", "ALPHA", "BETA", "router"].map(contract) else {
        return Err("the devnet has a trading world".into());
    };
    let account = address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266");
    let ether = U256::from(10).pow(U256::from(18));

    // The bundle: wrap 50 ether, which no circle needs, and swap an amount, which the search varies.
    let circle = |path: Vec<Address>| {
        let (amount, min, to, deadline) = (U256::ZERO, U256::ZERO, account, U256::MAX);
        let swap = swapExactTokensForTokensCall { amount, min, path, to, deadline }.abi_encode();
        let wrap = Call::to(weth).with_from(account).with_value(U256::from(50) * ether);
        let wrap = wrap.with_data(depositCall {}.abi_encode());
        let bundle = Simulation::of([SimBlock::of([wrap, Call::to(router).with_from(account).with_data(swap)])]);
        // The objective is the growth of the balance, which includes the wrapped ether.
        Search::new(bundle, Objective::Token { account, token: weth }).maximize_word(
            0,
            1,
            0,
            ether / U256::from(1_000),
            U256::from(50) * ether,
            ether / U256::from(1_000),
        )
    };
    let searches = [circle(vec![weth, alpha, beta, weth]), circle(vec![weth, beta, alpha, weth])];
    let wrapped = I256::try_from(U256::from(50) * ether)?;

    let mut watch = node.watch();
    while let Some(snapshot) = watch.next().await {
        for search in &searches {
            let outcome = node.search_on(&snapshot, search).await?;
            let Some(best) = outcome.best.first() else { continue };
            if let VariantEnd::Ran { objective, succeeded: true, .. } = best.end
                && objective > wrapped
            {
                let (number, amount, earned) = (snapshot.header().number, best.values[0], objective - wrapped);
                println!("block {number}: {amount} wei earn {earned} wei, found in {} runs", outcome.runs);
                node.stop().await;
                return Ok(());
            }
        }
    }
    Err("the node has stopped".into())
}
