//! Importing a chain from a file: consecutive blocks in RLP, each executed and checked against its header.

use std::{
    collections::VecDeque,
    fmt::Display,
    path::{Path, PathBuf},
    sync::Arc,
};

use alloy_consensus::{
    Block, Header, TxEnvelope,
    crypto::RecoveryError,
    proofs,
    transaction::{Recovered, SignerRecoverable},
};
use alloy_eips::{
    eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
    eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
    eip7685::Requests,
    eip7928::compute_block_access_list_hash,
    eip8282::{BUILDER_DEPOSIT_CONTRACT_ADDRESS, BUILDER_EXIT_CONTRACT_ADDRESS},
};
use alloy_evm::block::{BlockExecutionError, BlockValidationError};
use alloy_hardforks::EthereumHardforks;
use alloy_primitives::{Address, B64, B256, Bytes, KECCAK256_EMPTY, U256, bytes};
use alloy_rlp::Decodable;
use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    chain::{
        BlockBody, ChainSpec, ChainTx, Family, SealedBlock, access_list_items, most_access_list_items,
        receipts_root_and_bloom, transactions_root,
    },
    engine::{BlockEnd, execute_block, withdrawals_root},
    ledger::Snapshot,
    state::LocalWorld,
};

/// A block's gas limit must differ from its parent's by less than this part of it (yellow paper, 4.4.4).
const GAS_LIMIT_BOUND_DIVISOR: u64 = 1024;
/// The lowest gas limit (yellow paper, 4.4.4).
const MINIMUM_GAS_LIMIT: u64 = 5_000;
/// The highest gas limit (EIP-1985).
const MAXIMUM_GAS_LIMIT: u64 = i64::MAX as u64;
/// The most bytes of `extraData` (yellow paper, 4.4.4).
const MAXIMUM_EXTRA_DATA: usize = 32;
/// The most bytes of a block's RLP from Osaka on (EIP-7934).
const MAXIMUM_BLOCK_SIZE: usize = 8_388_608;
/// The most uncles of a block (yellow paper, 4.3).
const MAXIMUM_OMMERS: usize = 2;
/// The most generations from a block to the parent of its uncle (yellow paper, 4.3).
const OMMER_GENERATIONS: usize = 6;
/// The `extraData` of the first blocks of the DAO fork (EIP-779).
const DAO_EXTRA_DATA: Bytes = bytes!("64616f2d686172642d666f726b");
const WITHDRAWAL_REQUESTS: &str = "the contract of withdrawal requests (EIP-7002)";
const CONSOLIDATION_REQUESTS: &str = "the contract of consolidation requests (EIP-7251)";
const BUILDER_DEPOSITS: &str = "the contract of builder deposits (EIP-8282)";
const BUILDER_EXITS: &str = "the contract of builder exits (EIP-8282)";
/// The contracts that must have code, and succeed, in each block from Prague on.
const REQUEST_CONTRACTS: [(&str, Address); 2] = [
    (WITHDRAWAL_REQUESTS, WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS),
    (CONSOLIDATION_REQUESTS, CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS),
];
/// The contracts for which this holds from Amsterdam on.
const BUILDER_CONTRACTS: [(&str, Address); 2] =
    [(BUILDER_DEPOSITS, BUILDER_DEPOSIT_CONTRACT_ADDRESS), (BUILDER_EXITS, BUILDER_EXIT_CONTRACT_ADDRESS)];
/// The number of blocks that have [`DAO_EXTRA_DATA`].
const DAO_EXTRA_DATA_BLOCKS: u64 = 10;

/// The reason why a chain file cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be read.
    #[error("{}: cannot be read", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// The bytes after the last good block are not a block.
    #[error("block after {last}, at byte {offset}: expected a block in RLP")]
    Decode { last: u64, offset: usize, source: alloy_rlp::Error },
    /// A header field disagrees with the parent, or with the result of execution.
    #[error("block {number}: {field}: expected {expected}, got {got}")]
    Mismatch { number: u64, field: &'static str, expected: String, got: String },
    /// A transaction's signature is invalid.
    #[error("block {number}: transaction {index}: signature")]
    Signature { number: u64, index: usize, source: alloy_consensus::crypto::RecoveryError },
    /// A transaction of the block cannot be executed.
    #[error("block {number}: a transaction cannot be executed")]
    Execution { number: u64, source: BlockExecutionError },
}

/// Imports the blocks of `file` on `base`, passes each result to `keep`, and returns the last. Shows a progress bar.
///
/// # Errors
///
/// Returns an [`ImportError`] if the file cannot be read, or for the first bad block.
pub fn import(
    spec: &ChainSpec,
    base: Snapshot,
    file: &Path,
    mut keep: impl FnMut(&Snapshot),
) -> Result<Snapshot, ImportError> {
    let bytes = std::fs::read(file).map_err(|source| ImportError::Read { path: file.into(), source })?;
    let bar = ProgressBar::new(bytes.len() as u64).with_style(style()).with_message("importing");
    import_bytes(spec, base, &bytes, |head, done| {
        keep(head);
        bar.set_position(done as u64);
    })
}

/// Imports the blocks in `bytes` on `base`, passes each result to `keep` with the number of bytes that are imported by
/// then, and returns the last.
///
/// # Errors
///
/// Returns an [`ImportError`] for the first bad block.
pub fn import_bytes(
    spec: &ChainSpec,
    base: Snapshot,
    bytes: &[u8],
    mut keep: impl FnMut(&Snapshot, usize),
) -> Result<Snapshot, ImportError> {
    let mut rest = bytes;
    let mut head = base;
    let mut ancestors = VecDeque::from([head.head.clone()]);
    while !rest.is_empty() {
        let offset = bytes.len() - rest.len();
        let block = Block::<ChainTx>::decode(&mut rest).map_err(|source| ImportError::Decode {
            last: head.head.number(),
            offset,
            source,
        })?;
        if block.header.number == 0 && block.header.hash_slow() == head.head_hash() {
            continue; // A file may begin with the genesis itself.
        }
        let size = bytes.len() - rest.len() - offset;
        head = import_block(spec, &head, &ancestors, block, size)?;
        ancestors.push_front(head.head.clone());
        ancestors.truncate(OMMER_GENERATIONS + 1);
        keep(&head, bytes.len() - rest.len());
    }
    Ok(head)
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Imports a block on `parent`. `ancestors` are the blocks before it that are known, the newest first, and `size` is the
/// length of its RLP.
fn import_block(
    spec: &ChainSpec,
    parent: &Snapshot,
    ancestors: &VecDeque<Arc<SealedBlock>>,
    block: Block<ChainTx>,
    size: usize,
) -> Result<Snapshot, ImportError> {
    let Block { header, body } = block;
    let number = header.number;
    check_against_parent(spec, parent.head.header.inner(), parent.head_hash(), &header)?;
    let check = Check { number };
    // The OP stack takes Osaka without EIP-7934 (<https://specs.optimism.io/protocol/karst/exec-engine.html>).
    let is_bounded = spec.family() == Family::Ethereum && spec.is_osaka_active_at_timestamp(header.timestamp);
    if size > MAXIMUM_BLOCK_SIZE && is_bounded {
        check.fail("size", format!("at most {MAXIMUM_BLOCK_SIZE} bytes (EIP-7934)"), size)?;
    }
    let shanghai = spec.is_shanghai_active_at_timestamp(header.timestamp);
    if shanghai != body.withdrawals.is_some() {
        check.fail("withdrawals", present(shanghai), present(!shanghai))?;
    }
    check.equal("sha3Uncles", header.ommers_hash, proofs::calculate_ommers_root(&body.ommers))?;
    check_ommers(spec, ancestors, &header, &body.ommers)?;
    let transactions = body
        .transactions
        .into_iter()
        .enumerate()
        .map(|(index, tx)| {
            if matches!(&tx, ChainTx::Signed(TxEnvelope::Eip4844(tx)) if tx.tx().sidecar().is_some()) {
                check.fail(
                    "transactions",
                    "blob transactions without their sidecars",
                    format!("a sidecar at {index}"),
                )?;
            }
            recover(spec, number, tx).map_err(|source| ImportError::Signature { number, index, source })
        })
        .collect::<Result<Vec<_>, ImportError>>()?;
    check.equal("transactionsRoot", header.transactions_root, transactions_root(&transactions))?;

    let executed = execute_block(spec, parent, &header, &transactions, &body.ommers, body.withdrawals.as_ref())
        .or_else(|error| check.execution(error))?;
    let withdrawals_root = withdrawals_root(spec, &header, &executed.world, body.withdrawals.as_ref());
    check.equal_option("withdrawalsRoot", header.withdrawals_root, withdrawals_root)?;
    check_against_execution(spec, &header, &executed)?;
    let BlockEnd { world, receipts, access_list, .. } = executed;
    let (ommers, withdrawals) = (body.ommers, body.withdrawals);
    let block = SealedBlock::new(header, BlockBody { transactions, receipts, ommers, withdrawals, access_list });
    let mut hashes = parent.hashes.clone();
    hashes.push(number, block.hash());
    Ok(Snapshot::at_head(world, Arc::new(block), hashes))
}

/// Returns a transaction with its sender. Before Homestead, a signature may have a high `s` (EIP-2).
fn recover(spec: &ChainSpec, number: u64, tx: ChainTx) -> Result<Recovered<ChainTx>, RecoveryError> {
    if spec.is_homestead_active_at_block(number) {
        return tx.recovered();
    }
    let sender = tx.recover_signer_unchecked()?;
    Ok(Recovered::new_unchecked(tx, sender))
}

/// Checks the uncles of a block: none after the merge (EIP-3675), and before it at most two, each a child of one of the
/// block's ancestors that is valid on it, not an ancestor itself, and not included before (yellow paper, 4.3).
fn check_ommers(
    spec: &ChainSpec,
    ancestors: &VecDeque<Arc<SealedBlock>>,
    header: &Header,
    ommers: &[Header],
) -> Result<(), ImportError> {
    let check = Check { number: header.number };
    let most = if spec.is_post_merge(header.number) { 0 } else { MAXIMUM_OMMERS };
    if ommers.len() > most {
        return check.fail("uncles", format!("at most {most}"), ommers.len());
    }
    for (at, ommer) in ommers.iter().enumerate() {
        let hash = ommer.hash_slow();
        let is_ancestor = ancestors.iter().any(|ancestor| ancestor.hash() == hash);
        let before = ancestors.iter().take(OMMER_GENERATIONS).flat_map(|ancestor| ancestor.body().ommers.clone());
        let is_repeated = before.chain(ommers[..at].iter().cloned()).any(|other| other.hash_slow() == hash);
        if is_ancestor || is_repeated {
            let found = if is_ancestor { "an ancestor" } else { "an uncle that was included before" };
            return check.fail("uncles", "blocks that were not included before", found);
        }
        // The block's parent is generation 1. The parent's children are the block's siblings.
        let kin = ancestors.iter().skip(1).take(OMMER_GENERATIONS).find(|kin| kin.hash() == ommer.parent_hash);
        let Some(kin) = kin else {
            let expected = format!("children of the {OMMER_GENERATIONS} blocks before the parent");
            return check.fail("uncles", expected, format!("a child of {}", ommer.parent_hash));
        };
        check_against_parent(spec, kin.header.inner(), kin.hash(), ommer)
            .or_else(|error| check.fail("uncles", "valid headers", error))?;
    }
    Ok(())
}

fn check_against_parent(
    spec: &ChainSpec,
    parent: &Header,
    parent_hash: B256,
    header: &Header,
) -> Result<(), ImportError> {
    let check = Check { number: header.number };
    check.equal("number", parent.number + 1, header.number)?;
    check.equal("parentHash", parent_hash, header.parent_hash)?;
    let may_repeat = spec.timestamps_repeat(header.timestamp);
    if header.timestamp < parent.timestamp || header.timestamp == parent.timestamp && !may_repeat {
        let expected = if may_repeat { "at least" } else { "more than" };
        return check.fail("timestamp", format!("{expected} the parent's {}", parent.timestamp), header.timestamp);
    }
    if header.gas_used > header.gas_limit {
        return check.fail("gasUsed", format!("at most the gas limit {}", header.gas_limit), header.gas_used);
    }
    // At the first London block, the parent's gas limit is doubled (EIP-1559).
    let london_begins = spec.is_london_active_at_block(header.number) && parent.base_fee_per_gas.is_none();
    let usual_limit = if london_begins { parent.gas_limit.saturating_mul(2) } else { parent.gas_limit };
    let room = usual_limit / GAS_LIMIT_BOUND_DIVISOR;
    if header.gas_limit.abs_diff(usual_limit) >= room || header.gas_limit < MINIMUM_GAS_LIMIT {
        let expected = format!("less than {room} from {usual_limit}, and at least {MINIMUM_GAS_LIMIT}");
        return check.fail("gasLimit", expected, header.gas_limit);
    }
    if header.gas_limit > MAXIMUM_GAS_LIMIT {
        return check.fail("gasLimit", format!("at most {MAXIMUM_GAS_LIMIT}"), header.gas_limit);
    }
    if let Some(fork) = spec.dao_fork_block()
        && (fork..fork + DAO_EXTRA_DATA_BLOCKS).contains(&header.number)
    {
        check.equal("extraData", &DAO_EXTRA_DATA, &header.extra_data)?;
    }
    if header.extra_data.len() > MAXIMUM_EXTRA_DATA {
        let expected = format!("at most {MAXIMUM_EXTRA_DATA} bytes");
        return check.fail("extraData", expected, format!("{} bytes", header.extra_data.len()));
    }
    if spec.is_post_merge(header.number) {
        check.equal("difficulty", U256::ZERO, header.difficulty)?;
        check.equal("nonce", B64::ZERO, header.nonce)?;
    } else {
        check.equal("difficulty", spec.next_difficulty(parent, header.timestamp), header.difficulty)?;
    }
    let base_fee = spec.next_base_fee(parent, header.number, header.timestamp);
    check.equal_option("baseFeePerGas", base_fee, header.base_fee_per_gas)?;
    let excess = spec.next_excess_blob_gas(parent, header.timestamp);
    check.equal_option("excessBlobGas", excess, header.excess_blob_gas)?;
    let cancun = spec.is_cancun_active_at_timestamp(header.timestamp);
    if cancun != header.parent_beacon_block_root.is_some() {
        return check.fail("parentBeaconBlockRoot", present(cancun), present(!cancun));
    }
    let amsterdam = spec.is_amsterdam_active_at_timestamp(header.timestamp);
    if amsterdam != header.slot_number.is_some() {
        return check.fail("slotNumber", present(amsterdam), present(!amsterdam));
    }
    Ok(())
}

fn check_against_execution(spec: &ChainSpec, header: &Header, executed: &BlockEnd) -> Result<(), ImportError> {
    let check = Check { number: header.number };
    check.equal("gasUsed", header.gas_used, executed.gas_used)?;
    let blob_gas = spec.is_cancun_active_at_timestamp(header.timestamp).then_some(executed.blob_gas_used);
    check.equal_option("blobGasUsed", header.blob_gas_used, blob_gas)?;
    if let (Some(used), Some(params)) = (blob_gas, spec.blob_params(header.timestamp))
        && used > params.max_blob_gas_per_block()
    {
        return check.fail("blobGasUsed", format!("at most {}", params.max_blob_gas_per_block()), used);
    }
    let (receipts_root, bloom) = receipts_root_and_bloom(&executed.receipts);
    check.equal("receiptsRoot", header.receipts_root, receipts_root)?;
    check.equal("logsBloom", header.logs_bloom, bloom)?;
    let prague = spec.is_prague_active_at_timestamp(header.timestamp);
    let requests_hash = prague.then(|| Requests::requests_hash(&executed.requests));
    check.equal_option("requestsHash", header.requests_hash, requests_hash)?;
    let hash = executed.access_list.as_deref().map(compute_block_access_list_hash);
    check.equal_option("blockAccessListHash", header.block_access_list_hash, hash)?;
    if let Some(list) = &executed.access_list {
        let (items, most) = (access_list_items(list), most_access_list_items(header.gas_limit));
        if items > most {
            let expected = format!("at most {most} accounts and slots (EIP-7928)");
            return check.fail("block access list", expected, items);
        }
    }
    if prague && spec.family() == Family::Ethereum {
        let amsterdam = spec.is_amsterdam_active_at_timestamp(header.timestamp);
        let builders = BUILDER_CONTRACTS.into_iter().filter(|_| amsterdam);
        for (field, contract) in REQUEST_CONTRACTS.into_iter().chain(builders) {
            if executed.world.account(&contract).is_none_or(|account| account.code.hash == KECCAK256_EMPTY) {
                return check.fail(field, format!("code at {contract}"), "none");
            }
        }
    }
    let root = executed.world.local().map(LocalWorld::state_root_in_parallel);
    check.equal_option("stateRoot", Some(header.state_root), root)
}

const fn present(there: bool) -> &'static str {
    if there { "present" } else { "absent" }
}

/// A comparison of the fields of one block.
struct Check {
    number: u64,
}

impl Check {
    fn equal<T: PartialEq + Display>(&self, field: &'static str, expected: T, got: T) -> Result<(), ImportError> {
        if expected == got { Ok(()) } else { self.fail(field, expected, got) }
    }

    fn equal_option<T: PartialEq + Display>(
        &self,
        field: &'static str,
        expected: Option<T>,
        got: Option<T>,
    ) -> Result<(), ImportError> {
        if expected == got {
            return Ok(());
        }
        let text = |value: Option<T>| value.map_or_else(|| "absent".to_owned(), |value| value.to_string());
        self.fail(field, text(expected), text(got))
    }

    /// Returns the error of a block whose execution failed. If a system contract for requests is the cause, the error
    /// names it.
    fn execution<T>(&self, source: BlockExecutionError) -> Result<T, ImportError> {
        use {BlockExecutionError::Validation, BlockValidationError as Error};
        let (contract, problem) = match source {
            Validation(Error::WithdrawalRequestsContractCall { message }) => (WITHDRAWAL_REQUESTS, message),
            Validation(Error::ConsolidationRequestsContractCall { message }) => (CONSOLIDATION_REQUESTS, message),
            Validation(Error::BuilderDepositRequestsContractCall { message }) => (BUILDER_DEPOSITS, message),
            Validation(Error::BuilderExitRequestsContractCall { message }) => (BUILDER_EXITS, message),
            source => return Err(ImportError::Execution { number: self.number, source }),
        };
        self.fail(contract, "success", problem)
    }

    fn fail<T>(&self, field: &'static str, expected: impl Display, got: impl Display) -> Result<T, ImportError> {
        Err(ImportError::Mismatch { number: self.number, field, expected: expected.to_string(), got: got.to_string() })
    }
}
