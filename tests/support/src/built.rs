//! Chains built by tests: blocks of signed transactions, served by an upstream or sent by a builder in sub-blocks.

use std::sync::{Arc, LazyLock};

use alloy_consensus::{Header, SignableTransaction, TxEip1559, TxEnvelope, TxReceipt, Typed2718};
use alloy_eips::{Encodable2718, eip4895::Withdrawals};
use alloy_genesis::{Genesis, GenesisAccount};
use alloy_primitives::{Address, B64, B256, Bloom, Bytes, TxKind, U256, address, hex, keccak256};
use alloy_signer::SignerSync;
use alloy_signer_local::PrivateKeySigner;
use op_alloy::{
    consensus::{TxDeposit, post_exec::POST_EXEC_TX_TYPE_ID},
    rpc_types_engine::OpFlashblockPayload,
};
use presim::testing::{
    chain::{
        Attributes, BlockHashes, ChainReceipt, ChainSpec, ChainTx, GasRefunds, genesis_block, receipts_root_and_bloom,
    },
    engine::{open_block, seal},
    ledger::Snapshot,
    source::{devnet::world::dev_signers, sub_block::extend},
    state::{Account, AccountChange, Code, CodeCache, LocalWorld},
};
use serde_json::{Value, json};

use crate::{
    hex,
    op_chain::{ATTRIBUTED, L1_BLOCK, SEQUENCER_FEE_VAULT, config as op_config, post_exec},
    upstream::{Cumulative, Fixture, State, UpstreamBlock, cut},
};

/// A contract that stores its first word of input in slot 0 and logs it as a topic.
pub const STORE: Address = Address::repeat_byte(0xc0);
/// Contracts that read 2, 3 and 6 slots, of which each names the next. The first is the first word of the input.
pub const CHASES: [(Address, usize); 3] =
    [(Address::repeat_byte(0xc2), 2), (Address::repeat_byte(0xc3), 3), (Address::repeat_byte(0xc6), 6)];
/// The number of chains of slots that those contracts can follow.
pub const TRAILS: u64 = 1_100;
/// A token without checks: moves the second word of the input from the caller's balance, in the slot of its address, to
/// the balance of the first word, and logs both.
pub const TOKEN: Address = Address::repeat_byte(0x70);
/// A contract that hashes until little gas is left, and counts in a slot of its caller.
pub const BURNER: Address = Address::repeat_byte(0xb0);
/// The proxy that deploys contracts by CREATE2, and its code.
pub const DEPLOYMENT_PROXY: Address = address!("4e59b44847b379578588920cA78FbF26c0B4956C");
pub const DEPLOYMENT_PROXY_CODE: &str = "0x7fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffe03601600081602082378035828234f58015156039578182fd5b8082525050506014600cf3";
/// The predeploy that keeps the milliseconds of a block's time.
pub const BASE_TIME: Address = address!("4200000000000000000000000000000000000030");
/// The sender of the deposits that the protocol makes.
pub const DEPOSITOR: Address = address!("deaddeaddeaddeaddeaddeaddeaddeaddead0001");
/// A contract that succeeds until it is called with data, and without data only before.
pub const GATE: Address = Address::repeat_byte(0x6a);
/// The contract that says what is gasless on X Layer.
pub const GASLESS_CONTRACT: Address = address!("19787404b0c70021b4752028f7e3a92313885B27");
/// The recipient of ether in tests.
pub const SOMEBODY: Address = Address::repeat_byte(0x11);
/// The id of the OP-stack chain.
pub const OP_CHAIN: u64 = 4242;
/// The id of the chain with Ethereum's rules.
pub const ETHEREUM: u64 = 31_415;

/// Code in the place of `L1Block`, which does nothing but store the base fee of L1 that a call of 32 bytes gives.
const L1_BASE_FEE_SETTER: &str = "0x36602014600857005b5f3560015500";
/// The gas of a block.
const GAS_LIMIT: u64 = 30_000_000;

/// The funded accounts. Their keys are derived once, because that takes longer than a signature.
static SIGNERS: LazyLock<Vec<PrivateKeySigner>> = LazyLock::new(|| dev_signers().expect("keys"));

/// Returns the `config` of a genesis file of [`ETHEREUM`].
pub fn ethereum_config() -> Value {
    json!({
        "chainId": ETHEREUM, "homesteadBlock": 0, "eip150Block": 0, "eip155Block": 0, "eip158Block": 0,
        "byzantiumBlock": 0, "constantinopleBlock": 0, "petersburgBlock": 0, "istanbulBlock": 0, "berlinBlock": 0,
        "londonBlock": 0, "terminalTotalDifficulty": 0, "terminalTotalDifficultyPassed": true, "shanghaiTime": 0,
        "cancunTime": 0, "pragueTime": 0,
        "blobSchedule": {
            "cancun": {"target": 3, "max": 6, "baseFeeUpdateFraction": 3_338_477},
            "prague": {"target": 6, "max": 9, "baseFeeUpdateFraction": 5_007_716},
        },
    })
}

/// A block, and the chain up to it.
#[derive(Clone)]
pub struct Built {
    pub config: Value,
    pub spec: ChainSpec,
    /// The block as an upstream serves it, with the state after it.
    pub block: UpstreamBlock,
    snapshot: Arc<Snapshot>,
    fixture: Fixture,
    /// The cumulative fields after each transaction, the first at index 0.
    cumulative: Vec<Cumulative>,
}

impl Built {
    /// Builds the first block of an OP-stack chain under Jovian.
    pub fn op_stack() -> Self {
        Self::op_stack_of(GAS_LIMIT)
    }

    /// Builds the first block of an OP-stack chain under Jovian, whose blocks have this much gas.
    pub fn op_stack_of(gas_limit: u64) -> Self {
        Self::genesis(op_config(OP_CHAIN, "jovian"), gas_limit)
    }

    /// Builds the first block of an OP-stack chain under Lagoon.
    pub fn lagoon() -> Self {
        Self::genesis(op_config(OP_CHAIN, "lagoon"), GAS_LIMIT)
    }

    /// Builds the first block of a chain of Base under Denim, of whose blocks five share a timestamp.
    pub fn denim() -> Self {
        let mut config = op_config(OP_CHAIN, "jovian");
        for fork in ["azul", "beryl", "cobalt", "denim"] {
            config[format!("{fork}Time")] = json!(0);
        }
        Self::genesis(config, GAS_LIMIT)
    }

    /// Builds the first block of X Layer under Jovian, with this account as the contract that says what is gasless.
    pub fn x_layer(contract: &Value) -> Self {
        let more = json!({ GASLESS_CONTRACT.to_string(): contract });
        Self::genesis_with(op_config(196, "jovian"), GAS_LIMIT, more)
    }

    /// Builds the first block of a chain with Ethereum's rules under Prague.
    pub fn ethereum() -> Self {
        Self::genesis(ethereum_config(), GAS_LIMIT)
    }

    /// Builds the same block as [`ethereum`](Self::ethereum) on a chain with another id.
    pub fn ethereum_with(chain_id: u64) -> Self {
        let mut config = ethereum_config();
        config["chainId"] = json!(chain_id);
        Self::genesis(config, GAS_LIMIT)
    }

    fn genesis(config: Value, gas_limit: u64) -> Self {
        Self::genesis_with(config, gas_limit, json!({}))
    }

    /// Builds the first block of a chain with these accounts beside the usual ones.
    fn genesis_with(config: Value, gas_limit: u64, mut more: Value) -> Self {
        let ether = json!({"balance": "0x56bc75e2d63100000"});
        let mut senders = serde_json::Map::new();
        for signer in SIGNERS.iter() {
            senders.insert(signer.address().to_string(), ether.clone());
        }
        for (address, reads) in CHASES {
            let slots = (0..TRAILS).flat_map(|trail| (0..reads as u64).map(move |at| trail_slot(trail) + at));
            let storage: serde_json::Map<String, Value> =
                slots.map(|slot| (word(slot).to_string(), json!(word(slot + 1)))).collect();
            let code = format!("0x5f35{}5000", "54".repeat(reads));
            senders.insert(address.to_string(), json!({"balance": "0x0", "code": code, "storage": storage}));
        }
        let mut alloc = json!({
                STORE.to_string(): {"balance": "0x0", "code": "0x5f35805f555f5fa100"},
                TOKEN.to_string(): {"balance": "0x0", "code": TOKEN_CODE},
                BURNER.to_string(): {"balance": "0x0", "code": BURNER_CODE},
                BASE_TIME.to_string(): {"balance": "0x0", "code": BASE_TIME_CODE},
                GATE.to_string(): {"balance": "0x0", "code": "0x36600a575f54601057005b60015f55005b5f5ffd"},
                DEPLOYMENT_PROXY.to_string(): {"balance": "0x0", "code": DEPLOYMENT_PROXY_CODE},
        });
        alloc.as_object_mut().unwrap().append(&mut senders);
        if config.get("optimism").is_some() {
            let code = json!({"balance": "0x0", "code": L1_BASE_FEE_SETTER, "storage": ATTRIBUTED.storage()});
            alloc[L1_BLOCK.to_string()] = code;
        }
        alloc.as_object_mut().unwrap().append(more.as_object_mut().unwrap());
        let genesis: Genesis = serde_json::from_value(json!({
            "config": config,
            "alloc": alloc,
            "difficulty": "0x0", "gasLimit": format!("{gas_limit:#x}"), "nonce": "0x0", "timestamp": "0x65000000",
            "extraData": "0x01000000fa0000000600000000000f4240", "baseFeePerGas": "0x3b9aca00",
            "mixHash": B256::ZERO, "coinbase": Address::ZERO,
        }))
        .expect("a genesis");
        let spec = ChainSpec::new(genesis.config.clone(), std::time::Duration::from_secs(1)).expect("a chain");
        let world = LocalWorld::of_genesis(&genesis, &CodeCache::new(1 << 20));
        let sealed = genesis_block(&genesis, &spec, world.state_root());
        let mut hashes = BlockHashes::default();
        hashes.push(sealed.number(), sealed.hash());
        let snapshot = Snapshot::at_head(world, Arc::new(sealed), hashes);
        Self::of(config, spec, snapshot, Arc::new(genesis.alloc), Vec::new())
    }

    /// Builds the next block; `salt` distinguishes siblings. On the OP stack, a deposit precedes `transactions`.
    pub fn next(&self, transactions: Vec<ChainTx>, salt: u8) -> Self {
        self.next_after(1, transactions, salt)
    }

    /// Builds the next block with these refunds of gas, by the indices of the transactions, of which the deposit is the first.
    pub fn next_refunded(&self, transactions: Vec<ChainTx>, refunds: &[(u64, u64)], salt: u8) -> Self {
        self.next_with(1, transactions, refunds, salt)
    }

    /// Builds the next block, so many seconds after this one.
    pub fn next_after(&self, seconds: u64, transactions: Vec<ChainTx>, salt: u8) -> Self {
        self.next_with(seconds, transactions, &[], salt)
    }

    fn next_with(&self, seconds: u64, transactions: Vec<ChainTx>, refunds: &[(u64, u64)], salt: u8) -> Self {
        let parent = self.snapshot.head.header.inner();
        let attributes = Attributes {
            timestamp: parent.timestamp + seconds,
            fee_recipient: SEQUENCER_FEE_VAULT,
            prev_randao: B256::repeat_byte(salt),
            beacon_root: B256::ZERO,
            gas_limit: parent.gas_limit,
        };
        let mut at = open_block(&self.spec, &self.snapshot, attributes).expect("a block opens");
        let mut state = State::clone(&self.block.state);
        put(&mut state, &at.snapshot.path[0].changes);
        let mut cumulative = Vec::new();
        let is_op = self.config.get("optimism").is_some();
        let deposit = is_op.then(|| deposit(parent.number + 1, salt));
        let number = parent.number + 1;
        let post_exec = (!refunds.is_empty()).then(|| post_exec(number, refunds));
        let all: Vec<ChainTx> = deposit.into_iter().chain(transactions).chain(post_exec).collect();
        at.snapshot.open.as_mut().unwrap().refunds = all.last().map(GasRefunds::of_last).unwrap_or_default();
        for tx in all {
            at = extend(&self.spec, &at.snapshot, at.snapshot.open.as_ref().unwrap(), |sub_block| {
                sub_block.push(tx.recovered().expect("a sender")).expect("it can be in the block");
            });
            put(&mut state, &at.snapshot.path[0].changes);
            let open = at.snapshot.open.as_ref().unwrap();
            let (receipts_root, logs_bloom) = receipts_root_and_bloom(&open.receipts);
            cumulative.push(Cumulative { gas_used: open.header.gas_used, receipts_root, logs_bloom });
        }
        let open = at.snapshot.open.as_ref().unwrap();
        let (sealed, _) = seal(&self.spec, &at.snapshot, open, Withdrawals::default()).expect("it is sealed");
        put(&mut state, &sealed.snapshot.path[0].changes);
        Self::of(self.config.clone(), self.spec.clone(), sealed.snapshot, Arc::new(state), cumulative)
    }

    fn of(config: Value, spec: ChainSpec, snapshot: Snapshot, state: Arc<State>, cumulative: Vec<Cumulative>) -> Self {
        let (header, body) = (&snapshot.head.header, snapshot.head.body());
        let mut fields = serde_json::to_value(header.inner()).expect("a header is JSON");
        fields["hash"] = json!(header.hash());
        fields["uncles"] = json!([]);
        fields["withdrawals"] = json!([]);
        fields["size"] = json!("0x200");
        let raw: Vec<Bytes> = body.transactions.iter().map(|tx| tx.encoded_2718().into()).collect();
        let fixture = Fixture { chain_id: spec.chain_id(), block: fields, raw, state: state.clone() };
        let receipts = body.transactions.iter().zip(&body.receipts);
        let receipts = receipts.map(|(tx, receipt)| receipt_json(*tx.tx_hash(), tx.ty(), receipt)).collect();
        let block = fixture.block(Some(state)).with_receipts(receipts);
        Self { config, spec, block, snapshot: Arc::new(snapshot), fixture, cumulative }
    }

    pub const fn number(&self) -> u64 {
        self.block.number
    }

    pub const fn hash(&self) -> B256 {
        self.block.hash
    }

    pub fn header(&self) -> &Header {
        self.snapshot.head.header.inner()
    }

    pub fn raw(&self) -> &[Bytes] {
        &self.fixture.raw
    }

    pub fn receipts(&self) -> Vec<ChainReceipt> {
        self.snapshot.head.body().receipts.clone()
    }

    pub fn tx_hash(&self, index: usize) -> B256 {
        *self.snapshot.head.body().transactions[index].tx_hash()
    }

    /// Cuts the block into sub-blocks of this many transactions.
    pub fn flashblocks(&self, split: &[usize]) -> Vec<OpFlashblockPayload> {
        cut(&self.fixture, split, |count| self.after(count))
    }

    fn after(&self, count: usize) -> Cumulative {
        let (receipts_root, logs_bloom) = receipts_root_and_bloom(&Vec::<ChainReceipt>::new());
        let nothing = Cumulative { gas_used: 0, receipts_root, logs_bloom };
        count.checked_sub(1).map_or(nothing, |at| self.cumulative[at])
    }

    /// Returns the block so far as sub-block `index`, which brings the transactions from `from` on and restates the refunds of all,
    /// from a builder that leaves out hashes. `covers_last` says whether the root of the receipts covers that of the
    /// post-execution transaction.
    pub fn restated(&self, index: u64, from: usize, covers_last: bool) -> Value {
        let count = self.raw().len();
        let mut json = serde_json::to_value(&self.flashblocks(&[count])[0]).expect("a payload is JSON");
        let (mut transactions, mut receipts) = (self.raw().to_vec(), self.receipts());
        let post_exec = transactions.pop_if(|last| last[0] == POST_EXEC_TX_TYPE_ID);
        if post_exec.is_some() && !covers_last {
            receipts.pop();
            json["diff"]["receipts_root"] = json!(receipts_root_and_bloom(&receipts).0);
        }
        json["payload_id"] = json!(B64::from(self.number().to_be_bytes()));
        json["index"] = json!(index);
        let diff = &mut json["diff"];
        diff["transactions"] = json!(transactions[from..]);
        diff["withdrawals"] = json!([]);
        for hash in ["state_root", "block_hash", "withdrawals_root"] {
            diff[hash] = json!(B256::ZERO);
        }
        if let Some(post_exec) = post_exec {
            diff["post_exec_tx"] = json!(post_exec);
        }
        if index > 0 {
            json.as_object_mut().expect("an object").remove("base");
        }
        json
    }

    /// Returns the receipts as the metadata of a sub-block has them, by the hashes of the transactions.
    pub fn told_receipts(&self) -> Value {
        let all = self.block.receipts.iter().flatten();
        let sent = all.filter(|receipt| receipt["type"] != hex(u64::from(POST_EXEC_TX_TYPE_ID)));
        let told =
            sent.map(|receipt| (receipt["transactionHash"].as_str().expect("a hash").to_owned(), receipt.clone()));
        Value::Object(told.collect())
    }

    /// Returns what the builder would send if it told no receipts root, no bloom and no gas.
    pub fn untold(&self, split: &[usize]) -> Vec<OpFlashblockPayload> {
        let mut payloads = self.flashblocks(split);
        for payload in &mut payloads {
            payload.diff.gas_used = 0;
            payload.diff.receipts_root = B256::ZERO;
            payload.diff.logs_bloom = Bloom::ZERO;
        }
        payloads
    }

    /// Returns the answer to `eth_getProof` after the block.
    pub fn proof(&self, address: Address, slots: &[U256]) -> Value {
        proof(&self.snapshot, address, slots)
    }

    /// Returns the sender of a transaction of the block.
    pub fn sender(&self, index: usize) -> Address {
        self.snapshot.head.body().transactions[index].signer()
    }

    /// Returns an account after the block as the prestate tracer has it, with some of its slots.
    pub fn traced(&self, address: Address, has_slot: impl Fn(U256) -> bool) -> Value {
        let Some(account) = self.block.state.get(&address) else { return json!({"balance": "0x0"}) };
        let slots = account.storage.iter().flatten().filter(|(slot, _)| has_slot((**slot).into()));
        let storage: serde_json::Map<String, Value> =
            slots.map(|(slot, value)| (slot.to_string(), json!(value))).collect();
        json!({
            "balance": account.balance, "nonce": account.nonce.unwrap_or_default(),
            "code": account.code.clone().unwrap_or_default(), "storage": storage,
        })
    }

    /// Returns a balance after the block.
    pub fn balance(&self, address: Address) -> U256 {
        self.block.state.get(&address).map(|account| account.balance).unwrap_or_default()
    }
}

/// Returns the answer to `eth_getProof` on a snapshot.
pub fn proof(snapshot: &Snapshot, address: Address, slots: &[U256]) -> Value {
    let world = snapshot.world.local().expect("a built chain has all of its state");
    let absent = Account::default();
    let account = world.account(&address).map_or(&absent, Arc::as_ref);
    let trie = account.storage_trie();
    let proven = |slot: &U256| {
        let proof = trie.proof(keccak256(B256::from(*slot)));
        json!({"key": slot, "value": account.slot(slot), "proof": proof})
    };
    json!({
        "address": address, "balance": account.balance, "nonce": format!("{:#x}", account.nonce),
        "codeHash": account.code.hash, "storageHash": trie.root_hash(),
        "accountProof": world.trie().proof(keccak256(address)),
        "storageProof": slots.iter().map(proven).collect::<Vec<Value>>(),
    })
}

/// Signs a transaction of one of the funded accounts.
pub fn sent_by(who: usize, chain_id: u64, nonce: u64, to: Address, value: u64, input: Bytes) -> ChainTx {
    let tx = TxEip1559 {
        chain_id,
        nonce,
        gas_limit: 100_000,
        max_fee_per_gas: 20_000_000_000,
        max_priority_fee_per_gas: 500,
        to: TxKind::Call(to),
        value: U256::from(value),
        input,
        ..TxEip1559::default()
    };
    let signature = SIGNERS[who].sign_hash_sync(&tx.signature_hash()).unwrap();
    TxEnvelope::from(tx.into_signed(signature)).into()
}

/// Signs a transfer of one wei to [`SOMEBODY`] on X Layer that offers nothing for its gas.
pub fn gasless(who: usize, nonce: u64) -> ChainTx {
    let tx = TxEip1559 {
        chain_id: 196,
        nonce,
        gas_limit: 21_000,
        to: TxKind::Call(SOMEBODY),
        value: U256::ONE,
        ..TxEip1559::default()
    };
    let signature = SIGNERS[who].sign_hash_sync(&tx.signature_hash()).unwrap();
    TxEnvelope::from(tx.into_signed(signature)).into()
}

/// Signs a transfer of `value` wei to [`SOMEBODY`].
pub fn transfer(chain_id: u64, nonce: u64, value: u64) -> ChainTx {
    sent_by(0, chain_id, nonce, SOMEBODY, value, Bytes::new())
}

/// Signs a transaction that stores a word in [`STORE`].
pub fn store(chain_id: u64, nonce: u64, word: u64) -> ChainTx {
    sent_by(0, chain_id, nonce, STORE, 0, U256::from(word).to_be_bytes::<32>().into())
}

/// Signs a transaction that follows a trail of slots in one of [`CHASES`].
pub fn chase(who: usize, chain_id: u64, nonce: u64, contract: Address, trail: u64) -> ChainTx {
    sent_by(who, chain_id, nonce, contract, 0, word(trail_slot(trail)).into())
}

/// Returns whether a slot is one of a trail of the longest of [`CHASES`].
pub fn is_on_trail(slot: U256, trail: u64) -> bool {
    (trail_slot(trail)..trail_slot(trail) + 6).any(|of| slot == U256::from(of))
}

/// Returns the first slot of a trail. Those of other contracts' first slots are not among them.
pub const fn trail_slot(trail: u64) -> u64 {
    (trail + 1) << 8
}

fn word(value: u64) -> B256 {
    U256::from(value).into()
}

/// Signs a transfer of [`TOKEN`].
pub fn token(who: usize, chain_id: u64, nonce: u64, to: Address, amount: u64) -> ChainTx {
    let input = [to.into_word(), word(amount)].concat();
    sent_by(who, chain_id, nonce, TOKEN, 0, input.into())
}

/// CALLER: sload(caller) - amount; sload(to) + amount; log of the amount with both as topics.
const TOKEN_CODE: &str = "0x602035803354033355805f3554015f35555f525f353360205fa200";

const BURNER_CODE: &str = "0x5b6020600020505a61ea60106000573354600101335500";

/// Returns slot 0, or sets it where there is an argument.
const BASE_TIME_CODE: &str = "0x36600c575f545f5260205ff35b6004355f5500";

/// Returns the deposit that tells the milliseconds of a block in which a second has several blocks
/// (<https://docs.base.org/base-chain/specs/upgrades/denim/200ms-blocks>).
pub fn base_time(number: u64, milliseconds: u64) -> ChainTx {
    TxDeposit {
        source_hash: keccak256([word(3), keccak256(word(number))].concat()),
        from: DEPOSITOR,
        to: TxKind::Call(BASE_TIME),
        gas_limit: 1_000_000,
        input: [&hex!("86bdf394")[..], word(milliseconds).as_slice()].concat().into(),
        ..TxDeposit::default()
    }
    .into()
}

fn deposit(number: u64, salt: u8) -> ChainTx {
    let mut source_hash = B256::repeat_byte(salt);
    source_hash[..8].copy_from_slice(&number.to_be_bytes());
    TxDeposit {
        source_hash,
        from: DEPOSITOR,
        to: TxKind::Call(L1_BLOCK),
        gas_limit: 1_000_000,
        input: ATTRIBUTED.input(),
        ..TxDeposit::default()
    }
    .into()
}

/// Changes the state of an upstream.
pub fn put(state: &mut State, changes: &[AccountChange]) {
    for change in changes {
        let Some(info) = &change.info else {
            state.remove(&change.address);
            continue;
        };
        let known: &mut GenesisAccount = state.entry(change.address).or_default();
        (known.balance, known.nonce) = (info.balance, Some(info.nonce));
        let bytes = Code::of(info).bytecode.original_bytes();
        known.code = (!bytes.is_empty()).then_some(bytes);
        let storage = known.storage.get_or_insert_default();
        if change.storage_cleared {
            storage.clear();
        }
        storage.extend(change.slots.iter().map(|(slot, value)| (B256::from(*slot), B256::from(*value))));
    }
}

/// Returns a receipt in JSON-RPC form, with the fields that the receipts root covers.
pub fn receipt_json(tx: B256, kind: u8, receipt: &ChainReceipt) -> Value {
    let logs: Vec<Value> = receipt
        .logs()
        .iter()
        .map(|log| json!({"address": log.address, "topics": log.topics(), "data": log.data.data}))
        .collect();
    let mut json = json!({
        "transactionHash": tx, "type": format!("{kind:#x}"), "status": if receipt.status() { "0x1" } else { "0x0" },
        "cumulativeGasUsed": format!("{:#x}", receipt.cumulative_gas_used()), "logs": logs,
        "logsBloom": Bloom::from_iter(receipt.logs()),
    });
    if let Some(deposit) = receipt.as_deposit() {
        json["depositNonce"] = deposit.deposit_nonce.map_or(Value::Null, |nonce| json!(format!("{nonce:#x}")));
        let version = deposit.deposit_receipt_version;
        json["depositReceiptVersion"] = version.map_or(Value::Null, |version| json!(format!("{version:#x}")));
    }
    json
}
