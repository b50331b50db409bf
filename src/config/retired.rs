//! Settings of earlier versions that have no effect any more.

use std::{env, fmt};

/// A retired setting that an operator still gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetiredSetting {
    /// The setting as it stands in the file, or the name of its variable.
    pub given: String,
    reason: &'static str,
}

/// The names of the retired settings, each with the reason why it has no effect.
const RETIRED: [(&str, &str); 2] = [
    (
        "shard-size",
        "a node of a fleet runs searches, batches and watches itself: a balancer in front of the replicas divides the load",
    ),
    ("keep-awake", "the kernel is told which idle states cores may enter, by its power management or its command line"),
];

impl RetiredSetting {
    /// Returns the retired setting that `key` of a file names.
    pub fn of_file(key: &str) -> Option<Self> {
        let name = key.replace('_', "-");
        let (_, reason) = RETIRED.iter().find(|(retired, _)| *retired == name)?;
        Some(Self { given: format!("the setting `{key}` of --config"), reason })
    }

    /// Returns the retired settings whose variables are in the environment.
    pub fn of_environment() -> impl Iterator<Item = Self> {
        let variable = |name: &str| format!("PRESIM_{}", name.replace('-', "_").to_uppercase());
        let given = RETIRED.iter().map(move |(name, reason)| Self { given: variable(name), reason });
        given.filter(|setting| env::var_os(&setting.given).is_some())
    }
}

impl fmt::Display for RetiredSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has no effect any more, because {}: remove it", self.given, self.reason)
    }
}
