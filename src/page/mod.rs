//! The page for browsers: what the node does now, the transactions as they come, a place to try requests, and what waits
//! for approval. `README.md` says how it is built.

use std::fmt::Write;

use alloy_primitives::{hex, keccak256};

use crate::rpc::{ServedFile, ServedFiles};

/// The signatures of functions and events that the page shows by name, one a line. Events begin with `event`.
const SIGNATURES: &str = include_str!("signatures.txt");

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// Returns the files of the page. Their paths are relative to the page, so that a proxy may serve it anywhere. If the
/// node needs a token, the page asks for it before it connects.
pub fn files(needs_token: bool) -> ServedFiles {
    let mut page = include_str!("index.html").to_owned();
    if needs_token {
        page = page.replacen("<html lang=\"en\">", "<html lang=\"en\" data-token=\"needed\">", 1);
    }
    macro_rules! file {
        ($name:literal, $kind:expr) => {
            ServedFile::new(concat!("/page/", $name), $kind, include_str!($name))
        };
    }
    ServedFiles::new(vec![
        ServedFile::new("/", HTML, page),
        file!("page.css", STYLE),
        file!("icon.svg", IMAGE),
        file!("main.js", SCRIPT),
        file!("node.js", SCRIPT),
        file!("dom.js", SCRIPT),
        file!("abi.js", SCRIPT),
        file!("words.js", SCRIPT),
        file!("trace.js", SCRIPT),
        file!("plot.js", SCRIPT),
        file!("now.js", SCRIPT),
        file!("stream.js", SCRIPT),
        file!("playground.js", SCRIPT),
        file!("bundle.js", SCRIPT),
        file!("copy.js", SCRIPT),
        file!("wallet.js", SCRIPT),
        ServedFile::new("/page/signatures.js", SCRIPT, signatures()),
    ])
}

/// Returns the signatures as a script: those of functions by selector, and those of events by topic.
fn signatures() -> String {
    let (mut functions, mut events) = (String::new(), String::new());
    for line in SIGNATURES.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        // Writing to a string does not fail.
        let _ = match line.strip_prefix("event ") {
            Some(event) => writeln!(events, "  \"{}\": \"{event}\",", hex::encode_prefixed(keccak256(plain(event)))),
            None => writeln!(functions, "  \"{}\": \"{line}\",", hex::encode_prefixed(&keccak256(plain(line))[..4])),
        };
    }
    format!("export const functions = {{\n{functions}}};\nexport const events = {{\n{events}}};\n")
}

/// Returns a signature as it is hashed, without names of parameters and `indexed`.
fn plain(signature: &str) -> String {
    let mut plain = String::with_capacity(signature.len());
    let mut in_name = false;
    for letter in signature.chars() {
        match letter {
            ' ' => in_name = true,
            ',' | '(' | ')' => in_name = false,
            _ => {}
        }
        if !in_name {
            plain.push(letter);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_found_by_their_selectors_and_topics() {
        let script = signatures();
        for known in [
            r#""0xa9059cbb": "transfer(address to,uint256 value)""#,
            r#""0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef": "Transfer(address indexed from,address indexed to,uint256 value)""#,
        ] {
            assert!(script.contains(known), "{known}: {script}");
        }
        assert!(!script.contains('\\') && SIGNATURES.lines().all(|line| !line.contains('"')), "no escapes are needed");
    }
}
