//! The node's word about itself: the blocks that it can answer about, its feed, and where that was wrong.

use std::time::UNIX_EPOCH;

use super::{Object, data, list, or_null, quantity, string};
use crate::{
    chain::SealedBlock,
    ledger::{Chain, Divergence, RetainedBlocks},
};

/// Writes the state of the feed: what it is, the cause and the lag if there is one, and how far the newest snapshot is
/// verified.
pub fn feed(out: &mut Vec<u8>, published: &Chain) {
    let (feed, mut object) = (published.feed(), Object::new(out));
    string(object.key("state"), feed.as_str());
    if let Some(cause) = feed.cause() {
        string(object.key("cause"), cause.as_str());
    }
    if let Some(lag) = feed.lag() {
        object.number("lagMs", usize::try_from(lag.ms()).unwrap_or(usize::MAX));
        object.number("lagSubBlocks", lag.waiting as usize);
    }
    string(object.key("verified"), published.newest.verified.as_str());
    object.end();
}

/// Writes divergences. Their time is in milliseconds since 1970.
pub fn divergences(out: &mut Vec<u8>, divergences: &[Divergence]) {
    list(out, divergences, |out, one| {
        let mut object = Object::new(out);
        // A clock before 1970 is shown as 1970.
        let time = one.at.duration_since(UNIX_EPOCH).unwrap_or_default();
        object.number("time", usize::try_from(time.as_millis()).unwrap_or(usize::MAX)).quantity("block", one.block);
        or_null(object.key("index"), one.index, quantity);
        or_null(object.key("transaction"), one.transaction, |out, hash| data(out, hash.as_slice()));
        string(object.key("field"), &one.field);
        string(object.key("computed"), &one.computed);
        string(object.key("announced"), &one.announced);
        object.end();
    });
}

/// Writes the result of `eth_capabilities`: the head, and the blocks that are retained with each kind of data.
pub fn retained(out: &mut Vec<u8>, head: &SealedBlock, states: RetainedBlocks, bodies: RetainedBlocks) {
    let mut object = Object::new(out);
    let mut newest = Object::new(object.key("head"));
    newest.quantity("number", head.number()).data("hash", head.hash().as_slice());
    newest.end();
    let kinds = [
        ("state", states),
        ("tx", bodies),
        ("logs", bodies),
        ("receipts", bodies),
        ("blocks", bodies),
        ("stateproofs", states),
    ];
    for (kind, blocks) in kinds {
        resource(object.key(kind), blocks);
    }
    object.end();
}

fn resource(out: &mut Vec<u8>, blocks: RetainedBlocks) {
    let mut object = Object::new(out);
    object.key("disabled").extend_from_slice(b"false");
    object.quantity("oldestBlock", blocks.oldest);
    if let Some(window) = blocks.window {
        let mut strategy = Object::new(object.key("deleteStrategy"));
        strategy.key("type").extend_from_slice(b"\"window\"");
        strategy.quantity("retentionBlocks", window);
        strategy.end();
    }
    object.end();
}
