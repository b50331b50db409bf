//! What a sub-block, a canonical block or a lost connection means for what is pre-confirmed.

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hasher},
    sync::Arc,
};

use alloy_primitives::{B256, keccak256};

use super::decode::{Flashblock, PayloadId};
use crate::state::FeedProblem;

/// The rules of the feed, as a state machine without clock or I/O: what happened goes in, what to do comes out.
///
/// It keeps the *chain ahead*: the blocks that sub-blocks have told of and that are not canonical yet, each the parent of the next. Either the
/// whole chain ahead has been given out ([`Action::Open`], [`Action::Extend`]) and stands on the canonical head, or none of it, because
/// the parent of its first block is not known yet: the upstream tells of a block after the builder has begun the next one, so whoever
/// joined in the middle would else never find a parent that it knows. Such a chain is *held*, and given out when its parent becomes canonical.
///
/// As long as there is a [`problem`](Self::problem), nothing is given out and `pending` is the canonical head. It ends with an index 0 on
/// a known parent, and nothing else: a sub-block is never put on a state that lacks one before it.
///
/// A block that a canonical one takes the place of, with all that was built on it, is gone for good: late sub-blocks of it are stale.
///
/// `T` is what the caller has made of a block that was given out. It stays with its block, and goes with it.
#[derive(Debug)]
pub struct FlashblockSequence<T = ()> {
    max_ahead: usize,
    max_held: usize,
    /// The newest canonical blocks, oldest first, each the parent of the next.
    canonical: VecDeque<(u64, B256)>,
    /// The chain ahead, oldest first; numbers rise by one.
    ahead: VecDeque<Ahead<T>>,
    /// Blocks of which nothing more is wanted.
    gone: VecDeque<PayloadId>,
    problem: Option<FeedProblem>,
}

/// The most sub-blocks of one block: at 200 ms each, more than three minutes of it.
pub const MAX_SUB_BLOCKS: usize = 1024;
/// How many canonical blocks, and blocks of which nothing more is wanted, are remembered.
const REMEMBERED: usize = 64;

/// What to do. The actions of one answer are to be done in order; if one of them cannot be done, [`FlashblockSequence::fail`] is to be told, and
/// the rest of that answer is void.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Begin a block with its index 0 and the transactions in that. The feed is live from here on.
    Open {
        /// The sub-block; it has a base.
        flashblock: Arc<Flashblock>,
        /// What it is built on.
        parent: Parent,
    },
    /// Add the next sub-block to the newest block.
    Extend {
        /// The sub-block.
        flashblock: Arc<Flashblock>,
    },
    /// Nothing.
    Ignore(Ignored),
    /// All that was pre-confirmed is void: `pending` is the canonical head until the next [`Action::Open`].
    FallBack(FeedProblem),
    /// The oldest pre-confirmed block has become canonical as it is. What is built on it stays.
    Retire {
        /// Its number.
        number: u64,
    },
    /// A pre-confirmed block is not what becomes canonical: it and all that is built on it is void.
    Replace {
        /// The number of the first void block.
        number: u64,
        /// What takes its place.
        by: Replaced,
    },
}

/// What a block is built on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// The canonical head.
    Canonical,
    /// The newest pre-confirmed block.
    PreConfirmed,
}

/// Why there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ignored {
    /// The sub-block has come before.
    Duplicate,
    /// It belongs to a block that is canonical or void.
    Stale,
    /// The feed has fallen back, and this is no index 0.
    Waiting,
    /// It is kept until the parent of its block is known.
    Held,
    /// The canonical block has come before, or tells nothing of what is pre-confirmed.
    Canonical,
}

impl Ignored {
    /// Its name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Duplicate => "duplicate",
            Self::Stale => "stale",
            Self::Waiting => "waiting",
            Self::Held => "held",
            Self::Canonical => "canonical",
        }
    }
}

/// What takes the place of a pre-confirmed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Replaced {
    /// The same block, begun anew by a builder.
    Restart,
    /// The same block, canonical before all of its sub-blocks came.
    Overtaken,
    /// Another canonical block, or one whose parent is another.
    Canonical,
}

/// A canonical block, as far as the rules need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanonicalBlock {
    /// Its number.
    pub number: u64,
    /// Its hash.
    pub hash: B256,
    /// The hash of its parent.
    pub parent_hash: B256,
    /// The root of its receipts.
    pub receipts_root: B256,
    /// The hashes of its transactions.
    pub transactions: Vec<B256>,
}

/// A block of the chain ahead.
#[derive(Debug)]
struct Ahead<T> {
    number: u64,
    parent: B256,
    id: PayloadId,
    /// A digest of each sub-block, to know it again.
    digests: Vec<u64>,
    /// The hashes of the transactions so far.
    transactions: Vec<B256>,
    receipts_root: B256,
    /// The hash of the block as it was with its last sub-block; none where the builder did not work it out.
    hash: Option<B256>,
    /// Its sub-blocks, while they are held.
    held: Vec<Arc<Flashblock>>,
    /// What was made of it; none until it is given out.
    made: Option<T>,
}

impl<T> FlashblockSequence<T> {
    /// The rules before anything has happened. At most `max_ahead` blocks are kept ahead of the canonical head (at least one), and at most
    /// `max_held` bytes of sub-blocks until their parent is known.
    pub fn new(max_ahead: usize, max_held: usize) -> Self {
        Self {
            max_ahead: max_ahead.max(1),
            max_held,
            canonical: VecDeque::new(),
            ahead: VecDeque::new(),
            gone: VecDeque::new(),
            problem: Some(FeedProblem::Connecting),
        }
    }

    /// Why `pending` is the canonical head; none while sub-blocks are followed.
    pub const fn problem(&self) -> Option<FeedProblem> {
        self.problem
    }

    /// How many pre-confirmed blocks are ahead of the canonical head.
    pub fn blocks_ahead(&self) -> usize {
        if self.problem.is_some() { 0 } else { self.ahead.len() }
    }

    /// Keeps what was made of the block of this number, for as long as it is in the chain ahead.
    pub fn keep(&mut self, number: u64, made: T) {
        if let Some(block) = self.ahead.iter_mut().find(|block| block.number == number) {
            block.made = Some(made);
        }
    }

    /// What was made of the blocks of the chain ahead, the oldest first.
    pub fn made(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.ahead.iter().filter_map(|block| block.made.as_ref())
    }

    /// What was made of the newest of them.
    pub fn newest_made(&mut self) -> Option<&mut T> {
        self.ahead.iter_mut().rev().find_map(|block| block.made.as_mut())
    }

    /// Lets go of all that was made.
    pub fn let_go(&mut self) {
        self.ahead.iter_mut().for_each(|block| block.made = None);
    }

    /// A sub-block has come.
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
                Ok(()) => self.extend(flashblock),
                Err(problem) => self.break_off(problem),
            },
            // Of a block that the next one was built on already.
            (Some(_), _) => self.break_off(FeedProblem::OutOfOrder),
            // The index 0 of its block has not come.
            (None, None) => self.break_off(FeedProblem::Gap),
            (None, Some(newest)) if number.is_some_and(|number| number > newest.number) => {
                self.break_off(FeedProblem::Gap)
            }
            (None, Some(_)) => self.break_off(FeedProblem::OutOfOrder),
        }
    }

    /// The canonical head is another.
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

    /// The connection is lost.
    pub fn disconnected(&mut self) -> Vec<Action> {
        self.fail(FeedProblem::Disconnected)
    }

    /// What was pre-confirmed cannot be relied on, for a reason that only the caller knows: it was not executed, came too late, or did not
    /// turn out as the builder says.
    pub fn fail(&mut self, problem: FeedProblem) -> Vec<Action> {
        self.ahead.clear();
        self.problem = Some(problem);
        vec![Action::FallBack(problem)]
    }

    /// As [`fail`](Self::fail), unless nothing is given out anyway: then the first reason stays.
    fn break_off(&mut self, problem: FeedProblem) -> Vec<Action> {
        self.ahead.clear();
        if self.problem.is_some() { vec![Action::Ignore(Ignored::Waiting)] } else { self.fail(problem) }
    }

    /// The index 0 of a block.
    fn begin(&mut self, flashblock: Arc<Flashblock>) -> Vec<Action> {
        let Some((number, parent)) = flashblock.base.as_ref().map(|base| (base.block_number, base.parent_hash)) else {
            return self.break_off(FeedProblem::OutOfOrder);
        };
        let mut actions = Vec::new();
        if let Some(at) = self.ahead.iter().position(|block| block.number == number) {
            self.abandon(at, Some(flashblock.payload_id));
            if self.problem.is_none() {
                actions.push(Action::Replace { number, by: Replaced::Restart });
            }
        }
        let follows = self.ahead.back().is_some_and(|newest| newest.number + 1 == number && newest.may_be(parent));
        let on_head = self.canonical.back() == Some(&(number.wrapping_sub(1), parent));
        if !follows && (!self.ahead.is_empty() || !on_head) {
            let missed = self.ahead.back().is_some_and(|newest| number > newest.number + 1);
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
        let parent = if self.ahead.len() == 1 { Parent::Canonical } else { Parent::PreConfirmed };
        actions.push(Action::Open { flashblock, parent });
        actions
    }

    /// The next sub-block of the newest block.
    fn extend(&mut self, flashblock: Arc<Flashblock>) -> Vec<Action> {
        if let Some(newest) = self.ahead.back_mut() {
            newest.add(&flashblock);
        }
        if self.problem.is_some() {
            return vec![self.hold(flashblock)];
        }
        vec![Action::Extend { flashblock }]
    }

    /// Keeps the sub-block that was added last until the parent of its block is known.
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

    /// Takes a canonical block in.
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

    /// A canonical block while the chain ahead is held: it may be the parent that it waits for.
    fn canonical_while_held(&mut self, block: &CanonicalBlock) -> Vec<Action> {
        let passed = self.ahead.iter().take_while(|ahead| ahead.number <= block.number).count();
        let rest = self.ahead.split_off(passed);
        self.abandon(0, None);
        self.ahead = rest;
        match self.ahead.front() {
            Some(first) if (first.number, first.parent) == (block.number + 1, block.hash) => {}
            // Its parent is another: it stands on nothing that is left.
            Some(_) if passed > 0 => {
                self.ahead.clear();
                return Vec::new();
            }
            _ => return Vec::new(),
        }
        self.problem = None;
        let mut actions = Vec::new();
        for (at, ahead) in self.ahead.iter_mut().enumerate() {
            for flashblock in std::mem::take(&mut ahead.held) {
                let parent = if at == 0 { Parent::Canonical } else { Parent::PreConfirmed };
                actions.push(match flashblock.index {
                    0 => Action::Open { flashblock, parent },
                    _ => Action::Extend { flashblock },
                });
            }
        }
        actions
    }

    /// A canonical block against the chain ahead that has been given out.
    fn check(&mut self, block: &CanonicalBlock) -> Vec<Action> {
        let (Some(first), Some(newest)) = (self.ahead.front(), self.ahead.back()) else { return Vec::new() };
        let first = first.number;
        if block.number < first {
            // The chain ahead stands on the head that was, and this one takes its place.
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
            let overtaken =
                passed == self.ahead.len() && begins_so && block.transactions.len() > same.transactions.len();
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

    /// Takes the blocks from `at` on out of the chain ahead. Nothing more is wanted of them, except of `kept`.
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

impl<T> Ahead<T> {
    /// A block with its index 0.
    fn new(flashblock: &Flashblock, number: u64, parent: B256) -> Self {
        let mut block = Self {
            number,
            parent,
            id: flashblock.payload_id,
            digests: Vec::new(),
            transactions: Vec::new(),
            receipts_root: B256::ZERO,
            hash: None,
            held: Vec::new(),
            made: None,
        };
        block.add(flashblock);
        block
    }

    fn add(&mut self, flashblock: &Flashblock) {
        let diff = &flashblock.diff;
        self.digests.push(digest(flashblock));
        self.transactions.extend(diff.transactions.iter().map(keccak256));
        self.receipts_root = diff.receipts_root;
        // A builder that leaves the state root out has no hash to give either, whatever the field says.
        self.hash = (!diff.state_root.is_zero() && !diff.block_hash.is_zero()).then_some(diff.block_hash);
    }

    /// Whether it has this very sub-block.
    fn has(&self, flashblock: &Flashblock) -> bool {
        let at = usize::try_from(flashblock.index).unwrap_or(usize::MAX);
        self.digests.get(at).is_some_and(|known| *known == digest(flashblock))
    }

    /// Whether this is its next sub-block.
    fn check_next(&self, flashblock: &Flashblock) -> Result<(), FeedProblem> {
        let due = self.digests.len();
        let other_number = flashblock.block_number().is_some_and(|number| number != self.number);
        let other_parent = flashblock.base.as_ref().is_some_and(|base| base.parent_hash != self.parent);
        if due >= MAX_SUB_BLOCKS || other_number || other_parent {
            return Err(FeedProblem::OutOfOrder);
        }
        match flashblock.index.cmp(&(due as u64)) {
            std::cmp::Ordering::Less => Err(FeedProblem::OutOfOrder),
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => Err(FeedProblem::Gap),
        }
    }

    /// Whether it may have this hash, now that a block was begun on that.
    fn may_be(&self, hash: B256) -> bool {
        self.hash.is_none_or(|own| own == hash)
    }

    /// Whether it has become this canonical block.
    fn is(&self, block: &CanonicalBlock) -> bool {
        let same_receipts = self.receipts_root == block.receipts_root;
        let same_content = same_receipts && self.transactions == block.transactions;
        self.hash == Some(block.hash) || (self.parent == block.parent_hash && same_content)
    }
}

/// Tells sub-blocks with different content apart.
fn digest(flashblock: &Flashblock) -> u64 {
    let diff = &flashblock.diff;
    let mut hasher = DefaultHasher::new();
    if let Some(base) = &flashblock.base {
        hasher.write(base.parent_hash.as_slice());
        hasher.write_u64(base.block_number);
        hasher.write_u64(base.timestamp);
        hasher.write_u64(base.gas_limit);
        hasher.write(base.parent_beacon_block_root.as_slice());
        hasher.write(base.fee_recipient.as_slice());
        hasher.write(base.prev_randao.as_slice());
        hasher.write(&base.extra_data);
        hasher.write(&base.base_fee_per_gas.to_be_bytes::<32>());
    }
    hasher.write(diff.state_root.as_slice());
    hasher.write(diff.receipts_root.as_slice());
    hasher.write(diff.block_hash.as_slice());
    hasher.write(diff.withdrawals_root.as_slice());
    hasher.write(diff.logs_bloom.as_slice());
    hasher.write_u64(diff.gas_used);
    hasher.write_u64(diff.blob_gas_used.unwrap_or(u64::MAX));
    for transaction in &diff.transactions {
        hasher.write_usize(transaction.len());
        hasher.write(transaction);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests;
