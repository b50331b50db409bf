//! Searchers who all send at each sub-block: single simulations over `WebSockets`, every 320 ms.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use futures::{SinkExt, StreamExt};
use tokio_tungstenite::{connect_async, tungstenite::Message};

use crate::{load::quantile, recorded, verdict};

const EVERY: Duration = Duration::from_millis(320);
const ROUNDS: usize = 12;

pub fn run(folder: &Path) {
    let Ok(text) = std::fs::read_to_string(folder.join("sim_swap.ndjson")) else { return };
    let bodies: Vec<String> = text.lines().map(|line| line.replace("\"latest\"", "\"pending\"")).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a thread");
    for (count, connections) in [(200, 1), (1000, 1), (1000, 50)] {
        let node = recorded(folder, &[]);
        let url = format!("ws://{}", node.listen);
        let each = count / connections;
        let clients = (0..connections).map(|_| {
            let (url, bodies) = (url.clone(), bodies.clone());
            runtime.spawn(client(url, bodies, each))
        });
        let seen: Vec<BurstOutcome> = runtime
            .block_on(futures::future::join_all(clients))
            .into_iter()
            .map(|seen| seen.expect("no panic"))
            .collect();
        let sum = |of: fn(&BurstOutcome) -> usize| seen.iter().map(of).sum::<usize>();
        let (served, rejected) = (sum(|seen| seen.served), sum(|seen| seen.rejected));
        let slowest: Vec<f64> = seen.iter().flat_map(|seen| seen.rounds.clone()).collect();
        let name = format!("{count} over {connections}");
        println!(
            "  {name}: served {served}, rejected {rejected}, a burst p50 {:.0} ms, at most {:.0} ms",
            quantile(&slowest, 0.5) * 1e3,
            quantile(&slowest, 1.) * 1e3
        );
        verdict(&format!("{name}: not served"), (count * ROUNDS - served) as f64, 0.);
    }
}

#[derive(Default)]
struct BurstOutcome {
    served: usize,
    rejected: usize,
    /// Seconds from the start of a burst to its last answer.
    rounds: Vec<f64>,
}

/// Sends `each` requests at once, [`ROUNDS`] times.
async fn client(url: String, bodies: Vec<String>, each: usize) -> BurstOutcome {
    let (socket, _) = connect_async(url).await.expect("it listens");
    let (mut sink, mut stream) = socket.split();
    let mut clock = tokio::time::interval(EVERY);
    let mut seen = BurstOutcome::default();
    for _ in 0..ROUNDS {
        clock.tick().await;
        let began = Instant::now();
        let send = async {
            for index in 0..each {
                if sink.feed(Message::text(bodies[index % bodies.len()].clone())).await.is_err() {
                    return;
                }
            }
            let _ = sink.flush().await;
        };
        let receive = async {
            for _ in 0..each {
                let Some(Ok(message)) = stream.next().await else { return };
                let text = message.into_data();
                match memchr::memmem::find(&text[..text.len().min(200)], b"\"error\":{\"code\"") {
                    Some(_) => seen.rejected += 1,
                    None => seen.served += 1,
                }
            }
        };
        tokio::join!(send, receive);
        seen.rounds.push(began.elapsed().as_secs_f64());
    }
    seen
}
