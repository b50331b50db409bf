//! The true chain: blocks with their states, as an upstream serves them and a builder sends them.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    chain::{
        Attributes, BASE_FEE_VAULT, BlockHashes, ChainReceipt, ChainSpec, ChainTx, GasRefunds, genesis_block,
        receipts_root_and_bloom,
    },
    engine::{Applied, open_block, seal},
    ledger::Snapshot,
    source::{devnet::world::dev_signers, live::flashblocks::Flashblock, sub_block::extend},
    state::{CodeCache, LocalWorld, World},
};
use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope, TxReceipt, Typed2718, transaction::Recovered};
use alloy_eips::{Encodable2718, eip4895::Withdrawals};
use alloy_genesis::Genesis;
use alloy_primitives::{Address, B64, B256, Bloom, Bytes, TxKind, U256, keccak256};
use alloy_rpc_types_eth::TransactionInfo;
use alloy_signer::SignerSync;
use alloy_signer_local::PrivateKeySigner;
use op_alloy::{
    consensus::{
        OpTxEnvelope,
        post_exec::{SDMGasEntry, build_post_exec_tx},
        transaction::OpTransactionInfo,
    },
    rpc_types::Transaction,
    rpc_types_engine::{OpFlashblockPayload, OpFlashblockPayloadDelta, OpFlashblockPayloadMetadata},
};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use serde_json::{Value, json};

/// A contract that stores its first word of input in slot 0 and logs it as a topic.
pub const STORE: Address = Address::repeat_byte(0xc0);
/// The recipient of ether.
pub const SOMEBODY: Address = Address::repeat_byte(0x11);
/// The recipient of fees.
pub const FEES: Address = Address::repeat_byte(0xfe);
const CHAIN: u64 = 4242;

/// A block of the true chain.
#[derive(Debug)]
pub struct TrueBlock {
    pub number: u64,
    pub hash: B256,
    pub parent: B256,
    /// The state after the block.
    pub sealed: Snapshot,
    /// The block and its receipts in JSON-RPC form.
    pub json: Value,
    pub receipts: Value,
    /// The sub-blocks of which its builder made it.
    pub parts: Vec<TruePart>,
}

/// A sub-block, and the block so far.
#[derive(Debug)]
pub struct TruePart {
    pub payload: OpFlashblockPayload,
    /// The hashes of the block's transactions so far.
    pub transactions: Vec<B256>,
    /// The last of the added transactions with another value, if it is a transfer.
    pub swapped: Option<Recovered<ChainTx>>,
    /// The post-execution transaction of the block so far, which lists its refunds.
    pub post_exec: Option<Bytes>,
    pub world: World,
}

/// Returns a sub-block as a builder sends it.
pub fn flashblock(payload: &OpFlashblockPayload, post_exec: Option<&Bytes>) -> Arc<Flashblock> {
    let mut message = serde_json::to_value(payload).expect("a payload is JSON");
    if let Some(post_exec) = post_exec {
        message["diff"]["post_exec_tx"] = json!(post_exec);
    }
    Arc::new(Flashblock::from_text(message.to_string().as_bytes(), 1 << 24).expect("a sub-block"))
}

/// The chain's rules, its accounts, and its first block.
#[derive(Debug)]
pub struct Truth {
    pub spec: ChainSpec,
    signers: Vec<PrivateKeySigner>,
    pub genesis: Arc<TrueBlock>,
}

impl Truth {
    pub fn new() -> Self {
        let signers = dev_signers().expect("the published mnemonic");
        let fork = |name: &str| (format!("{name}Time"), json!(0));
        let mut config = json!({
            "chainId": CHAIN, "homesteadBlock": 0, "eip150Block": 0, "eip155Block": 0, "eip158Block": 0,
            "byzantiumBlock": 0, "constantinopleBlock": 0, "petersburgBlock": 0, "istanbulBlock": 0, "berlinBlock": 0,
            "londonBlock": 0, "bedrockBlock": 0, "terminalTotalDifficulty": 0, "terminalTotalDifficultyPassed": true,
            "optimism": {"eip1559Elasticity": 6, "eip1559Denominator": 50, "eip1559DenominatorCanyon": 250},
        });
        let forks = [
            "shanghai", "cancun", "prague", "regolith", "canyon", "ecotone", "fjord", "granite", "holocene", "isthmus",
            "jovian", "karst", "lagoon",
        ];
        config.as_object_mut().expect("an object").extend(forks.map(fork));
        let rich = |index: usize| (signers[index].address().to_string(), json!({"balance": "0x56bc75e2d63100000"}));
        let mut alloc: BTreeMap<String, Value> = (0..3).map(rich).collect();
        alloc.insert(STORE.to_string(), json!({"balance": "0x0", "code": "0x5f35805f555f5fa100"}));
        let genesis: Genesis = serde_json::from_value(json!({
            "config": config, "alloc": alloc, "difficulty": "0x0", "gasLimit": "0x1c9c380", "nonce": "0x0",
            "timestamp": "0x65000000", "extraData": "0x01000000fa0000000600000000000f4240",
            "baseFeePerGas": "0x3b9aca00", "mixHash": B256::ZERO, "coinbase": Address::ZERO,
        }))
        .expect("a genesis");
        let spec = ChainSpec::new(genesis.config.clone(), std::time::Duration::from_secs(1)).expect("a chain");
        let world = LocalWorld::of_genesis(&genesis, &CodeCache::new(1 << 20));
        let sealed = genesis_block(&genesis, &spec, world.state_root());
        let mut hashes = BlockHashes::default();
        hashes.push(sealed.number(), sealed.hash());
        let first = TrueBlock::of(Snapshot::at_head(world, Arc::new(sealed), hashes), Vec::new());
        Self { spec, signers, genesis: Arc::new(first) }
    }

    /// Returns the accounts that send the chain's transactions.
    pub fn senders(&self) -> Vec<Address> {
        self.signers.iter().take(3).map(PrivateKeySigner::address).collect()
    }

    /// Builds a block on `parent`, of sub-blocks with so many transactions each. `salt` tells siblings apart, and decides
    /// what the transactions do.
    pub fn build(&self, parent: &TrueBlock, parts: &[usize], salt: u64) -> Arc<TrueBlock> {
        let head = parent.sealed.head.header.inner();
        let attributes = Attributes {
            timestamp: head.timestamp + 1,
            fee_recipient: FEES,
            prev_randao: B256::from(U256::from(salt)),
            beacon_root: B256::ZERO,
            gas_limit: head.gas_limit,
        };
        let (mut made, mut all) = (Vec::new(), Vec::new());
        let mut refunds = Refunds::new(head.number + 1, salt);
        let mut at = open_block(&self.spec, &parent.sealed, attributes).expect("a block opens");
        for (part, count) in parts.iter().enumerate() {
            // The refunds of earlier transactions are others now, so the block is executed from its start.
            let post_exec = refunds.next(all.len() + count);
            at = open_block(&self.spec, &parent.sealed, attributes).expect("a block opens");
            let open = at.snapshot.open.as_mut().expect("an open block");
            open.refunds = post_exec.as_ref().map(GasRefunds::of_last).unwrap_or_default();
            for tx in all.iter().cloned() {
                at = self.push(&at, tx);
            }
            let (mut added, mut swapped) = (Vec::new(), None);
            for index in 0..*count {
                let seed = salt.wrapping_mul(31).wrapping_add((16 * part + index) as u64);
                let tx = self.transaction(&at, seed, 0);
                swapped = seed.is_multiple_of(2).then(|| self.transaction(&at, seed, 1));
                added.push(Bytes::from(tx.encoded_2718()));
                all.push(tx.clone());
                at = self.push(&at, tx);
            }
            made.push((added, swapped, post_exec, at.snapshot.copy()));
        }
        let last = made.last().and_then(|(_, _, post_exec, _)| post_exec.clone());
        if let Some(post_exec) = last {
            at = self.push(&at, post_exec.recovered().expect("a sender"));
        }
        let open = at.snapshot.open.as_ref().expect("an open block");
        let (sealed, _) = seal(&self.spec, &at.snapshot, open, Withdrawals::default()).expect("the block is sealed");
        let parts = made.into_iter().enumerate().map(|(index, (added, swapped, post_exec, so_far))| {
            let is_last = index + 1 == parts.len();
            let post_exec = post_exec.map(|tx| Bytes::from(tx.encoded_2718()));
            TruePart { swapped, post_exec, ..part(&sealed.snapshot, index, added, so_far, is_last) }
        });
        let parts = parts.collect();
        Arc::new(TrueBlock::of(sealed.snapshot, parts))
    }

    /// Adds a transaction to the block being built.
    fn push(&self, at: &Applied, tx: Recovered<ChainTx>) -> Applied {
        let open = at.snapshot.open.as_ref().expect("an open block");
        extend(&self.spec, &at.snapshot, open, |sub_block| {
            sub_block.push(tx).expect("the transaction can be in the block");
        })
    }

    /// Returns a transaction of one of the accounts: a transfer, of so much more, or a word to store.
    fn transaction(&self, at: &Applied, seed: u64, more: u64) -> Recovered<ChainTx> {
        let signer = &self.signers[usize::try_from(seed % 3).expect("a small number")];
        let world = at.snapshot.world.local().expect("a local world");
        let (to, value, input) = if seed.is_multiple_of(2) {
            (SOMEBODY, U256::from(seed % 1000 + more), Bytes::new())
        } else {
            (STORE, U256::ZERO, Bytes::from(U256::from(seed).to_be_bytes::<32>()))
        };
        let tx = TxEip1559 {
            chain_id: CHAIN,
            nonce: world.account(&signer.address()).map_or(0, |account| account.nonce),
            gas_limit: 100_000,
            max_fee_per_gas: 20_000_000_000,
            max_priority_fee_per_gas: 500,
            to: TxKind::Call(to),
            value,
            input,
            ..TxEip1559::default()
        };
        let signature = signer.sign_hash_sync(&tx.signature_hash()).expect("a signature");
        ChainTx::from(TxEnvelope::from(tx.into_signed(signature))).recovered().expect("a sender")
    }
}

/// The refunds of gas of a block, from one sub-block to the next.
struct Refunds {
    number: u64,
    entries: Vec<SDMGasEntry>,
    /// `None` for a block without refunds.
    rng: Option<SmallRng>,
}

impl Refunds {
    fn new(number: u64, salt: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(salt ^ 0x5d3);
        let has_any = rng.random_bool(0.5);
        Self { number, entries: Vec::new(), rng: has_any.then_some(rng) }
    }

    /// Returns the post-execution transaction of the next sub-block, after which the block has `count` transactions.
    fn next(&mut self, count: usize) -> Option<ChainTx> {
        let rng = self.rng.as_mut()?;
        if rng.random_bool(0.6) {
            self.entries.clear();
            for index in 0..count as u64 {
                if rng.random_ratio(1, 3) {
                    // Each transaction uses at least 21,000.
                    self.entries.push(SDMGasEntry { index, gas_refund: rng.random_range(1..=21_000) });
                }
            }
        }
        (!self.entries.is_empty()).then(|| build_post_exec_tx(self.number, self.entries.clone()).into())
    }
}

impl TrueBlock {
    fn of(sealed: Snapshot, parts: Vec<TruePart>) -> Self {
        let (header, body) = (&sealed.head.header, sealed.head.body());
        let (number, hash) = (header.number, header.hash());
        let mut json = serde_json::to_value(header.inner()).expect("a header is JSON");
        json["hash"] = json!(hash);
        (json["uncles"], json["withdrawals"], json["size"]) = (json!([]), json!([]), json!("0x200"));
        let transactions = body.transactions.iter().enumerate().map(|(index, tx)| {
            let info = TransactionInfo {
                hash: Some(*tx.tx_hash()),
                index: Some(index as u64),
                block_hash: Some(hash),
                block_number: Some(number),
                block_timestamp: Some(header.timestamp),
                base_fee: header.base_fee_per_gas,
            };
            let raw = tx.encoded_2718();
            let envelope = <OpTxEnvelope as alloy_eips::Decodable2718>::decode_2718_exact(&raw).expect("a transaction");
            let recovered = Recovered::new_unchecked(envelope, tx.signer());
            json!(Transaction::from_transaction(recovered, OpTransactionInfo::new(info, Default::default())))
        });
        json["transactions"] = transactions.collect();
        let receipts = body.transactions.iter().zip(&body.receipts);
        let receipts = receipts.map(|(tx, receipt)| receipt_json(*tx.tx_hash(), tx.ty(), receipt)).collect();
        Self { number, hash, parent: header.parent_hash, json, receipts, parts, sealed }
    }
}

/// Returns a sub-block that adds transactions, after which the block is `so_far`.
fn part(sealed: &Snapshot, index: usize, added: Vec<Bytes>, so_far: Snapshot, is_last: bool) -> TruePart {
    let (header, hash) = (sealed.head.header.inner(), sealed.head_hash());
    let open = so_far.open.as_ref().expect("an open block");
    let mut receipts: Vec<ChainReceipt> = open.receipts.iter().cloned().collect();
    if open.refunds.transaction().is_some() && index.is_multiple_of(2) {
        // Builders may cover the receipt of the post-execution transaction by the root, or not.
        receipts.push(ChainReceipt::PostExec { cumulative_gas_used: open.header.gas_used });
    }
    let (receipts_root, logs_bloom) = receipts_root_and_bloom(&receipts);
    let own = |salt: u8| keccak256([hash.as_slice(), &[salt], &(index as u64).to_be_bytes()].concat());
    let balances = [SOMEBODY, STORE, FEES, BASE_FEE_VAULT].map(|address| {
        let account = so_far.world.local().and_then(|world| world.account(&address));
        (address, account.map_or(U256::ZERO, |account| account.balance))
    });
    let mut payload = OpFlashblockPayload {
        index: index as u64,
        base: (index == 0).then(|| support::upstream::base_of(header)),
        diff: OpFlashblockPayloadDelta {
            state_root: if is_last { header.state_root } else { own(1) },
            receipts_root,
            logs_bloom,
            gas_used: open.header.gas_used,
            block_hash: if is_last { hash } else { own(2) },
            transactions: added,
            withdrawals: Vec::new(),
            withdrawals_root: header.withdrawals_root.unwrap_or_default(),
            blob_gas_used: header.blob_gas_used,
        },
        metadata: OpFlashblockPayloadMetadata {
            block_number: header.number,
            new_account_balances: balances.into_iter().collect(),
            receipts: BTreeMap::new(),
        },
        ..Default::default()
    };
    payload.payload_id.0 = B64::from_slice(&keccak256(hash)[..8]);
    let transactions = open.transactions.iter().map(|tx| *tx.tx_hash()).collect();
    TruePart { payload, transactions, swapped: None, post_exec: None, world: so_far.world }
}

/// Returns a receipt in JSON-RPC form, with the fields that the receipts root covers.
fn receipt_json(tx: B256, kind: u8, receipt: &ChainReceipt) -> Value {
    let logs: Vec<Value> = receipt
        .logs()
        .iter()
        .map(|log| json!({"address": log.address, "topics": log.topics(), "data": log.data.data}))
        .collect();
    json!({
        "transactionHash": tx, "type": format!("{kind:#x}"), "status": if receipt.status() { "0x1" } else { "0x0" },
        "cumulativeGasUsed": format!("{:#x}", receipt.cumulative_gas_used()), "logs": logs,
        "logsBloom": Bloom::from_iter(receipt.logs()),
    })
}
