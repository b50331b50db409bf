//! Compares two answers: as a whole if both nodes are on one chain, else only the results of their calls.

use serde_json::{Value, json};

use crate::answer::shown;

/// The parts of two answers that must be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sameness {
    /// Everything except the order in a batch, which is free.
    All,
    /// The results of calls. Headers of simulated blocks, and with them the hashes in logs, follow from a chain's own
    /// head; texts and codes of errors depend on the client.
    Calls,
}

/// Returns whether two answers, or batches of them, are the same.
pub fn same(a: &Value, b: &Value, sameness: Sameness) -> bool {
    results(a, sameness) == results(b, sameness)
}

/// Returns the results of an answer or a batch of them, sorted by id.
fn results(answer: &Value, sameness: Sameness) -> Vec<(String, Value)> {
    let one = |answer: &Value| {
        let result = match (answer.get("result"), sameness) {
            (Some(result), Sameness::All) => result.clone(),
            (Some(result), Sameness::Calls) => calls(result),
            (None, Sameness::All) => json!({"error": answer["error"]}),
            (None, Sameness::Calls) => json!({"error": {"data": answer["error"]["data"]}}),
        };
        (answer["id"].to_string(), result)
    };
    let mut results: Vec<_> = match answer {
        Value::Array(answers) => answers.iter().map(one).collect(),
        answer => vec![one(answer)],
    };
    results.sort_by(|a, b| a.0.cmp(&b.0));
    results
}

/// Reduces simulated blocks to the results of their calls. Other results stay as they are.
fn calls(result: &Value) -> Value {
    let of_log = |log: &Value| json!([log["address"], log["topics"], log["data"]]);
    let of_call = |call: &Value| {
        let logs: Vec<Value> = call["logs"].as_array().into_iter().flatten().map(of_log).collect();
        json!({"status": call["status"], "returnData": call["returnData"], "gasUsed": call["gasUsed"], "logs": logs})
    };
    let of_block = |block: &Value| Some(block.get("calls")?.as_array()?.iter().map(of_call).collect::<Value>());
    let blocks: Option<Vec<Value>> = result.as_array().and_then(|blocks| blocks.iter().map(of_block).collect());
    blocks.map_or_else(|| result.clone(), Value::Array)
}

/// Describes where two different answers part, for a report.
pub fn difference(selector: &Value, request: &[u8], answer: &Value, expected: &Value, sameness: Sameness) -> String {
    let text = |answer: &Value| {
        let results: Vec<Value> = results(answer, sameness).into_iter().map(|(_, result)| result).collect();
        Value::Array(results).to_string()
    };
    let (ours, theirs) = (text(answer), text(expected));
    // The text before the first difference does not help.
    let at = ours.bytes().zip(theirs.bytes()).take_while(|(a, b)| a == b).count().saturating_sub(40);
    let part = |text: &str| shown(text.as_bytes().get(at..).unwrap_or_default());
    format!("at {selector}: got {}, expected {}, for {}", part(&ours), part(&theirs), shown(request))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_chains_headers_do_not_matter_but_what_calls_did_does() {
        let answer = |hash: &str, gas: &str, topic: &str| {
            let log = json!({"address": "0x01", "topics": [topic], "data": "0x", "blockHash": hash});
            let call = json!({"status": "0x1", "returnData": "0x", "gasUsed": gas, "logs": [log]});
            json!({"id": 1, "result": [{"hash": hash, "calls": [call]}]})
        };
        let first = answer("0xa", "0x1", "0x5");
        for (other, all, calls) in [
            (answer("0xa", "0x1", "0x5"), true, true),
            (answer("0xb", "0x1", "0x5"), false, true),
            (answer("0xa", "0x2", "0x5"), false, false),
            (answer("0xa", "0x1", "0x6"), false, false),
        ] {
            assert_eq!(
                (same(&first, &other, Sameness::All), same(&first, &other, Sameness::Calls)),
                (all, calls),
                "{other}"
            );
        }
    }

    #[test]
    fn an_error_is_no_result_and_a_batch_has_no_order() {
        let error = |code: i64, data: &str| json!({"id": 1, "error": {"code": code, "message": "no", "data": data}});
        assert!(!same(&error(3, "0x"), &error(-32000, "0x"), Sameness::All));
        assert!(same(&error(3, "0x"), &error(-32000, "0x"), Sameness::Calls));
        assert!(!same(&error(3, "0x"), &error(3, "0x01"), Sameness::Calls));
        assert!(!same(&error(3, "0x"), &json!({"id": 1, "result": null}), Sameness::Calls));
        let (one, two) = (json!({"id": 1, "result": "0x1"}), json!({"id": 2, "result": "0x2"}));
        assert!(same(&json!([one, two]), &json!([two, one]), Sameness::All));
        assert!(!same(&json!([one, two]), &json!([one]), Sameness::All));
    }
}
