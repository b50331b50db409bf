//! The meanings of the errors that nodes return for calls.
//!
//! Nodes and providers use the same codes for different errors, and state many reasons only in the text. This is the
//! only table of them.

/// The meaning of an error that a node answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The node does not have the block, or its state, yet. Another node behind the same address may have it.
    Behind,
    /// The node has the transaction already.
    AlreadyKnown,
    /// The request or its answer is larger than the node accepts.
    TooLarge,
    /// The node wants to receive fewer requests.
    SlowDown,
    /// The node does not have the method.
    UnknownMethod,
    /// The execution reverted.
    Reverted,
    /// Any other meaning.
    Other,
}

/// The calls that a row of the table is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Calls {
    All,
    /// Calls that read blocks, state or logs.
    Reads,
    /// Calls that send a transaction.
    Sends,
}

/// The errors that a row of the table is about.
enum Pattern {
    /// Errors with one of these codes.
    Codes(&'static [i64]),
    /// Errors whose message contains one of these texts, in lower case.
    Texts(&'static [&'static str]),
}

use Pattern::{Codes, Texts};

/// The meanings of codes and texts. The first matching row applies.
///
/// The texts are those of geth, reth, Erigon, Nethermind, Besu and anvil, and of the providers that run them.
const TABLE: [(Calls, Pattern, Refusal); 14] = [
    (Calls::All, Codes(&[3, -32015]), Refusal::Reverted),
    (Calls::All, Texts(&["revert", "vm execution error"]), Refusal::Reverted),
    (Calls::All, Codes(&[-32601, -32004]), Refusal::UnknownMethod),
    // Some nodes have the code of wrong parameters for a block that they do not have yet.
    (Calls::Reads, Texts(&["block is out of range", "blockoutofrange"]), Refusal::Behind),
    (Calls::All, Codes(&[-32602]), Refusal::Other),
    (
        Calls::All,
        Texts(&["method not found", "unknown method", "unsupported method", "method is not"]),
        Refusal::UnknownMethod,
    ),
    (
        Calls::All,
        Texts(&[
            "batch too large",
            "batch size",
            "batch limit",
            "batch of more than",
            "batch requests are not",
            "batches are not",
            "too large batch",
            "response too large",
            "response size",
            "request entity too large",
            "query returned more than",
            "range limit",
            "block range",
            "rpc range",
            "requests in batch",
        ]),
        Refusal::TooLarge,
    ),
    (Calls::All, Codes(&[429, 1008, -32005, -32055]), Refusal::SlowDown),
    (
        Calls::All,
        Texts(&[
            "rate limit",
            "rate exceeded",
            "too many requests",
            "credits limited",
            "request limit",
            "compute units per second",
            "number of concurrent requests",
            "slow down",
        ]),
        Refusal::SlowDown,
    ),
    // Else an unknown type of transactions would be a known transaction.
    (Calls::Sends, Texts(&["unknown transaction"]), Refusal::Other),
    (
        Calls::Sends,
        Texts(&["already known", "alreadyknown", "already imported", "known transaction", "already in the pool"]),
        Refusal::AlreadyKnown,
    ),
    // Chains without these tags have none to wait for.
    (Calls::Reads, Texts(&["safe block not found", "finalized block not found"]), Refusal::Other),
    (Calls::Reads, Codes(&[-32001, -39001]), Refusal::Behind),
    (
        Calls::Reads,
        Texts(&[
            "not found",
            "unknown block",
            "unknown header",
            "missing trie node",
            "out of range",
            "beyond current head",
            "beyond the current head",
            "could not find block",
            "cannot find block",
            "state unavailable",
            "state not available",
            "state is not available",
        ]),
        Refusal::Behind,
    ),
];

impl Refusal {
    /// Returns the meaning of an error. `params` and `data` are JSON.
    pub fn of(method: &str, params: &str, code: i64, message: &str, data: Option<&str>) -> Self {
        // The data of a revert is hexadecimal; Nethermind puts a word before it.
        if data.is_some_and(|data| data.starts_with("\"0x") || data.starts_with("\"Reverted")) {
            return Self::Reverted;
        }
        let message = message.to_lowercase();
        let calls = if method.starts_with("eth_send") {
            Calls::Sends
        } else if ["eth_", "debug_", "trace_"].iter().any(|group| method.starts_with(group)) {
            Calls::Reads
        } else {
            Calls::All
        };
        let matches = |(of, pattern, _): &&(Calls, Pattern, Refusal)| {
            let is_of = *of == Calls::All || *of == calls;
            is_of
                && match pattern {
                    Codes(codes) => codes.contains(&code),
                    Texts(texts) => texts.iter().any(|text| message.contains(text)),
                }
        };
        let meaning = TABLE.iter().find(matches).map_or(Self::Other, |(.., meaning)| *meaning);
        let names_a_tag = ["\"safe\"", "\"finalized\""].iter().any(|tag| params.contains(tag));
        if meaning == Self::Behind && names_a_tag { Self::Other } else { meaning }
    }
}

#[cfg(test)]
mod tests {
    use super::Refusal;

    #[test]
    fn each_node_has_its_own_words_for_the_same_thing() {
        let (read, call, send) = ("eth_getBalance", "eth_call", "eth_sendRawTransaction");
        let cases = [
            (read, -32000, "header not found", None, Refusal::Behind),
            (read, -32000, "missing trie node 12ab (path ) <nil>", None, Refusal::Behind),
            (read, -32000, "Unknown block", None, Refusal::Behind),
            (read, -39001, "Unknown block", None, Refusal::Behind),
            (read, -32000, "World state unavailable", None, Refusal::Behind),
            (read, -32001, "Resource not found", None, Refusal::Behind),
            (read, -32000, "block is out of range", None, Refusal::Behind),
            (read, -32602, "invalid params: block is out of range", None, Refusal::Behind),
            (call, -32602, "BlockOutOfRangeError: block height is 4 but requested was 5", None, Refusal::Behind),
            (read, -32602, "params[1]: the number is out of range", None, Refusal::Other),
            (call, -32000, "block not found: hash 0x12", None, Refusal::Behind),
            (call, 3, "execution reverted: order not found", None, Refusal::Reverted),
            (call, -32000, "execution reverted: order not found", None, Refusal::Reverted),
            (call, -32000, "header not found", Some("\"0x08c379a0\""), Refusal::Reverted),
            (call, -32015, "VM execution error.", Some("\"Reverted 0x\""), Refusal::Reverted),
            (read, -32601, "method not found", None, Refusal::UnknownMethod),
            (read, -32602, "invalid argument 1: header not found", None, Refusal::Other),
            ("optimism_output", -32000, "not found", None, Refusal::Other),
            (read, -32000, "insufficient funds", None, Refusal::Other),
            (read, -32005, "daily request count exceeded", None, Refusal::SlowDown),
            (read, -32016, "over rate limit", None, Refusal::SlowDown),
            (read, 429, "exceeded its compute units per second capacity", None, Refusal::SlowDown),
            ("eth_getLogs", -32005, "query returned more than 10000 results", None, Refusal::TooLarge),
            (read, -32600, "batch too large", None, Refusal::TooLarge),
            (send, -32000, "already known", None, Refusal::AlreadyKnown),
            (send, -32010, "AlreadyKnown", None, Refusal::AlreadyKnown),
            (send, -32000, "Known transaction", None, Refusal::AlreadyKnown),
            (send, -32003, "transaction already imported", None, Refusal::AlreadyKnown),
            (send, -32000, "unknown transaction type 9", None, Refusal::Other),
            (send, -32000, "sender not found", None, Refusal::Other),
            (send, -32000, "nonce too low", None, Refusal::Other),
        ];
        for (method, code, message, data, meaning) in cases {
            assert_eq!(Refusal::of(method, "[]", code, message, data), meaning, "{method}: {code} {message}");
        }
        let tag = Refusal::of("eth_getBlockByNumber", r#"["safe",false]"#, -39001, "Unknown block", None);
        assert_eq!(tag, Refusal::Other);
    }
}
