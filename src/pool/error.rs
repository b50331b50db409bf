//! Why a transaction is not taken, in geth's words (`core/txpool`, `core/error.go`, `core/types`).

use alloy_primitives::{Address, B256, U256};

use crate::store::StoreError;

/// A transaction that the pool does not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// It cannot be kept.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The bytes are no transaction.
    #[error("malformed transaction: {0}")]
    Malformed(String),
    /// No transaction type of this number is known (EIP-2718).
    #[error("transaction type not supported: {0:#x}")]
    UnknownType(u8),
    /// The type's fork is not active.
    #[error("transaction type not supported: type {kind} rejected, pool not yet in {fork}")]
    TypeNotYet {
        /// EIP-2718 type.
        kind: u8,
        /// The fork that brings it.
        fork: &'static str,
    },
    /// A legacy transaction that any chain would take (EIP-155).
    #[error("only replay-protected (EIP-155) transactions allowed over RPC")]
    Unprotected,
    /// It is in the pool.
    #[error("already known")]
    AlreadyKnown,
    /// More bytes than the pool takes of its type.
    #[error("oversized data: transaction size {size}, limit {limit}")]
    Oversized {
        /// Bytes of its network form.
        size: usize,
        /// The most it may have.
        limit: usize,
    },
    /// EIP-3860.
    #[error("max initcode size exceeded: code size {size} limit {limit}")]
    InitCode {
        /// Bytes.
        size: usize,
        /// The most it may have.
        limit: usize,
    },
    /// EIP-7825.
    #[error("transaction gas limit too high (cap: {cap}, tx: {gas})")]
    GasCap {
        /// The most a transaction may ask for.
        cap: u64,
        /// What it asks for.
        gas: u64,
    },
    /// More gas than a block has.
    #[error("exceeds block gas limit")]
    BlockGas,
    /// The tip is more than the whole fee (EIP-1559).
    #[error("max priority fee per gas higher than max fee per gas")]
    TipAboveFee,
    /// It is signed for another chain.
    #[error("invalid sender: invalid chain id for signer: have {have} want {want}")]
    ChainId {
        /// The transaction's.
        have: u64,
        /// The chain's.
        want: u64,
    },
    /// The signature is nobody's, or not canonical (EIP-2).
    #[error("invalid sender: {0}")]
    Signature(&'static str),
    /// EIP-2681.
    #[error("nonce has max value")]
    NonceMax,
    /// Less gas than it needs before it runs.
    #[error("intrinsic gas too low: gas {gas}, minimum needed {needed}")]
    IntrinsicGas {
        /// What it has.
        gas: u64,
        /// What it needs.
        needed: u64,
    },
    /// EIP-7623.
    #[error("insufficient gas for floor data gas cost: gas {gas}, minimum needed {needed}")]
    FloorGas {
        /// What it has.
        gas: u64,
        /// What it needs.
        needed: u64,
    },
    /// A tip below the pool's minimum.
    #[error("transaction gas price below minimum: gas tip cap {tip}, minimum needed {needed}")]
    TipTooLow {
        /// Wei a unit of gas.
        tip: u128,
        /// Wei a unit of gas.
        needed: u128,
    },
    /// A blob fee below the protocol's minimum (EIP-4844).
    #[error("transaction gas price below minimum: blob fee cap {fee}, minimum needed {needed}")]
    BlobFeeTooLow {
        /// Wei a unit of blob gas.
        fee: u128,
        /// Wei a unit of blob gas.
        needed: u128,
    },
    /// EIP-7702.
    #[error("set code tx must have at least one authorization tuple")]
    NoAuthorizations,
    /// A blob transaction as a block holds it, not in the form in which it is sent (EIP-4844, Networking).
    #[error("missing sidecar in blob transaction")]
    MissingSidecar,
    /// Cell proofs (EIP-7594) before Osaka.
    #[error("unexpected sidecar version, want: {want}, got: {got}")]
    SidecarVersion {
        /// What the fork asks for.
        want: u8,
        /// What the transaction has.
        got: u8,
    },
    /// EIP-4844.
    #[error("blobless blob transaction")]
    NoBlobs,
    /// More blobs than the fork gives one transaction, or a block.
    #[error("transaction blob limit exceeded: blob count {count}, limit {limit}")]
    TooManyBlobs {
        /// What it has.
        count: usize,
        /// The most it may have.
        limit: u64,
    },
    /// Blobs or commitments are missing, or there are too many.
    #[error("invalid number of {count} {what} compared to {hashes} blob hashes")]
    SidecarCount {
        /// Of what.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many hashes the transaction has.
        hashes: usize,
    },
    /// Proofs are missing, or there are too many.
    #[error("invalid number of {count} blob proofs expected {expected}")]
    ProofCount {
        /// How many there are.
        count: usize,
        /// How many there should be.
        expected: usize,
    },
    /// A blob hash that is not its commitment's.
    #[error("blob {index}: computed hash {computed} mismatches transaction one {given}")]
    BlobHash {
        /// Which blob.
        index: usize,
        /// The versioned hash of the commitment.
        computed: B256,
        /// The one that the transaction has.
        given: B256,
    },
    /// The proofs do not prove the commitments.
    #[error("KZG verification error: {0}")]
    Kzg(String),
    /// EIP-3607.
    #[error("sender not an eoa: address {address}, codehash: {code_hash}")]
    SenderNotEoa {
        /// The sender.
        address: Address,
        /// Of its code.
        code_hash: B256,
    },
    /// Its nonce was used.
    #[error("nonce too low: next nonce {next}, tx nonce {nonce}")]
    NonceTooLow {
        /// The account's.
        next: u64,
        /// The transaction's.
        nonce: u64,
    },
    /// The account cannot pay for it.
    #[error(
        "insufficient funds for gas * price + value: balance {balance}, tx cost {cost}, overshot {}",
        cost.saturating_sub(*balance)
    )]
    Funds {
        /// Wei.
        balance: U256,
        /// Wei, at most.
        cost: U256,
    },
    /// The account cannot pay for it and for what it has sent before.
    #[error(
        "insufficient funds for gas * price + value: balance {balance}, queued cost {queued}, tx cost {cost}, overshot {}",
        queued.saturating_add(*cost).saturating_sub(*balance)
    )]
    QueuedFunds {
        /// Wei.
        balance: U256,
        /// What the transactions in the pool may cost, wei.
        queued: U256,
        /// What this one costs, wei; in the place of another: what it costs more.
        cost: U256,
    },
    /// It does not pay enough more than the one whose place it would take.
    #[error("replacement transaction underpriced: new tx {what} {new} < {old} queued + {bump}% replacement penalty")]
    ReplacementUnderpriced {
        /// Which fee.
        what: &'static str,
        /// Its own, wei.
        new: u128,
        /// That of the one in the pool, wei.
        old: u128,
        /// How much more it must be, in per cent.
        bump: u32,
    },
    /// The nonce that this node chose for it was taken before it came.
    #[error("nonce {nonce} was taken by another transaction in the pool meanwhile: send it again")]
    NonceTaken {
        /// The nonce.
        nonce: u64,
    },
    /// It would make another transaction of its sender's that waits impossible (EIP-7702).
    #[error(
        "authorization of the sender's own account uses up nonce {nonce}, which another transaction in the pool has: send it with a nonce after that one's, or wait until that one is mined"
    )]
    NonceUsedUp {
        /// The other's nonce.
        nonce: u64,
    },
    /// The account has as many transactions in the pool as it may.
    #[error("account limit exceeded: pooled {pooled} txs")]
    AccountLimit {
        /// How many it has.
        pooled: usize,
    },
    /// The pool is full, and this one does not pay more than the cheapest in it.
    #[error("transaction underpriced")]
    Underpriced,
    /// The pool is full, and this one could not be mined yet.
    #[error("txpool is full")]
    Full,
}

impl PoolError {
    /// Whether another nonce could be taken: the transaction's own, or one that it would use up, is no longer free.
    pub const fn is_nonce(&self) -> bool {
        matches!(self, Self::NonceTooLow { .. } | Self::NonceTaken { .. } | Self::NonceUsedUp { .. })
    }
}
