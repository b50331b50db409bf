//! Fairness: the latency of one client's requests while another client floods the node with long calls.
//!
//! 32 connections send `eth_call`s of 50 Mgas, each the next after the last answer. The other client has one at a time.

use std::{
    io::Write,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    devnet,
    load::{self, Bodies, LoadOutcome, quantile},
    verdict,
};

const HEAVY: usize = 32;
const TIME: Duration = Duration::from_secs(4);
/// The interval of the other client's requests, which stay below its share, a thirty-third of two cores.
const EVERY: Duration = Duration::from_millis(5);
/// The maximum by which the p99 may exceed the idle one, in seconds.
const MORE: f64 = 0.02;

const TO: &str = "0x00000000000000000000000000000000000c0de0";
/// The first dev account, of the published test mnemonic.
const DEV: &str = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";

fn body(method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string()
}

pub fn run() {
    let long = json!([{"to": TO, "gas": "0x2faf080"}, "pending", {TO: {"code": "0x5b600056"}}]);
    // 200,000 gas, which take one or two tenths of a millisecond.
    let short = json!([{"to": TO, "gas": "0x30d40"}, "pending", {TO: {"code": "0x5b60016000540160005560206000f3"}}]);
    let hash = format!("0x{:064x}", 1);
    let polite = [
        ("eth_call", body("eth_call", &short)),
        ("eth_getTransactionReceipt", body("eth_getTransactionReceipt", &json!([hash]))),
        ("eth_gasPrice", body("eth_gasPrice", &json!([]))),
        ("eth_sendTransaction", body("eth_sendTransaction", &json!([{"from": DEV, "to": TO, "gas": "0x5208"}]))),
    ];
    let mut tokens = tempfile::NamedTempFile::new().expect("a file");
    for name in ["heavy", "polite"] {
        writeln!(tokens, "[[token]]\nname = \"{name}\"\ntoken = \"token-of-{name}-client\"\nrate = 1000000")
            .expect("a file");
    }
    let file = tokens.path().to_str().expect("the path is UTF-8");
    for (title, flags, has_tokens) in [("two tokens", &["--token-file", file][..], true), ("no tokens", &[], false)] {
        println!("  {title}");
        let node = devnet(&[&["--traffic", "0"], flags].concat());
        let token = |name: &str| has_tokens.then(|| format!("token-of-{name}-client"));
        let bodies = |text: &str, name: &str| Bodies::new([text.to_owned()], "/", token(name).as_deref());
        let idle: Vec<LoadOutcome> =
            polite.iter().map(|(_, text)| load::paced(node.listen, &bodies(text, "polite"), 1, EVERY, TIME)).collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let heavy = bodies(&body("eth_call", &long), "heavy");
                while !stop.load(Relaxed) {
                    load::closed(node.listen, &heavy, HEAVY, Duration::from_millis(500));
                }
            });
            std::thread::sleep(Duration::from_secs(1));
            for ((name, text), idle) in polite.iter().zip(&idle) {
                let seen = load::paced(node.listen, &bodies(text, "polite"), 1, EVERY, TIME);
                println!("  {name:28} idle {}", idle.line());
                println!("  {name:28} now  {}", seen.line());
                verdict(&format!("{name}: rejected"), seen.refusals.len() as f64, 0.);
                let more = quantile(&seen.results, 0.99) - quantile(&idle.results, 0.99);
                verdict(&format!("{name}: p99 more than idle, s"), more, MORE);
            }
            stop.store(true, Relaxed);
        });
    }
}
