//! The steps between recent states, along any branch of the chain.

use std::{collections::VecDeque, sync::Arc};

use alloy_primitives::map::{HashMap, HashSet};

use crate::{
    ledger::{Snapshot, StateId},
    state::Touched,
};

/// The steps that led to recent states. States form a tree: each follows from one other, and several may follow from
/// the same.
#[derive(Debug)]
pub struct StateHistory {
    /// The steps by the state that they lead to.
    steps: HashMap<StateId, KnownStep>,
    /// The same states, oldest first.
    order: VecDeque<StateId>,
    most: usize,
}

/// A step between two states. It holds neither of them in memory.
#[derive(Debug)]
pub struct KnownStep {
    from: StateId,
    to: StateId,
    /// The parts of the state that the step touches.
    pub touched: Arc<Touched>,
}

impl StateHistory {
    /// Creates an empty history that keeps at most `most` steps.
    pub fn new(most: usize) -> Self {
        Self { steps: HashMap::default(), order: VecDeque::new(), most: most.max(1) }
    }

    /// Returns whether no step is known.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Adds the steps to a snapshot.
    pub fn learn(&mut self, snapshot: &Snapshot) {
        for step in &snapshot.path {
            let (from, to) = (step.from, step.to);
            self.steps.entry(to).or_insert_with(|| {
                self.order.push_back(to);
                KnownStep { from, to, touched: step.touched().clone() }
            });
        }
        while self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.steps.remove(&oldest);
        }
    }

    /// Returns the steps in which two states differ: the steps from each back to their common ancestor. Returns `None`
    /// if they are unknown.
    pub fn between(&self, one: StateId, other: StateId) -> Option<Vec<&KnownStep>> {
        let back = self.back(one);
        let passed: HashSet<StateId> = back.iter().map(|step| step.from).chain([one]).collect();
        let mut steps = Vec::new();
        let mut at = other;
        while !passed.contains(&at) {
            let step = self.steps.get(&at)?;
            steps.push(step);
            at = step.from;
        }
        steps.extend(back.into_iter().take_while(|step| step.to != at));
        Some(steps)
    }

    /// Returns the known steps to a state, newest first.
    fn back(&self, from: StateId) -> Vec<&KnownStep> {
        let mut steps: Vec<&KnownStep> = Vec::new();
        let mut at = from;
        while let Some(step) = self.steps.get(&at) {
            steps.push(step);
            at = step.from;
        }
        steps
    }
}
