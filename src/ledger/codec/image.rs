//! Images: the whole published state of an upstream's chain at one moment, from which a replica starts.

use std::sync::Arc;

use alloy_consensus::Header;
use alloy_primitives::{B256, Bytes, Sealed};
use alloy_rlp::{RlpDecodable, RlpEncodable};

use super::{
    check::check,
    codes::CodesByHash,
    decode::EntryError,
    entry::Entry,
    frame::{self, MAX_IMAGE_BYTES, unpack},
    items::ItemBudget,
};
use crate::{
    chain::SealedBlock,
    ledger::{Chain, FeedState, Record, Retention, Snapshot, SnapshotId, Stamp},
    state::{CodeCache, RemoteSettings, RemoteState, World},
    store::corrupted,
};

#[derive(RlpEncodable, RlpDecodable)]
struct ImageFields {
    id: u64,
    /// The id of the newest snapshot. Changes without a snapshot may have followed it.
    newest: u64,
    /// The canonical head, and all that has changed since.
    entries: Vec<Bytes>,
    /// The blocks before the head that are kept, oldest first, without their bodies.
    headers: Vec<NamedHeader>,
    /// The codes of all accounts in the image.
    codes: Vec<Bytes>,
}

/// A header, and the hash reported by its producer: the header may lack fields.
#[derive(RlpEncodable, RlpDecodable)]
struct NamedHeader {
    hash: B256,
    header: Header,
}

/// Returns the image of a chain: the hashes of the last 256 blocks, the headers of the retained ones, and the
/// pre-confirmed changes.
pub fn write(chain: &Chain) -> Vec<u8> {
    let head = chain.head().number();
    let mut codes = CodesByHash::default();
    let entries = Entry::between(None, chain, &mut codes);
    let named = |block: &Arc<SealedBlock>| NamedHeader { hash: block.hash(), header: block.header.inner().clone() };
    frame::write(&ImageFields {
        id: chain.last.0,
        newest: chain.newest.id.0,
        entries: entries.iter().map(Entry::write).collect(),
        headers: chain.blocks(0, head).filter(|block| block.number() < head).map(named).collect(),
        codes: codes.bytes(),
    })
}

/// Reads an image. `kept` is the extent of the past to retain as the chain advances. The state begins with an empty
/// cache of up to `cache` bytes.
///
/// # Errors
///
/// Returns [`EntryError`] if the bytes are no image, or a block does not match its header.
pub fn read(bytes: &[u8], codes: &CodeCache, kept: Retention, cache: usize) -> Result<Chain, EntryError> {
    let mut items = ItemBudget::of(MAX_IMAGE_BYTES);
    let ImageFields { id, newest, entries, headers, codes: brought } =
        items.decode(&unpack(bytes, MAX_IMAGE_BYTES)?)?;
    let mut known = CodesByHash::default();
    known.extend(brought, codes);
    let mut entries = entries.iter().map(|entry| Entry::arrived(entry, &mut items));
    let no_block = || corrupted("it does not begin with a block");
    let Some(Entry::Restart(head)) = entries.next().transpose()? else { return Err(no_block().into()) };
    let base = head.read()?;
    check(&base)?;
    let Record::Restart { block, hashes, verified } = base else { return Err(no_block().into()) };
    let settings = RemoteSettings { bytes: cache, blocks: kept.blocks, is_of_fleet: true };
    let world = World::on(RemoteState::begin(settings, block.number(), block.hash()));
    let mut first = Snapshot::at_head(world, Arc::new(block), hashes).with_verified(verified);
    first.id = SnapshotId(newest);
    let mut chain = Chain::new(first, FeedState::Static, kept);
    let before = headers.len().saturating_sub(kept.blocks.saturating_sub(1));
    let bare = |named: NamedHeader| SealedBlock::bare(Sealed::new_unchecked(named.header, named.hash));
    chain.add_history(headers.into_iter().skip(before).map(|named| (Arc::new(bare(named)), Vec::new())));
    for entry in entries {
        let record = entry?.read(&chain, &known)?;
        check(&record)?;
        chain.apply(Stamp::now(SnapshotId(newest)), record)?;
    }
    // Changes without a snapshot may have followed the newest.
    let feed = Record::Feed(chain.feed());
    chain.apply(Stamp::now(SnapshotId(id)), feed)?;
    Ok(chain)
}
