//! The load test catches servers that stall, answer wrongly, drop connections or answer from old states.

mod support;

use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use support::{Reply, Server, run, run_on};

/// Starts a server that answers at once, except for two seconds after its first half second.
fn stalling() -> Server {
    let first: OnceLock<Instant> = OnceLock::new();
    Server::start(move |number, _| {
        if number == 0 {
            return Reply::Error(-32601);
        }
        let since = first.get_or_init(Instant::now).elapsed();
        let (from, to) = (Duration::from_millis(500), Duration::from_millis(2_500));
        if since >= from && since < to { Reply::After(to - since, json!("0x1")) } else { Reply::Result(json!("0x1")) }
    })
}

#[test]
fn a_stall_is_felt_by_all_who_arrive_in_an_open_loop() {
    let server = stalling();
    let run = run(&[&server.url(), "--rate", "100", "--connections", "2", "--duration", "4s", "--warmup", "0s"]);
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
    assert_eq!(run.summary("/errors"), 0.0, "a stall is no error");
    assert_eq!(run.summary("/requests"), 400.0, "arrivals do not wait for the target");
    let (p90, p99, max) = (run.summary("/latency/p90"), run.summary("/latency/p99"), run.summary("/latency/max"));
    // 200 of 400 requests arrive during the stall, and wait for the rest of it.
    assert!(max >= 1_950_000.0 && p99 >= 1_900_000.0 && p90 >= 1_500_000.0, "p90 {p90}, p99 {p99}, max {max} µs");
    assert!(run.summary("/late") >= 190.0, "most of them waited for a connection: {}", run.summary("/late"));
    // Only the two requests in flight waited after they were sent. A test without a clock would have seen no others.
    assert!(run.summary("/service/p99") < 1_000_000.0, "{}", run.summary("/service/p99"));
}

#[test]
fn a_closed_loop_hides_the_stall_from_all_but_its_longest_latency() {
    let server = stalling();
    let run = run(&[&server.url(), "--connections", "1", "--duration", "4s", "--warmup", "0s"]);
    assert!(run.summary("/latency/max") >= 1_950_000.0, "{}", run.stdout);
    assert!(run.summary("/latency/p99") < 1_000_000.0, "{}", run.stdout);
}

#[test]
fn arrivals_past_the_bound_are_counted_as_dropped() {
    let server = Server::start(|number, _| match number {
        0 => Reply::Error(-32601),
        _ => Reply::After(Duration::from_millis(100), json!("0x1")),
    });
    let run = run(&[
        &server.url(),
        "--rate=200",
        "--connections=1",
        "--max-outstanding=5",
        "--duration=1s",
        "--warmup=0s",
        "--assert=errors=0",
    ]);
    let (right, dropped) = (run.summary("/right"), run.fault("dropped"));
    assert_eq!(right as u64 + dropped, 200, "every arrival is accounted for: {}", run.stdout);
    assert!(dropped > 150, "one connection answers ten a second: {}", run.stdout);
    assert_eq!(run.code, Some(1), "what was not sent is an error: {}", run.stdout);
}

#[test]
fn each_way_to_answer_wrongly_is_counted_apart_and_completely() {
    type Wrong = fn() -> Reply;
    let cases: [(&str, Wrong); 6] = [
        ("wrong_id", || Reply::WrongId(json!("0x1"))),
        ("rpc_error", || Reply::Error(-32000)),
        ("refused", || Reply::Error(-32005)),
        ("not_json", || Reply::Raw(200, "<html>".to_owned())),
        ("http_status", || Reply::Raw(503, "busy".to_owned())),
        ("failed_call", || Reply::Result(json!([{"calls": [{"status": "0x1"}, {"status": "0x0"}]}]))),
    ];
    let bodies = r#"{"jsonrpc":"2.0","id":7,"method":"eth_simulateV1","params":[{"blockStateCalls":[]},"latest"]}"#;
    for (fault, wrong) in cases {
        let sent = Arc::new(AtomicU64::new(0));
        let count = sent.clone();
        let server = Server::start(move |number, _| match number {
            0 => Reply::Error(-32601),
            number if number % 10 == 0 => {
                count.fetch_add(1, Ordering::SeqCst);
                wrong()
            }
            _ => Reply::Result(json!([{"calls": [{"status": "0x1"}]}])),
        });
        let run = run_on(
            bodies,
            &[&server.url(), "--duration=300ms", "--warmup=0s", "--connections=2", "--assert", "p99<10s,errors=0"],
        );
        let sent = sent.load(Ordering::SeqCst);
        assert!(sent > 0, "{fault}: {}", run.stderr);
        assert_eq!(run.fault(fault), sent, "{fault}: {}", run.stdout);
        assert_eq!(run.summary("/errors") as u64, sent, "{fault} is counted once: {}", run.stdout);
        assert_eq!(run.summary("/right") as u64 + sent, server.served(), "{fault}");
        assert_eq!(run.code, Some(1), "{fault}: {}", run.stdout);
        assert!(run.stdout.contains("PASS p99<10s") && run.stdout.contains("FAIL errors=0"), "{}", run.stdout);
    }
}

#[test]
fn an_answer_that_is_not_the_references_is_a_mismatch() {
    let value = |of: &'static str| {
        move |number, _: &Value| if number == 0 { Reply::Error(-32601) } else { Reply::Result(json!(of)) }
    };
    let (right, wrong) = (Server::start(value("0x1")), Server::start(value("0x2")));
    let test = |target: &Server| {
        run(&[
            &target.url(),
            "--reference",
            &right.url(),
            "--check-sample=5",
            "--duration=300ms",
            "--warmup=0s",
            "--assert=mismatches=0,checked>0",
        ])
    };
    let same = test(&right);
    assert_eq!(same.code, Some(0), "{}{}", same.stdout, same.stderr);
    let other = test(&wrong);
    assert_eq!(other.code, Some(1), "{}", other.stdout);
    assert_eq!(other.fault("mismatch") as f64, other.summary("/checked"), "none is equal: {}", other.stdout);
    assert!(
        other.stdout.contains("0x2") && other.stdout.contains("0xabcd"),
        "the answer and its block: {}",
        other.stdout
    );
}

#[test]
fn a_reference_that_fails_is_named_with_its_first_failure() {
    let target =
        Server::start(|number, _| if number == 0 { Reply::Error(-32601) } else { Reply::Result(json!("0x1")) });
    let reference = Server::start(|number, _| match number {
        0 => Reply::Error(-32601),
        1 => Reply::Raw(500, "something is broken".to_owned()),
        _ => Reply::Drop,
    });
    let run =
        run(&[&target.url(), "--reference", &reference.url(), "--check-sample=5", "--duration=300ms", "--warmup=0s"]);
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
    assert!(reference.served() > 1, "{}", run.stdout);
    let all = format!("{}", reference.served());
    let told = "the reference did not answer: HTTP status 500";
    assert!(run.stdout.lines().any(|line| line.contains(told) && line.contains(&all)), "{}", run.stdout);
}

#[test]
fn a_dropped_connection_is_an_error_each_time_and_is_made_anew() {
    let dropped = Arc::new(AtomicU64::new(0));
    let count = dropped.clone();
    let server = Server::start(move |number, _| match number {
        0 => Reply::Error(-32601),
        number if number % 20 == 0 => {
            count.fetch_add(1, Ordering::SeqCst);
            Reply::Drop
        }
        _ => Reply::Result(json!("0x1")),
    });
    let run = run(&[
        &server.url(),
        "--rate=500",
        "--connections=4",
        "--duration=1s",
        "--warmup=0s",
        "--assert=disconnects=0",
    ]);
    let dropped = dropped.load(Ordering::SeqCst);
    assert_eq!(dropped, 25, "of 500: {}", run.stdout);
    assert_eq!(run.fault("disconnected"), dropped, "{}", run.stdout);
    assert_eq!(run.summary("/right"), 475.0, "the others go on: {}", run.stdout);
    let reconnects = run.summary("/reconnects") as u64;
    assert!((dropped - 1..=dropped).contains(&reconnects), "the last need not be made again: {}", run.stdout);
    assert_eq!(run.code, Some(1));
}

#[test]
fn a_target_that_dies_fails_all_who_arrive_after_it_once_each() {
    let ((die, dead), (gone, is_gone)) = (mpsc::channel(), mpsc::channel());
    let is_gone = Mutex::new(is_gone);
    let server = Server::start(move |number, _| {
        if number == 100 {
            die.send(()).expect("the receiver waits");
            // The server ends as soon as this script lets go of its only thread.
            is_gone.lock().expect("no panic").recv().expect("the server is dropped");
        }
        if number == 0 { Reply::Error(-32601) } else { Reply::Result(json!("0x1")) }
    });
    let url = server.url();
    std::thread::spawn(move || {
        dead.recv().expect("the load reaches request 100");
        drop(server);
        gone.send(()).expect("the script waits");
    });
    let run = run(&[&url, "--rate=200", "--connections=4", "--duration=1s", "--warmup=0s", "--timeout=2s"]);
    assert!(run.fault("connect") > 0, "it is tried again: {}", run.stdout);
    let right = run.summary("/right");
    assert!((99.0..150.0).contains(&right), "{}", run.stdout);
    let failed = run.summary("/errors") - run.fault("connect") as f64;
    assert_eq!(right + failed, 200.0, "each arrival ends once: {}", run.stdout);
    assert!((run.summary("/error_rate") - failed / 200.0).abs() < 1e-9, "{}", run.stdout);
    // A request without a connection names the first attempt that failed.
    let examples = run.report["targets"][0]["examples"].to_string();
    assert!(examples.contains("until its timeout: cannot connect: Connection refused"), "{examples}");
}

#[test]
fn a_request_without_an_answer_ends_at_its_timeout() {
    let server = Server::start(|number, _| match number {
        0 => Reply::Error(-32601),
        5 => Reply::After(Duration::from_secs(3_600), json!("0x1")),
        _ => Reply::Result(json!("0x1")),
    });
    let run = run(&[&server.url(), "--rate=100", "--timeout=2s", "--duration=500ms", "--warmup=0s"]);
    assert_eq!(run.fault("timeout"), 1, "{}", run.stdout);
    assert!(
        run.summary("/latency/max") >= 2_000_000.0,
        "who waits in vain counts with the time waited: {}",
        run.stdout
    );
}

#[test]
fn an_answer_from_a_state_older_than_one_told_of_is_stale() {
    let old = Arc::new(AtomicU64::new(0));
    let count = old.clone();
    let stamp = |id: &str| format!("id={id}, block=2, index=0, age_ms=7, feed=live");
    let server = Server::start(move |number, _| match number {
        0 => Reply::Result(json!({"id": "0x10", "ageMs": 7})),
        number if number % 4 == 0 => {
            count.fetch_add(1, Ordering::SeqCst);
            Reply::From(stamp("0xf"), json!("0x1"))
        }
        _ => Reply::From(stamp("0x10"), json!("0x1")),
    });
    let bodies = r#"{"jsonrpc":"2.0","id":"a","method":"eth_call","params":[{"to":"0x01"},"pending"]}"#;
    let run = run_on(
        bodies,
        &[
            &server.url(),
            "--check-sample=0",
            "--connections=1",
            "--duration=300ms",
            "--warmup=0s",
            "--assert=age_max<=7ms,stale=0",
        ],
    );
    assert_eq!(run.summary("/age/stale") as u64, old.load(Ordering::SeqCst), "{}", run.stdout);
    assert_eq!(run.summary("/age/answers") as u64, server.served(), "{}", run.stdout);
    assert_eq!(run.code, Some(1));
    assert!(run.stdout.contains("PASS age_max<=7ms") && run.stdout.contains("FAIL stale=0"), "{}", run.stdout);
}

#[test]
fn answers_over_a_web_socket_are_dated_each() {
    let server = Server::web_socket(|number, request| match (number, request["method"].as_str()) {
        (0, _) => Reply::Result(json!({"id": "0x10", "ageMs": 7})),
        _ => Reply::Result(json!("0x1")),
    });
    let bodies = r#"{"jsonrpc":"2.0","id":"a","method":"eth_call","params":[{"to":"0x01"},"pending"]}"#;
    let arguments = [&server.url(), "--ws", "--check-sample=0", "--duration=300ms", "--warmup=0s"];
    let run_dated = run_on(bodies, &arguments);
    assert!(run_dated.summary("/right") > 0.0, "{}", run_dated.stdout);
    assert_eq!(run_dated.summary("/age/answers"), run_dated.summary("/right"), "{}", run_dated.stdout);
    assert_eq!((run_dated.summary("/age/max"), run_dated.summary("/errors")), (7.0, 0.0), "{}", run_dated.stdout);
    let undated = run_on(bodies, &[&arguments[..], &["--no-dating"]].concat());
    assert!(undated.report.pointer("/targets/0/summary/age").is_none_or(Value::is_null), "{}", undated.stdout);
    assert!(undated.summary("/right") > 0.0, "{}", undated.stdout);
}

#[test]
fn a_web_socket_is_tested_and_checked_as_http_is() {
    let server = Server::web_socket(|number, _| match number {
        0 => Reply::Error(-32601),
        10 => Reply::WrongId(json!("0x1")),
        20 => Reply::Drop,
        _ => Reply::Result(json!("0x1")),
    });
    let run = run(&[&server.url(), "--ws", "--rate=200", "--connections=2", "--duration=500ms", "--warmup=0s"]);
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
    assert_eq!(
        (run.fault("wrong_id"), run.fault("disconnected"), run.summary("/right")),
        (1, 1, 98.0),
        "{}",
        run.stdout
    );
}
