//! Transactions as bytes. A case names its sender, so the signature may be random.

use std::sync::LazyLock;

use alloy_consensus::{SignableTransaction, Signed, TxEip1559, TxEip2930, TxEip4844, TxEip7702, TxEnvelope, TxLegacy};
use alloy_eips::{
    eip2718::Encodable2718,
    eip2930::{AccessList, AccessListItem},
    eip7702::{Authorization, SignedAuthorization},
};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256};
use alloy_rlp::Encodable;
use k256::ecdsa::SigningKey;

use crate::{
    case::CHAIN_ID,
    dice::Dice,
    execute::{DEPOSIT, Deposit},
};

/// The keys of the accounts that sign.
static KEYS: LazyLock<[SigningKey; 4]> =
    LazyLock::new(|| [1, 2, 3, 4].map(|key| SigningKey::from_slice(&[key; 32]).expect("a number below the order")));

/// Returns the accounts of the keys.
pub fn signers() -> [Address; 4] {
    [0, 1, 2, 3].map(|at| Address::from_public_key(KEYS[at].verifying_key()))
}

/// The encoding of a transaction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Envelope {
    Legacy,
    /// Without a chain id (EIP-155).
    Unprotected,
    AccessList,
    Market,
    Delegations,
    Blobs,
    Deposit,
}

/// The fields of transactions of all types.
#[derive(Clone, Debug)]
pub struct Fields {
    pub nonce: u64,
    pub gas_limit: u64,
    pub max_fee: u128,
    pub priority_fee: u128,
    pub to: TxKind,
    pub value: U256,
    pub input: Bytes,
    pub access_list: AccessList,
    pub authorizations: Vec<SignedAuthorization>,
    pub chain_id: u64,
}

impl Default for Fields {
    fn default() -> Self {
        Self {
            nonce: 0,
            gas_limit: 100_000,
            max_fee: 1_000_000_000,
            priority_fee: 1_000,
            to: TxKind::Call(Address::repeat_byte(0x77)),
            value: U256::ZERO,
            input: Bytes::new(),
            access_list: AccessList::default(),
            authorizations: Vec::new(),
            chain_id: CHAIN_ID,
        }
    }
}

/// Encodes a transaction with a random signature. `deposit` are the fields that only a deposit has.
pub fn encode(dice: &mut Dice, envelope: Envelope, fields: Fields, deposit: &Deposit) -> Bytes {
    let signature = Signature::from_bytes_and_parity(&dice.bytes(64), dice.percent(50));
    encode_with(envelope, fields, deposit, |_| signature)
}

/// Encodes a transaction of `sender`: with its signature if it is one of the [signers], else with a random one.
pub fn encode_by(dice: &mut Dice, sender: Address, envelope: Envelope, fields: Fields, deposit: &Deposit) -> Bytes {
    match signers().iter().position(|signer| *signer == sender) {
        Some(at) => encode_with(envelope, fields, deposit, |hash| sign(at, hash)),
        None => encode(dice, envelope, fields, deposit),
    }
}

fn sign(signer: usize, hash: B256) -> Signature {
    KEYS[signer].sign_prehash_recoverable(hash.as_slice()).expect("a hash").into()
}

fn encode_with(envelope: Envelope, fields: Fields, deposit: &Deposit, sign: impl FnOnce(B256) -> Signature) -> Bytes {
    let f = fields;
    let call = |to: TxKind| *to.to().unwrap_or(&Address::ZERO);
    fn signed<T: SignableTransaction<Signature>>(tx: T, sign: impl FnOnce(B256) -> Signature) -> Bytes
    where
        Signed<T>: Into<TxEnvelope>,
    {
        let signature = sign(tx.signature_hash());
        let envelope: TxEnvelope = tx.into_signed(signature).into();
        envelope.encoded_2718().into()
    }
    match envelope {
        Envelope::Legacy | Envelope::Unprotected => signed(
            TxLegacy {
                chain_id: (envelope == Envelope::Legacy).then_some(f.chain_id),
                nonce: f.nonce,
                gas_price: f.max_fee,
                gas_limit: f.gas_limit,
                to: f.to,
                value: f.value,
                input: f.input,
            },
            sign,
        ),
        Envelope::AccessList => signed(
            TxEip2930 {
                chain_id: f.chain_id,
                nonce: f.nonce,
                gas_price: f.max_fee,
                gas_limit: f.gas_limit,
                to: f.to,
                value: f.value,
                access_list: f.access_list,
                input: f.input,
            },
            sign,
        ),
        Envelope::Market => signed(
            TxEip1559 {
                chain_id: f.chain_id,
                nonce: f.nonce,
                gas_limit: f.gas_limit,
                max_fee_per_gas: f.max_fee,
                max_priority_fee_per_gas: f.priority_fee,
                to: f.to,
                value: f.value,
                access_list: f.access_list,
                input: f.input,
            },
            sign,
        ),
        Envelope::Delegations => signed(
            TxEip7702 {
                chain_id: f.chain_id,
                nonce: f.nonce,
                gas_limit: f.gas_limit,
                max_fee_per_gas: f.max_fee,
                max_priority_fee_per_gas: f.priority_fee,
                to: call(f.to),
                value: f.value,
                access_list: f.access_list,
                authorization_list: f.authorizations,
                input: f.input,
            },
            sign,
        ),
        Envelope::Blobs => signed(
            TxEip4844 {
                chain_id: f.chain_id,
                nonce: f.nonce,
                gas_limit: f.gas_limit,
                max_fee_per_gas: f.max_fee,
                max_priority_fee_per_gas: f.priority_fee,
                to: call(f.to),
                value: f.value,
                access_list: f.access_list,
                blob_versioned_hashes: vec![B256::repeat_byte(1)],
                max_fee_per_blob_gas: 1,
                input: f.input,
            },
            sign,
        ),
        Envelope::Deposit => {
            let deposit =
                Deposit { to: f.to, value: f.value, gas_limit: f.gas_limit, input: f.input, ..deposit.clone() };
            let mut bytes = vec![DEPOSIT];
            deposit.encode(&mut bytes);
            bytes.into()
        }
    }
}

/// Returns an authorization by one of the [signers].
pub fn authorize(signer: usize, chain_id: u64, nonce: u64, address: Address) -> SignedAuthorization {
    let inner = Authorization { chain_id: U256::from(chain_id), address, nonce };
    let hash = inner.signature_hash();
    inner.into_signed(sign(signer, hash))
}

/// Returns an authorization whose signature is random: its signer is, too, or it has none.
pub fn forge(dice: &mut Dice, nonce: u64, address: Address) -> SignedAuthorization {
    let inner = Authorization { chain_id: U256::ZERO, address, nonce };
    let words = [0, 1].map(|_| U256::from_be_slice(&dice.bytes(32)));
    SignedAuthorization::new_unchecked(inner, dice.below(3) as u8, words[0], words[1])
}

/// Returns an access list of some of these accounts.
pub fn access_list(dice: &mut Dice, accounts: &[Address]) -> AccessList {
    let item = |dice: &mut Dice| AccessListItem {
        address: dice.pick(accounts),
        storage_keys: (0..dice.below(4)).map(|_| B256::from(U256::from(dice.below(6)))).collect(),
    };
    AccessList((0..dice.below(4)).map(|_| item(dice)).collect())
}
