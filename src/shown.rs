//! Displays third parties' text, and URLs with secrets, on a terminal, on the page and in errors.

use std::{error::Error, ops::RangeInclusive};

use url::Url;

/// The characters that are escaped in text of third parties: characters that control a terminal, that change the
/// direction of text, or that are invisible. They are the control and format characters, separators other than a space,
/// and characters without a glyph (Unicode's `Cc`, `Cf`, `Z` and `Default_Ignorable_Code_Point`).
pub const HIDDEN: [RangeInclusive<char>; 31] = [
    '\0'..='\u{1f}',
    '\u{7f}'..='\u{a0}',
    '\u{ad}'..='\u{ad}',
    '\u{34f}'..='\u{34f}',
    '\u{600}'..='\u{605}',
    '\u{61c}'..='\u{61c}',
    '\u{6dd}'..='\u{6dd}',
    '\u{70f}'..='\u{70f}',
    '\u{890}'..='\u{891}',
    '\u{8e2}'..='\u{8e2}',
    '\u{115f}'..='\u{1160}',
    '\u{1680}'..='\u{1680}',
    '\u{17b4}'..='\u{17b5}',
    '\u{180b}'..='\u{180f}',
    '\u{2000}'..='\u{200f}',
    '\u{2028}'..='\u{202f}',
    '\u{205f}'..='\u{206f}',
    '\u{2800}'..='\u{2800}',
    '\u{3000}'..='\u{3000}',
    '\u{3164}'..='\u{3164}',
    '\u{fe00}'..='\u{fe0f}',
    '\u{feff}'..='\u{feff}',
    '\u{ffa0}'..='\u{ffa0}',
    '\u{fff0}'..='\u{fffb}',
    '\u{110bd}'..='\u{110bd}',
    '\u{110cd}'..='\u{110cd}',
    '\u{13430}'..='\u{1343f}',
    '\u{1bca0}'..='\u{1bca3}',
    '\u{1d159}'..='\u{1d159}',
    '\u{1d173}'..='\u{1d17a}',
    '\u{e0000}'..='\u{e0fff}',
];

/// Returns whether a character is one of [`HIDDEN`].
pub fn is_hidden(letter: char) -> bool {
    !matches!(letter, ' '..='~') && HIDDEN.iter().any(|range| range.contains(&letter))
}

/// Escapes hidden characters.
pub fn printable(text: &str) -> String {
    escaped(text, "")
}

/// Escapes hidden characters, and escapes the characters of `also` with a backslash.
pub fn escaped(text: &str, also: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_hidden(letter) || also.contains(letter) {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// Quotes a text, and escapes hidden characters, quotation marks and backslashes, so that no two texts look the same.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", escaped(text, "\"\\"))
}

/// Quotes a wrong value of a request for the error that rejects it. A long value is cut.
pub fn wrong(value: &str) -> String {
    format!("{:?}", cut(value, 80))
}

/// Appends the texts of an error's causes to its own, each that is not part of it.
pub fn with_causes(mut text: String, mut cause: Option<&dyn Error>) -> String {
    while let Some(next) = cause {
        let more = next.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = next.source();
    }
    text
}

/// Returns the first `most` characters of a text, followed by `…` if there are more.
pub fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Escapes hidden characters of a JSON text as JSON does. Line breaks stay, because those in strings are already
/// escaped.
pub fn json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter != '\n' && is_hidden(letter) {
            let units = letter.encode_utf16(&mut [0; 2]).to_vec();
            shown.extend(units.into_iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// Returns the parts of a user's URL that are no secret: scheme, host and port. User, password, path and query may hold
/// keys.
pub fn url(url: &Url) -> String {
    let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
    format!("{}://{}{port}", url.scheme(), url.host_str().unwrap_or_default())
}

/// Shortens each URL in a text as [`url`](fn@url) does. A URL that does not parse is omitted.
pub fn without_secrets(text: &str) -> String {
    let is_scheme = |letter: char| letter.is_ascii_alphanumeric() || "+-.".contains(letter);
    let ends = |letter: char| letter.is_whitespace() || letter.is_control() || "'\"`<>".contains(letter);
    let (mut shown, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("://") {
        let start = rest[..at].rfind(|letter| !is_scheme(letter));
        let start = start.map_or(0, |before| before + rest[before..].chars().next().map_or(0, char::len_utf8));
        let end = rest[at..].find(ends).map_or(rest.len(), |end| at + end);
        let given = rest[start..end].trim_end_matches([':', ',', ')', '.', ';']);
        shown.push_str(&rest[..start]);
        shown.push_str(&Url::parse(given).map_or_else(|_| "…".to_owned(), |given| url(&given)));
        rest = &rest[start + given.len()..];
    }
    shown + rest
}

/// Returns a number with commas between its groups of three digits.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_escaped_and_others_stay() {
        assert_eq!(printable("grün 1½ € 日本 \"x\" \\"), "grün 1½ € 日本 \"x\" \\");
        assert_eq!(printable("a\n\t\u{1b}[2J\u{9b}b"), r"a\n\t\u{1b}[2J\u{9b}b");
        for letter in ['\u{61c}', '\u{ad}', '\u{180e}', '\u{115f}', '\u{3164}', '\u{202e}', '\u{200b}', '\u{e0041}'] {
            assert_eq!(printable(&format!("a{letter}b")), format!("a\\u{{{:x}}}b", u32::from(letter)));
        }
        assert_eq!(quoted("a\"\\\n"), r#""a\"\\\n""#);
        assert_eq!(json("{\n\"a\u{202e}\u{e0041}\"}"), "{\n\"a\\u202e\\udb40\\udc41\"}");
    }

    #[test]
    fn of_a_url_no_secret_is_shown() {
        for (given, shown) in [
            ("https://eth.example/v2/KEY", "https://eth.example"),
            ("wss://user:password@eth.example:8546/?token=KEY#KEY", "wss://eth.example:8546"),
            ("http://[::1]:8545/", "http://[::1]:8545"),
        ] {
            assert_eq!(url(&given.parse().expect("a URL")), shown);
            let told = |url: &str| format!("é--url='{url}' is no URL ({url}): see \"{url}\"");
            assert_eq!(without_secrets(&told(given)), told(shown));
        }
        assert_eq!(without_secrets("no URL: http://a b/KEY http://[KEY and ://"), "no URL: http://a b/KEY … and …");
    }
}
