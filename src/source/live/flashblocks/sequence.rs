//! The effect of sub-blocks, canonical blocks and lost connections on the pre-confirmed blocks.

use std::{collections::VecDeque, sync::Arc};

use alloy_primitives::B256;

use super::{
    block::{Ahead, CanonicalBlock},
    decode::{Flashblock, PayloadId},
};
use crate::ledger::FeedProblem;

/// The rules of a Flashblocks feed, as a state machine without clock or I/O: events go in, actions come out.
///
/// The machine keeps the *chain ahead*: the blocks that sub-blocks have announced and that are not canonical yet, each
/// the parent of the next. Either the whole chain ahead has been given to the caller ([`Action::Add`]) and is built on
/// the canonical head, or none of it, because the parent of its first block is not known yet. Such a chain is *held*, and
/// given to the caller when its parent becomes canonical. This is needed because the upstream announces a block after
/// the builder has begun the next one, so a node that joins in the middle would otherwise never find a parent that it
/// knows.
///
/// While there is a [`problem`](Self::problem), nothing is given to the caller and `pending` is the canonical head.
/// Only an index 0 on a known parent ends it: a sub-block is never applied to a state that lacks an earlier one.
///
/// A block that a canonical one replaces is removed for good, with all blocks built on it. Late sub-blocks of it are
/// stale.
#[derive(Debug)]
pub struct FlashblockSequence {
    max_ahead: usize,
    max_held: usize,
    /// The newest canonical blocks, oldest first, each the parent of the next.
    canonical: VecDeque<(u64, B256)>,
    /// The chain ahead, oldest first; numbers rise by one.
    ahead: VecDeque<Ahead>,
    /// Removed blocks. Their sub-blocks are ignored.
    gone: VecDeque<PayloadId>,
    /// Whether a message may be missing after the newest sub-block.
    may_miss: bool,
    problem: Option<FeedProblem>,
}

/// The number of canonical blocks, and of removed blocks, that are remembered: more than three minutes of 200 ms
/// blocks.
const REMEMBERED: usize = 1024;

/// An action for the caller. The actions of one answer are to be executed in order. If one fails, the caller calls
/// [`FlashblockSequence::fail`] and drops the rest of that answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Begin a block with its sub-block of index 0, which has a base and transactions, or add the next sub-block to the
    /// newest block. The parent of a block that begins is the canonical head or the newest pre-confirmed block. The feed
    /// is live from then on.
    Add {
        /// The block's number.
        number: u64,
        /// The sub-block.
        flashblock: Arc<Flashblock>,
    },
    /// Do nothing.
    Ignore(Ignored),
    /// Drop all pre-confirmed blocks: `pending` is the canonical head until the next block begins.
    FallBack(FeedProblem),
    /// The oldest pre-confirmed block has become canonical unchanged. The blocks built on it stay.
    Retire {
        /// The block's number.
        number: u64,
    },
    /// A pre-confirmed block differs from the canonical one. Drop it and all blocks built on it.
    Replace {
        /// The number of the first block to drop.
        number: u64,
        /// The reason.
        by: Replaced,
    },
}

/// The reason why an event has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ignored {
    /// The sub-block was received before.
    Duplicate,
    /// The sub-block belongs to a block that is canonical or removed.
    Stale,
    /// The feed has fallen back, and this is not an index 0.
    Waiting,
    /// The sub-block is held until the parent of its block is known.
    Held,
    /// The canonical block was received before, or does not concern the pre-confirmed blocks.
    Canonical,
}

/// The reason why a pre-confirmed block is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Replaced {
    /// A builder began the same block again.
    Restart,
    /// The same block became canonical before all of its sub-blocks arrived.
    Overtaken,
    /// Another block became canonical, or one with another parent.
    Canonical,
}

impl FlashblockSequence {
    /// Creates the initial state. At most `max_ahead` blocks (at least one) are kept ahead of the canonical head, and
    /// at most `max_held` bytes of sub-blocks until their parent is known.
    pub fn new(max_ahead: usize, max_held: usize) -> Self {
        Self {
            max_ahead: max_ahead.max(1),
            max_held,
            canonical: VecDeque::new(),
            ahead: VecDeque::new(),
            gone: VecDeque::new(),
            may_miss: false,
            problem: Some(FeedProblem::Connecting),
        }
    }

    /// Returns to the initial state.
    pub fn restart(&mut self) {
        *self = Self::new(self.max_ahead, self.max_held);
    }

    /// Returns the reason why `pending` is the canonical head; `None` while sub-blocks are followed.
    pub const fn problem(&self) -> Option<FeedProblem> {
        self.problem
    }

    /// Returns the number of pre-confirmed blocks ahead of the canonical head.
    #[cfg(test)]
    pub fn blocks_ahead(&self) -> usize {
        if self.problem.is_some() { 0 } else { self.ahead.len() }
    }

    /// Returns the newest sub-block of the block with this number.
    pub fn newest_of(&self, number: u64) -> Option<&Flashblock> {
        self.ahead.iter().find(|block| block.number == number).map(|block| &*block.newest)
    }

    /// Takes a sub-block that has arrived.
    pub fn flashblock(&mut self, flashblock: Arc<Flashblock>) -> Vec<Action> {
        let id = flashblock.payload_id;
        let number = flashblock.block_number();
        let is_old = matches!((number, self.canonical.back()), (Some(number), Some((head, _))) if number <= *head);
        if is_old || self.gone.contains(&id) {
            return vec![Action::Ignore(Ignored::Stale)];
        }
        let known = self.ahead.iter().position(|block| block.id == id);
        if known.is_some_and(|at| self.ahead[at].has(&flashblock)) {
            return vec![Action::Ignore(Ignored::Duplicate)];
        }
        if flashblock.index == 0 {
            return self.begin(flashblock);
        }
        let newest = self.ahead.back();
        match (known, newest) {
            (Some(at), Some(newest)) if at + 1 == self.ahead.len() => match newest.check_next(&flashblock) {
                Ok(()) => {
                    self.may_miss = false;
                    self.extend(flashblock)
                }
                Err(problem) => self.break_off(problem),
            },
            // The sub-block belongs to a block on which the next one was already built.
            (Some(_), _) => self.break_off(FeedProblem::OutOfOrder),
            // The index 0 of its block has not arrived.
            (None, None) => self.break_off(FeedProblem::Gap),
            (None, Some(newest)) if number.is_some_and(|number| number > newest.number) => {
                self.break_off(FeedProblem::Gap)
            }
            (None, Some(_)) => self.break_off(FeedProblem::OutOfOrder),
        }
    }

    /// Takes a new canonical head.
    pub fn canonical(&mut self, block: &CanonicalBlock) -> Vec<Action> {
        if self.canonical.contains(&(block.number, block.hash)) {
            return vec![Action::Ignore(Ignored::Canonical)];
        }
        self.follow(block);
        let mut actions = if self.problem.is_some() { self.canonical_while_held(block) } else { self.check(block) };
        if actions.is_empty() {
            actions.push(Action::Ignore(Ignored::Canonical));
        }
        actions
    }

    /// Notes that messages may have been lost: one could not be read, or the connection was opened again. If the next
    /// sub-block is the one that was due, nothing was lost; if it begins another block, the newest one must be known by
    /// its hash to be complete.
    pub const fn missed(&mut self) {
        self.may_miss = true;
    }

    /// Returns whether a canonical block is a block of the chain ahead, without a difference, so that
    /// [`canonical`](Self::canonical) would retire it.
    pub fn confirms(&self, block: &CanonicalBlock) -> bool {
        let at = self.ahead.iter().position(|ahead| ahead.number == block.number).filter(|_| self.problem.is_none());
        at.is_some_and(|at| {
            let next = self.ahead.get(at + 1);
            self.ahead[at].is(block) && next.is_none_or(|next| next.parent == block.hash)
        })
    }

    /// Drops the pre-confirmed blocks for a reason that only the caller knows: they could not be executed, arrived too
    /// late, or differ from the builder's announcement.
    pub fn fail(&mut self, problem: FeedProblem) -> Vec<Action> {
        self.ahead.clear();
        self.problem = Some(problem);
        vec![Action::FallBack(problem)]
    }

    /// Calls [`fail`](Self::fail), unless nothing is given to the caller anyway: then the first reason stays.
    fn break_off(&mut self, problem: FeedProblem) -> Vec<Action> {
        self.ahead.clear();
        if self.problem.is_some() { vec![Action::Ignore(Ignored::Waiting)] } else { self.fail(problem) }
    }

    /// Takes the index 0 of a block.
    fn begin(&mut self, flashblock: Arc<Flashblock>) -> Vec<Action> {
        let Some((number, parent)) = flashblock.base.as_ref().map(|base| (base.block_number, base.parent_hash)) else {
            return self.break_off(FeedProblem::OutOfOrder);
        };
        let mut actions = Vec::new();
        let restarted = self.ahead.iter().position(|block| block.number == number);
        if let Some(at) = restarted {
            self.abandon(at, Some(flashblock.payload_id));
            if self.problem.is_none() {
                actions.push(Action::Replace { number, by: Replaced::Restart });
            }
        }
        // The parent of a block that is started again was complete when the block was begun first.
        let may_miss = std::mem::take(&mut self.may_miss) && restarted.is_none();
        let follows = self.ahead.back().is_some_and(|newest| {
            newest.number + 1 == number && if may_miss { newest.hash == Some(parent) } else { newest.may_be(parent) }
        });
        let on_head = self.canonical.back() == Some(&(number.wrapping_sub(1), parent));
        if !follows && (!self.ahead.is_empty() || !on_head) {
            let missed = self
                .ahead
                .back()
                .is_some_and(|newest| number > newest.number + 1 || may_miss && number > newest.number);
            let problem = if missed { FeedProblem::Gap } else { FeedProblem::UnknownParent };
            self.ahead.clear();
            if self.problem.is_none() {
                actions = self.fail(problem);
            }
        }
        if self.ahead.len() == self.max_ahead {
            if self.problem.is_none() {
                actions = self.fail(FeedProblem::Upstream);
            }
            self.ahead.pop_front();
        }
        let stands = if self.ahead.is_empty() { on_head } else { self.problem.is_none() };
        self.ahead.push_back(Ahead::new(&flashblock, number, parent));
        if !stands {
            actions.push(self.hold(flashblock));
            return actions;
        }
        self.problem = None;
        actions.push(Action::Add { number, flashblock });
        actions
    }

    /// Takes the next sub-block of the newest block.
    fn extend(&mut self, flashblock: Arc<Flashblock>) -> Vec<Action> {
        let Some(newest) = self.ahead.back_mut() else { return Vec::new() };
        newest.add(&flashblock);
        let number = newest.number;
        if self.problem.is_some() {
            return vec![self.hold(flashblock)];
        }
        vec![Action::Add { number, flashblock }]
    }

    /// Holds the sub-block that was added last until the parent of its block is known.
    fn hold(&mut self, flashblock: Arc<Flashblock>) -> Action {
        if let Some(newest) = self.ahead.back_mut() {
            newest.held.push(flashblock);
        }
        let bytes: usize = self.ahead.iter().flat_map(|block| &block.held).map(|flashblock| flashblock.size).sum();
        if bytes <= self.max_held {
            return Action::Ignore(Ignored::Held);
        }
        self.ahead.clear();
        Action::Ignore(Ignored::Waiting)
    }

    /// Appends a canonical block.
    fn follow(&mut self, block: &CanonicalBlock) {
        while self.canonical.back().is_some_and(|(number, _)| *number >= block.number) {
            self.canonical.pop_back();
        }
        if self.canonical.back().is_some_and(|(number, hash)| (number + 1, *hash) != (block.number, block.parent_hash))
        {
            self.canonical.clear();
        }
        self.canonical.push_back((block.number, block.hash));
        if self.canonical.len() > REMEMBERED {
            self.canonical.pop_front();
        }
    }

    /// Takes a canonical block while the chain ahead is held: it may be the parent that it waits for.
    fn canonical_while_held(&mut self, block: &CanonicalBlock) -> Vec<Action> {
        let passed = self.ahead.iter().take_while(|ahead| ahead.number <= block.number).count();
        let rest = self.ahead.split_off(passed);
        self.abandon(0, None);
        self.ahead = rest;
        match self.ahead.front() {
            Some(first) if (first.number, first.parent) == (block.number + 1, block.hash) => {}
            // The block has another parent, so it is not built on any remaining block.
            Some(_) if passed > 0 => {
                self.ahead.clear();
                return Vec::new();
            }
            _ => return Vec::new(),
        }
        self.problem = None;
        let mut actions = Vec::new();
        for ahead in &mut self.ahead {
            let number = ahead.number;
            actions.extend(ahead.held.drain(..).map(|flashblock| Action::Add { number, flashblock }));
        }
        actions
    }

    /// Compares a canonical block with the chain ahead that has been given out.
    fn check(&mut self, block: &CanonicalBlock) -> Vec<Action> {
        let (Some(first), Some(newest)) = (self.ahead.front(), self.ahead.back()) else { return Vec::new() };
        let first = first.number;
        if block.number < first {
            // The chain ahead is built on the previous head, which this block replaces.
            return self.fail(FeedProblem::Reorg);
        }
        if block.number > newest.number {
            let is_parent = newest.number + 1 == block.number && newest.hash == Some(block.parent_hash);
            let last = newest.number;
            self.abandon(0, None);
            return match is_parent {
                true => (first..=last).map(|number| Action::Retire { number }).collect(),
                false => vec![Action::Replace { number: first, by: Replaced::Overtaken }],
            };
        }
        // The numbers of the chain ahead have no gaps.
        let passed = self.ahead.iter().take_while(|ahead| ahead.number <= block.number).count();
        let Some(same) = passed.checked_sub(1).and_then(|at| self.ahead.get(at)) else { return Vec::new() };
        if !same.is(block) {
            let same_parent = same.parent == block.parent_hash;
            let begins_so = same_parent && block.transactions.starts_with(&same.transactions);
            // A later sub-block has brought transactions, or other refunds.
            let has_more = block.transactions.len() > same.transactions.len() || block.post_exec != same.post_exec;
            let overtaken = passed == self.ahead.len() && begins_so && has_more;
            self.abandon(0, None);
            if overtaken {
                return vec![Action::Replace { number: first, by: Replaced::Overtaken }];
            }
            let mut actions = vec![Action::Replace { number: first, by: Replaced::Canonical }];
            actions.extend(self.fail(if same_parent { FeedProblem::Mismatch } else { FeedProblem::Reorg }));
            return actions;
        }
        let rest = self.ahead.split_off(passed);
        self.abandon(0, None);
        self.ahead = rest;
        let mut actions: Vec<_> = (first..=block.number).map(|number| Action::Retire { number }).collect();
        if let Some(next) = self.ahead.front().filter(|next| next.parent != block.hash) {
            actions.push(Action::Replace { number: next.number, by: Replaced::Canonical });
            self.abandon(0, None);
            actions.extend(self.fail(FeedProblem::Mismatch));
        }
        actions
    }

    /// Removes the blocks from `at` on from the chain ahead. From then on, all of their sub-blocks are ignored, except
    /// the sub-blocks of `kept`.
    fn abandon(&mut self, at: usize, kept: Option<PayloadId>) {
        for block in self.ahead.drain(at..) {
            if Some(block.id) != kept {
                self.gone.push_back(block.id);
            }
        }
        while self.gone.len() > REMEMBERED {
            self.gone.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
