//! A custom feed: the program decides which transactions a sub-block has, and when a block ends.
//!
//! `cargo run --release --example source`

use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope};
use alloy_primitives::{TxKind, U256, address};
use alloy_signer::SignerSync;
use alloy_signer_local::{MnemonicBuilder, PrivateKeySigner};
use presim::{Config, Node};

/// Signs the payment of one wei.
fn payment(signer: &PrivateKeySigner, chain_id: u64, nonce: u64) -> Result<TxEnvelope, Box<dyn std::error::Error>> {
    let tx = TxEip1559 {
        chain_id,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: 100_000_000_000,
        max_priority_fee_per_gas: 1,
        to: TxKind::Call(address!("00000000000000000000000000000000000000aa")),
        value: U256::from(1),
        ..TxEip1559::default()
    };
    let signature = signer.sign_hash_sync(&tx.signature_hash())?;
    Ok(tx.into_signed(signature).into())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (node, mut feeder) = Node::start_fed(Config::default()).await?;
    let words = "test test test test test test test test test test test junk";
    let signer = MnemonicBuilder::from_phrase(words).build()?;
    let first = node.account(signer.address()).await?.nonce;

    for sub_block in 0..3 {
        let transactions = (0..2).map(|index| payment(&signer, node.chain_id(), first + 2 * sub_block + index));
        let left_out = feeder.push(transactions.collect::<Result<Vec<_>, _>>()?, sub_block == 2).await?;
        assert!(left_out.is_empty(), "{left_out:?}");
        let snapshot = node.snapshot();
        println!("snapshot {:#x}: block {}.{}", snapshot.id(), snapshot.header().number, snapshot.index());
    }
    // A transaction with a nonce that is used cannot be included.
    let left_out = feeder.push([payment(&signer, node.chain_id(), first)?], false).await?;
    println!("left out: {}", left_out[0].1);

    let paid = node.account(address!("00000000000000000000000000000000000000aa")).await?.balance;
    println!("6 payments arrived: {paid} wei; the sealed block is {}", node.snapshot().sealed().0);
    assert_eq!(paid, U256::from(6));
    node.stop().await;
    Ok(())
}
