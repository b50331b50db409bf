//! Kinds of requests, and their weights.

use std::fmt;

use clap::ValueEnum;

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// `eth_call`: an ERC-20 balance
    Balance,
    /// `eth_call`: the router's output for an amount, along a path of pairs
    Quote,
    /// `eth_getCode` of a contract
    Code,
    /// `eth_simulateV1`: one swap
    Swap,
    /// `eth_simulateV1`: a swap between an attacker's buy and sale, with overridden balances and traced transfers
    Sandwich,
    /// `eth_simulateV1`: a bundle of 5 blocks with 5 swaps each
    Multi,
    /// `eth_simulateV1`: a bundle of 20 blocks with 20 swaps each
    Big,
    /// `eth_simulateV1` on a contract that is not deployed: its code, a balance and a storage slot overridden
    Override,
    /// a JSON-RPC batch of 32 simulations that look for the best amount of one trade
    Search,
    /// a JSON-RPC batch of 32 reads: balances, quotes, code
    Batch,
    /// `wallet_sendCalls`: two payments of 1 wei. Changes the target's chain; not in the default mix
    Wallet,
    /// the bodies of --bodies FILE
    Recorded,
}

impl Workload {
    /// Returns whether the workload trades on, or reads, the markets of a router.
    pub fn needs_market(self) -> bool {
        !matches!(self, Self::Wallet | Self::Recorded)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().as_ref().map_or("", clap::builder::PossibleValue::get_name))
    }
}

/// Kinds of requests with their relative weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix(pub Vec<(Workload, u32)>);

impl std::str::FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut mix = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (name, weight) = part.split_once('=').unwrap_or((part, "1"));
            let workload = Workload::from_str(name.trim(), true).map_err(|_| {
                let names: Vec<String> = Workload::value_variants().iter().map(ToString::to_string).collect();
                format!("{name:?} is not a workload; there are {}", names.join(", "))
            })?;
            let weight = weight.trim().parse().map_err(|_| format!("{part:?}: the weight is not a whole number"))?;
            if mix.iter().any(|(known, _)| *known == workload) {
                return Err(format!("{workload} is named twice"));
            }
            mix.push((workload, weight));
        }
        if mix.iter().all(|(_, weight)| *weight == 0) {
            return Err("every weight is 0: nothing would be sent".to_owned());
        }
        mix.retain(|(_, weight)| *weight > 0);
        Ok(Self(mix))
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (workload, weight)) in self.0.iter().enumerate() {
            write!(f, "{}{workload}={weight}", if place > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_is_read_and_a_wrong_one_is_refused_with_the_names_there_are() {
        let mix: Mix = "swap=5, quote=3,code".parse().expect("a mix");
        assert_eq!(mix.0, [(Workload::Swap, 5), (Workload::Quote, 3), (Workload::Code, 1)]);
        assert_eq!(mix.to_string(), "swap=5,quote=3,code=1");
        for (text, part) in
            [("swop=1", "sandwich"), ("swap=x", "whole number"), ("swap=0", "0"), ("swap,swap", "twice")]
        {
            let error = text.parse::<Mix>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
