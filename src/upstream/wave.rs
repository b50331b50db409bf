//! One wave of calls: the calls that fetch missed values, and the values in their answers.

use std::sync::Arc;

use alloy_eips::{BlockId, BlockNumberOrTag, RpcBlockHash};
use alloy_primitives::{Address, B256, Bytes, U64, U256, map::HashMap};
use serde::de::DeserializeOwned;

use super::{
    ask::{Ask, UpstreamError},
    client::Upstream,
    name::BlockName,
    proof::{self, Proof},
};
use crate::state::{CodeCache, Fetched, Miss, RemoteView};

/// The result of one call.
enum Piece {
    Balance(Address, U256),
    Nonce(Address, U64),
    Code(Address, Bytes),
    Slot(Address, U256, U256),
    /// A block for the hash of the ancestor with this number: first the ancestor, and then the view's own block.
    Block(u64, BlockName),
    Proof(Address, Box<Proof>),
}

/// The fields of an account that have arrived.
#[derive(Debug, Default)]
struct FetchedFields {
    balance: Option<U256>,
    nonce: Option<u64>,
    code: Option<Bytes>,
}

/// The values that a wave fetched, and its first problem.
pub(super) struct WaveResult {
    pub values: Vec<Fetched>,
    pub problem: Option<UpstreamError>,
}

/// The way in which calls name the block whose state they read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockParam {
    /// By hash (EIP-1898). It names the same block even after a reorg.
    Hash,
    /// By number, for an upstream that does not accept hashes.
    Number,
}

/// A wave of calls at the block of a view.
pub(super) struct Wave<'a> {
    view: &'a RemoteView,
    block_param: BlockParam,
    asks: Vec<Ask<Piece>>,
}

impl<'a> Wave<'a> {
    /// Creates a wave for `misses`, with proofs of the accounts and slots if `prove`.
    pub fn new(view: &'a RemoteView, misses: &[Miss], prove: bool, block_param: BlockParam) -> Self {
        let mut wave = Self { view, block_param, asks: Vec::new() };
        let mut proven: HashMap<Address, Vec<B256>> = HashMap::default();
        for miss in misses {
            match *miss {
                Miss::Account(address) => {
                    if prove {
                        proven.entry(address).or_default();
                    } else {
                        wave.account("eth_getBalance", address, Piece::Balance);
                        wave.account("eth_getTransactionCount", address, Piece::Nonce);
                    }
                    wave.account("eth_getCode", address, Piece::Code);
                }
                Miss::Slot(address, slot) if prove => proven.entry(address).or_default().push(slot.into()),
                Miss::Slot(address, slot) => {
                    let params = (address, B256::from(slot), wave.at());
                    // A number, because some nodes omit leading zeros.
                    let read = move |value| Ok(Piece::Slot(address, slot, value));
                    wave.asks.push(Ask::parsed("eth_getStorageAt", &params, read));
                }
                Miss::BlockHash(number) => wave.block_hash(number),
            }
        }
        for (address, keys) in proven {
            let params = (address, keys, wave.at());
            wave.asks.push(Ask::parsed("eth_getProof", &params, move |proof| Ok(Piece::Proof(address, proof))));
        }
        wave
    }

    fn at(&self) -> BlockId {
        match self.block_param {
            BlockParam::Hash => {
                BlockId::Hash(RpcBlockHash { block_hash: self.view.hash(), require_canonical: Some(false) })
            }
            BlockParam::Number => self.view.number().into(),
        }
    }

    /// Adds a call of a method that takes an address and a block.
    fn account<T: DeserializeOwned + 'static>(
        &mut self,
        method: &'static str,
        address: Address,
        piece: fn(Address, T) -> Piece,
    ) {
        let read = move |value| Ok(piece(address, value));
        self.asks.push(Ask::parsed(method, &(address, self.at()), read));
    }

    /// Adds calls for the hash of ancestor `number`, and for the view's own block, to check that it is still canonical.
    fn block_hash(&mut self, number: u64) {
        for of in [number, self.view.number()] {
            let params = (BlockNumberOrTag::Number(of), false);
            let read = move |block: BlockName| match block.number.to::<u64>() == of {
                true => Ok(Piece::Block(number, block)),
                false => Err(format!("requested block {of}, but the answer is block {}", block.number)),
            };
            self.asks.push(Ask::parsed("eth_getBlockByNumber", &params, read));
        }
    }

    /// Sends the calls, and combines their answers. `root` is the state root to check proofs against.
    pub async fn send(
        self,
        upstream: &Upstream,
        codes: &Arc<CodeCache>,
        root: Option<B256>,
        deadline: tokio::time::Instant,
    ) -> WaveResult {
        let view = self.view;
        let mut learned = WaveResult { values: Vec::new(), problem: None };
        let mut problems = Vec::new();
        let mut accounts: HashMap<Address, FetchedFields> = HashMap::default();
        let mut proofs = Vec::new();
        let mut hashes: HashMap<u64, Vec<BlockName>> = HashMap::default();
        for answer in upstream.all(self.asks, deadline).await {
            match answer {
                Ok(Piece::Balance(address, balance)) => accounts.entry(address).or_default().balance = Some(balance),
                Ok(Piece::Nonce(address, nonce)) => accounts.entry(address).or_default().nonce = Some(nonce.to()),
                Ok(Piece::Code(address, code)) => accounts.entry(address).or_default().code = Some(code),
                Ok(Piece::Slot(address, slot, value)) => learned.values.push(Fetched::Slot { address, slot, value }),
                Ok(Piece::Block(number, block)) => hashes.entry(number).or_default().push(block),
                Ok(Piece::Proof(address, proof)) => proofs.push((address, proof)),
                Err(error) => problems.push(error),
            }
        }
        for (number, found) in hashes {
            match found.as_slice() {
                [ancestor, own] if own.hash == view.hash() => {
                    learned.values.push(Fetched::BlockHash { number, hash: ancestor.hash });
                }
                [_, own] => {
                    let problem = format!("block {} is now {}, but was {}", own.number, own.hash, view.hash());
                    problems.push(UpstreamError::Malformed { method: "eth_getBlockByNumber".into(), problem });
                }
                _ => {}
            }
        }
        for (address, proof) in proofs {
            let code = accounts.remove(&address).and_then(|fields| fields.code);
            let root = root.ok_or_else(|| "the state root of the block is not known".to_owned());
            match root.and_then(|root| proof::check(address, &proof, root, code, codes)) {
                Ok(values) => learned.values.extend(values),
                Err(problem) => problems.push(UpstreamError::Malformed { method: "eth_getProof".into(), problem }),
            }
        }
        for (address, fields) in accounts {
            if let FetchedFields { balance: Some(balance), nonce: Some(nonce), code: Some(code) } = fields {
                let code = codes.chain(code);
                learned.values.push(Fetched::Account { address, balance, nonce, code });
            }
        }
        learned.problem = problems.into_iter().next();
        learned
    }
}
