//! The changes for readers that were left behind: one list from the chain that they have seen to the current one.

use super::{
    codes::CodesByHash,
    entry::{Block, Canonical, Entry, GoBack, Head, Preconfirmed, SubBlock},
    json::Json,
    stored::Maybe,
};
use crate::ledger::{Chain, StateStep, Verified};

impl Entry {
    /// Returns the changes from `seen`, the upstream's chain as the readers have seen it, to `chain`, and adds the
    /// codes of the accounts in them. Readers that have seen nothing begin with a [`Restart`](Self::Restart).
    pub fn between(seen: Option<&Chain>, chain: &Chain, codes: &mut CodesByHash) -> Vec<Self> {
        let head = chain.head().number();
        let is_known = |number: &u64| {
            let known = seen.and_then(|seen| seen.state_after(*number));
            known.zip(chain.state_after(*number)).is_some_and(|(known, own)| known.head_hash() == own.head_hash())
        };
        let seen_head = seen.map_or(0, |seen| seen.head().number());
        let known = (chain.oldest_state()..=head.min(seen_head)).rev().find(is_known);
        let first = known.and_then(|number| chain.state_after(number)).unwrap_or_else(|| chain.latest());
        let mut entries = vec![match known {
            None => Self::Restart(Box::new(Head::of(first))),
            Some(_) => Self::GoBack(Box::new(GoBack { head: Head::of(first), feed: Json(chain.feed()) })),
        }];
        let passed = first.head.number() + 1..=head;
        let passed = passed.filter_map(|number| Canonical::passed(chain, number, codes));
        entries.extend(passed.map(|block| Self::Canonical(Box::new(block))));
        let late = seen.into_iter().flat_map(Chain::late_blocks).filter_map(|(number, late)| {
            let block = chain.sealed_block(number).filter(|block| block.hash() == late.hash)?;
            let is_told = !block.is_bare() || block.logs_alone().is_some();
            is_told.then(|| Self::Content(Box::new(Block::of(&block, Verified::None, 0))))
        });
        entries.extend(late);
        entries.extend([Self::Tags(Json(chain.tags().unwrap_or_default())), Self::Feed(Json(chain.feed()))]);
        let mut complete = None;
        let mut add = |complete, sub_block| {
            let complete = Maybe(complete);
            entries.push(Self::Preconfirmed(Box::new(Preconfirmed { complete, sub_block, restates: false })));
        };
        for after in chain.ahead() {
            let changes = codes.all_of(&chain.changes_ahead(after.head.number()));
            add(complete.replace(Block::whole(after)), SubBlock::whole(after, changes));
        }
        if let Some(open) = &chain.newest.open {
            let changes = codes.all_of(&chain.changes_ahead(open.header.number));
            if let Some(sub_block) = SubBlock::preconfirmed(&chain.newest, None, changes) {
                add(complete, sub_block);
            }
        }
        entries
    }
}

impl Canonical {
    /// Returns the retained canonical block of this number as the next of a chain with nothing pre-confirmed on it.
    fn passed(chain: &Chain, number: u64, codes: &mut CodesByHash) -> Option<Self> {
        let block = chain.state_after(number)?;
        let parent = chain.state_after(number.checked_sub(1)?)?;
        let (kind, changes) = match block.path.first() {
            Some(step) if step.from == parent.state => (Self::THESE, codes.all_of(&StateStep::merged(&block.path))),
            // The block that was pre-confirmed elsewhere may have been another one.
            _ => (Self::UNKNOWN, Vec::new()),
        };
        Some(Self { block: Block::of(&block.head, block.verified, 0), kind, changes })
    }
}
