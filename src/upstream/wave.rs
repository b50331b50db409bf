//! One wave of calls: the calls that fetch missed values, and the values in their answers.

use std::sync::Arc;

use alloy_eips::{BlockId, BlockNumberOrTag, RpcBlockHash};
use alloy_primitives::{Address, B256, Bytes, U64, U256, map::HashMap};
use serde::Deserialize;

use super::{
    ask::{Ask, UpstreamError},
    client::Upstream,
    proof::Proof,
    proven::ProvenAccount,
};
use crate::state::{CodeCache, Fetched, Miss, RemoteView};

/// The result of one call.
enum Piece {
    Balance(U256),
    Nonce(u64),
    Code(Bytes),
    Slot(U256),
    Block(BlockName),
    Proof(Box<Proof>),
}

/// The value that a [`Piece`] is part of.
#[derive(Clone, Copy, Debug)]
enum PieceTarget {
    Account(Address),
    Slot(Address, U256),
    /// The hash of an ancestor. Its pieces are the ancestor, and then the view's own block.
    Hash(u64),
    Proof(Address),
}

/// The fields of an account that have arrived.
#[derive(Debug, Default)]
struct FetchedFields {
    balance: Option<U256>,
    nonce: Option<u64>,
    code: Option<Bytes>,
}

/// The number and the hash of a block.
#[derive(Clone, Copy, Debug, Deserialize)]
struct BlockName {
    number: U64,
    hash: B256,
}

/// The values that a wave fetched, and its first problem.
pub(super) struct Learned {
    pub values: Vec<Fetched>,
    /// The proofs by which values were checked.
    pub proven: Vec<ProvenAccount>,
    pub problem: Option<UpstreamError>,
}

/// The way in which calls name the block whose state they read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// By hash (EIP-1898), which names the same block even after a reorg.
    Hash,
    /// By number, for an upstream that does not accept hashes.
    Number,
}

/// A wave of calls at the block of a view.
pub(super) struct Wave<'a> {
    view: &'a RemoteView,
    naming: Naming,
    asks: Vec<Ask<Piece>>,
    targets: Vec<PieceTarget>,
}

impl<'a> Wave<'a> {
    /// Creates a wave for `misses`, with proofs of the accounts and slots if `prove`.
    pub fn new(view: &'a RemoteView, misses: &[Miss], prove: bool, naming: Naming) -> Self {
        let mut wave = Self { view, naming, asks: Vec::new(), targets: Vec::new() };
        let mut proven: HashMap<Address, Vec<U256>> = HashMap::default();
        for miss in misses {
            match *miss {
                Miss::Account(address) => {
                    if prove {
                        proven.entry(address).or_default();
                    } else {
                        wave.account(address);
                    }
                    let code = |code: Bytes| Piece::Code(code);
                    wave.state(PieceTarget::Account(address), "eth_getCode", address, code);
                }
                Miss::Slot(address, slot) if prove => proven.entry(address).or_default().push(slot),
                Miss::Slot(address, slot) => wave.slot(address, slot),
                Miss::BlockHash(number) => wave.block_hash(number),
            }
        }
        for (address, slots) in proven {
            let keys: Vec<B256> = slots.iter().map(|slot| B256::from(*slot)).collect();
            let ask = Ask::new("eth_getProof", &(address, keys, wave.at()), |raw| {
                let proof = serde_json::from_str(raw.get()).map_err(|error| error.to_string())?;
                Ok(Piece::Proof(Box::new(proof)))
            });
            wave.push(PieceTarget::Proof(address), ask);
        }
        wave
    }

    fn at(&self) -> BlockId {
        match self.naming {
            Naming::Hash => {
                BlockId::Hash(RpcBlockHash { block_hash: self.view.hash(), require_canonical: Some(false) })
            }
            Naming::Number => self.view.number().into(),
        }
    }

    fn push(&mut self, target: PieceTarget, ask: Ask<Piece>) {
        self.asks.push(ask);
        self.targets.push(target);
    }

    /// Adds a call of a method that takes an address and a block.
    fn state<T: serde::de::DeserializeOwned + 'static>(
        &mut self,
        target: PieceTarget,
        method: &'static str,
        address: Address,
        piece: fn(T) -> Piece,
    ) {
        let ask = Ask::new(method, &(address, self.at()), move |raw| {
            serde_json::from_str(raw.get()).map(piece).map_err(|error| error.to_string())
        });
        self.push(target, ask);
    }

    fn account(&mut self, address: Address) {
        self.state(PieceTarget::Account(address), "eth_getBalance", address, Piece::Balance);
        self.state(PieceTarget::Account(address), "eth_getTransactionCount", address, |nonce: U64| {
            Piece::Nonce(nonce.to())
        });
    }

    fn slot(&mut self, address: Address, slot: U256) {
        let params = (address, B256::from(slot), self.at());
        let ask = Ask::new("eth_getStorageAt", &params, |raw| {
            // A number, because some nodes omit leading zeros.
            serde_json::from_str(raw.get()).map(Piece::Slot).map_err(|error| error.to_string())
        });
        self.push(PieceTarget::Slot(address, slot), ask);
    }

    /// Adds calls for the hash of ancestor `number`, and for the view's own block, which must still be canonical.
    fn block_hash(&mut self, number: u64) {
        for of in [number, self.view.number()] {
            let ask = Ask::new("eth_getBlockByNumber", &(BlockNumberOrTag::Number(of), false), move |raw| {
                let block: BlockName = serde_json::from_str(raw.get()).map_err(|error| error.to_string())?;
                match block.number.to::<u64>() == of {
                    true => Ok(Piece::Block(block)),
                    false => Err(format!("requested block {of}, but the answer is block {}", block.number)),
                }
            });
            self.push(PieceTarget::Hash(number), ask);
        }
    }

    /// Sends the calls, and combines their answers. `root` is the state root to check proofs against.
    pub async fn send(
        self,
        upstream: &Upstream,
        codes: &Arc<CodeCache>,
        root: Option<B256>,
        deadline: tokio::time::Instant,
    ) -> Learned {
        let Self { view, asks, targets, .. } = self;
        let answers = upstream.all(asks, deadline).await;
        let mut learned = Learned { values: Vec::new(), proven: Vec::new(), problem: None };
        let mut accounts: HashMap<Address, FetchedFields> = HashMap::default();
        let mut proofs = Vec::new();
        let mut hashes: HashMap<u64, Vec<BlockName>> = HashMap::default();
        for (target, answer) in targets.into_iter().zip(answers) {
            let piece = match answer {
                Ok(piece) => piece,
                Err(error) => {
                    learned.problem.get_or_insert(error);
                    continue;
                }
            };
            match (target, piece) {
                (PieceTarget::Account(address), Piece::Balance(balance)) => {
                    accounts.entry(address).or_default().balance = Some(balance)
                }
                (PieceTarget::Account(address), Piece::Nonce(nonce)) => {
                    accounts.entry(address).or_default().nonce = Some(nonce)
                }
                (PieceTarget::Account(address), Piece::Code(code)) => {
                    accounts.entry(address).or_default().code = Some(code)
                }
                (PieceTarget::Slot(address, slot), Piece::Slot(value)) => {
                    learned.values.push(Fetched::Slot { address, slot, value });
                }
                (PieceTarget::Hash(number), Piece::Block(block)) => hashes.entry(number).or_default().push(block),
                (PieceTarget::Proof(address), Piece::Proof(proof)) => proofs.push((address, proof)),
                _ => {}
            }
        }
        for (number, found) in hashes {
            match found.as_slice() {
                [ancestor, own] if own.hash == view.hash() => {
                    learned.values.push(Fetched::BlockHash { number, hash: ancestor.hash });
                }
                [_, own] => {
                    let problem = format!("block {} is now {}, but was {}", own.number, own.hash, view.hash());
                    learned
                        .problem
                        .get_or_insert(UpstreamError::Malformed { method: "eth_getBlockByNumber".into(), problem });
                }
                _ => {}
            }
        }
        for (address, proof) in proofs {
            let code = accounts.remove(&address).and_then(|fields| fields.code);
            let proven = ProvenAccount::new(address, *proof, code);
            let root = root.ok_or_else(|| "the state root of the block is not known".to_owned());
            match root.and_then(|root| proven.check(root, codes)) {
                Ok(values) => {
                    learned.values.extend(values);
                    learned.proven.push(proven);
                }
                Err(problem) => {
                    learned.problem.get_or_insert(UpstreamError::Malformed { method: "eth_getProof".into(), problem });
                }
            }
        }
        for (address, fields) in accounts {
            if let FetchedFields { balance: Some(balance), nonce: Some(nonce), code: Some(code) } = fields {
                let code = codes.chain(code);
                learned.values.push(Fetched::Account { address, balance, nonce, code });
            }
        }
        learned
    }
}
