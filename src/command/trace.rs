//! `presim trace`: the call tree of a transaction of the chain.

use std::io::Write;

use alloy_primitives::{Address, B256, Log, U64, U256};
use serde::Deserialize;
use serde_json::{json, value::RawValue};

use super::{
    error::CommandError,
    input::AbiArgs,
    link::NodeArgs,
    names::{LazyLink, add_tokens},
    tree::write_tree,
};
use crate::{abi::AbiBook, shown, wallet::units};

/// The flags of `presim trace`.
#[derive(Clone, Debug, clap::Args)]
pub struct TraceArgs {
    /// Hash of the transaction.
    #[arg(value_name = "TX", value_parser = parse_hash)]
    pub tx: B256,
    /// Print the trace as JSON, as `callTracer` shows it.
    #[arg(long)]
    pub json: bool,
    /// The ABIs.
    #[command(flatten)]
    pub abi: AbiArgs,
    /// The node.
    #[command(flatten)]
    pub node: NodeArgs,
}

/// The receipt of a transaction, as far as it is shown.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TracedReceipt {
    block_number: Option<U64>,
    transaction_index: Option<U64>,
    from: Address,
    to: Option<Address>,
    status: Option<U64>,
    gas_used: U64,
    effective_gas_price: Option<U256>,
    logs: Vec<Log>,
}

/// Shows the trace of a transaction.
///
/// # Errors
///
/// Returns [`CommandError::Input`] if the chain has no such transaction, and the errors of the node and of the output.
pub fn run(args: &TraceArgs, book: &AbiBook, node: &LazyLink<'_>, out: &mut impl Write) -> Result<(), CommandError> {
    let (link, node) = (node, node.open()?);
    let (receipt, _) = node.ask::<Option<TracedReceipt>>("eth_getTransactionReceipt", (args.tx,))?;
    let Some(receipt) = receipt else {
        return Err(CommandError::Input(format!("TX: {}: the chain has no such transaction, or not yet", args.tx)));
    };
    let options = json!({"tracer": "callTracer", "tracerConfig": {"withLog": true}});
    let (_, trace) = node.ask::<Box<RawValue>>("debug_traceTransaction", (args.tx, options))?;
    if args.json {
        writeln!(out, "{}", shown::json(trace.get()))?;
        return Ok(out.flush()?);
    }
    let number = |value: Option<U64>| value.map_or_else(|| "pending".to_owned(), |value| value.to_string());
    let to = receipt.to.map_or_else(|| "(creates a contract)".to_owned(), |to| to.to_string());
    let end = if receipt.status == Some(U64::ONE) { "success" } else { "failed" };
    let price = receipt.effective_gas_price.map(|price| format!(" at {} gwei", units(price, 9))).unwrap_or_default();
    writeln!(out, "transaction {}", args.tx)?;
    writeln!(out, "  block {}, index {}", number(receipt.block_number), number(receipt.transaction_index))?;
    writeln!(out, "  from {} to {to}", receipt.from)?;
    writeln!(out, "  {end}, gas {}{price}", shown::grouped(receipt.gas_used.to()))?;
    writeln!(out, "\nTraces:")?;
    let emitters = receipt.logs.iter().map(|log| log.address).collect();
    let mut labels = link.labels();
    add_tokens(&mut labels, emitters, node, &json!("latest"), book);
    write_tree(&trace, book, &labels, out)?;
    Ok(out.flush()?)
}

fn parse_hash(text: &str) -> Result<B256, String> {
    text.parse().map_err(|error| format!("{error}: expected the hash of a transaction: 0x and 64 hex digits"))
}
