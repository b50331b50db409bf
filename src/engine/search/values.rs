//! The values that a search tries. They are stored as requested, and listed when they are tried.

use alloy_primitives::U256;

/// The number of values with which the search for a maximum begins.
const POINTS: usize = 16;

/// The values that a search tries.
#[derive(Clone, Debug)]
pub enum SearchedValues {
    /// Each combination of the values of one or two targets. The last target's values change first.
    Each(Vec<ValueList>),
    /// The values that lead to a maximum between two, of one target. The search ends when it knows the best value but
    /// for the tolerance.
    Maximize {
        /// The least value.
        from: U256,
        /// The greatest value.
        to: U256,
        /// The distance to the nearest values that are known not to be better, in which the search ends, at least 1.
        tolerance: U256,
    },
}

/// The values of a target.
#[derive(Clone, Debug)]
pub enum ValueList {
    /// These values.
    Listed(Vec<U256>),
    /// Values with the same step between them.
    Steps {
        /// The first value.
        from: U256,
        /// The step from one to the next.
        step: U256,
        /// The number of values.
        count: usize,
    },
    /// Values at equal distances, each once.
    Linear {
        /// The first value.
        from: U256,
        /// The last value.
        to: U256,
        /// The maximum number of values, at least 2.
        count: usize,
    },
    /// Values at equal ratios, each once. Zero is followed by one.
    Geometric {
        /// The first value.
        from: U256,
        /// The last value.
        to: U256,
        /// The maximum number of values, at least 2.
        count: usize,
    },
}

impl SearchedValues {
    /// Returns the values of the variants that run first, one per target: all, or the starting points of a search for
    /// a maximum.
    pub(crate) fn first(&self) -> Vec<Vec<U256>> {
        match self {
            Self::Maximize { from, to, .. } => {
                geometric(*from, *to, POINTS).into_iter().map(|value| vec![value]).collect()
            }
            Self::Each(lists) => lists.iter().fold(vec![Vec::new()], |variants, list| {
                let values = list.values();
                let with_each = |variant: Vec<U256>| values.iter().map(move |value| [&variant[..], &[*value]].concat());
                variants.into_iter().flat_map(with_each).collect()
            }),
        }
    }

    /// Returns the maximum number of variants that run.
    pub(crate) fn most(&self) -> usize {
        match self {
            Self::Each(lists) => lists.iter().fold(1, |most, list| most.saturating_mul(list.most())),
            Self::Maximize { from, to, tolerance } => {
                // The interval is at first as wide as between two of the points, and each variant after three divides it.
                let (mut width, mut most) = (to.saturating_sub(*from), POINTS + 3);
                while width > *tolerance && !width.is_zero() {
                    (width, most) = (golden(width), most + 1);
                }
                most
            }
        }
    }

    /// Checks that the values are in order, and that there is at least one.
    ///
    /// # Errors
    ///
    /// Returns a text that names the values.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Self::Maximize { from, to, .. } if from > to => {
                Err(format!("the search is from {from} to {to}: expected an end that is not below its start"))
            }
            Self::Maximize { tolerance, .. } if tolerance.is_zero() => {
                Err("the tolerance is 0: expected a number from 1".to_owned())
            }
            Self::Maximize { .. } => Ok(()),
            Self::Each(lists) => lists.iter().try_for_each(ValueList::check),
        }
    }

    /// Returns about how many bytes they take.
    pub(super) fn size(&self) -> usize {
        let listed = |list: &ValueList| match list {
            ValueList::Listed(values) => size_of_val(values.as_slice()),
            _ => 0,
        };
        match self {
            Self::Each(lists) => lists.iter().map(|list| size_of::<ValueList>() + listed(list)).sum(),
            Self::Maximize { .. } => 0,
        }
    }
}

impl ValueList {
    /// Returns the maximum number of values.
    fn most(&self) -> usize {
        match self {
            Self::Listed(values) => values.len(),
            Self::Steps { count, .. } | Self::Linear { count, .. } | Self::Geometric { count, .. } => *count,
        }
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Self::Listed(values) if values.is_empty() => Err("a list has no values: expected one or more".to_owned()),
            Self::Steps { count: 0, .. } => Err("a list has no values: expected a count from 1".to_owned()),
            Self::Steps { from, step, count } => {
                let last = step.checked_mul(U256::from(*count - 1)).and_then(|width| from.checked_add(width));
                last.map(drop).ok_or_else(|| {
                    format!("{count} values from {from} in steps of {step}: expected a last value of at most 256 bits")
                })
            }
            Self::Linear { from, to, .. } | Self::Geometric { from, to, .. } if from > to => {
                Err(format!("the values are from {from} to {to}: expected an end that is not below its start"))
            }
            Self::Linear { from, to, count } | Self::Geometric { from, to, count } if *count < 2 => {
                Err(format!("{count} values from {from} to {to}: expected a count from 2"))
            }
            Self::Listed(_) | Self::Linear { .. } | Self::Geometric { .. } => Ok(()),
        }
    }

    fn values(&self) -> Vec<U256> {
        match self {
            Self::Listed(values) => values.clone(),
            Self::Steps { from, step, count } => (0..*count).map(|index| from + step * U256::from(index)).collect(),
            Self::Linear { from, to, count } => {
                let parts = U256::from(count.saturating_sub(1).max(1));
                let (whole, rest) = (to - from).div_rem(parts);
                let at = |index: usize| {
                    let index = U256::from(index);
                    from + whole * index + rest * index / parts
                };
                let mut values: Vec<U256> = (0..*count).map(at).collect();
                values.dedup();
                values
            }
            Self::Geometric { from, to, count } => geometric(*from, *to, *count),
        }
    }
}

/// Returns the longer part of a width that is divided by the golden section.
pub fn golden(width: U256) -> U256 {
    const PART: u64 = 618_033_989;
    const WHOLE: u64 = 1_000_000_000;
    let (whole, rest) = width.div_rem(U256::from(WHOLE));
    whole * U256::from(PART) + rest * U256::from(PART) / U256::from(WHOLE)
}

/// Returns `count` values from `from` to `to`, each the same factor above the one before. Zero is followed by one.
fn geometric(from: U256, to: U256, count: usize) -> Vec<U256> {
    let start = from.max(U256::ONE);
    let mut values: Vec<U256> = if from.is_zero() { vec![U256::ZERO] } else { Vec::new() };
    let steps = count.saturating_sub(values.len()).max(2) - 1;
    let ratio = (f64::from(to) / f64::from(start)).max(1.0);
    for step in 0..=steps {
        let value = match step {
            0 => start,
            step if step == steps => to,
            step => start.saturating_add(grown(start, ratio.powf(step as f64 / steps as f64))),
        };
        values.push(value.min(to));
    }
    values.sort_unstable();
    values.dedup();
    values
}

/// Returns by how much a value grows by a factor from 1 on.
fn grown(value: U256, factor: f64) -> U256 {
    const UNIT: f64 = (1u64 << 52) as f64;
    let factor = factor - 1.0;
    // The factor's whole part is exact in steps of the unit, regardless of its size.
    let (scaled, shift): (f64, usize) = if factor < UNIT { (factor * UNIT, 52) } else { (factor, 0) };
    let scaled = U256::from(scaled);
    match value.checked_mul(scaled) {
        Some(product) if shift > 0 => product.saturating_add(U256::ONE << (shift - 1)) >> shift,
        Some(product) => product,
        None => (value >> shift).saturating_mul(scaled),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geometric_values_are_in_order_between_the_ends() {
        for (from, to) in [(0_u64, 100_u64), (1, 1), (5, 7), (1, u64::MAX), (10_u64.pow(15), 10_u64.pow(19))] {
            let values = geometric(U256::from(from), U256::from(to), 16);
            assert!(values.is_sorted() && values.len() <= 16 && !values.is_empty(), "{values:?}");
            assert_eq!((values[0], values[values.len() - 1]), (U256::from(from), U256::from(to)));
        }
        let values = geometric(U256::ONE, U256::MAX, 16);
        assert_eq!((values.len(), values[15]), (16, U256::MAX));
        let tenfold = geometric(U256::from(1_000_000), U256::from(1_000_000_000_000_000_u64), 10);
        for (exponent, value) in tenfold.iter().enumerate() {
            let exact = 10_u128.pow(6 + exponent as u32);
            assert!(value.abs_diff(U256::from(exact)) <= U256::from(exact / 1_000_000), "{value}");
        }
    }

    #[test]
    fn the_golden_part_of_a_width_is_less_than_the_width() {
        for width in [U256::from(2), U256::from(3), U256::from(1_000), U256::MAX] {
            let part = golden(width);
            assert!(part < width && part >= width / U256::from(2) - U256::ONE, "{width}: {part}");
        }
    }
}
