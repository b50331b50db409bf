//! Decoding of raw transactions.

use alloy_consensus::{
    EthereumTxEnvelope, TxEip4844Variant, TxEip4844WithSidecar, TxEnvelope, TxLegacy,
    transaction::{Recovered, RlpEcdsaDecodableTx},
};
use alloy_eips::{
    eip2718::{Decodable2718, EIP4844_TX_TYPE_ID, EIP7702_TX_TYPE_ID, Eip2718Error},
    eip7594::BlobTransactionSidecarVariant,
};
use alloy_primitives::Address;
use alloy_rlp::Header;

use super::PoolError;

/// A transaction as a client or this node sends it to the pool.
#[derive(Clone, Debug)]
pub struct SentTransaction {
    /// The transaction as a block holds it, without a sidecar.
    pub tx: TxEnvelope,
    /// The blobs, commitments and proofs of a blob transaction. `None` if it was not sent in the network form.
    pub sidecar: Option<BlobTransactionSidecarVariant>,
    /// Length of the encoding that was sent, in bytes.
    pub size: usize,
    /// The signer. `None` if it has yet to be recovered from the signature.
    pub signer: Option<Address>,
}

impl SentTransaction {
    /// Decodes an EIP-2718 transaction. The sidecar of a blob transaction has the proofs of EIP-4844 or of EIP-7594.
    ///
    /// # Errors
    ///
    /// Returns [`PoolError::Malformed`] or [`PoolError::UnknownType`] if the bytes are not a transaction.
    pub fn decode(raw: &[u8]) -> Result<Self, PoolError> {
        match raw {
            [] | [(..=0x7f)] => return Err(PoolError::Malformed("typed transaction too short".to_owned())),
            [kind @ ..=0x7f, ..] if !(1..=EIP7702_TX_TYPE_ID).contains(kind) => {
                return Err(PoolError::UnknownType(*kind));
            }
            _ => {}
        }
        let size = raw.len();
        if !is_network_blob(raw) {
            // An RLP list is a legacy transaction. alloy would report a malformed one as an unexpected type.
            let tx = if raw[0] >= alloy_rlp::EMPTY_LIST_CODE {
                decode_legacy(raw).map_err(|error| PoolError::Malformed(format!("rlp: {error}")))?
            } else {
                TxEnvelope::decode_2718_exact(raw).map_err(malformed)?
            };
            return Ok(Self { tx, sidecar: None, size, signer: None });
        }
        let sent = EthereumTxEnvelope::<TxEip4844WithSidecar<BlobTransactionSidecarVariant>>::decode_2718_exact(raw)
            .map_err(malformed)?;
        let mut sidecar = None;
        let tx = sent.map_eip4844(|blob| {
            let (tx, blobs) = blob.into_parts();
            sidecar = Some(blobs);
            TxEip4844Variant::TxEip4844(tx)
        });
        Ok(Self { tx, sidecar, size, signer: None })
    }
}

impl From<Recovered<TxEnvelope>> for SentTransaction {
    fn from(tx: Recovered<TxEnvelope>) -> Self {
        let size = tx.eip2718_encoded_length();
        let (tx, signer) = tx.into_parts();
        Self { tx, sidecar: None, size, signer: Some(signer) }
    }
}

/// Decodes a legacy transaction, and rejects trailing bytes.
fn decode_legacy(mut raw: &[u8]) -> alloy_rlp::Result<TxEnvelope> {
    let tx = TxLegacy::rlp_decode_signed(&mut raw)?;
    if !raw.is_empty() {
        return Err(alloy_rlp::Error::UnexpectedLength);
    }
    Ok(TxEnvelope::Legacy(tx))
}

/// Whether `raw` is a blob transaction in its network form: a list whose first item is the transaction, itself a list.
fn is_network_blob(raw: &[u8]) -> bool {
    let Some((&EIP4844_TX_TYPE_ID, mut rest)) = raw.split_first() else { return false };
    let mut is_list = || Header::decode(&mut rest).is_ok_and(|header| header.list);
    is_list() && is_list()
}

fn malformed(error: Eip2718Error) -> PoolError {
    match error {
        Eip2718Error::RlpError(error) => PoolError::Malformed(format!("rlp: {error}")),
        Eip2718Error::UnexpectedType(kind) => PoolError::UnknownType(kind),
        other => PoolError::Malformed(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use alloy_consensus::{SignableTransaction, TxEip1559, TxEip4844, TxEip7702};
    use alloy_eips::eip2718::Encodable2718;
    use alloy_primitives::Signature;
    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// Decodes bytes from outside. If they are a transaction, they are its only encoding.
    fn target(raw: &[u8]) {
        if let Ok(SentTransaction { tx, sidecar: None, .. }) = SentTransaction::decode(raw) {
            assert_eq!(tx.encoded_2718(), raw);
        }
    }

    fn transactions() -> [TxEnvelope; 4] {
        let signature = Signature::test_signature();
        [
            TxLegacy { chain_id: Some(1), ..TxLegacy::default() }.into_signed(signature).into(),
            TxEip1559::default().into_signed(signature).into(),
            TxEip7702::default().into_signed(signature).into(),
            TxEnvelope::Eip4844(TxEip4844Variant::TxEip4844(TxEip4844::default()).into_signed(signature)),
        ]
    }

    proptest! {
        #[test]
        fn no_bytes_from_outside_panic(bytes in vec(any::<u8>(), 0..300), at in 0usize..200, flip in any::<u8>()) {
            target(&bytes);
            for mut raw in transactions().map(|tx| tx.encoded_2718()) {
                let at = at % raw.len();
                target(&raw[..at]);
                raw[at] ^= flip;
                target(&raw);
                target(&[raw, bytes.clone()].concat());
            }
        }
    }
}
