//! The reasons to reject a transaction, in geth's words (`core/txpool`, `core/error.go`, `core/types`).

use alloy_primitives::{Address, B256, U256};

use crate::store::StoreError;

/// The reason why the pool rejects a transaction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The transaction cannot be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The bytes are not a transaction.
    #[error("malformed transaction: {0}")]
    Malformed(String),
    /// The transaction type is not known (EIP-2718).
    #[error("transaction type not supported: {0:#x}")]
    UnknownType(u8),
    /// The fork of the transaction type is not active.
    #[error("transaction type not supported: type {kind} rejected, pool not yet in {fork}")]
    TypeNotYet {
        /// The transaction type (EIP-2718).
        kind: u8,
        /// The fork that introduces the type.
        fork: &'static str,
    },
    /// A legacy transaction without replay protection (EIP-155).
    #[error("only replay-protected (EIP-155) transactions allowed over RPC")]
    Unprotected,
    /// The transaction is in the pool already.
    #[error("already known")]
    AlreadyKnown,
    /// The transaction exceeds the size limit of its type.
    #[error("oversized data: transaction size {size}, limit {limit}")]
    Oversized {
        /// The size of the network form in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The creation code exceeds the limit of EIP-3860.
    #[error("max initcode size exceeded: code size {size} limit {limit}")]
    InitCode {
        /// The size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The gas limit exceeds the cap of EIP-7825.
    #[error("transaction gas limit too high (cap: {cap}, tx: {gas})")]
    GasCap {
        /// The cap.
        cap: u64,
        /// The transaction's gas limit.
        gas: u64,
    },
    /// The gas limit exceeds that of a block.
    #[error("exceeds block gas limit")]
    BlockGas,
    /// The tip exceeds the whole fee (EIP-1559).
    #[error("max priority fee per gas higher than max fee per gas")]
    TipAboveFee,
    /// The transaction is signed for another chain.
    #[error("invalid sender: invalid chain id for signer: have {have} want {want}")]
    ChainId {
        /// The transaction's chain id.
        have: u64,
        /// The chain's own id.
        want: u64,
    },
    /// The signature is invalid, or not canonical (EIP-2).
    #[error("invalid sender: {0}")]
    Signature(&'static str),
    /// The nonce is the largest one (EIP-2681).
    #[error("nonce has max value")]
    NonceMax,
    /// The gas limit is below the intrinsic gas.
    #[error("intrinsic gas too low: gas {gas}, minimum needed {needed}")]
    IntrinsicGas {
        /// The transaction's gas limit.
        gas: u64,
        /// The required gas.
        needed: u64,
    },
    /// The gas limit is below the floor of EIP-7623.
    #[error("insufficient gas for floor data gas cost: gas {gas}, minimum needed {needed}")]
    FloorGas {
        /// The transaction's gas limit.
        gas: u64,
        /// The required gas.
        needed: u64,
    },
    /// The tip is below the pool's minimum.
    #[error("transaction gas price below minimum: gas tip cap {tip}, minimum needed {needed}")]
    TipTooLow {
        /// The transaction's tip, in wei per unit of gas.
        tip: u128,
        /// The minimum, in wei per unit of gas.
        needed: u128,
    },
    /// The blob fee is below the protocol's minimum (EIP-4844).
    #[error("transaction gas price below minimum: blob fee cap {fee}, minimum needed {needed}")]
    BlobFeeTooLow {
        /// The transaction's fee, in wei per unit of blob gas.
        fee: u128,
        /// The minimum, in wei per unit of blob gas.
        needed: u128,
    },
    /// The list of authorizations is empty (EIP-7702).
    #[error("set code tx must have at least one authorization tuple")]
    NoAuthorizations,
    /// A blob transaction is in the form of a block, not in its network form (EIP-4844, Networking).
    #[error("missing sidecar in blob transaction")]
    MissingSidecar,
    /// The sidecar has another version than the fork requires: cell proofs (EIP-7594) before Osaka.
    #[error("unexpected sidecar version, want: {want}, got: {got}")]
    SidecarVersion {
        /// The required version.
        want: u8,
        /// The sidecar's version.
        got: u8,
    },
    /// A blob transaction has no blobs (EIP-4844).
    #[error("blobless blob transaction")]
    NoBlobs,
    /// The transaction has more blobs than the fork allows in a transaction or a block.
    #[error("transaction blob limit exceeded: blob count {count}, limit {limit}")]
    TooManyBlobs {
        /// The number of blobs.
        count: usize,
        /// The limit.
        limit: u64,
    },
    /// The number of blobs or commitments is wrong.
    #[error("invalid number of {count} {what} compared to {hashes} blob hashes")]
    SidecarCount {
        /// The name of the list.
        what: &'static str,
        /// The length of the list.
        count: usize,
        /// The number of the transaction's blob hashes.
        hashes: usize,
    },
    /// The number of proofs is wrong.
    #[error("invalid number of {count} blob proofs expected {expected}")]
    ProofCount {
        /// The number of proofs.
        count: usize,
        /// The required number.
        expected: usize,
    },
    /// A blob hash is not that of its commitment.
    #[error("blob {index}: computed hash {computed} mismatches transaction one {given}")]
    BlobHash {
        /// The index of the blob.
        index: usize,
        /// The versioned hash of the commitment.
        computed: B256,
        /// The transaction's hash.
        given: B256,
    },
    /// The proofs do not match the commitments.
    #[error("KZG verification error: {0}")]
    Kzg(String),
    /// The sender is a contract (EIP-3607).
    #[error("sender not an eoa: address {address}, codehash: {code_hash}")]
    SenderNotEoa {
        /// The sender.
        address: Address,
        /// The hash of the sender's code.
        code_hash: B256,
    },
    /// The nonce was used already.
    #[error("nonce too low: next nonce {next}, tx nonce {nonce}")]
    NonceTooLow {
        /// The account's nonce.
        next: u64,
        /// The transaction's nonce.
        nonce: u64,
    },
    /// The account cannot pay for the transaction.
    #[error(
        "insufficient funds for gas * price + value: balance {balance}, tx cost {cost}, overshot {}",
        cost.saturating_sub(*balance)
    )]
    Funds {
        /// The account's balance in wei.
        balance: U256,
        /// The highest cost in wei.
        cost: U256,
    },
    /// The account cannot pay for the transaction and for those that it has in the pool.
    #[error(
        "insufficient funds for gas * price + value: balance {balance}, queued cost {queued}, tx cost {cost}, overshot {}",
        queued.saturating_add(*cost).saturating_sub(*balance)
    )]
    QueuedFunds {
        /// The account's balance in wei.
        balance: U256,
        /// The highest cost of the account's transactions in the pool, in wei.
        queued: U256,
        /// The cost of this transaction in wei; for a replacement, the additional cost.
        cost: U256,
    },
    /// The price is not high enough to replace another transaction.
    #[error("replacement transaction underpriced: new tx {what} {new} < {old} queued + {bump}% replacement penalty")]
    ReplacementUnderpriced {
        /// The name of the fee.
        what: &'static str,
        /// The transaction's fee in wei.
        new: u128,
        /// The fee of the transaction in the pool, in wei.
        old: u128,
        /// The required increase in per cent.
        bump: u32,
    },
    /// The nonce that this node has chosen was taken meanwhile.
    #[error("nonce {nonce} was taken by another transaction meanwhile: send it again")]
    NonceTaken {
        /// The nonce.
        nonce: u64,
    },
    /// An authorization would use the nonce of another transaction of the sender (EIP-7702).
    #[error(
        "authorization of the sender's own account uses up nonce {nonce}, which another transaction in the pool has: send it with a nonce after that one's, or wait until that one is mined"
    )]
    NonceUsedUp {
        /// The nonce of the other transaction.
        nonce: u64,
    },
    /// The account has as many transactions in the pool as it may have.
    #[error("account limit exceeded: pooled {pooled} txs")]
    AccountLimit {
        /// The number of the account's transactions.
        pooled: usize,
    },
    /// The pool is full, and the price is not above the cheapest transaction's.
    #[error("transaction underpriced")]
    Underpriced,
    /// The pool is full, and the transaction could not be mined yet.
    #[error("txpool is full")]
    Full,
}

impl PoolError {
    /// Returns whether another nonce could be taken: the transaction's own, or one that it would use up, is no longer
    /// free.
    pub const fn is_nonce(&self) -> bool {
        matches!(self, Self::NonceTooLow { .. } | Self::NonceTaken { .. } | Self::NonceUsedUp { .. })
    }
}
