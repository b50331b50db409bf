//! A chain with Sepolia's rules that goes into Amsterdam, executed with all of its state.

use std::{collections::BTreeSet, sync::Arc};

use alloy_consensus::{
    Block, BlockBody, SignableTransaction, TxEip1559, TxEip2930, TxEip4844, TxEip7702, TxEnvelope, TxLegacy, Typed2718,
};
use alloy_eips::{
    eip2930::{AccessList, AccessListItem},
    eip4895::{Withdrawal, Withdrawals},
    eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
    eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
    eip7702::Authorization,
    eip7928::BlockAccessList,
    eip8282::{BUILDER_DEPOSIT_CONTRACT_ADDRESS, BUILDER_EXIT_CONTRACT_ADDRESS},
};
use alloy_genesis::Genesis;
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, address, hex};
use alloy_rpc_types_eth::{Transaction, TransactionInfo};
use alloy_signer::SignerSync;
use alloy_signer_local::PrivateKeySigner;
use presim::testing::{
    chain::{Attributes, BlockHashes, ChainSpec, ChainTx, genesis_block},
    engine::{open_block_with, seal},
    ledger::Snapshot,
    source::{devnet::world::dev_signers, sub_block::extend},
    state::{AccountChange, CodeCache, LocalWorld},
};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use serde_json::{Value, json};

use crate::{
    live::{
        built::{DEPLOYMENT_PROXY, DEPLOYMENT_PROXY_CODE, proof, put, receipt_json},
        receipts::complete_logs,
    },
    system_contracts::contracts,
    upstream::{State, UpstreamBlock},
};

/// The chain's id.
pub const SEPOLIA: u64 = 11_155_111;
/// The number of the first block, which is after the merge.
pub const FIRST: u64 = 10_000_000;
/// The time of Amsterdam.
const AMSTERDAM: u64 = 1_791_294_816;
/// The time of the beacon chain's slot 0.
const BEACON_GENESIS: u64 = 1_655_733_600;
/// The contract of deposits, whose logs are requests (EIP-6110). Here it logs its input.
const DEPOSITS: Address = address!("7f02C3E3c98b133055B8B348B2Ac625669Ed295D");
/// The topic of a deposit's log, and the places of its five fields.
const DEPOSIT_TOPIC: &str = "649bbc62d0e31342afea4e5cd82d4049e7e1ee912fc0889aa790803be39038c5";

/// A contract that stores the second word of its input in the slot of the first, or returns the slot if there is one word.
pub const STORE: Address = Address::repeat_byte(0xc0);
/// A contract that returns what it sees of an account and of the block.
pub const READER: Address = Address::repeat_byte(0xc1);
/// A contract that stores a word and reverts.
pub const REVERTER: Address = Address::repeat_byte(0xc2);
/// A contract that logs with no, two and four topics.
pub const LOGGER: Address = Address::repeat_byte(0xc3);
/// A contract that destroys itself in favour of the address in its input.
pub const DESTROYED: Address = Address::repeat_byte(0xc4);
/// A contract that stores the slot's number, an instruction of Amsterdam.
pub const SLOT: Address = Address::repeat_byte(0xc5);
/// A contract that sends its ether on to the address in its input.
pub const FORWARDER: Address = Address::repeat_byte(0xc6);
/// A contract that runs until its gas is used up.
pub const ENDLESS: Address = Address::repeat_byte(0xc7);
/// A contract that creates another of the code in its input.
pub const FACTORY: Address = Address::repeat_byte(0xc8);

const CODES: [(Address, &str); 9] = [
    (STORE, "36602014600e576020355f3555005b5f35545f5260205ff3"),
    (READER, "5f35315f525f353b602052600143034060405242606052446080524a60a05260c05ff3"),
    (REVERTER, "600160015563deadbeef5f5260205ffd"),
    (LOGGER, "5f355f5260205fa05f353360205fa26004600360025f355f5fa400"),
    (DESTROYED, "5f35ff"),
    (SLOT, "4b5f5500"),
    (FORWARDER, "5f5f5f5f345f355af100"),
    (ENDLESS, "5b5f56"),
    (FACTORY, "365f5f375f365f34f55f5260205ff3"),
];

/// The accounts that send transactions; those after them only sign authorizations.
const SENDERS: usize = 8;
const GAS_LIMIT: u64 = 60_000_000;
const ETHER: u128 = 1_000_000_000_000_000_000;

/// A block of the chain.
pub struct SepoliaBlock {
    /// The block as an upstream has it.
    pub upstream: UpstreamBlock,
    pub rlp: Vec<u8>,
    pub access_list: Option<BlockAccessList>,
    /// The accounts that it changed.
    pub touched: Vec<Address>,
    pub transactions: Vec<B256>,
    snapshot: Arc<Snapshot>,
}

impl SepoliaBlock {
    pub const fn number(&self) -> u64 {
        self.upstream.number
    }

    /// Returns the answer to `eth_getProof` after the block.
    pub fn proof(&self, address: Address, slots: &[U256]) -> Value {
        proof(&self.snapshot, address, slots)
    }
}

/// The kinds of transactions and requests of a chain, so that a test can say that none is missing.
#[derive(Default)]
pub struct Seen {
    pub types: BTreeSet<u8>,
    pub statuses: BTreeSet<bool>,
    pub requests: BTreeSet<u8>,
}

/// The chain: its genesis, and the blocks after it.
pub struct Sepolia {
    pub genesis: Value,
    pub first: SepoliaBlock,
    pub blocks: Vec<SepoliaBlock>,
    pub seen: Seen,
}

/// Returns the word of a number.
pub fn word(number: u64) -> B256 {
    U256::from(number).into()
}

/// Returns the input of [`STORE`].
pub fn stores(slot: u64, value: u64) -> Bytes {
    [word(slot), word(value)].concat().into()
}

/// Returns code that creates a contract like [`STORE`], whose slot 0 is 7.
pub fn creates() -> Bytes {
    let code = hex::decode(CODES[0].1).expect("hex");
    let length = u8::try_from(code.len()).expect("short");
    [&hex!("60075f55")[..], &[0x60, length, 0x80, 0x60, 0x0d, 0x5f, 0x39, 0x5f, 0xf3], &code].concat().into()
}

/// Returns code that does not create a contract, but sends the ether away.
fn vanishes(to: Address) -> Bytes {
    [&[0x73], to.as_slice(), &[0xff]].concat().into()
}

/// Returns the seconds from a block's parent to the block. Some slots are empty.
const fn step(index: u64) -> u64 {
    if index % 50 == 17 { 24 } else { 12 }
}

impl Sepolia {
    /// Builds `before` blocks before Amsterdam, and `after` in it.
    pub fn build(before: u64, after: u64, seed: u64) -> Self {
        let spec = ChainSpec::known_with(SEPOLIA, &[]).expect("known").expect("valid");
        let timestamp = AMSTERDAM - (1..=before + 1).map(step).sum::<u64>();
        let signers = dev_signers().expect("keys");
        let genesis = genesis(&spec, timestamp, &signers);
        let world = LocalWorld::of_genesis(&genesis, &CodeCache::new(1 << 24));
        let sealed = genesis_block(&genesis, &spec, world.state_root());
        let mut hashes = BlockHashes::default();
        hashes.push(sealed.number(), sealed.hash());
        let snapshot = Arc::new(Snapshot::at_head(world, Arc::new(sealed), hashes));
        let first = block(snapshot, Arc::new(genesis.alloc.clone()), BTreeSet::new());
        let json = serde_json::to_value(&genesis).expect("JSON");
        let mut chain = Self { genesis: json, first, blocks: Vec::new(), seen: Seen::default() };
        let mut maker = Maker { rng: SmallRng::seed_from_u64(seed), signers, new: 0 };
        for index in 1..=before + after {
            let next = chain.next(&spec, &mut maker, step(index));
            chain.blocks.push(next);
        }
        chain
    }

    fn next(&mut self, spec: &ChainSpec, maker: &mut Maker, seconds: u64) -> SepoliaBlock {
        let parent = self.blocks.last().unwrap_or(&self.first);
        let on = &parent.snapshot.head.header;
        let attributes = Attributes {
            timestamp: on.timestamp + seconds,
            fee_recipient: if maker.rng.random_bool(0.2) { maker.new_account() } else { Address::repeat_byte(0xfe) },
            prev_randao: maker.rng.random::<[u8; 32]>().into(),
            beacon_root: maker.rng.random::<[u8; 32]>().into(),
            gas_limit: GAS_LIMIT,
        };
        let mut header = spec.next_header(on, on.number + 1, attributes);
        header.slot_number = (header.timestamp >= AMSTERDAM).then(|| (header.timestamp - BEACON_GENESIS) / 12);
        let mut state = State::clone(&parent.upstream.state);
        let mut touched = BTreeSet::new();
        let mut keep = |changes: &[AccountChange]| {
            put(&mut state, changes);
            touched.extend(changes.iter().map(|change| change.address));
        };
        let mut at = open_block_with(spec, &parent.snapshot, header).expect("a block opens");
        keep(&at.snapshot.path[0].changes);
        for _ in 0..maker.rng.random_range(3..8) {
            let tx = maker.transaction(&at.snapshot);
            self.seen.types.insert(tx.ty());
            let open = at.snapshot.open.as_ref().expect("a block is open");
            at = extend(spec, &at.snapshot, open, |sub_block| {
                sub_block.push(tx.recovered().expect("a sender")).expect("it can be in the block");
            });
            keep(&at.snapshot.path[0].changes);
        }
        let open = at.snapshot.open.as_ref().expect("a block is open");
        let (sealed, requests) = seal(spec, &at.snapshot, open, maker.withdrawals()).expect("it is sealed");
        keep(&sealed.snapshot.path[0].changes);
        self.seen.requests.extend(requests.iter().map(|request| request[0]));
        let body = sealed.snapshot.head.body();
        self.seen.statuses.extend(body.receipts.iter().map(alloy_consensus::TxReceipt::status));
        block(Arc::new(sealed.snapshot), Arc::new(state), touched)
    }
}

fn genesis(spec: &ChainSpec, timestamp: u64, signers: &[PrivateKeySigner]) -> Genesis {
    let ether = |amount: u128| format!("{:#x}", amount * ETHER);
    let deposits = format!("365f5f377f{DEPOSIT_TOPIC}365fa100");
    let mut alloc = serde_json::Map::new();
    let codes = CODES.into_iter().chain([(DEPOSITS, deposits.as_str())]);
    for (address, code) in codes {
        alloc.insert(address.to_string(), json!({"balance": ether(1), "code": format!("0x{code}")}));
    }
    let system = contracts().map(|(address, code)| (address, code.to_string()));
    for (address, code) in system.into_iter().chain([(DEPLOYMENT_PROXY, DEPLOYMENT_PROXY_CODE.to_owned())]) {
        alloc.insert(address.to_string(), json!({"balance": "0x0", "nonce": "0x1", "code": code}));
    }
    for signer in signers {
        alloc.insert(signer.address().to_string(), json!({"balance": ether(100_000)}));
    }
    serde_json::from_value(json!({
        "config": spec.config(), "alloc": alloc, "number": format!("{FIRST:#x}"), "difficulty": "0x0",
        "gasLimit": format!("{GAS_LIMIT:#x}"), "nonce": "0x0", "timestamp": format!("{timestamp:#x}"), "extraData": "0x",
        "mixHash": B256::ZERO, "coinbase": Address::ZERO, "baseFeePerGas": "0x3b9aca00",
    }))
    .expect("a genesis")
}

/// Returns the block at the head of a snapshot.
fn block(snapshot: Arc<Snapshot>, state: Arc<State>, touched: BTreeSet<Address>) -> SepoliaBlock {
    let (header, body) = (&snapshot.head.header, snapshot.head.body());
    let rlp = alloy_rlp::encode(Block {
        header: header.inner().clone(),
        body: BlockBody {
            transactions: body.transactions.iter().map(|tx| tx.inner().clone()).collect(),
            ommers: Vec::new(),
            withdrawals: body.withdrawals.clone(),
        },
    });
    let mut fields = serde_json::to_value(header.inner()).expect("a header is JSON");
    fields["hash"] = json!(header.hash());
    fields["uncles"] = json!([]);
    fields["withdrawals"] = json!(body.withdrawals);
    fields["size"] = json!(format!("{:#x}", rlp.len()));
    let transactions = body.transactions.iter().enumerate().map(|(index, tx)| {
        let info = TransactionInfo {
            hash: Some(*tx.tx_hash()),
            index: Some(index as u64),
            block_hash: Some(header.hash()),
            block_number: Some(header.number),
            block_timestamp: Some(header.timestamp),
            base_fee: header.base_fee_per_gas,
        };
        let ChainTx::Signed(signed) = tx.inner().clone() else { panic!("a transaction of Ethereum") };
        let recovered = alloy_consensus::transaction::Recovered::new_unchecked(signed, tx.signer());
        json!(Transaction::from_transaction(recovered, info))
    });
    fields["transactions"] = transactions.collect();
    let receipts = body.transactions.iter().zip(&body.receipts);
    let receipts = receipts.map(|(tx, receipt)| receipt_json(*tx.tx_hash(), tx.ty(), receipt)).collect();
    SepoliaBlock {
        upstream: complete_logs(UpstreamBlock::from_json(&fields, state).with_receipts(receipts)),
        rlp,
        access_list: body.access_list.clone(),
        touched: touched.into_iter().collect(),
        transactions: body.transactions.iter().map(|tx| *tx.tx_hash()).collect(),
        snapshot,
    }
}

/// Makes transactions at random.
struct Maker {
    rng: SmallRng,
    signers: Vec<PrivateKeySigner>,
    /// The number of new accounts.
    new: u64,
}

impl Maker {
    fn new_account(&mut self) -> Address {
        self.new += 1;
        Address::left_padding_from(&[&[0xaa; 4][..], &self.new.to_be_bytes()].concat())
    }

    fn known_account(&mut self) -> Address {
        let known = self.rng.random_range(0..=self.new);
        Address::left_padding_from(&[&[0xaa; 4][..], &known.to_be_bytes()].concat())
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.rng.random()).collect()
    }

    fn withdrawals(&mut self) -> Withdrawals {
        let count = self.rng.random_range(0..3);
        let one = |index| Withdrawal {
            index,
            validator_index: self.rng.random_range(0..1_000),
            address: if self.rng.random() { self.new_account() } else { self.known_account() },
            amount: self.rng.random_range(0..1_000_000),
        };
        Withdrawals::new((0..count).map(one).collect())
    }

    /// Returns a transaction that is valid on a snapshot.
    fn transaction(&mut self, on: &Snapshot) -> ChainTx {
        let nonce_of = |address: Address| {
            let world = on.world.local().expect("all of the state is here");
            world.account(&address).map_or(0, |account| account.nonce)
        };
        let signer = self.signers[self.rng.random_range(0..SENDERS)].clone();
        let nonce = nonce_of(signer.address());
        let value = self.rng.random_range(0..1_000);
        let slot = self.rng.random_range(0..12);
        let kept = if self.rng.random_bool(0.4) { 0 } else { self.rng.random_range(0..1_000) };
        let (to, value, input): (TxKind, u128, Bytes) = match self.rng.random_range(0..24) {
            0 | 1 => (self.new_account().into(), value, Bytes::new()),
            2 => (self.known_account().into(), value, Bytes::new()),
            3 => (TxKind::Create, value, creates()),
            4 => (TxKind::Create, value, vanishes(self.new_account())),
            5 => (TxKind::Create, value, hex!("5f5ffd").into()),
            6..=8 => (STORE.into(), 0, stores(slot, kept)),
            9 => (REVERTER.into(), value, Bytes::new()),
            10 => (LOGGER.into(), 0, word(slot).into()),
            11 => (DESTROYED.into(), value, self.new_account().into_word().into()),
            12 => (SLOT.into(), 0, Bytes::new()),
            13 => (FORWARDER.into(), value, self.new_account().into_word().into()),
            14 => (ENDLESS.into(), 0, Bytes::new()),
            15 => (FACTORY.into(), value, if slot < 6 { creates() } else { vanishes(self.known_account()) }),
            16 => (
                DEPLOYMENT_PROXY.into(),
                0,
                [word(self.rng.random_range(0..40)).as_slice(), &creates()].concat().into(),
            ),
            17 => (WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS.into(), value, self.bytes(56).into()),
            18 => (CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS.into(), value, self.bytes(96).into()),
            19 => {
                let mut input = self.bytes(184);
                input[80..88].copy_from_slice(&1_000_000_000_u64.to_be_bytes());
                (BUILDER_DEPOSIT_CONTRACT_ADDRESS.into(), 2 * ETHER, input.into())
            }
            20 => (BUILDER_EXIT_CONTRACT_ADDRESS.into(), value, self.bytes(48).into()),
            21 => (DEPOSITS.into(), 0, self.deposit()),
            22 => return self.delegates(&signer, nonce, nonce_of, stores(slot, kept)),
            _ => return self.has_blobs(&signer, nonce, stores(slot, kept)),
        };
        let gas_limit = if to == TxKind::Call(ENDLESS) { 100_000 } else { 2_000_000 };
        let tip = self.rng.random_range(1..1_000);
        match self.rng.random_range(0..4) {
            0 => {
                let gas_price = 20_000_000_000;
                sign(
                    TxLegacy {
                        chain_id: Some(SEPOLIA),
                        nonce,
                        gas_price,
                        gas_limit,
                        to,
                        value: U256::from(value),
                        input,
                    },
                    &signer,
                )
            }
            1 => {
                let access_list = self.access_list();
                let (chain_id, gas_price, value) = (SEPOLIA, 20_000_000_000, U256::from(value));
                sign(TxEip2930 { chain_id, nonce, gas_price, gas_limit, to, value, input, access_list }, &signer)
            }
            _ => sign(
                TxEip1559 {
                    chain_id: SEPOLIA,
                    nonce,
                    gas_limit,
                    max_fee_per_gas: 20_000_000_000,
                    max_priority_fee_per_gas: tip,
                    to,
                    value: U256::from(value),
                    access_list: AccessList::default(),
                    input,
                },
                &signer,
            ),
        }
    }

    fn access_list(&mut self) -> AccessList {
        let storage_keys = (0..self.rng.random_range(0..3)).map(word).collect();
        AccessList(vec![AccessListItem { address: STORE, storage_keys }])
    }

    /// Returns the data of a deposit's log (EIP-6110).
    fn deposit(&mut self) -> Bytes {
        let mut data = Vec::new();
        for place in [0xa0, 0x100, 0x140, 0x180, 0x200] {
            data.extend(word(place));
        }
        for length in [48, 32, 8, 96, 8_usize] {
            data.extend(word(length as u64));
            data.extend(self.bytes(length));
            data.resize(data.len().next_multiple_of(32), 0);
        }
        data.into()
    }

    /// Returns a transaction in which an account delegates to a contract, or ends its delegation, and which calls the account.
    fn delegates(
        &mut self,
        signer: &PrivateKeySigner,
        nonce: u64,
        nonce_of: impl Fn(Address) -> u64,
        input: Bytes,
    ) -> ChainTx {
        let authority = self.signers[self.rng.random_range(SENDERS..self.signers.len())].clone();
        let address = [STORE, LOGGER, FORWARDER, Address::ZERO][self.rng.random_range(0..4)];
        // An authorization of another nonce is passed over.
        let its = nonce_of(authority.address()) + u64::from(self.rng.random_bool(0.2));
        let chain_id = U256::from(if self.rng.random() { SEPOLIA } else { 0 });
        let authorization = Authorization { chain_id, address, nonce: its };
        let signature = authority.sign_hash_sync(&authorization.signature_hash()).expect("it signs");
        let tx = TxEip7702 {
            chain_id: SEPOLIA,
            nonce,
            gas_limit: 2_000_000,
            max_fee_per_gas: 20_000_000_000,
            max_priority_fee_per_gas: 3,
            to: authority.address(),
            value: U256::ONE,
            access_list: self.access_list(),
            authorization_list: vec![authorization.into_signed(signature)],
            input,
        };
        sign(tx, signer)
    }

    fn has_blobs(&mut self, signer: &PrivateKeySigner, nonce: u64, input: Bytes) -> ChainTx {
        let mut hash = B256::from(self.rng.random::<[u8; 32]>());
        hash[0] = 1;
        let tx = TxEip4844 {
            chain_id: SEPOLIA,
            nonce,
            gas_limit: 2_000_000,
            max_fee_per_gas: 20_000_000_000,
            max_priority_fee_per_gas: 2,
            to: STORE,
            value: U256::ZERO,
            access_list: AccessList::default(),
            blob_versioned_hashes: vec![hash],
            max_fee_per_blob_gas: 20_000_000_000,
            input,
        };
        sign(tx, signer)
    }
}

fn sign<T>(tx: T, signer: &PrivateKeySigner) -> ChainTx
where
    T: SignableTransaction<alloy_primitives::Signature>,
    TxEnvelope: From<alloy_consensus::Signed<T>>,
{
    let signature = signer.sign_hash_sync(&tx.signature_hash()).expect("it signs");
    TxEnvelope::from(tx.into_signed(signature)).into()
}
