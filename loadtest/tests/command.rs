//! The command line: the arguments that it rejects, the reports that it writes, and its exit codes.

mod support;

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use support::{Reply, Run, Server, binary, run};

fn plain() -> Server {
    Server::start(|number, _| if number == 0 { Reply::Error(-32601) } else { Reply::Result(json!("0x1")) })
}

#[test]
fn a_target_that_nobody_listens_at_is_refused_in_a_line() {
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.local_addr().expect("an address").port()
    };
    let run = run(&[&format!("http://127.0.0.1:{port}")]);
    assert_eq!(run.code, Some(2));
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    assert!(run.stderr.contains(&port.to_string()) && run.stderr.contains("refused"), "{}", run.stderr);
}

#[test]
fn a_bad_argument_is_refused_with_what_was_expected() {
    let cases: [(&[&str], &str); 19] = [
        (&["--assert", "p98<5ms"], "there are p50"),
        (&["--assert", "p99<5"], "us, ms or s"),
        (&["--rate", "0"], "requests per second"),
        (&["--rate", "5", "--ramp", "1..2"], "cannot be used with"),
        (&["--ramp", "5"], "expected A..B"),
        (&["--steps", "1..2x1"], "2 to 1000 steps"),
        (&["--duration", "10"], "expected a number with"),
        (&["--mix", "swop=1"], "there are balance"),
        (&["--mix", "swap=1"], "does not have recorded"),
        (&["--header", "nothing"], "NAME: VALUE"),
        (&["--threads", "9", "--connections", "8"], "is less than --threads"),
        (&["ftp://127.0.0.1:1"], "unsupported scheme ftp://"),
        (&["http://me:secret@127.0.0.1:1"], "--header"),
        (&["--connection-steps", "4..2"], "does not rise"),
        (&["--connection-steps", "1,2", "--steps", "1,2"], "cannot be used with"),
        (&["--steps", "1,2", "--duration", "9s"], "cannot be used with"),
        (&["--assert", "knee>5"], "--connection-steps or --ramp"),
        (&["--assert", "ratio>5"], "there is one target"),
        (&["--reference", "http://127.0.0.1:1", "--check-sample", "0"], "--check-sample 0"),
    ];
    for (arguments, expected) in cases {
        let run = run(arguments);
        assert_eq!(run.code, Some(2), "{arguments:?}: {}", run.stderr);
        assert!(run.stderr.contains(expected), "{arguments:?}: {}", run.stderr);
    }
}

#[test]
fn a_target_without_a_router_is_refused_with_what_to_give() {
    let server = Server::start(|number, request| match (number, request["method"].as_str()) {
        (_, Some("eth_accounts")) => Reply::Result(json!(["0x70997970c51812dc3a010c7d01b50e0d17dc79c8"])),
        (_, Some("eth_getCode")) => Reply::Result(json!("0x")),
        _ => Reply::Error(-32601),
    });
    let output = binary().arg(server.url()).output().expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr.contains("--router"), "{stderr}");
}

#[test]
fn a_recorded_body_that_is_none_is_refused_with_its_line() {
    let server = plain();
    let run =
        support::run_on("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\",\"params\":[]}\n\n[1]\n", &[&server.url()]);
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("line 3"), "{}", run.stderr);
}

#[test]
fn the_report_is_one_page_with_its_plots_and_without_secrets() {
    let stamp = "id=0x10, block=2, index=0, age_ms=7, feed=live";
    let server = Server::start(move |number, _| match number {
        0 => Reply::Result(json!({"id": "0x10", "ageMs": 7})),
        _ => Reply::From(stamp.to_owned(), json!("0x1")),
    });
    let bodies = r#"{"jsonrpc":"2.0","id":1,"method":"eth_call","params":[{"to":"0x01"},"pending"]}"#;
    let run = support::run_on(
        bodies,
        &[
            &server.url(),
            "--steps=100,200,400",
            "--step-duration=300ms",
            "--knee-p99=60s",
            "--warmup=0s",
            "--header",
            "Authorization: Bearer hush-hush",
        ],
    );
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
    for plot in ["throughput-A", "latency-A", "knee-A", "knee-latency-A", "distribution-A", "age-A"] {
        let figure = run.html.split(&format!("id=\"{plot}\"")).nth(1).unwrap_or_else(|| panic!("no plot {plot}"));
        let figure = figure.split("</figure>").next().expect("a figure");
        let points = figure.split("<polyline").skip(1).map(|line| line.split("points=\"").nth(1).expect("points"));
        assert!(points.clone().count() > 0, "{plot}");
        for line in points {
            assert!(
                line.split('"').next().is_some_and(|points| points.contains(',') && !points.contains("NaN")),
                "{plot}"
            );
        }
    }
    for outside in ["src=", "href=", "@import", "url(", "fetch(", "XMLHttpRequest"] {
        assert!(!run.html.contains(outside), "the page needs {outside}");
    }
    assert!(run.html.contains("knee ≥ 400/s"), "every step was held: {}", run.stdout);
    assert!(run.html.contains("Authorization") && !run.html.contains("hush-hush"));
    assert!(!run.report.to_string().contains("hush-hush"));
    assert_eq!(run.report["targets"][0]["steps"].as_array().map(Vec::len), Some(3));
}

#[test]
fn the_knee_is_the_last_rate_that_was_carried() {
    // 4 connections with 100 ms per request carry 40 requests per second.
    let server = Server::start(|number, _| match number {
        0 => Reply::Error(-32601),
        _ => Reply::After(Duration::from_millis(100), json!("0x1")),
    });
    let run = run(&[
        &server.url(),
        "--steps=10,20,200",
        "--connections=4",
        "--step-duration=2s",
        "--warmup=300ms",
        "--timeout=3s",
        "--knee-p99=2s",
        "--assert=knee>=20,knee<200",
    ]);
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
}

#[test]
fn a_closed_loop_is_run_with_each_number_of_connections_and_has_a_knee() {
    // The server answers two requests at a time, in 10 ms each, so that more than two connections wait.
    let places = std::sync::Arc::new(tokio::sync::Semaphore::new(2));
    let server = Server::start(move |number, _| match number {
        0 => Reply::Error(-32601),
        _ => Reply::Within(places.clone(), Duration::from_millis(10), json!("0x1")),
    });
    let run = run(&[
        &server.url(),
        "--connection-steps=1..8",
        "--step-duration=500ms",
        "--warmup=200ms",
        "--knee-p99=60s",
        "--timeout=60s",
        "--assert=knee>0,knee<=200,errors=0",
    ]);
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
    let target = &run.report["targets"][0];
    assert!(target["knee"]["connections"].as_u64() >= Some(2), "one connection waits half of the time: {target}");
    let steps: Vec<u64> = target["steps"]
        .as_array()
        .map_or_else(Vec::new, |steps| steps.iter().filter_map(|step| step["connections"].as_u64()).collect());
    assert_eq!(steps, [1, 2, 4, 8]);
    assert!(run.html.contains("id=\"knee-A\"") && run.html.contains("throughput against connections"));
}

/// The scripted server runs in the process of this test.
#[test]
fn the_node_is_found_by_its_port_or_given_and_its_usage_is_shown() {
    let server = plain();
    for pid in [None, Some(std::process::id().to_string())] {
        let pid = pid.as_ref().map_or_else(Vec::new, |pid| vec!["--node-pid", pid]);
        // The system counts in hundredths of a second, and an idle machine needs many requests for one.
        let steps = ["--steps=300,600", "--step-duration=1s", "--warmup=0s"];
        let run = run(&[&[server.url().as_str()], &steps[..], &pid[..]].concat());
        assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
        let usage = &run.report["targets"][0]["summary"]["usage"];
        assert!(usage["machine"].as_f64() > Some(0.0) && usage["node"].is_f64() && usage["others"].is_f64(), "{usage}");
        assert!(usage["node_bytes"].as_u64() > Some(1 << 20), "{usage}");
        assert!(run.stdout.contains("cores: machine ") && run.html.contains("In cores: machine "), "{}", run.stdout);
        assert!(run.report["targets"][0]["steps"][0]["usage"]["node"].is_f64());
    }
    let run = run(&[&server.url(), "--node-pid=4294967295"]);
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("--node-pid 4294967295"), "{}", run.stderr);
}

#[test]
fn requests_of_the_warm_up_are_not_counted() {
    let server = plain();
    let run = run(&[&server.url(), "--rate=200", "--duration=500ms", "--warmup=500ms"]);
    assert_eq!((run.summary("/requests"), run.summary("/right")), (100.0, 100.0), "{}", run.stdout);
    assert_eq!(server.served(), 200);
}

#[test]
fn targets_take_turns_and_the_first_is_compared_with_the_others() {
    let slow = Server::start(|number, _| match number {
        0 => Reply::Error(-32601),
        _ => Reply::After(Duration::from_millis(20), json!("0x1")),
    });
    let fast = plain();
    let arguments = ["--duration=200ms", "--warmup=0s", "--rounds=3", "--assert=ratio>2"];
    let test = |first: &Server, second: &Server| -> Run {
        run(&[&[first.url().as_str(), second.url().as_str()], arguments.as_slice()].concat())
    };
    let run = test(&fast, &slow);
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
    let ratio = &run.report["ratios"][0]["throughput"];
    let of = |name: &str| ratio[name].as_f64().expect("a number");
    assert!(of("least") <= of("median") && of("median") <= of("greatest"), "{ratio}");
    let rounds = |target: usize| run.report["targets"][target]["rounds"].as_array().map(Vec::len);
    assert_eq!((rounds(0), rounds(1)), (Some(3), Some(3)));
    assert_eq!(test(&slow, &fast).code, Some(1), "the slow one is not twice as fast");
}

#[test]
fn what_was_not_measured_holds_no_assertion() {
    let server = plain();
    let run = run(&[&server.url(), "--duration=100ms", "--warmup=0s", "--assert=age_p99<1s"]);
    assert_eq!(run.code, Some(1), "{}", run.stdout);
    assert!(run.stdout.contains("FAIL age_p99<1s: not measured"), "{}", run.stdout);
    let verdict: &Value = &run.report["assertions"][0];
    assert_eq!((&verdict["holds"], &verdict["measured"]), (&json!(false), &Value::Null));
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_run_with_its_report() {
    let server = plain();
    let folder = tempfile::TempDir::new().expect("a directory");
    let file = folder.path().join("bodies.ndjson");
    std::fs::write(&file, r#"{"jsonrpc":"2.0","id":7,"method":"eth_chainId","params":[]}"#).expect("a file");
    let mut child = binary()
        .args([&server.url(), "--rate=100", "--duration=3600s", "--warmup=0s", "--bodies"])
        .arg(&file)
        .arg("--json")
        .arg(folder.path().join("report.json"))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the binary runs");
    // The run has begun when some requests of its load were sent.
    let begun = std::time::Instant::now();
    while server.asked() < 20 {
        assert!(begun.elapsed() < Duration::from_secs(120), "nothing was sent");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    assert_eq!(child.wait().expect("the run ends").code(), Some(0));
    let report = std::fs::read_to_string(folder.path().join("report.json")).expect("a report");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["ended_early"], true);
}

#[test]
fn the_same_seed_makes_the_same_bodies_of_each_class_and_another_makes_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let world = json!({
        "weth": "0x5fbdb2315678afecb367f032d93f642f64180aa3",
        "tokenA": "0xe7f1725e7734ce288f8367e1bb143e90bb3f0512",
        "tokenB": "0x9fe46736679d2d9a65f0992f2272de9f3c7fa6e0",
        "router2": "0xdc64a140aa3e981100a9beca4e685f962f0cf6c9",
        "router3": "0x0165878a594ca255338adfa4d48449f69242eb8f",
        "pair": "0xa17a7058165761492e206cf798c12b0e7cc482f7",
        "pool3": "0x52b9f00530993bf9c751cfece7b6256d9a679e75",
        "searchers": ["0x5ea0000000000000000000000000000000000000"],
    });
    std::fs::write(folder.path().join("world.json"), world.to_string()).expect("a file");
    let make = |seed: &str, out: &str| {
        let (world, out) = (folder.path().to_str().expect("a path"), folder.path().join(out));
        let made = binary()
            .args(["bodies", "--world", world, "--count", "3", "--seed", seed, "--out"])
            .arg(&out)
            .output()
            .expect("the binary runs");
        assert_eq!(made.status.code(), Some(0), "{}", String::from_utf8_lossy(&made.stderr));
        let mut files: Vec<_> =
            std::fs::read_dir(out).expect("a folder").map(|file| file.expect("a file").path()).collect();
        files.sort();
        files.into_iter().map(|file| std::fs::read_to_string(file).expect("bodies")).collect::<Vec<_>>()
    };
    let (first, again, other) = (make("1", "first"), make("1", "again"), make("2", "other"));
    assert_eq!(first.len(), 22);
    assert_eq!(first, again);
    assert_ne!(first, other);
    for line in first.iter().flat_map(|file| file.lines()) {
        let body: Value = serde_json::from_str(line).expect("JSON");
        let requests = body.as_array().cloned().unwrap_or_else(|| vec![body]);
        assert!((1..=100).contains(&requests.len()));
        assert!(
            requests
                .iter()
                .all(|request| request["params"][request["params"].as_array().map_or(0, Vec::len) - 1] == "latest")
        );
    }
    let refused = binary().args(["bodies", "--world", "/nowhere"]).output().expect("the binary runs");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && text.contains("--world"), "{text}");
}
