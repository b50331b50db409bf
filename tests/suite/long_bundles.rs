//! Standing bundles that take long beside others that do not.

use serde_json::{Value, json};

use crate::{
    random_bundles::account,
    support::{BOUND, Socket, TestNode, items, number, request},
    watch::{Held, newest, node_with, read, reads_slot, set_slot, stand, two_readers},
};

/// Code that counts a million down, and returns slot 0.
const COUNTS: &str = "0x620f42405b6001900380600457505f545f5260205ff3";

/// Returns a search of so many variants, each of which takes 26 million gas and reads slot 0 of an account.
fn long(name: &str, variants: u64) -> Value {
    let values: Vec<u64> = (0..variants).map(|index| 29_000_000 + index).collect();
    json!({ "name": name, "search": {
        "blockStateCalls": [{ "calls": [{ "to": account(3), "gas": "0x0" }] }],
        "vary": [{ "path": "blocks[0].calls[0].gas", "values": values }],
        "objective": "gasUsed",
        "outputs": ["returnData"],
    } })
}

/// Returns a search that takes no time, because there is no code to run.
fn quick(name: &str) -> Value {
    let mut search = long(name, 1);
    search["search"]["blockStateCalls"][0]["calls"][0]["to"] = account(9).into();
    search
}

async fn node_of(workers: &str) -> TestNode {
    // No run reaches its deadline.
    let node = two_readers(&["--workers", workers, "--deadline-ms", "600000"]).await;
    node.result("/", "anvil_setCode", json!([account(3), COUNTS])).await;
    node
}

/// Takes notifications until they tell that bundle `a` has read `value`.
async fn told(socket: &mut Socket, watch: &Value, held: &mut Held, value: u64) {
    let answer = json!({ "result": read(value) });
    while held.answers.get("a") != Some(&answer) {
        held.take(&socket.notification(watch).await);
    }
}

#[tokio::test]
async fn a_long_bundle_holds_no_other_up() {
    for workers in ["1", "2"] {
        let node = node_of(workers).await;
        let mut watches = Vec::new();
        for _ in 0..2 {
            let mut socket = Socket::open(&node, "/").await;
            // The first shares a worker with the second, until that is known to be long.
            let bundles = json!([[quick("quick"), long("long", 10_000), reads_slot("a", 0), reads_slot("b", 1)]]);
            let watch = stand(&mut socket, bundles).await["watch"].clone();
            watches.push((socket, watch, Held::new()));
        }
        for value in 2..8 {
            set_slot(&node, 0, value).await;
            for (socket, watch, held) in &mut watches {
                told(socket, watch, held, value).await;
            }
        }
        for (_, _, held) in &watches {
            let names: Vec<&String> = held.answers.keys().collect();
            assert_eq!(names, ["a", "b", "quick"], "{:?}", held.answers);
            assert_eq!(held.behind["long"], json!({ "name": "long", "id": null }), "{workers} workers");
        }
    }
}

/// A bundle is long by its work, and not by the time that this machine takes for it.
#[tokio::test]
async fn a_long_bundle_runs_once_for_each_change_even_if_it_takes_no_time() {
    // No run reaches its deadline, and none leaves the only worker to another job.
    let node = two_readers(&["--workers", "2", "--deadline-ms", "600000"]).await;
    // MODEXP (EIP-7883) with an exponent of 1,024 bytes costs two million gas. It is zero, so there is nothing to do.
    let length = |length: u64| format!("{length:064x}");
    let data = format!("0x{}{}{}{}", length(64), length(1024), length(64), "00".repeat(64 + 1024 + 64));
    let exponentiates = json!({ "to": format!("0x{:040x}", 5), "data": data, "gas": "0x2625a0" });
    let calls = json!([exponentiates, exponentiates, { "to": account(0), "gas": "0x186a0" }]);
    let bundle = json!({ "name": "long", "simulate": {
        "blockStateCalls": [{ "calls": calls }],
        "outputs": ["status", "returnData"],
    } });
    let runs = || node.metric("presim_queue_wait_seconds_count{lane=\"watch\"}");
    let mut socket = Socket::open(&node, "/").await;
    let watch = stand(&mut socket, json!([[bundle]])).await["watch"].clone();
    let mut before = None;
    for value in 1..6 {
        let mut held = Held::new();
        while held.answers.is_empty() {
            held.take(&socket.notification(&watch).await);
        }
        let calls = &held.answers["long"]["result"][0]["calls"];
        assert_eq!(calls[0]["status"], "0x1", "{calls}");
        assert_eq!(calls[2]["returnData"], read(value)[0]["calls"][0]["returnData"], "{calls}");
        // At first it ran among the others until it was too long.
        let first = *before.get_or_insert_with(runs);
        assert_eq!(runs() - first, (value - 1) as f64, "after {value} answers");
        set_slot(&node, 0, value + 1).await;
    }
    assert_eq!(before, Some(2.0));
}

#[tokio::test]
async fn the_only_worker_is_left_to_who_waits_for_an_answer() {
    let node = node_of("1").await;
    let mut socket = Socket::open(&node, "/").await;
    let bundles = json!([[long("long", 10_000), reads_slot("a", 0)]]);
    let watch = stand(&mut socket, bundles).await["watch"].clone();
    told(&mut socket, &watch, &mut Held::new(), 1).await;
    // Their parameters are too long for the pause of another run.
    let data = format!("0x{}", "00".repeat(40_000));
    let calls = json!([{ "calls": [{ "to": account(5), "data": data, "gas": "0xf4240" }] }]);
    for _ in 0..5 {
        let params = json!([{ "blockStateCalls": calls, "outputs": ["status"] }, "latest"]);
        let asked = node.result("/", "presim_simulate", params);
        let answer = tokio::time::timeout(BOUND, asked).await.expect("it is answered before the long run ends");
        assert_eq!(answer[0]["calls"][0]["status"], "0x1", "{answer}");
    }
}

#[tokio::test]
async fn a_long_bundle_is_answered_while_snapshots_come() {
    let node = node_of("2").await;
    let bundles = [long("long", 3), reads_slot("a", 0)];
    let mut socket = Socket::open(&node, "/").await;
    let watch = stand(&mut socket, json!([bundles])).await["watch"].clone();
    let mut held = Held::new();
    let mut value = 1;
    while !held.answers.contains_key("long") {
        value += 1;
        // The slot that the long bundle reads changes with each snapshot, too.
        set_slot(&node, 3, value).await;
        set_slot(&node, 0, value).await;
        told(&mut socket, &watch, &mut held, value).await;
    }
    held.until(&mut socket, &watch, &newest(&node).await).await;
    held.check(&node, &bundles, "in the end").await;
    let shown = &held.answers["long"]["result"]["result"][0]["calls"][0]["returnData"];
    assert_eq!(*shown, format!("{value:#066x}"));

    // A long bundle that is not touched is not run again.
    let runs = node.metric("presim_standing_runs_total");
    set_slot(&node, 0, 1).await;
    held.until(&mut socket, &watch, &newest(&node).await).await;
    assert_eq!(node.metric("presim_standing_runs_total") - runs, 1.0);
}

/// Asks for the answer of a bundle at the snapshot that it is said to hold for.
async fn check_at(node: &TestNode, bundle: &Value, id: &Value, answer: &Value) {
    let (method, payload) = match bundle.get("search") {
        Some(search) => ("presim_search", search),
        None => ("presim_simulate", &bundle["simulate"]),
    };
    let fresh = node.result("/", method, json!([payload, { "snapshotId": id }])).await;
    assert_eq!(fresh, answer["result"], "{bundle} at {id}");
}

#[tokio::test]
async fn the_answer_of_a_long_bundle_comes_after_its_snapshot_and_names_the_one_that_it_holds_for() {
    let node = two_readers(&["--workers", "2", "--deadline-ms", "600000", "--keep-snapshots", "100000"]).await;
    node.result("/", "anvil_setCode", json!([account(3), COUNTS])).await;
    let bundles = [long("long", 3), reads_slot("a", 0)];
    let mut socket = Socket::open(&node, "/").await;
    let watch = stand(&mut socket, json!([bundles])).await["watch"].clone();
    let mut held = Held::new();
    let (mut value, mut late) = (1, Vec::new());
    // The slot that the long bundle reads changes while it runs. The last answer holds for the newest snapshot.
    let (mut is_told, mut is_last) = (true, false);
    while late.is_empty() || !is_last || !held.behind.is_empty() || held.id != newest(&node).await {
        if is_told && late.is_empty() && value < 6 {
            value += 1;
            set_slot(&node, 0, value).await;
            set_slot(&node, 3, value).await;
        }
        let news = socket.notification(&watch).await;
        is_last = held.take(&news);
        is_told = held.answers.get("a") == Some(&json!({ "result": read(value) }));
        if news["late"] == true {
            late.push((news, held.id.clone()));
        } else {
            assert!(items(&news["changed"]).iter().all(|one| one["name"] == "a"), "long among the parts: {news}");
        }
    }
    for (news, current) in &late {
        let [answer] = items(&news["changed"]) else { panic!("one answer: {news}") };
        assert_eq!(answer["name"], "long", "{news}");
        assert!(news["timestamp"].is_string(), "{news}");
        check_at(&node, &bundles[0], &news["id"], answer).await;
        let behind = if news["id"] == *current { json!([]) } else { json!([{ "name": "long", "id": news["id"] }]) };
        assert_eq!(news["behind"], behind, "at {current}: {news}");
    }
    assert_eq!(late.last().expect("an answer").0["id"], held.id);

    // A client that has heard no more than the parts of the snapshot is told it when it comes again.
    let mut other = Socket::open(&node, "/").await;
    let again = other.call("presim_rewatch", json!([watch, held.id])).await["result"].take();
    let [answer] = items(&again["changed"]) else { panic!("one answer: {again}") };
    assert_eq!((&answer["name"], &answer["result"]), (&json!("long"), &held.answers["long"]["result"]), "{again}");
    assert!(number(&answer["id"]) >= number(&held.id) && again["behind"] == json!([]), "{again}");
    check_at(&node, &bundles[0], &answer["id"], answer).await;
}

/// While a bundle is behind, answers are newer than the snapshot of which all is told.
#[tokio::test]
async fn each_answer_of_a_poll_names_a_snapshot_at_which_it_can_be_asked_again() {
    let node = node_of("2").await;
    // This one does not end.
    let bundles = [long("long", 10_000), reads_slot("a", 0), reads_slot("b", 1)];
    let begun = node.result("/", "presim_watch", json!([bundles])).await;
    let mut socket = Socket::open(&node, "/").await;
    let (mut since, mut newer) = (begun["id"].clone(), 0);
    for value in 2..6 {
        set_slot(&node, 0, value).await;
        let id = newest(&node).await;
        let mut told = json!({});
        while !told.to_string().contains(&format!("{value:064x}")) {
            told = node.result("/", "presim_results", json!([begun["watch"], since, 5_000])).await;
        }
        let again = socket.call("presim_rewatch", json!([begun["watch"], since])).await["result"].take();
        assert_eq!(items(&again["changed"]).len(), items(&told["changed"]).len(), "{again}\n{told}");
        assert_eq!(told["behind"][0]["name"], "long", "{told}");
        newer += items(&told["changed"]).iter().filter(|one| number(&one["id"]) > number(&told["id"])).count();
        for one in items(&told["changed"]).iter().chain(items(&again["changed"])) {
            assert!(number(&one["id"]) >= number(&id), "nothing that it read has changed since {id}: {one}");
            let bundle = bundles.iter().find(|bundle| bundle["name"] == one["name"]).expect("a bundle");
            check_at(&node, bundle, &one["id"], one).await;
        }
        since = told["id"].clone();
    }
    assert!(newer >= 4, "{newer} answers are newer than the snapshot of which all is told");
}

#[tokio::test]
async fn a_poll_at_a_stop_is_answered_with_what_there_is() {
    let node = node_with(&[]);
    let mut socket = Socket::open(&node, "/").await;
    let begun = stand(&mut socket, json!([[reads_slot("a", 0)]])).await;
    let first = socket.notification(&begun["watch"]).await;
    let poll = request(7, "presim_results", json!([begun["watch"], first["id"], 60_000]));
    socket.write(poll.to_string()).await.expect("it takes a message");
    let chain = socket.call("eth_chainId", json!([])).await;
    assert_eq!(chain["id"], 1, "the poll waits: {chain}");
    let TestNode { node, .. } = node;
    let stopping = tokio::task::spawn_blocking(move || node.stop());
    // A poll that a stop cuts off has no answer.
    let answer = socket.read().await.expect("the poll is answered");
    assert_eq!((&answer["id"], &answer["result"]["changed"]), (&json!(7), &json!([])), "{answer}");
    while socket.read().await.is_some() {}
    stopping.await.expect("it stops");
}
