//! The work that is not done twice, over HTTP and in process: `cargo bench --bench reuse`.
//!
//! Compared in turn, on the bodies of `../shared/bench`: `presim_simulate` with `status` and `gasUsed` beside
//! `eth_simulateV1`; a search of 32 amounts beside a batch of 32 simulations; a search of 1,000 amounts behind three
//! calls beside batches of them; 256 requests with one beginning beside the same without shared beginnings. Each ratio
//! is one of throughput. Skips where the bodies are absent.

mod world;

use std::{
    env,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use presim::testing::{
    engine::{Beginnings, Outputs},
    rpc::dialect::PRESIM,
    state::Overlay,
};
use serde_json::{Value, json};
use support::figures::median;

use crate::world::{BODIES, BodiesChain, bare::Request, bodies, meter, parse_body, process::NodeProcess};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CONNECTIONS: usize = 4;
const ROUNDS: usize = 9;
/// The minimum duration of a turn.
const TURN: Duration = Duration::from_millis(400);

fn main() {
    if env::args().any(|arg| arg == "--test" || arg == "--list") {
        return;
    }
    let Some(chain) = BodiesChain::start(&[]) else { return };
    let genesis = Path::new(BODIES).join("genesis.json");
    let node = |cache: &str| {
        let flags = ["--genesis", genesis.to_str().expect("a path"), "--feed", "static", "--prefix-cache-mb", cache];
        NodeProcess::start(&[&flags[..], &["--max-batch", "1000"]].concat())
    };
    let alone = node("0");
    println!(
        "ratios of throughput over HTTP, {CONNECTIONS} connections, medians of {ROUNDS} rounds in turn, and quartiles"
    );
    for name in ["sim_swap", "sim_sandwich"] {
        let Some(whole) = bodies(name) else { return };
        let whole: Vec<Value> = whole.iter().map(|body| serde_json::from_str(&body.text).expect("JSON")).collect();
        let lean = whole.iter().map(|request| {
            let mut request = request.clone();
            request["method"] = json!("presim_simulate");
            request["params"][0]["outputs"] = json!(["status", "gasUsed"]);
            request
        });
        let sides = [texts(lean), texts(whole.iter().cloned())];
        compare(
            &format!("{name}: status and gasUsed, beside eth_simulateV1"),
            1.25,
            [(&alone, &sides[0]), (&alone, &sides[1])],
        );
    }
    let batches = batches();
    let searches = texts(batches.iter().map(search_of));
    let as_batches = texts(batches.iter().cloned());
    compare("a search of 32 amounts, beside a batch of 32", 2.5, [(&alone, &searches), (&alone, &as_batches)]);

    // The amount of a swap behind three others.
    let swaps = swaps(4);
    let amounts: Vec<Value> = (0..1_000).map(|at: u64| json!(format!("{:#x}", 1_000_000_000_000_u64 + at))).collect();
    let variants: Vec<Value> = amounts.iter().map(|amount| with_amount(&swaps, 3, amount)).collect();
    let batch = |calls: &[Value]| {
        let requests = calls.iter().enumerate().map(|(id, calls)| {
            json!({ "jsonrpc": "2.0", "id": id, "method": "eth_simulateV1", "params": [{ "blockStateCalls": [{ "calls": calls }] }, "latest"] })
        });
        Value::Array(requests.collect())
    };
    // One text for all thousand, so that a turn has as many amounts on both sides.
    let asked = texts([batch(&variants)]);
    let search = json!({ "jsonrpc": "2.0", "id": 1, "method": "presim_search", "params": [{
        "blockStateCalls": [{ "calls": swaps }],
        "vary": [{ "path": "blocks[0].calls[3].data", "word": 0, "values": amounts }],
        "objective": "gasUsed",
        "outputs": ["status", "gasUsed"],
    }, "latest"] });
    compare(
        "a search of 1,000 amounts behind three calls, beside a batch",
        4.0,
        [(&alone, &texts([search])), (&alone, &asked)],
    );

    // A beginning of ten swaps.
    let beginning = self::swaps(10);
    let own = (0..256).map(|at: u64| {
        let mut calls = beginning.as_array().expect("calls").clone();
        calls.push(json!({ "from": calls[0]["from"], "to": format!("{:#042x}", 0x9000 + at), "value": "0x0" }));
        let params = json!([{ "blockStateCalls": [{ "calls": calls }], "outputs": ["status", "gasUsed"] }, "latest"]);
        json!({ "jsonrpc": "2.0", "id": at, "method": "presim_simulate", "params": params })
    });
    let own: Vec<Value> = own.collect();
    let shares = node("64");
    let requests = texts(own.iter().cloned());
    compare(
        "256 requests with one beginning of ten swaps, beside the same alone",
        2.0,
        [(&shares, &requests), (&alone, &requests)],
    );
    in_process(&chain, &own);
}

/// Returns calls that swap, one after another.
fn swaps(count: usize) -> Value {
    let call = &batches()[0][0]["params"][0]["blockStateCalls"][0]["calls"][0].clone();
    Value::Array(
        (0..count as u64).map(|at| with_word(call, &json!(format!("{:#x}", 1_000_000_000_000_000_u64 + at)))).collect(),
    )
}

fn batches() -> Vec<Value> {
    let text = std::fs::read_to_string(Path::new(BODIES).join("batch_search.ndjson")).expect("the bodies are there");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Returns the search of the amounts that the entries of a batch differ in.
fn search_of(batch: &Value) -> Value {
    let entries = batch.as_array().expect("a batch");
    let payload = &entries[0]["params"][0];
    let amount = |entry: &Value| {
        let data = entry["params"][0]["blockStateCalls"][0]["calls"][0]["data"].as_str().expect("data");
        json!(format!("0x{}", data[10..74].trim_start_matches('0')))
    };
    let values: Vec<Value> = entries.iter().map(amount).collect();
    let mut search = payload.clone();
    search["vary"] = json!([{ "path": "blocks[0].calls[0].data", "word": 0, "values": values }]);
    search["objective"] = json!("gasUsed");
    json!({ "jsonrpc": "2.0", "id": 1, "method": "presim_search", "params": [search, "latest"] })
}

/// Returns the calls with another amount in one of them.
fn with_amount(calls: &Value, call: usize, amount: &Value) -> Value {
    let mut calls = calls.clone();
    calls[call] = with_word(&calls[call], amount);
    calls
}

/// Returns the call with another first word of its data.
fn with_word(call: &Value, word: &Value) -> Value {
    let mut call = call.clone();
    let data = call["data"].as_str().expect("data");
    let digits = word.as_str().expect("a quantity").trim_start_matches("0x");
    call["data"] = format!("{}{digits:0>64}{}", &data[..10], &data[74..]).into();
    call
}

/// Returns HTTP requests with these bodies.
fn texts(bodies: impl IntoIterator<Item = Value>) -> Vec<Vec<u8>> {
    let text = |body: Value| {
        let body = body.to_string();
        let head = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length:";
        format!("{head} {}\r\n\r\n{body}", body.len()).into_bytes()
    };
    bodies.into_iter().map(text).collect()
}

/// Prints the ratio of the throughput of both sides.
fn compare(name: &str, goal: f64, [one, other]: [(&NodeProcess, &[Vec<u8>]); 2]) {
    let mut ratios: Vec<f64> = (0..ROUNDS).map(|_| throughput(one) / throughput(other)).collect();
    ratios.sort_by(f64::total_cmp);
    verdict(name, goal, ratios);
}

fn verdict(name: &str, goal: f64, ratios: Vec<f64>) {
    let quartiles = (ratios[ROUNDS / 4], ratios[ROUNDS - 1 - ROUNDS / 4]);
    let ratio = median(ratios);
    let met = if ratio >= goal { "met" } else { "MISSED" };
    println!("{name}: {ratio:.2} ({:.2} to {:.2}), goal {goal} {met}", quartiles.0, quartiles.1);
}

/// Returns the requests per second that the node answers.
fn throughput((node, requests): (&NodeProcess, &[Vec<u8>])) -> f64 {
    let (start, done) = (Instant::now(), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| {
                let mut stream = TcpStream::connect(node.listen).expect("it connects");
                stream.set_nodelay(true).expect("a socket");
                let mut answer = Vec::new();
                while start.elapsed() < TURN {
                    let request = &requests[done.fetch_add(1, Relaxed) % requests.len()];
                    stream.write_all(request).expect("it is sent");
                    read(&mut stream, &mut answer);
                }
            });
        }
    });
    done.into_inner() as f64 / start.elapsed().as_secs_f64()
}

/// Reads an answer, which must be no error.
fn read(stream: &mut TcpStream, answer: &mut Vec<u8>) {
    answer.clear();
    let mut part = [0; 1 << 16];
    let mut whole = None;
    while whole.is_none_or(|whole| answer.len() < whole) {
        let got = stream.read(&mut part).expect("an answer");
        assert!(got > 0, "the node has closed the connection");
        answer.extend_from_slice(&part[..got]);
        if whole.is_none()
            && let Some(end) = memchr::memmem::find(answer, b"\r\n\r\n")
        {
            let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
            assert!(head.starts_with("http/1.1 200"), "{head}");
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
            whole = Some(end + 4 + length.parse::<usize>().expect("a number"));
        }
    }
    let error = memchr::memmem::find(answer, b"\"error\":{\"code\":-32").is_some();
    assert!(!error, "{}", String::from_utf8_lossy(&answer[..answer.len().min(2_000)]));
}

/// Compares requests that share a beginning with the same ones alone, without HTTP.
fn in_process(chain: &BodiesChain, requests: &[Value]) {
    let simulations = requests.iter().map(|request| {
        let mut params = request["params"].clone();
        params[0].as_object_mut().expect("a payload").remove("outputs");
        for call in params[0]["blockStateCalls"][0]["calls"].as_array_mut().expect("calls") {
            call.as_object_mut().expect("a call").entry("data").or_insert(json!("0x"));
        }
        let simulate = json!({ "method": "eth_simulateV1", "params": params });
        let mut sim = Request::new(chain, parse_body(&simulate.to_string())).sim;
        sim.outputs = Outputs::STATUS | Outputs::GAS_USED;
        sim
    });
    let simulations: Vec<_> = simulations.collect();
    let (backend, snapshot) = (&chain.node.runner().backend, chain.node.snapshots().newest());
    let (rules, mut overlay) = (backend.rules(&PRESIM), Overlay::of_thread());
    let mut time = |bytes: usize| {
        let start = Instant::now();
        let mut runs = 0;
        while runs == 0 || start.elapsed() < TURN {
            // A snapshot of its own has no beginnings yet.
            let beginnings = Beginnings::new(bytes, chain.node.metrics());
            for simulation in &simulations {
                overlay.reset(snapshot.world.clone(), snapshot.hashes.clone(), meter());
                let mut engine = backend.engine(&rules, &mut overlay);
                let done = beginnings.simulate(&mut engine, None, &snapshot, simulation).expect("it runs");
                std::hint::black_box(done);
            }
            runs += 1;
        }
        start.elapsed().as_secs_f64() / f64::from(runs)
    };
    let mut ratios: Vec<f64> = (0..ROUNDS).map(|_| time(0) / time(64 << 20)).collect();
    ratios.sort_by(f64::total_cmp);
    verdict("the same in process", 5.0, ratios);
}
