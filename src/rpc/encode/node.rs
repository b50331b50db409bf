//! The blocks that the node can answer about.

use super::Object;
use crate::{chain::SealedBlock, state::RetainedBlocks};

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
