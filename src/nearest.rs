//! Names that a user may have meant.

/// Minimum similarity (Jaro–Winkler) of two names for a suggestion.
const SIMILAR: f64 = 0.8;
/// Maximum typing errors (Damerau–Levenshtein) between them: two, or one per so many letters of a longer name.
const SLIPS: usize = 2;
const LETTERS: usize = 4;
/// Names from this length on, in bytes, are compared with none, so that the comparison stays cheap.
const MAX_LENGTH: usize = 64;
/// Names whose lengths differ by more bytes than this are not compared.
const DIFFERENCE: usize = 4;

/// Returns the name that is most similar to `name`, if one is similar enough.
pub fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() >= MAX_LENGTH {
        return None;
    }
    let lower = name.to_ascii_lowercase();
    let alike = names.into_iter().filter(|other| other.len().abs_diff(name.len()) <= DIFFERENCE);
    let most = SLIPS.max(name.len() / LETTERS);
    let alike = alike.filter(|other| strsim::damerau_levenshtein(&lower, &other.to_ascii_lowercase()) <= most);
    let scored = alike.map(|other| (strsim::jaro_winkler(&lower, &other.to_ascii_lowercase()), other));
    let best = scored.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(score, _)| *score >= SIMILAR).map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_slip_finds_its_name_and_another_word_does_not() {
        let names = ["eth_call", "eth_simulateV1", "presim_simulate"];
        assert_eq!(nearest("eth_cal", names), Some("eth_call"));
        assert_eq!(nearest("presim_simulte", names), Some("presim_simulate"));
        assert_eq!(nearest("ETH_SIMULATEV1", names), Some("eth_simulateV1"));
        assert_eq!(nearest("web3_sha3", names), None);
        assert_eq!(nearest("eth_foo", names), None);
        assert_eq!(nearest(&"eth_call".repeat(100), names), None);
    }
}
