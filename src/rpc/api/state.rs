//! Look-ups in the state of a block.

use std::{collections::BTreeMap, sync::Arc};

use alloy_eips::{BlockId, RpcBlockHash};
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use revm::state::AccountInfo;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Example, Method, Query};
use crate::{
    ledger::{Selector, UnknownBlock},
    rpc::{
        json::{
            self, Lookup, Shape,
            hex::{Data, Fixed, Quantity, SlotKey, Word},
        },
        params::{AddressKey, SelectorParam, parse, require, select},
        protocol::error::{Result, RpcError},
        run::{Attempt, Backend, remote::UpstreamGateway, request::Request},
    },
    state::{Account, FetchError, RemoteView},
    upstream::Ask,
};

/// Maximum number of storage slots in a request, as in geth.
const MAX_SLOTS: usize = 1024;
/// Ticks of the meter for the proof of a slot.
const PROOF_TICKS: u32 = 1024;

/// The balance of an account, in wei.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 or 2 parameters: address, block")]
pub struct GetBalance {
    address: Fixed<20>,
    #[serde(default)]
    block: Option<SelectorParam>,
}

impl Method for GetBalance {
    type Answer = Quantity<U256>;
    const EXAMPLE: Example = Example {
        params: r#"["0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266", "latest"]"#,
        answer: r#""0x21e19e0c9bab2400000""#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<Lookup> {
        let balance = account(backend, run, self.address, select(self.block), |account| account.balance)?;
        json::quantity_u256(&mut run.out, balance);
        Ok(Lookup::Found)
    }
}

/// The nonce of an account; at pending, with the transactions of the pool that follow.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 or 2 parameters: address, block")]
pub struct GetTransactionCount {
    address: Fixed<20>,
    #[serde(default)]
    block: Option<SelectorParam>,
}

impl Method for GetTransactionCount {
    type Answer = Quantity<u64>;
    const EXAMPLE: Example =
        Example { params: r#"["0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266", "pending"]"#, answer: r#""0x1""# };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<Lookup> {
        let selector = select(self.block);
        let nonce = account(backend, run, self.address, selector, |account| account.nonce)?;
        // Pooled transactions count, because a client that sends several in a row would otherwise reuse a nonce.
        let next = match selector {
            Selector::Pending => backend.pool.next_nonce(self.address.into(), nonce),
            _ => nonce,
        };
        json::quantity(&mut run.out, next);
        Ok(Lookup::Found)
    }
}

/// The bytecode at an address.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 or 2 parameters: address, block")]
pub struct GetCode {
    address: Fixed<20>,
    #[serde(default)]
    #[schemars(extend("x-needed" = "on /"))]
    block: Option<SelectorParam>,
}

impl Method for GetCode {
    type Answer = Data;
    const EXAMPLE: Example =
        Example { params: r#"["0x5fbdb2315678afecb367f032d93f642f64180aa3", "pending"]"#, answer: r#""0x6001600055""# };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<Lookup> {
        let selector = require(self.block, run.dialect)?;
        let code = |account: AccountInfo| account.code.map(|code| code.original_bytes()).unwrap_or_default();
        let code: Bytes = account(backend, run, self.address, selector, code)?;
        json::data(&mut run.out, &code);
        Ok(Lookup::Found)
    }
}

/// A storage slot, as 32 bytes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "2 or 3 parameters: address, storage slot, block")]
pub struct GetStorageAt {
    address: Fixed<20>,
    slot: Word,
    #[serde(default)]
    block: Option<SelectorParam>,
}

impl Method for GetStorageAt {
    type Answer = Fixed<32>;
    const EXAMPLE: Example = Example {
        params: r#"["0x5fbdb2315678afecb367f032d93f642f64180aa3", "0x0", "latest"]"#,
        answer: r#""0x0000000000000000000000000000000000000000000000000000000000000001""#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<Lookup> {
        let snapshot = backend.select(run, select(self.block))?;
        let value = run.overlay.look_up_slot(&snapshot.world, self.address.into(), self.slot.0);
        json::data(&mut run.out, &value.to_be_bytes::<32>());
        Ok(Lookup::Found)
    }
}

/// Storage slots of several accounts.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 or 2 parameters: storage slots by address, block")]
pub struct GetStorageValues {
    /// Arrays of slots by address: at most 1,024 slots.
    slots: BTreeMap<AddressKey, Vec<Word>>,
    #[serde(default)]
    block: Option<SelectorParam>,
}

impl Method for GetStorageValues {
    type Answer = BTreeMap<AddressKey, Vec<Fixed<32>>>;
    const EXAMPLE: Example = Example {
        params: r#"[{"0x5fbdb2315678afecb367f032d93f642f64180aa3": ["0x0"]}, "latest"]"#,
        answer: r#"{"0x5fbdb2315678afecb367f032d93f642f64180aa3": ["0x0000000000000000000000000000000000000000000000000000000000000001"]}"#,
    };

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<Lookup> {
        if self.slots.is_empty() {
            return Err(RpcError::params("params[0]: empty: expected at least one account"));
        }
        bound_slots("params[0]", self.slots.values().map(Vec::len).sum())?;
        let snapshot = backend.select(run, select(self.block))?;
        let (overlay, world) = (&*run.overlay, &snapshot.world);
        let values = self.slots.iter().map(|(AddressKey(address), slots)| {
            let values = slots.iter().map(|slot| overlay.look_up_slot(world, (*address).into(), slot.0));
            (address.0, values)
        });
        BTreeMap::<String, Vec<Word>>::write(&mut run.out, values);
        Ok(Lookup::Found)
    }
}

/// Merkle proofs of an account and of its storage slots (EIP-1186).
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "2 or 3 parameters: address, storage slots, block")]
pub struct GetProof {
    /// The account to prove.
    address: Fixed<20>,
    /// The account's storage slots to prove: at most 1,024.
    #[schemars(length(max = 1024))]
    slots: Vec<SlotKey>,
    #[serde(default)]
    block: Option<SelectorParam>,
}

/// The proofs of an account.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AccountProof {
    address: Fixed<20>,
    /// The nodes on the path to the account in the state trie, from its root.
    account_proof: Vec<Data>,
    balance: Quantity<U256>,
    code_hash: Fixed<32>,
    nonce: Quantity<u64>,
    storage_hash: Fixed<32>,
    storage_proof: Vec<SlotProof>,
}

/// The proof of a slot.
#[derive(Serialize, JsonSchema)]
struct SlotProof {
    /// The slot, as the request has written it.
    key: SlotKey,
    value: Quantity<U256>,
    /// The nodes on the path to the slot in the account's storage trie, from its root.
    proof: Vec<Data>,
}

impl Query for GetProof {
    type Answer = AccountProof;
    const EXAMPLE: Example = Example {
        params: r#"["0x00000000000000000000000000000000000000aa", [], "latest"]"#,
        answer: r#"{"address": "0x00000000000000000000000000000000000000aa", "accountProof": ["0xf8718080808080a0"], "balance": "0x0", "codeHash": "0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470", "nonce": "0x0", "storageHash": "0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421", "storageProof": []}"#,
    };

    fn answer(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<AccountProof> {
        bound_slots("params[1]", self.slots.len())?;
        let snapshot = backend.select(run, select(self.block))?;
        let world = snapshot.world.local();
        let world =
            world.ok_or_else(|| RpcError::internal("only the upstream can prove its state: nothing was forwarded"))?;
        let (address, absent) = (Address::from(self.address), Account::default());
        let account = world.account(&address).map_or(&absent, Arc::as_ref);
        let trie = account.storage_trie();
        let nodes = |proof: Vec<Bytes>| proof.into_iter().map(Data).collect();
        let prove = |key: SlotKey| {
            run.meter.count(PROOF_TICKS)?;
            let proof = nodes(trie.proof(keccak256(B256::from(key.slot))));
            Ok(SlotProof { key, value: Quantity(account.slot(&key.slot)), proof })
        };
        Ok(AccountProof {
            address: self.address,
            account_proof: nodes(world.trie().proof(keccak256(address))),
            balance: Quantity(account.balance),
            code_hash: Fixed(account.code.hash.0),
            nonce: Quantity(account.nonce),
            storage_hash: Fixed(trie.root_hash().0),
            storage_proof: self.slots.into_iter().map(prove).collect::<Result<_>>()?,
        })
    }
}

/// Answers `eth_getProof` of an upstream's state, which only the upstream can prove.
///
/// # Errors
///
/// Returns an error if the state has changes that are in no block of the upstream's, or the upstream's error.
pub async fn forward_proof(remote: &UpstreamGateway, request: &Request, out: &mut Vec<u8>) -> Result<()> {
    let wanted: GetProof = parse(&request.params, request.caller.dialect)?;
    bound_slots("params[1]", wanted.slots.len())?;
    let published = &request.published;
    let at = match (published.select(select(wanted.block)), published.forked_at()) {
        (Ok(snapshot), fork) => {
            // A fork's first state has accounts that were set here, and that its block does not contain.
            let is_theirs = |view: &&RemoteView| match fork {
                Some(_) => snapshot.open.is_none() && snapshot.head_hash() == view.hash(),
                None => snapshot.world.is_unchanged_remote(),
            };
            let Some(view) = snapshot.world.remote().filter(is_theirs) else {
                let text = match fork {
                    Some(fork) => format!(
                        "blocks that are mined here have no state root, and no proofs: expected block {fork}, or one before"
                    ),
                    None => "the state has changes that no block has yet: there is no proof of it: expected a block"
                        .to_owned(),
                };
                return Err(RpcError::new(-32000, text));
            };
            BlockId::Hash(RpcBlockHash { block_hash: view.hash(), require_canonical: Some(false) })
        }
        (Err(UnknownBlock::Pruned { number, .. }), Some(_)) => BlockId::number(number),
        (Err(error), _) => return Err(error.into()),
    };
    let ask = Ask::forwarded("eth_getProof", &(wanted.address, wanted.slots, at));
    let proof = remote.upstream()?.one(ask, request.ticket.deadline().into()).await.map_err(FetchError::from)?;
    out.extend_from_slice(proof.get().as_bytes());
    Ok(())
}

/// Returns the value that `get` reads from an account, or its default if the account does not exist.
fn account<T: Default>(
    backend: &Backend,
    run: &mut Attempt<'_>,
    address: Fixed<20>,
    selector: Selector,
    get: impl FnOnce(AccountInfo) -> T,
) -> Result<T> {
    let snapshot = backend.select(run, selector)?;
    Ok(run.overlay.look_up(&snapshot.world, address.into()).map_or_else(T::default, get))
}

fn bound_slots(path: &str, count: usize) -> Result<()> {
    if count > MAX_SLOTS {
        return Err(RpcError::params(format!("{path}: too many storage slots: {count}, at most {MAX_SLOTS}")));
    }
    Ok(())
}
