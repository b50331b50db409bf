//! Blocks that an import must refuse, each made from a valid one by one edit, and what the rules before it allow.

use crate::chain::{ChainTx, transactions_root};
use alloy_consensus::{
    BlobTransactionSidecar, Header, SignableTransaction, TxEip4844, TxEip4844Variant, TxEip4844WithSidecar, TxEnvelope,
    TxLegacy, proofs,
};
use alloy_eips::{
    eip4844::{Blob, Bytes48},
    eip7002::{WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS, WITHDRAWAL_REQUEST_PREDEPLOY_CODE},
    eip7251::{CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS, CONSOLIDATION_REQUEST_PREDEPLOY_CODE},
    eip8282::{
        BUILDER_DEPOSIT_CONTRACT_ADDRESS, BUILDER_DEPOSIT_CONTRACT_CODE, BUILDER_EXIT_CONTRACT_ADDRESS,
        BUILDER_EXIT_CONTRACT_CODE,
    },
};
use alloy_primitives::{Address, B256, TxKind, U256};
use alloy_rlp::Encodable;
use proptest::{collection::vec, prelude::any, sample::Index, test_runner::TestRunner};
use serde_json::{Value, json};

use super::built::{BuiltChain, RlpBlock, high, sign, signer};

const RECIPIENT: Address = Address::repeat_byte(0xaa);
/// The most bytes of a block from Osaka on (EIP-7934).
const MAX_BYTES: usize = 8_388_608;

// The blocks of the template chain: the last before the merge, and the first ones of the forks after it.
const LAST_OF_WORK: u64 = 10;
const PARIS: u64 = 11;
const SHANGHAI: u64 = 12;
const CANCUN: u64 = 13;
const PRAGUE: u64 = 14;
const OSAKA: u64 = 15;
/// The block that has an uncle, a child of block [`UNCLES_PARENT`].
const WITH_UNCLE: u64 = 5;
const UNCLES_PARENT: u64 = 3;

/// Returns a chain's rules: all forks before the merge from the start, and `later`.
fn config(mut later: Value) -> Value {
    for fork in ["homestead", "eip150", "eip155", "eip158", "byzantium", "constantinople", "petersburg"] {
        later[format!("{fork}Block")] = json!(0);
    }
    for fork in ["istanbul", "muirGlacier", "berlin", "london", "arrowGlacier", "grayGlacier"] {
        later[format!("{fork}Block")] = json!(0);
    }
    later["chainId"] = json!(1);
    later
}

/// Returns a genesis in geth's format with the accounts that blocks from Prague on need.
fn genesis(config: Value, gas_limit: u64) -> Value {
    json!({
        "config": config, "difficulty": "0x20000", "gasLimit": format!("{gas_limit:#x}"),
        "alloc": {
            signer().address().to_string(): {"balance": "0xffffffffffffffffffff"},
            WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS.to_string(): {"balance": "0x0", "code": *WITHDRAWAL_REQUEST_PREDEPLOY_CODE},
            CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS.to_string(): {"balance": "0x0", "code": *CONSOLIDATION_REQUEST_PREDEPLOY_CODE},
        },
    })
}

/// Returns a chain through the merge and each fork after it, with an uncle, a blob transaction, and the highest gas
/// limit, up to block `last`. Its blocks are 12 s apart.
fn template(last: u64) -> BuiltChain {
    let config = config(json!({
        "terminalTotalDifficulty": 1, "mergeNetsplitBlock": PARIS,
        "shanghaiTime": 12 * SHANGHAI, "cancunTime": 12 * CANCUN, "pragueTime": 12 * PRAGUE, "osakaTime": 12 * OSAKA,
    }));
    let mut chain = BuiltChain::of(genesis(config, i64::MAX as u64));
    for number in 1..=last {
        let block = match number {
            WITH_UNCLE => chain.next(vec![], vec![sibling(&chain, UNCLES_PARENT, 1)]),
            CANCUN => chain.next(vec![signed(blob_tx().into())], vec![]),
            _ => chain.next(vec![], vec![]),
        };
        chain.push(block);
    }
    chain
}

/// Returns a chain in Prague from its genesis on, whose accounts are edited.
pub(super) fn prague(edit: &dyn Fn(&mut Value)) -> BuiltChain {
    let forks = json!({"terminalTotalDifficulty": 0, "shanghaiTime": 0, "cancunTime": 0, "pragueTime": 0});
    let mut genesis = genesis(config(forks), 0x100_0000);
    edit(&mut genesis["alloc"]);
    BuiltChain::of(genesis)
}

/// Returns a chain in Amsterdam from its genesis on, whose accounts are edited.
fn amsterdam(gas_limit: u64, edit: &dyn Fn(&mut Value)) -> BuiltChain {
    let forks = json!({
        "terminalTotalDifficulty": 0, "shanghaiTime": 0, "cancunTime": 0, "pragueTime": 0, "osakaTime": 0, "amsterdamTime": 0,
    });
    let mut genesis = genesis(config(forks), gas_limit);
    for (address, code) in [
        (BUILDER_DEPOSIT_CONTRACT_ADDRESS, &BUILDER_DEPOSIT_CONTRACT_CODE),
        (BUILDER_EXIT_CONTRACT_ADDRESS, &BUILDER_EXIT_CONTRACT_CODE),
    ] {
        genesis["alloc"][address.to_string()] = json!({"balance": "0x0", "code": **code});
    }
    edit(&mut genesis["alloc"]);
    BuiltChain::of(genesis)
}

/// Returns a valid header of a child of block `parent` that is not in the chain. Those with other marks differ.
fn sibling(chain: &BuiltChain, parent: u64, mark: u8) -> Header {
    Header { beneficiary: Address::repeat_byte(mark), ..chain.header_on(parent) }
}

fn blob_tx() -> TxEip4844 {
    TxEip4844 {
        chain_id: 1,
        gas_limit: 21_000,
        max_fee_per_gas: 2_000_000_000,
        to: RECIPIENT,
        blob_versioned_hashes: vec![B256::repeat_byte(1)],
        max_fee_per_blob_gas: 10,
        ..TxEip4844::default()
    }
}

fn signed(tx: TxEip4844Variant) -> ChainTx {
    let signature = sign(&tx);
    TxEnvelope::from(tx.into_signed(signature)).into()
}

fn legacy(nonce: u64, zeros: usize) -> TxLegacy {
    TxLegacy {
        nonce,
        gas_price: 2_000_000_000,
        gas_limit: 21_000 + 10 * zeros as u64,
        to: TxKind::Call(RECIPIENT),
        input: vec![0; zeros].into(),
        ..TxLegacy::default()
    }
}

/// Returns a transaction that makes `block` take `bytes` bytes if it is its only one.
fn filling(block: &RlpBlock, nonce: u64, bytes: usize) -> ChainTx {
    let tx = |zeros| {
        let tx = legacy(nonce, zeros);
        let signature = sign(&tx);
        ChainTx::from(TxEnvelope::from(tx.into_signed(signature)))
    };
    let length = |zeros| {
        let mut block = block.clone();
        block.body.transactions = vec![tx(zeros)];
        block.length()
    };
    let zeros = bytes - 2_000;
    tx(zeros + bytes - length(zeros))
}

#[test]
fn an_edited_block_is_refused_by_its_number_and_the_field() {
    let chain = template(OSAKA);
    let edited = |number: u64, edit: &dyn Fn(&mut RlpBlock)| {
        let mut block = chain.blocks[number as usize - 1].clone();
        edit(&mut block);
        block
    };
    let with_uncles = |number: u64, uncles: &[Header]| {
        edited(number, &|block| {
            block.body.ommers = uncles.to_vec();
            block.header.ommers_hash = proofs::calculate_ommers_root(uncles);
        })
    };
    let filled =
        |number: u64, bytes: usize| edited(number, &|block| block.body.transactions = vec![filling(block, 1, bytes)]);
    let header = |number: u64| chain.blocks[number as usize - 1].header.clone();
    let uncle = |parent: u64| sibling(&chain, parent, 2);
    let stranger = Header { parent_hash: B256::repeat_byte(0x5a), ..uncle(8) };
    let difficulty = uncle(8).difficulty;
    let false_uncle = Header { difficulty: difficulty + U256::ONE, ..uncle(8) };
    let included = chain.blocks[WITH_UNCLE as usize - 1].body.ommers[0].clone();
    let sidecar = BlobTransactionSidecar::new(vec![Blob::ZERO], vec![Bytes48::ZERO], vec![Bytes48::ZERO]);
    let sidecar = TxEip4844WithSidecar::from_tx_and_sidecar(blob_tx(), sidecar);
    let at_most = |limit: u64| format!("at most {limit}");
    let kin = |parent: B256| ("children of the 6 blocks before the parent".to_owned(), format!("a child of {parent}"));
    let new = |found: &str| ("blocks that were not included before".to_owned(), found.to_owned());
    let present = |present: bool| if present { "present" } else { "absent" }.to_owned();

    let rows: Vec<(RlpBlock, &str, (String, String))> = vec![
        // Before the merge. The seal is not checked.
        (
            edited(LAST_OF_WORK, &|block| block.header.difficulty += U256::ONE),
            "difficulty",
            (header(LAST_OF_WORK).difficulty.to_string(), (header(LAST_OF_WORK).difficulty + U256::ONE).to_string()),
        ),
        (
            with_uncles(LAST_OF_WORK, &[1, 2, 3].map(|mark| sibling(&chain, 8, mark))),
            "uncles",
            (at_most(2), "3".to_owned()),
        ),
        (with_uncles(LAST_OF_WORK, &[header(9)]), "uncles", new("an ancestor")),
        (with_uncles(LAST_OF_WORK, &[uncle(8), uncle(8)]), "uncles", new("an uncle that was included before")),
        (with_uncles(LAST_OF_WORK, &[included]), "uncles", new("an uncle that was included before")),
        (with_uncles(LAST_OF_WORK, &[uncle(2)]), "uncles", kin(header(2).hash_slow())),
        (with_uncles(LAST_OF_WORK, &[uncle(9)]), "uncles", kin(header(9).hash_slow())),
        (with_uncles(LAST_OF_WORK, &[stranger]), "uncles", kin(B256::repeat_byte(0x5a))),
        (
            with_uncles(LAST_OF_WORK, &[false_uncle]),
            "uncles",
            (
                "valid headers".to_owned(),
                format!("block 9: difficulty: expected {difficulty}, got {}", difficulty + U256::ONE),
            ),
        ),
        // EIP-3675: none after the merge.
        (with_uncles(PARIS, &[uncle(9)]), "uncles", (at_most(0), "1".to_owned())),
        // EIP-4895.
        (
            edited(PARIS, &|block| block.body.withdrawals = Some(Default::default())),
            "withdrawals",
            (present(false), present(true)),
        ),
        (edited(SHANGHAI, &|block| block.body.withdrawals = None), "withdrawals", (present(true), present(false))),
        // EIP-4844: the sidecar goes beside the block.
        (
            edited(CANCUN, &|block| block.body.transactions = vec![signed(sidecar.clone().into())]),
            "transactions",
            ("blob transactions without their sidecars".to_owned(), "a sidecar at 0".to_owned()),
        ),
        // EIP-1985.
        (
            edited(OSAKA, &|block| block.header.gas_limit += 1),
            "gasLimit",
            (at_most((1 << 63) - 1), (1_u64 << 63).to_string()),
        ),
        // EIP-7934.
        (
            filled(OSAKA, MAX_BYTES + 1),
            "size",
            (format!("at most {MAX_BYTES} bytes (EIP-7934)"), (MAX_BYTES + 1).to_string()),
        ),
    ];
    for (block, field, (expected, got)) in rows {
        let number = block.header.number;
        let text = format!("block {number}: {field}: expected {expected}, got {got}");
        assert_eq!(chain.refusal(&block), text);
    }
    for uncles in [vec![uncle(8), uncle(UNCLES_PARENT)], vec![uncle(7)]] {
        let error = chain.refusal(&with_uncles(LAST_OF_WORK, &uncles));
        assert!(error.contains("stateRoot"), "valid uncles, whose rewards the edited block lacks: {error}");
    }
    let error = chain.refusal(&filled(OSAKA, MAX_BYTES));
    assert!(error.contains("block 15: transactionsRoot"), "a size at the limit: {error}");
}

/// EIP-7934 holds from Osaka on, which the template's block of Prague precedes.
#[test]
fn a_block_before_osaka_may_have_more_bytes() {
    let chain = template(PRAGUE - 1);
    let filling = filling(&chain.next(vec![], vec![]), 1, MAX_BYTES + 1);
    let block = chain.next(vec![filling], vec![]);
    // The gas that it used makes its header a few bytes longer.
    assert!(block.length() > MAX_BYTES);
    chain.import_with(&block).unwrap();
}

#[test]
fn no_bytes_panic() {
    let chain = prague(&|_| {});
    let tx = legacy(0, 3);
    let signature = sign(&tx);
    let block = alloy_rlp::encode(chain.next(vec![TxEnvelope::from(tx.into_signed(signature)).into()], vec![]));
    chain.import(&block).unwrap();
    let edits = vec((any::<Index>(), any::<u8>()), 1..4);
    let run = TestRunner::default().run(&(vec(any::<u8>(), 0..300), edits), |(bytes, edits)| {
        let _ = chain.import(&bytes);
        let mut block = block.clone();
        for (at, byte) in edits {
            let at = at.index(block.len());
            block[at] = byte;
        }
        let _ = chain.import(&block);
        Ok(())
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}

/// EIP-2.
#[test]
fn a_high_s_is_valid_until_homestead() {
    let mut chain = BuiltChain::of(genesis(json!({"chainId": 1, "homesteadBlock": 2}), 0x100_0000));
    let send = |nonce: u64, is_high: bool| {
        let tx = legacy(nonce, 0);
        let low = sign(&tx);
        ChainTx::from(TxEnvelope::from(tx.into_signed(if is_high { high(&low) } else { low })))
    };
    let frontier = chain.next(vec![send(0, true), send(1, false)], vec![]);
    chain.push(frontier);
    let error = chain.refusal(&chain.next(vec![send(2, false), send(3, true)], vec![]));
    assert!(error.starts_with("block 2: transaction 1: signature: "), "{error}");
    let homestead = chain.next(vec![send(2, false), send(3, false)], vec![]);
    chain.push(homestead);
}

/// EIP-779: the balances move before the block's transactions, and its first ten blocks carry the fork's name.
#[test]
fn the_first_block_of_the_dao_fork_carries_its_name() {
    let mut genesis =
        genesis(json!({"chainId": 1, "homesteadBlock": 0, "daoForkBlock": 1, "daoForkSupport": true}), 0x100_0000);
    genesis["alloc"]["0xd4fe7bc31cedb7bfb8a345f31e668033056b2728"] = json!({"balance": "0x7"});
    let chain = BuiltChain::of(genesis);
    let block = |extra_data: &'static [u8]| {
        let mut block = chain.next(vec![], vec![]);
        block.header.extra_data = extra_data.into();
        block
    };
    let error = chain.refusal(&block(b""));
    assert!(error.contains("block 1: extraData: expected 0x64616f2d686172642d666f726b"), "{error}");
    chain.import_with(&block(b"dao-hard-fork")).unwrap();
}

/// EIP-7002, EIP-7251.
#[test]
fn a_block_of_prague_needs_the_contracts_of_requests_and_their_success() {
    let contracts = [
        (WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS, "the contract of withdrawal requests (EIP-7002)"),
        (CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS, "the contract of consolidation requests (EIP-7251)"),
    ];
    needs_contracts(&prague, &contracts);
}

/// EIP-8282.
#[test]
fn a_block_of_amsterdam_needs_the_contracts_of_builder_requests_and_their_success() {
    let contracts = [
        (BUILDER_DEPOSIT_CONTRACT_ADDRESS, "the contract of builder deposits (EIP-8282)"),
        (BUILDER_EXIT_CONTRACT_ADDRESS, "the contract of builder exits (EIP-8282)"),
    ];
    needs_contracts(&|edit| amsterdam(0x100_0000, edit), &contracts);
}

/// A transaction's gas limit has 32 bits (<https://github.com/ethereum/execution-specs/pull/3582>), whatever the block's is.
#[test]
fn a_gas_limit_of_more_than_32_bits_is_refused_from_amsterdam_on() {
    let chain = amsterdam(i64::MAX as u64, &|_| {});
    let block = |gas_limit: u64| {
        let tx = TxLegacy { gas_limit, ..legacy(0, 0) };
        let signature = sign(&tx);
        let tx = ChainTx::from(TxEnvelope::from(tx.into_signed(signature)));
        let mut block = chain.next(vec![tx.clone()], vec![]);
        block.header.transactions_root = transactions_root([&tx.recovered().unwrap()]);
        block
    };
    chain.import_with(&block(u32::MAX.into())).unwrap();
    let error = chain.refusal(&block(1 << 32));
    assert!(error.contains("4294967296") && error.contains("4294967295"), "{error}");
}

/// EIP-7928, EIP-7843.
#[test]
fn a_block_of_amsterdam_has_its_access_list_and_a_slot() {
    let chain = amsterdam(0x100_0000, &|_| {});
    let block = chain.next(vec![], vec![]);
    chain.import_with(&block).unwrap();
    let edited = |edit: &dyn Fn(&mut Header)| {
        let mut block = block.clone();
        edit(&mut block.header);
        chain.refusal(&block)
    };
    let list = block.header.block_access_list_hash.unwrap();
    let other = edited(&|header| header.block_access_list_hash = Some(B256::ZERO));
    assert_eq!(other, format!("block 1: blockAccessListHash: expected {}, got {list}", B256::ZERO));
    let slotless = edited(&|header| header.slot_number = None);
    assert_eq!(slotless, "block 1: slotNumber: expected present, got absent");
    // The contracts of requests alone are four accounts and sixteen slots. The two of parents have no code.
    let small = amsterdam(10_000, &|_| {});
    let error = small.refusal(&small.next(vec![], vec![]));
    assert_eq!(error, "block 1: block access list: expected at most 5 accounts and slots (EIP-7928), got 22");
}

/// A change of a genesis file's accounts.
type Edit<'a> = &'a dyn Fn(&mut Value);

/// Checks that a block is refused whose state lacks one of the contracts, or where one fails.
fn needs_contracts(chain: &dyn Fn(Edit<'_>) -> BuiltChain, contracts: &[(Address, &str)]) {
    let mut whole = chain(&|_| {});
    let block = whole.next(vec![], vec![]);
    whole.push(block);
    for (address, name) in contracts {
        let refusal = |edit: Edit<'_>| {
            let chain = chain(edit);
            chain.refusal(&chain.next(vec![], vec![]))
        };
        let missing = refusal(&|alloc| _ = alloc.as_object_mut().unwrap().remove(&address.to_string()));
        assert_eq!(missing, format!("block 1: {name}: expected code at {address}, got none"));
        for (code, end) in [("0x60006000fd", "execution reverted: 0x"), ("0xfe", "execution halted: InvalidFEOpcode")] {
            let failing = refusal(&|alloc| alloc[address.to_string()]["code"] = json!(code));
            assert_eq!(failing, format!("block 1: {name}: expected success, got {end}"));
        }
    }
}
