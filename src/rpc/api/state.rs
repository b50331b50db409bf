//! Look-ups in the state of a block.

use std::{collections::BTreeMap, sync::Arc};

use alloy_eips::{BlockId, RpcBlockHash};
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use revm::state::AccountInfo;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Example, Method};
use crate::{
    ledger::{Selector, UnknownBlock},
    rpc::{
        json::{
            Json, Shape,
            hex::{Data, Fixed, Quantity, SlotKey, Word},
            shapes,
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

queries! {
    /// The balance of an account, in wei.
    GetBalance = "1 or 2 parameters: address, block", {
        address: Fixed<20>,
        #[serde(default)]
        block: Option<SelectorParam>,
    }, r#"["0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266", "latest"]"# => Quantity<U256> = r#""0x21e19e0c9bab2400000""#,
        |asked, backend, run| account(backend, run, asked.address, select(asked.block))?.balance;

    /// The nonce of an account; at pending, with the transactions of the pool that follow.
    GetTransactionCount = "1 or 2 parameters: address, block", {
        address: Fixed<20>,
        #[serde(default)]
        block: Option<SelectorParam>,
    }, r#"["0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266", "pending"]"# => Quantity<u64> = r#""0x1""#,
        |asked, backend, run| {
            let selector = select(asked.block);
            let nonce = account(backend, run, asked.address, selector)?.nonce;
            // Pooled transactions count, because a client that sends several in a row would otherwise reuse a nonce.
            match selector {
                Selector::Pending => backend.pool.next_nonce(asked.address.into(), nonce),
                _ => nonce,
            }
        };

    /// The bytecode at an address.
    GetCode = "1 or 2 parameters: address, block", {
        address: Fixed<20>,
        #[serde(default)]
        #[schemars(extend("x-needed" = "on /"))]
        block: Option<SelectorParam>,
    }, r#"["0x5fbdb2315678afecb367f032d93f642f64180aa3", "pending"]"# => Data = r#""0x6001600055""#,
        |asked, backend, run| {
            let selector = require(asked.block, run.dialect)?;
            account(backend, run, asked.address, selector)?.code.map(|code| code.original_bytes()).unwrap_or_default()
        };

    /// A storage slot, as 32 bytes.
    GetStorageAt = "2 or 3 parameters: address, storage slot, block", {
        address: Fixed<20>,
        slot: Word,
        #[serde(default)]
        block: Option<SelectorParam>,
    }, r#"["0x5fbdb2315678afecb367f032d93f642f64180aa3", "0x0", "latest"]"#
        => Fixed<32> = r#""0x0000000000000000000000000000000000000000000000000000000000000001""#,
        |asked, backend, run| {
            let snapshot = backend.select(run, select(asked.block))?;
            run.overlay.look_up_slot(&snapshot.world, asked.address.into(), asked.slot.0).to_be_bytes::<32>()
        };

    /// Merkle proofs of an account and of its storage slots (EIP-1186).
    GetProof = "2 or 3 parameters: address, storage slots, block", {
        /// The account to prove.
        address: Fixed<20>,
        /// The account's storage slots to prove: at most 1,024.
        #[schemars(length(max = 1024))]
        slots: Vec<SlotKey>,
        #[serde(default)]
        block: Option<SelectorParam>,
    }, r#"["0x00000000000000000000000000000000000000aa", [], "latest"]"#
        => AccountProof = r#"{"address": "0x00000000000000000000000000000000000000aa", "accountProof": ["0xf8718080808080a0"], "balance": "0x0", "codeHash": "0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470", "nonce": "0x0", "storageHash": "0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421", "storageProof": []}"#,
        |asked, backend, run| {
            bound_slots("params[1]", asked.slots.len())?;
            let snapshot = backend.select(run, select(asked.block))?;
            let world = snapshot.world.local();
            let world =
                world.ok_or_else(|| RpcError::internal("only the upstream can prove its state: nothing was forwarded"))?;
            let address = Address::from(asked.address);
            let account = world.account(&address).cloned().unwrap_or_default();
            let trie = account.storage_trie();
            let prove = |key: SlotKey| {
                run.meter.count(PROOF_TICKS)?;
                Ok((key, trie.proof(keccak256(B256::from(key.slot)))))
            };
            let slots = asked.slots.into_iter().map(prove).collect::<Result<Vec<_>>>()?;
            (address, world.trie().proof(keccak256(address)), account, slots)
        };
}

shapes! {
    /// The proofs of an account.
    pub AccountProof: (Address, Vec<Bytes>, Arc<Account>, Vec<(SlotKey, Vec<Bytes>)>) => |(address, nodes, account, slots)| {
        address: Fixed<20> = address,
        /// The nodes on the path to the account in the state trie, from its root.
        accountProof: Vec<Data> = nodes,
        balance: Quantity<U256> = account.balance,
        codeHash: Fixed<32> = account.code.hash,
        nonce: Quantity<u64> = account.nonce,
        storageHash: Fixed<32> = account.storage_trie().root_hash(),
        storageProof: Vec<SlotProof> = slots.into_iter().map(|(key, nodes)| (key, account.slot(&key.slot), nodes)),
    }

    /// The proof of a slot.
    SlotProof: (SlotKey, U256, Vec<Bytes>) => |(key, value, nodes)| {
        /// The slot, as the request has written it.
        key: SlotKey = Json(key),
        value: Quantity<U256> = value,
        /// The nodes on the path to the slot in the account's storage trie, from its root.
        proof: Vec<Data> = nodes,
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

    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()> {
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
        Ok(())
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

/// Returns an account, which is empty if it does not exist.
fn account(backend: &Backend, run: &mut Attempt<'_>, address: Fixed<20>, selector: Selector) -> Result<AccountInfo> {
    let snapshot = backend.select(run, selector)?;
    Ok(run.overlay.look_up(&snapshot.world, address.into()).unwrap_or_default())
}

fn bound_slots(path: &str, count: usize) -> Result<()> {
    if count > MAX_SLOTS {
        return Err(RpcError::params(format!("{path}: too many storage slots: {count}, at most {MAX_SLOTS}")));
    }
    Ok(())
}
