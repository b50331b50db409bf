//! The page for browsers: what the node does now, incoming transactions, a playground for requests, and requests that
//! wait for approval. `README.md` describes how it is built.

mod documents;

use std::collections::BTreeMap;

use alloy_primitives::{hex, keccak256};

use crate::{
    abi::SIGNATURES,
    rpc::{ServedFile, ServedFiles},
    shown::HIDDEN,
};

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
    let mut files = vec![
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
        ServedFile::new("/page/hidden.js", SCRIPT, hidden()),
        ServedFile::new("/page/signatures.js", SCRIPT, signatures()),
    ];
    files.extend(documents::files(HTML));
    ServedFiles(files)
}

/// Returns the characters that are escaped as a script: a regular expression that finds each of them.
fn hidden() -> String {
    let ranges =
        HIDDEN.map(|range| format!("\\u{{{:x}}}-\\u{{{:x}}}", u32::from(*range.start()), u32::from(*range.end())));
    format!("export const hidden = /[{}]/gu;\n", ranges.concat())
}

/// Returns the signatures as a script: functions (with their outputs) and errors by selector, and events by topic. Of
/// duplicates, the first counts.
fn signatures() -> String {
    let kinds = [("function", 4), ("error", 4), ("event", 32)].map(|(kind, length)| {
        let mut known = BTreeMap::new();
        for signature in SIGNATURES.lines().filter_map(|line| line.strip_prefix(kind)?.strip_prefix(' ')) {
            let hash = keccak256(plain(without_results(signature)));
            known.entry(hex::encode_prefixed(&hash[..length])).or_insert(signature);
        }
        let lines: String = known.iter().map(|(hash, signature)| format!("  \"{hash}\": \"{signature}\",\n")).collect();
        format!("export const {kind}s = {{\n{lines}}};\n")
    });
    kinds.concat()
}

/// Returns a signature up to its last parameter.
fn without_results(signature: &str) -> &str {
    let end = signature.split_once(") returns ").map_or(signature.len(), |(before, _)| before.len() + 1);
    signature[..end].trim()
}

/// Returns the form of a signature that is hashed, without names of parameters and `indexed`.
fn plain(signature: &str) -> String {
    let types = signature.split_inclusive([',', '(', ')']).map(|part| {
        let (text, sign) = part.split_at(part.len() - usize::from(part.ends_with([',', '(', ')'])));
        [text.trim_start().split(' ').next().unwrap_or_default(), sign].concat()
    });
    types.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_found_by_their_selectors_and_topics() {
        let script = signatures();
        for known in [
            r#""0xa9059cbb": "transfer(address to, uint256 value) returns (bool)""#,
            r#""0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef": "Transfer(address indexed from, address indexed to, uint256 value)""#,
            r#""0x08c379a0": "Error(string reason)""#,
            r#""0x82ad56cb": "aggregate3((address, bool, bytes)[] calls) returns ((bool, bytes)[])""#,
        ] {
            assert!(script.contains(known), "{known}: {script}");
        }
        assert!(!script.contains('\\') && SIGNATURES.lines().all(|line| !line.contains('"')), "no escapes are needed");
    }
}
