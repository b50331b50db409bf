//! Searches: one bundle with fields that vary, and the values that optimise an objective.

mod values;

pub use values::{SearchedValues, ValueList, golden};

use std::cmp::Ordering;

use alloy_primitives::{Address, Bytes, I256, U256};

use super::{
    error::SimulationError,
    request::{CallFees, CallIndex, Objective, Outputs, SimCall, Simulation, StorageOverride},
    simulate::{CallOutcome, RunPoint, Simulated},
};
use crate::meter::Stopped;

/// A bundle with fields that vary: a [`Search`](crate::Search) in full, which can vary two fields, try given values, and
/// optimise the gas used.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use alloy_primitives::{Address, I256, U256, address};
/// use presim::{Config, Node, Search, simulation::{
///     Aim, BundleSearch, Call, CallIndex, Objective, SearchOutcome, SearchedValues, SimBlock, Simulation, ValueList,
///     Variant, VariantEnd, VariedPart, VariedTarget,
/// }};
///
/// let node = Node::start(Config::default()).await?;
/// let (from, to) = (address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266"), Address::repeat_byte(7));
/// let pay = Call::to(to).with_from(from);
/// let value = |call| VariedTarget::Call(CallIndex { block: 0, call }, VariedPart::Value);
/// let search = BundleSearch {
///     simulation: Simulation::of([SimBlock::of([pay.clone(), pay])]),
///     shows: false,
///     targets: vec![value(0), value(1)],
///     // All combinations: 0, 10, 20, 30 with 1, 5.
///     values: SearchedValues::Each(vec![
///         ValueList::Steps { from: U256::ZERO, step: U256::from(10), count: 4 },
///         ValueList::Listed(vec![U256::from(1), U256::from(5)]),
///     ]),
///     aim: Aim::Gain(Objective::Ether(to), U256::ZERO),
///     least: None,
///     top: 3,
/// };
/// let outcome: SearchOutcome = node.search(&Search::from(search)).await?;
/// assert_eq!((outcome.runs, outcome.objective()), (8, Some(I256::try_from(35)?)));
/// for Variant { values, end } in &outcome.best {
///     match end {
///         VariantEnd::Ran { objective, gas_used, .. } => println!("{values:?}: {objective} wei, gas {gas_used}"),
///         VariantEnd::Dropped(call) => println!("{values:?}: {call:?} did not end as required"),
///         VariantEnd::Refused(reason, code) => println!("{values:?}: refused, {reason} ({code})"),
///     }
/// }
/// # Ok(node.stop().await) }
/// ```
#[derive(Clone, Debug)]
pub struct BundleSearch {
    /// The bundle. Its outputs apply to the best variant.
    pub simulation: Simulation,
    /// Whether the best variant runs again, with its outputs.
    pub shows: bool,
    /// The fields that vary, one or two.
    pub targets: Vec<VariedTarget>,
    /// The values of the targets.
    pub values: SearchedValues,
    /// The order in which variants are compared.
    pub aim: Aim,
    /// The least objective of a variant that counts. `None` if any counts.
    pub least: Option<I256>,
    /// The number of variants that are returned.
    pub top: usize,
}

/// The measure of a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// The growth of a quantity, less the price of the gas used, in the same unit for a unit of gas. More is better.
    Gain(Objective, U256),
    /// The gas used. Less is better.
    GasUsed,
}

/// A field of a bundle that varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VariedTarget {
    /// A part of a call.
    Call(CallIndex, VariedPart),
    /// A slot in the state overrides of a block.
    Slot {
        /// Index of the block, from 0.
        block: usize,
        /// The account.
        address: Address,
        /// The slot's key.
        slot: U256,
    },
}

/// The part of a call that varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VariedPart {
    /// A word of the data: word n begins at byte 4 + 32n.
    Word(usize),
    /// The value.
    Value,
    /// The gas limit.
    Gas,
    /// The price of gas.
    GasPrice,
    /// The maximum price that the call pays for gas.
    MaxFee,
    /// The maximum price that the call pays the producer for gas.
    MaxPriorityFee,
}

/// The result of one variant.
#[derive(Clone, Debug)]
pub struct Variant {
    /// The values of the targets.
    pub values: Vec<U256>,
    /// The end of its run.
    pub end: VariantEnd,
}

/// The end of a variant.
#[derive(Clone, Debug)]
pub enum VariantEnd {
    /// The variant ran to its end.
    Ran {
        /// The objective.
        objective: I256,
        /// Gas that the calls used.
        gas_used: u64,
        /// Whether the objective is at least the minimum that the search requires.
        is_enough: bool,
        /// Whether every call succeeded that had to. If the search does not name calls that may fail, all had to.
        succeeded: bool,
    },
    /// A call did not end as the search requires.
    Dropped(CallIndex),
    /// The variant was refused.
    Refused(String, i32),
}

impl Variant {
    /// Returns the gas that the completed calls used.
    pub(crate) const fn gas_used(&self) -> u64 {
        match self.end {
            VariantEnd::Ran { gas_used, .. } => gas_used,
            VariantEnd::Dropped(_) | VariantEnd::Refused(..) => 0,
        }
    }

    /// Compares two variants: the better one is greater. A variant that breaks a requirement ranks below all others.
    /// Equal variants are ordered by their values, the smaller of which is better.
    pub(crate) fn rank(&self, other: &Self, aim: Aim) -> Ordering {
        let key = |variant: &Self| match variant.end {
            VariantEnd::Ran { objective, is_enough, .. } => (
                is_enough,
                true,
                match aim {
                    Aim::Gain(..) => objective,
                    Aim::GasUsed => -objective,
                },
            ),
            VariantEnd::Dropped(_) | VariantEnd::Refused(..) => (false, false, I256::ZERO),
        };
        key(self).cmp(&key(other)).then_with(|| other.values.cmp(&self.values))
    }
}

impl BundleSearch {
    /// Returns the point up to which all variants are the same.
    pub(crate) fn beginning(&self) -> RunPoint {
        let point = |target: &VariedTarget| match *target {
            VariedTarget::Call(CallIndex { block, call }, _) => RunPoint { block, calls: Some(call) },
            VariedTarget::Slot { block, .. } => RunPoint { block, calls: None },
        };
        self.targets.iter().map(point).min().unwrap_or_default()
    }

    /// Returns the bundle as variants run it: with the outputs that decide their rank, and no others.
    pub(crate) fn to_rank(&self) -> Simulation {
        Simulation { outputs: Outputs::empty(), ..self.measured() }
    }

    /// Returns the bundle for showing the variant with these values: with the search's outputs, and as a whole even if
    /// the search drops the variant.
    pub(crate) fn to_show(&self, values: &[U256]) -> Simulation {
        let mut simulation = Simulation { when: None, ..self.measured() };
        self.set(&mut simulation, values);
        simulation
    }

    /// Returns the bundle with its objective, which is measured before the first and after the last call.
    fn measured(&self) -> Simulation {
        let objective = match self.aim {
            Aim::Gain(objective, _) => Some(objective),
            Aim::GasUsed => None,
        };
        Simulation { objective, ..self.simulation.clone() }
    }

    /// Returns about how many bytes it takes.
    pub(crate) fn size(&self) -> usize {
        self.simulation.size() + size_of_val(self.targets.as_slice()) + self.values.size()
    }

    /// Writes `values` to their targets in `simulation`.
    pub(crate) fn set(&self, simulation: &mut Simulation, values: &[U256]) {
        for (target, value) in self.targets.iter().zip(values) {
            target.set(simulation, *value);
        }
    }

    /// Returns the variant, with the end that its run gave.
    ///
    /// # Errors
    ///
    /// Returns [`Stopped`] if the run was stopped before its end.
    pub(crate) fn variant(
        &self,
        values: Vec<U256>,
        ran: Result<Simulated, SimulationError>,
    ) -> Result<Variant, Stopped> {
        let end = match ran {
            Err(SimulationError::Stopped(stopped)) => return Err(stopped),
            Err(error) => VariantEnd::Refused(error.to_string(), error.code()),
            Ok(Simulated { dropped: Some(index), .. }) => VariantEnd::Dropped(index),
            Ok(Simulated { blocks, gas_used, objective, .. }) => {
                let objective = match self.aim {
                    Aim::GasUsed => I256::try_from(gas_used).unwrap_or(I256::MAX),
                    Aim::Gain(_, price) => {
                        let cost = I256::try_from(price.saturating_mul(U256::from(gas_used))).unwrap_or(I256::MAX);
                        objective.unwrap_or_default().saturating_sub(cost)
                    }
                };
                let is_enough = self.least.is_none_or(|least| objective >= least);
                let mut calls = blocks.iter().flat_map(|block| &block.calls);
                // With conditions, a call that must not fail would have dropped the variant.
                let succeeded =
                    self.simulation.when.is_some() || calls.all(|call| call.outcome == CallOutcome::Success);
                VariantEnd::Ran { objective, gas_used, is_enough, succeeded }
            }
        };
        Ok(Variant { values, end })
    }
}

impl VariedTarget {
    fn set(&self, simulation: &mut Simulation, value: U256) {
        match *self {
            Self::Slot { block, address, slot } => {
                let accounts = &mut simulation.blocks[block].state;
                let account = accounts.iter_mut().find(|(overridden, _)| *overridden == address);
                if let Some((_, account)) = account
                    && let StorageOverride::Replace(slots) | StorageOverride::Diff(slots) = &mut account.storage
                    && let Some((_, slot)) = slots.iter_mut().find(|(key, _)| *key == slot)
                {
                    *slot = value;
                }
            }
            Self::Call(index, part) => {
                let SimCall::Unsigned(call) = &mut simulation.blocks[index.block].calls[index.call] else { return };
                match part {
                    VariedPart::Word(word) => {
                        let mut data = call.data.to_vec();
                        let at = 4 + 32 * word;
                        data[at..at + 32].copy_from_slice(&value.to_be_bytes::<32>());
                        call.data = Bytes::from(data);
                    }
                    VariedPart::Value => call.value = value,
                    VariedPart::Gas => call.gas = Some(value.saturating_to()),
                    VariedPart::GasPrice => call.fees = CallFees::GasPrice(value.saturating_to()),
                    VariedPart::MaxFee => call.fees = call.fees.with_market(Some(value.saturating_to()), None),
                    VariedPart::MaxPriorityFee => call.fees = call.fees.with_market(None, Some(value.saturating_to())),
                }
            }
        }
    }
}
