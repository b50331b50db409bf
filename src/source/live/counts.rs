//! Counts of the sub-blocks of a stream, and of their outcomes.

use std::ops::RangeBounds;

use super::flashblocks::Replaced;
use crate::telemetry::{Counter, Metrics};

/// The fate of a pre-confirmed block that was published.
#[derive(Clone, Copy, Debug)]
pub(super) enum BlockFate {
    /// The block became canonical unchanged.
    Canonical,
    /// Another block took its place.
    Replaced(Replaced),
    /// The feed has fallen back.
    Dropped,
}

/// Counts of pre-confirmed blocks by their fate, each once, and of the stream's messages.
#[derive(Debug)]
pub(super) struct PreConfirmedCounts {
    /// The numbers of the published blocks with unknown outcome, in order.
    begun: Vec<u64>,
    pub(super) applied: Counter,
    pub(super) unreadable: Counter,
    canonical: Counter,
    dropped: Counter,
    restarted: Counter,
    overtaken: Counter,
    other: Counter,
}

impl PreConfirmedCounts {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let blocks = |outcome| {
            let help = "Pre-confirmed blocks, by outcome.";
            metrics.counter_with("presim_preconfirmed_total", help, &[("outcome", outcome)])
        };
        let messages = |outcome| {
            let help = "Messages of the stream of sub-blocks.";
            metrics.counter_with("presim_flashblocks_total", help, &[("outcome", outcome)])
        };
        Self {
            begun: Vec::new(),
            applied: messages("applied"),
            unreadable: messages("unreadable"),
            canonical: blocks("canonical"),
            dropped: blocks("dropped"),
            restarted: blocks("restarted"),
            overtaken: blocks("overtaken"),
            other: blocks("replaced"),
        }
    }

    /// Records that the first sub-block of a block is published.
    pub(super) fn begin(&mut self, number: u64) {
        self.begun.push(number);
    }

    /// Counts the published blocks with these numbers whose outcome was unknown.
    pub(super) fn record_outcome(&mut self, numbers: impl RangeBounds<u64>, fate: BlockFate) {
        let count = match fate {
            BlockFate::Canonical => &self.canonical,
            BlockFate::Dropped => &self.dropped,
            BlockFate::Replaced(Replaced::Restart) => &self.restarted,
            BlockFate::Replaced(Replaced::Overtaken) => &self.overtaken,
            BlockFate::Replaced(Replaced::Canonical) => &self.other,
        };
        let before = self.begun.len();
        self.begun.retain(|number| !numbers.contains(number));
        count.increment((before - self.begun.len()) as u64);
    }
}
