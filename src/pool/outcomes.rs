//! The outcomes of the bundles that clients have sent, for as long as they are remembered.

use std::collections::{BTreeMap, HashMap};

use alloy_primitives::{B256, map::B256Map};

use crate::shown;

/// The number of bundles per client whose outcomes are remembered.
const MAX_OF_CLIENT: usize = 10_000;
/// The bytes of all remembered outcomes, beyond which the oldest of the client with most of them are forgotten.
const MAX_BYTES: usize = 32 << 20;
/// The bytes of an outcome without its reason.
const BYTES: usize = 200;
/// The characters of a reason.
const MAX_REASON: usize = 300;

/// The outcome of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BundleOutcome {
    /// The bundle waits for its block.
    Pending,
    /// The bundle is in a block, possibly the one being built.
    Mined {
        /// The number of the block.
        block: u64,
    },
    /// The bundle no longer waits, and is in no block.
    Dropped {
        /// The reason, for people.
        reason: String,
    },
}

/// The outcomes of the last bundles of each client.
#[derive(Debug, Default)]
pub struct Outcomes {
    clients: HashMap<Option<String>, ClientOutcomes>,
    /// The number of the next bundle.
    next: u64,
    bytes: usize,
}

#[derive(Debug, Default)]
struct ClientOutcomes {
    /// The number of each bundle, and its outcome.
    by_hash: B256Map<(u64, BundleOutcome)>,
    by_number: BTreeMap<u64, B256>,
}

impl BundleOutcome {
    /// Creates the outcome of a bundle that is dropped.
    pub fn dropped(reason: impl AsRef<str>) -> Self {
        Self::Dropped { reason: shown::cut(reason.as_ref(), MAX_REASON) }
    }

    const fn bytes(&self) -> usize {
        match self {
            Self::Pending | Self::Mined { .. } => BYTES,
            Self::Dropped { reason } => BYTES + reason.len(),
        }
    }
}

impl ClientOutcomes {
    fn insert(&mut self, hash: B256, number: u64, outcome: BundleOutcome) {
        self.by_hash.insert(hash, (number, outcome));
        self.by_number.insert(number, hash);
    }

    /// Forgets a bundle. Returns its number and outcome.
    fn remove(&mut self, hash: &B256) -> Option<(u64, BundleOutcome)> {
        let (number, outcome) = self.by_hash.remove(hash)?;
        self.by_number.remove(&number);
        Some((number, outcome))
    }

    /// Forgets the oldest bundle. Returns its outcome.
    fn remove_oldest(&mut self) -> Option<BundleOutcome> {
        let (_, hash) = self.by_number.pop_first()?;
        self.by_hash.remove(&hash).map(|(_, outcome)| outcome)
    }
}

impl Outcomes {
    /// Returns the outcome of a client's bundle; `None` if it is unknown or forgotten.
    pub fn get(&self, client: Option<&str>, hash: &B256) -> Option<&BundleOutcome> {
        let (_, outcome) = self.clients.get(&client.map(str::to_owned))?.by_hash.get(hash)?;
        Some(outcome)
    }

    /// Records that a client has sent a bundle, which is its newest.
    pub fn begin(&mut self, client: &Option<String>, hash: B256) {
        self.next += 1;
        let known = self.clients.entry(client.clone()).or_default();
        let forgotten = known
            .remove(&hash)
            .map(|(_, outcome)| outcome)
            .or_else(|| (known.by_hash.len() >= MAX_OF_CLIENT).then(|| known.remove_oldest()).flatten());
        known.insert(hash, self.next, BundleOutcome::Pending);
        self.bytes = self.bytes + BYTES - forgotten.map_or(0, |forgotten| forgotten.bytes());
        self.forget_until_it_fits();
    }

    /// Records the outcome of a client's bundle, unless that is mined or forgotten.
    pub fn end(&mut self, client: &Option<String>, hash: &B256, outcome: BundleOutcome) {
        let known = self.clients.get_mut(client).and_then(|known| known.by_hash.get_mut(hash));
        let Some((_, known)) = known.filter(|(_, known)| *known == BundleOutcome::Pending) else { return };
        self.bytes = self.bytes + outcome.bytes() - known.bytes();
        *known = outcome;
        self.forget_until_it_fits();
    }

    fn forget_until_it_fits(&mut self) {
        while self.bytes > MAX_BYTES {
            let Some(most) = self.clients.values_mut().max_by_key(|known| known.by_hash.len()) else { return };
            let Some(oldest) = most.remove_oldest() else { return };
            self.bytes -= oldest.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: usize) -> B256 {
        B256::left_padding_from(&number.to_be_bytes())
    }

    #[test]
    fn the_oldest_bundles_of_a_client_are_forgotten_first_and_no_bytes_are_lost_count_of() {
        let mut outcomes = Outcomes::default();
        let [one, other] = [Some("one".to_owned()), None];
        outcomes.begin(&other, hash(0));
        for number in 0..=MAX_OF_CLIENT {
            outcomes.begin(&one, hash(number));
        }
        assert_eq!(outcomes.get(Some("one"), &hash(0)), None, "it is the oldest of its client");
        assert_eq!(outcomes.get(None, &hash(0)), Some(&BundleOutcome::Pending), "another client's");
        outcomes.begin(&one, hash(1));
        outcomes.begin(&one, hash(0));
        assert_eq!(outcomes.get(Some("one"), &hash(1)), Some(&BundleOutcome::Pending), "it was sent again");
        assert_eq!(outcomes.get(Some("one"), &hash(2)), None);
        outcomes.end(&one, &hash(1), BundleOutcome::Mined { block: 7 });
        outcomes.end(&one, &hash(1), BundleOutcome::dropped("it is mined already"));
        assert_eq!(outcomes.get(Some("one"), &hash(1)), Some(&BundleOutcome::Mined { block: 7 }));
        outcomes.end(&one, &hash(3), BundleOutcome::dropped("a".repeat(1_000)));
        assert_eq!(outcomes.bytes, (MAX_OF_CLIENT + 1) * BYTES + MAX_REASON + "…".len());
    }

    #[test]
    fn the_outcomes_of_many_clients_fit_their_bytes() {
        let mut outcomes = Outcomes::default();
        for number in 0..MAX_BYTES / BYTES + 10 {
            outcomes.begin(&Some((number % 17).to_string()), hash(number));
        }
        assert!(outcomes.bytes <= MAX_BYTES, "{}", outcomes.bytes);
        let remembered: usize = outcomes.clients.values().map(|known| known.by_hash.len()).sum();
        assert_eq!(outcomes.bytes, remembered * BYTES);
    }
}
