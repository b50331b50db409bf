//! Errors of the pool, with geth's messages (`core/txpool`, `core/error.go`, `core/types`).

use alloy_primitives::{Address, B256, U256};

use crate::store::StoreError;

/// The reason why the pool rejects a transaction. Amounts are in wei, fees in wei per gas, sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The transaction cannot be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The bytes do not encode a transaction.
    #[error("malformed transaction: {0}")]
    Malformed(String),
    /// The EIP-2718 transaction type is unknown, or does not exist on this chain.
    #[error("transaction type not supported: {0:#x}")]
    UnknownType(u8),
    /// The fork that introduces the transaction type is not active.
    #[error("transaction type not supported: type {kind} rejected, pool not yet in {fork}")]
    TypeNotYet { kind: u8, fork: &'static str },
    /// A legacy transaction is not bound to a chain (EIP-155).
    #[error("only replay-protected (EIP-155) transactions allowed over RPC")]
    Unprotected,
    /// The pool already holds the transaction.
    #[error("already known")]
    AlreadyKnown,
    /// The transaction is longer than the pool accepts for its type.
    #[error("oversized data: transaction size {size}, limit {limit}")]
    Oversized { size: usize, limit: usize },
    /// The creation code is too long (EIP-3860).
    #[error("max initcode size exceeded: code size {size} limit {limit}")]
    InitCode { size: usize, limit: usize },
    /// The gas limit exceeds the cap for one transaction (EIP-7825).
    #[error("transaction gas limit too high (cap: {cap}, tx: {gas})")]
    GasCap { cap: u64, gas: u64 },
    /// The gas limit exceeds the block gas limit.
    #[error("exceeds block gas limit")]
    BlockGas,
    /// The priority fee exceeds the maximum fee (EIP-1559).
    #[error("max priority fee per gas higher than max fee per gas")]
    TipAboveFee,
    /// The transaction is signed for another chain.
    #[error("invalid sender: invalid chain id for signer: have {have} want {want}")]
    ChainId { have: u64, want: u64 },
    /// No sender can be recovered from the signature, or it is not canonical (EIP-2).
    #[error("invalid sender: {0}")]
    Signature(&'static str),
    /// The nonce is 2^64 - 1, which no transaction may have (EIP-2681).
    #[error("nonce has max value")]
    NonceMax,
    /// The gas limit is below the intrinsic gas.
    #[error("intrinsic gas too low: gas {gas}, minimum needed {needed}")]
    IntrinsicGas { gas: u64, needed: u64 },
    /// The gas limit is below the floor that the calldata sets (EIP-7623).
    #[error("insufficient gas for floor data gas cost: gas {gas}, minimum needed {needed}")]
    FloorGas { gas: u64, needed: u64 },
    /// The priority fee is below the pool's minimum.
    #[error("transaction gas price below minimum: gas tip cap {tip}, minimum needed {needed}")]
    TipTooLow { tip: u128, needed: u128 },
    /// The blob fee is below the protocol's minimum (EIP-4844).
    #[error("transaction gas price below minimum: blob fee cap {fee}, minimum needed {needed}")]
    BlobFeeTooLow { fee: u128, needed: u128 },
    /// The authorization list is empty (EIP-7702).
    #[error("set code tx must have at least one authorization tuple")]
    NoAuthorizations,
    /// A blob transaction is not in the network form (EIP-4844, Networking).
    #[error("missing sidecar in blob transaction")]
    MissingSidecar,
    /// The sidecar has cell proofs (EIP-7594) before Osaka.
    #[error("unexpected sidecar version, want: {want}, got: {got}")]
    SidecarVersion { want: u8, got: u8 },
    /// A blob transaction has no blobs (EIP-4844).
    #[error("blobless blob transaction")]
    NoBlobs,
    /// The transaction has more blobs than the fork allows in a transaction or a block.
    #[error("transaction blob limit exceeded: blob count {count}, limit {limit}")]
    TooManyBlobs { count: usize, limit: u64 },
    /// The number of blobs or commitments differs from the number of blob hashes.
    #[error("invalid number of {count} {what} compared to {hashes} blob hashes")]
    SidecarCount { what: &'static str, count: usize, hashes: usize },
    /// The sidecar has the wrong number of proofs.
    #[error("invalid number of {count} blob proofs expected {expected}")]
    ProofCount { count: usize, expected: usize },
    /// A blob hash does not match its commitment.
    #[error("blob {index}: computed hash {computed} mismatches transaction one {given}")]
    BlobHash { index: usize, computed: B256, given: B256 },
    /// The proofs do not verify.
    #[error("KZG verification error: {0}")]
    Kzg(String),
    /// The sender is a contract (EIP-3607).
    #[error("sender not an eoa: address {address}, codehash: {code_hash}")]
    SenderNotEoa { address: Address, code_hash: B256 },
    /// The nonce is below the account's next nonce.
    #[error("nonce too low: next nonce {next}, tx nonce {nonce}")]
    NonceTooLow { next: u64, nonce: u64 },
    /// The balance does not cover the transaction.
    #[error(
        "insufficient funds for gas * price + value: balance {balance}, tx cost {cost}, overshot {}",
        cost.saturating_sub(*balance)
    )]
    Funds { balance: U256, cost: U256 },
    /// The balance does not cover the transaction and the sender's others in the pool. For a replacement, `cost` is
    /// the additional cost.
    #[error(
        "insufficient funds for gas * price + value: balance {balance}, queued cost {queued}, tx cost {cost}, overshot {}",
        queued.saturating_add(*cost).saturating_sub(*balance)
    )]
    QueuedFunds { balance: U256, queued: U256, cost: U256 },
    /// A replacement does not raise the fee named `what` by the required percentage.
    #[error("replacement transaction underpriced: new tx {what} {new} < {old} queued + {bump}% replacement penalty")]
    ReplacementUnderpriced { what: &'static str, new: u128, old: u128, bump: u32 },
    /// Another transaction has taken the nonce that this node chose.
    #[error("nonce {nonce} is already taken by another transaction in the pool: send the request again")]
    NonceTaken { nonce: u64 },
    /// An authorization would use up the nonce of another transaction in the pool (EIP-7702).
    #[error(
        "authorization of the sender's own account uses up nonce {nonce}, which another transaction in the pool has: send this transaction with a nonce after the other's, or wait until the other is mined"
    )]
    NonceUsedUp { nonce: u64 },
    /// The account already has the maximum number of transactions in the pool.
    #[error("account limit exceeded: pooled {pooled} txs")]
    AccountLimit { pooled: usize },
    /// The pool is full, and the transaction does not pay more than the cheapest ones in it.
    #[error("transaction underpriced")]
    Underpriced,
    /// The pool is full, and the transaction cannot be mined yet, or all others are the node's own.
    #[error("txpool is full")]
    Full,
}

impl PoolError {
    /// Whether another nonce may help, because the transaction's own, or one that it would use up, is not free.
    pub const fn is_nonce(&self) -> bool {
        matches!(self, Self::NonceTooLow { .. } | Self::NonceTaken { .. } | Self::NonceUsedUp { .. })
    }
}
