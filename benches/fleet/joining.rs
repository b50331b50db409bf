//! A replica that joins a large chain: its time and its memory.

use std::{
    io::{BufWriter, Write},
    thread,
    time::{Duration, Instant},
};

use alloy_primitives::{Address, keccak256};
use presim::source::devnet::world::traffic_signers;
use serde_json::json;

use crate::{Extent, FLEET, at_most, ingester, median, process::NodeProcess, publishing::runtime, replica, serve};

/// The contracts that have the slots.
const CONTRACTS: u64 = 1_000;
const SLOTS_PER_ACCOUNT: u64 = 2;
/// The time after which memory no longer changes much: what was needed for the start is given back.
const SETTLED: Duration = Duration::from_secs(10);

/// Measures the time from the start of a replica to `/ready`, while the chain goes on.
pub fn joining(extent: Extent) {
    let genesis = genesis(extent.accounts);
    let server = serve();
    let url = server.url();
    let began = Instant::now();
    let leader = ingester(&url, &["--genesis", genesis.path().to_str().expect("a path")]);
    println!(
        "  {} accounts, {} slots: the ingester starts in {:.1} s",
        extent.accounts,
        extent.accounts * SLOTS_PER_ACCOUNT,
        began.elapsed().as_secs_f64()
    );
    drop(genesis);
    // The first one may wait for the image that the others find.
    let (first, _) = join(&url);
    println!("  the first replica is ready after {first:.2} s");
    let joins: Vec<(f64, NodeProcess)> = (0..extent.runs).map(|_| join(&url)).collect();
    let (times, mut replicas): (Vec<f64>, Vec<NodeProcess>) = joins.into_iter().unzip();
    let last = replicas.pop().expect("a replica");
    drop(replicas);
    thread::sleep(SETTLED);
    let [one, other] = [&last, &leader].map(|node| node.memory() as f64);
    println!("  memory: {one} MiB of a replica, {other} MiB of the ingester");
    let images = runtime().block_on(async {
        let jetstream = async_nats::jetstream::new(server.connect().await);
        let stream = jetstream.get_stream(format!("OBJ_presim_{}_images", FLEET)).await.expect("it has images");
        stream.cached_info().state.bytes
    });
    println!("  the images take {} MiB on the server", images >> 20);
    at_most("from the start of a replica to /ready, s", median("seconds of each", times), 15.0);
    at_most("memory of a replica beside the ingester's", one / other, 1.3);
}

/// Starts a replica, and returns the seconds until it is ready.
fn join(url: &str) -> (f64, NodeProcess) {
    let began = Instant::now();
    let node = replica(url, &[]);
    (began.elapsed().as_secs_f64(), node)
}

/// Writes a genesis file with so many accounts, and twice as many slots in the first of them.
fn genesis(accounts: u64) -> tempfile::NamedTempFile {
    let forks = [
        "homestead",
        "eip150",
        "eip155",
        "eip158",
        "byzantium",
        "constantinople",
        "petersburg",
        "istanbul",
        "berlin",
        "london",
    ];
    let mut config = json!({
        "chainId": 31337, "terminalTotalDifficulty": 0, "shanghaiTime": 0, "cancunTime": 0, "pragueTime": 0,
        "blobSchedule": {
            "cancun": { "target": 3, "max": 6, "baseFeeUpdateFraction": 3_338_477 },
            "prague": { "target": 6, "max": 9, "baseFeeUpdateFraction": 5_007_716 },
        },
    });
    for fork in forks {
        config[format!("{fork}Block")] = json!(0);
    }
    let file = tempfile::Builder::new().suffix(".json").tempfile().expect("a file");
    let mut out = BufWriter::new(&file);
    let written = (|| {
        write!(
            out,
            r#"{{"config":{config},"difficulty":"0x0","gasLimit":"0x3938700","baseFeePerGas":"0x3b9aca00","alloc":{{"#
        )?;
        // The senders of the traffic.
        for signer in traffic_signers().expect("keys") {
            write!(out, r#""{}":{{"balance":"0xd3c21bcecceda1000000"}},"#, signer.address())?;
        }
        let contracts = CONTRACTS.min(accounts);
        let slots = accounts * SLOTS_PER_ACCOUNT / contracts;
        for number in 0..accounts {
            let address = Address::from_word(keccak256(number.to_be_bytes()));
            let comma = if number == 0 { "" } else { "," };
            write!(out, r#"{comma}"{address}":{{"balance":"{:#x}""#, number + 1)?;
            if number < contracts {
                write!(out, r#","code":"0x5f5ff3","storage":{{"#)?;
                for slot in 0..slots {
                    let (key, comma) =
                        (keccak256((number * slots + slot).to_be_bytes()), if slot == 0 { "" } else { "," });
                    write!(out, r#"{comma}"{key}":"0x{:064x}""#, slot * 1_000_003 + 1)?;
                }
                write!(out, "}}")?;
            }
            write!(out, "}}")?;
        }
        write!(out, "}}}}")?;
        out.flush()
    })();
    written.expect("it is written");
    drop(out);
    file
}
