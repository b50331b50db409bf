//! The content of the transaction pool, as geth's `txpool` methods return it.

use std::sync::Arc;

use alloy_consensus::{Transaction, TxEnvelope, transaction::Recovered};

use super::{Object, check_length, string};
use crate::{pool::SenderContent, rpc::protocol::error::Result};

/// A writer of one transaction in the pool.
pub type WriteTx = fn(&mut Vec<u8>, &Recovered<TxEnvelope>);

/// Writes transactions by their state, sender and nonce, each by `write`.
///
/// # Errors
///
/// Returns -32005 if the response becomes longer than `limit` bytes.
pub fn by_sender(out: &mut Vec<u8>, senders: &[SenderContent], limit: usize, write: WriteTx) -> Result<()> {
    let mut object = Object::new(out);
    in_one_state(object.key("pending"), senders, |sender| &sender.pending, limit, write)?;
    in_one_state(object.key("queued"), senders, |sender| &sender.queued, limit, write)?;
    object.end();
    Ok(())
}

fn in_one_state(
    out: &mut Vec<u8>,
    senders: &[SenderContent],
    transactions_of: fn(&SenderContent) -> &[Arc<Recovered<TxEnvelope>>],
    limit: usize,
    write: WriteTx,
) -> Result<()> {
    let mut object = Object::new(out);
    for sender in senders {
        let transactions = transactions_of(sender);
        if !transactions.is_empty() {
            // The checksum (EIP-55) is in the case of the letters, as in geth.
            list(object.key(&sender.address.to_checksum(None)), transactions, limit, write)?;
        }
    }
    object.end();
    Ok(())
}

/// Writes the transactions of one sender by their state and nonce.
///
/// # Errors
///
/// Returns -32005 if the response becomes longer than `limit` bytes.
pub fn by_nonce(out: &mut Vec<u8>, sender: &SenderContent, limit: usize, write: WriteTx) -> Result<()> {
    let mut object = Object::new(out);
    list(object.key("pending"), &sender.pending, limit, write)?;
    list(object.key("queued"), &sender.queued, limit, write)?;
    object.end();
    Ok(())
}

fn list(out: &mut Vec<u8>, transactions: &[Arc<Recovered<TxEnvelope>>], limit: usize, write: WriteTx) -> Result<()> {
    let mut object = Object::new(out);
    for tx in transactions {
        let out = object.key(itoa::Buffer::new().format(tx.nonce()));
        write(out, tx);
        check_length(out, limit)?;
    }
    object.end();
    Ok(())
}

/// Writes a transaction as a line of text for people, in geth's words.
pub fn summary(out: &mut Vec<u8>, tx: &Recovered<TxEnvelope>) {
    let to = tx.to().map_or_else(|| "contract creation".to_owned(), |to| to.to_checksum(None));
    let (value, gas, price) = (tx.value(), tx.gas_limit(), tx.max_fee_per_gas());
    string(out, &format!("{to}: {value} wei + {gas} gas × {price} wei"));
}
