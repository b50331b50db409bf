//! The summary of a client's standing bundles: their number, and the most profitable ones.

use std::cmp::Reverse;

use alloy_primitives::I256;
use schemars::JsonSchema;
use serde::Serialize;

use super::Watches;
use crate::watch::{Answer, StandingBundle};

/// A standing bundle, as the status of the node shows it to its client.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StandingSummary {
    name: String,
    /// The objective of the last run, in decimal.
    objective: Option<String>,
    /// The newest snapshot for which the answer is known to hold.
    holds_at: Option<String>,
    is_due: bool,
}

impl Watches {
    /// Returns the number of a client's standing bundles, and the `most` of them that gained most in their last run.
    pub fn best(&self, client: Option<&str>, most: usize) -> (usize, Vec<StandingSummary>) {
        let own = self.list.of(client);
        let mut best: Vec<(Option<I256>, StandingSummary)> = Vec::new();
        for watch in &own {
            let state = watch.state();
            let mut bundles: Vec<_> = state.bundles.bundles().iter().collect();
            bundles.sort_by_key(|bundle| Reverse(bundle.gained));
            best.extend(bundles.into_iter().take(most).map(|bundle| (bundle.gained, StandingSummary::of(bundle))));
        }
        best.sort_by_key(|(gained, _)| Reverse(*gained));
        let count = own.iter().map(|watch| watch.count).sum();
        (count, best.into_iter().take(most).map(|(_, summary)| summary).collect())
    }
}

impl StandingSummary {
    fn of<R, A: Answer>(bundle: &StandingBundle<R, A>) -> Self {
        Self {
            name: bundle.name.clone(),
            objective: bundle.gained.map(|gained| gained.to_string()),
            holds_at: bundle.holds_at.map(|name| format!("{:#x}", name.id.0)),
            is_due: bundle.is_due,
        }
    }
}
