//! The questions to an embedded node and its answers, besides the types of the engine.

use std::{sync::Arc, time::Duration};

use alloy_consensus::Header;
use alloy_primitives::{B256, Bytes, Log, U256};

use crate::{
    engine::{
        Aim, BundleSearch, CallIndex, CallOutcome, Objective, SearchedValues, SimCall, Simulation, SimulationError,
        StorageOverride, VariedPart, VariedTarget,
    },
    ledger::Snapshot as LedgerSnapshot,
};

/// The state of the chain at one moment, with its block context. It never changes, and is cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let node = presim::Node::start(presim::Config::default()).await?;
/// let snapshot: presim::Snapshot = node.snapshot();
/// println!("snapshot {:#x}, {} ms old", snapshot.id(), snapshot.age().as_millis());
/// println!("block {}.{}, {} transactions so far", snapshot.header().number, snapshot.index(), snapshot.transactions());
/// assert_eq!(snapshot.sealed().0 + 1, snapshot.header().number);
/// # Ok(node.stop().await) }
/// ```
#[derive(Clone, Debug)]
pub struct Snapshot(pub(super) Arc<LedgerSnapshot>);

impl Snapshot {
    /// Returns the id, which means the same state wherever it is answered, and grows with each snapshot.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id.0
    }

    /// Returns the header of the block being built, or of the newest block on a chain that has no pre-confirmations.
    #[must_use]
    pub fn header(&self) -> &Header {
        self.0.header()
    }

    /// Returns the number of sub-blocks of the block being built that the snapshot includes.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.0.index()
    }

    /// Returns the number of transactions of the block being built.
    #[must_use]
    pub fn transactions(&self) -> usize {
        self.0.open.as_ref().map_or(0, |open| open.transactions.len())
    }

    /// Returns the number and the hash of the newest sealed block.
    #[must_use]
    pub fn sealed(&self) -> (u64, B256) {
        (self.0.head.number(), self.0.head.hash())
    }

    /// Returns the time since the snapshot was published.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.0.published.elapsed()
    }
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallOutput {
    /// The way in which the call ended.
    pub outcome: CallOutcome,
    /// Gas used, after refunds.
    pub gas_used: u64,
    /// The call's output, or the data of its revert.
    pub data: Bytes,
    /// The logs. Empty if the call failed.
    pub logs: Vec<Log>,
}

/// An account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Balance in wei.
    pub balance: U256,
    /// Next nonce.
    pub nonce: u64,
    /// Bytecode, empty if there is none.
    pub code: Bytes,
}

/// A search for the values of a bundle that optimise an objective.
///
/// [`BundleSearch`] has what the methods lack: two fields that vary, given values, and a minimum.
///
/// ```
/// use presim::{Search, simulation::{Call, Objective, SimBlock, Simulation}};
/// use alloy_primitives::{Address, U256};
///
/// let call = Call::to(Address::repeat_byte(7)).with_from(Address::repeat_byte(1));
/// let bundle = Simulation::of([SimBlock::of([call])]);
/// let search = Search::new(bundle, Objective::Ether(Address::repeat_byte(1)))
///     .maximize_value(0, 0, U256::from(1), U256::from(10).pow(U256::from(18)), U256::from(1_000))
///     // 2 gwei for each unit of gas.
///     .gas_price(U256::from(2_000_000_000))
///     .top(3);
/// ```
#[derive(Clone, Debug)]
pub struct Search(pub(super) BundleSearch);

impl Search {
    /// Creates a search that varies nothing yet. It looks for the variant that raises `objective` the most.
    #[must_use]
    pub fn new(bundle: Simulation, objective: Objective) -> Self {
        Self(BundleSearch {
            simulation: bundle,
            shows: true,
            targets: Vec::new(),
            values: SearchedValues::Each(Vec::new()),
            aim: Aim::Gain(objective, U256::ZERO),
            least: None,
            top: 1,
        })
    }

    /// Varies the value of a call between two values, in wei, and looks for the best one but for `tolerance`.
    #[must_use]
    pub fn maximize_value(self, block: usize, call: usize, from: U256, to: U256, tolerance: U256) -> Self {
        self.maximize(block, call, VariedPart::Value, from, to, tolerance)
    }

    /// Varies a word of a call's data (word n begins at byte 4 + 32n) between two values, and looks for the best one but for
    /// `tolerance`.
    #[must_use]
    pub fn maximize_word(self, block: usize, call: usize, word: usize, from: U256, to: U256, tolerance: U256) -> Self {
        self.maximize(block, call, VariedPart::Word(word), from, to, tolerance)
    }

    fn maximize(self, block: usize, call: usize, part: VariedPart, from: U256, to: U256, tolerance: U256) -> Self {
        let tolerance = tolerance.max(U256::ONE);
        Self(BundleSearch {
            targets: vec![VariedTarget::Call(CallIndex { block, call }, part)],
            values: SearchedValues::Maximize { from, to, tolerance },
            ..self.0
        })
    }

    /// Subtracts a price of gas, in wei or in units of the objective's token, from the objective.
    #[must_use]
    pub fn gas_price(mut self, price: U256) -> Self {
        if let Aim::Gain(objective, _) = self.0.aim {
            self.0.aim = Aim::Gain(objective, price);
        }
        self
    }

    /// Sets the number of variants that are returned, the best first.
    #[must_use]
    pub fn top(self, top: usize) -> Self {
        Self(BundleSearch { top, ..self.0 })
    }
}

impl Search {
    /// Checks that the search varies parts that its bundle has, and that it has at most `max_runs` variants.
    ///
    /// # Errors
    ///
    /// Returns [`SimulationError::Params`], which names the part or the values.
    pub(super) fn check(&self, max_runs: usize) -> Result<(), SimulationError> {
        let BundleSearch { simulation, targets, values, .. } = &self.0;
        let refuse = |text: String| Err(SimulationError::Params(text));
        let lists = match values {
            SearchedValues::Each(lists) => lists.len(),
            SearchedValues::Maximize { .. } => 1,
        };
        if targets.is_empty() || targets.len() > 2 || lists != targets.len() {
            let count = targets.len();
            return refuse(format!(
                "a search varies one or two parts, with values for each: {count} parts, {lists} lists"
            ));
        }
        for target in targets {
            match *target {
                VariedTarget::Call(CallIndex { block, call }, part) => {
                    let at = format!("blocks[{block}].calls[{call}]");
                    let found = simulation.blocks.get(block).and_then(|block| block.calls.get(call));
                    match (found, part) {
                        (None, _) => return refuse(format!("{at}: no such call")),
                        (Some(SimCall::Signed(_)), _) => {
                            return refuse(format!("{at}: a signed transaction varies in nothing"));
                        }
                        (Some(SimCall::Unsigned(call)), VariedPart::Word(word)) => {
                            let end = word.checked_mul(32).and_then(|begin| begin.checked_add(36));
                            if end.is_none_or(|end| end > call.data.len()) {
                                let bytes = call.data.len();
                                return refuse(format!("{at}.data: word {word}: the data has {bytes} bytes"));
                            }
                        }
                        (Some(SimCall::Unsigned(_)), _) => {}
                    }
                }
                VariedTarget::Slot { block, address, slot } => {
                    let state = simulation.blocks.get(block).map_or(&[][..], |block| &block.state);
                    let Some((_, account)) = state.iter().find(|(account, _)| *account == address) else {
                        return refuse(format!("blocks[{block}]: no state override of {address}"));
                    };
                    let has_slot = match &account.storage {
                        StorageOverride::Keep => false,
                        StorageOverride::Replace(slots) | StorageOverride::Diff(slots) => {
                            slots.iter().any(|(key, _)| *key == slot)
                        }
                    };
                    if !has_slot {
                        return refuse(format!(
                            "blocks[{block}]: the state override of {address} has no slot {slot:#x}"
                        ));
                    }
                }
            }
        }
        values.check().or_else(refuse)?;
        let runs = values.most();
        if runs > max_runs {
            return refuse(format!(
                "the search has up to {runs} variants: expected at most {max_runs}, the setting max-search-runs"
            ));
        }
        Ok(())
    }
}

impl From<BundleSearch> for Search {
    fn from(search: BundleSearch) -> Self {
        Self(search)
    }
}
