//! The steps between recent states, along any branch of the chain.

use std::{collections::VecDeque, sync::Arc};

use alloy_primitives::map::{HashMap, HashSet};

use crate::state::{Snapshot, StateId, StateStep};

/// The steps that led to recent states. States form a tree: each follows from one other, and several may follow from
/// the same.
#[derive(Debug)]
pub struct StateHistory {
    /// The steps by the state that they lead to.
    steps: HashMap<StateId, Arc<StateStep>>,
    /// The same states, oldest first.
    order: VecDeque<StateId>,
    most: usize,
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
            if self.steps.insert(step.to, step.clone()).is_none() {
                self.order.push_back(step.to);
            }
        }
        while self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.steps.remove(&oldest);
        }
    }

    /// Returns the steps in which two states differ: those from each of them back to where they parted. Returns `None`
    /// if this is not known.
    pub fn between(&self, one: StateId, other: StateId) -> Option<Vec<&StateStep>> {
        let back = self.back(one);
        let passed: HashSet<StateId> = back.iter().map(|step| step.from).chain([one]).collect();
        let mut steps = Vec::new();
        let mut at = other;
        while !passed.contains(&at) {
            let step = self.steps.get(&at)?;
            steps.push(step.as_ref());
            at = step.from;
        }
        steps.extend(back.into_iter().take_while(|step| step.to != at));
        Some(steps)
    }

    /// Returns the known steps to a state, newest first.
    fn back(&self, from: StateId) -> Vec<&StateStep> {
        let mut steps: Vec<&StateStep> = Vec::new();
        let mut at = from;
        while let Some(step) = self.steps.get(&at) {
            steps.push(step);
            at = step.from;
        }
        steps
    }
}
