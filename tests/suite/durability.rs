//! The program is killed again and again while clients send: its answers must stay true.

use std::{sync::Arc, time::Duration};

use rand::{Rng, SeedableRng, rngs::SmallRng};

use crate::{
    process::{Presim, text},
    support::say,
    witness::{Rpc, Witness, seed},
};

/// The number of kills, unless `PRESIM_TEST_KILLS` sets it.
const KILLS: u32 = 50;

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_outlives_fifty_kills_and_nothing_is_sent_twice() {
    let kills = match std::env::var("PRESIM_TEST_KILLS") {
        Ok(text) => text.parse().unwrap_or_else(|error| panic!("PRESIM_TEST_KILLS={text}: {error}")),
        Err(_) => KILLS,
    };
    let seed = seed();
    let mut rng = SmallRng::seed_from_u64(seed);
    say(&format!("killed at random moments: PRESIM_TEST_SEED={seed}"));
    let dir = tempfile::tempdir().unwrap();
    let data = text(dir.path());
    let flags = ["--data-dir", data, "--sub-block-ms=25", "--sub-blocks=4", "--traffic=1", "--log=error"];
    let witness = Arc::new(Witness::default());
    for _ in 0..kills {
        let mut presim = Presim::start(&flags);
        let rpc = Rpc::new(&presim.url);
        witness.check(&rpc).await;
        let clients = witness.clients(&rpc, rng.random());
        // The kill comes at a moment that is unrelated to what the program does.
        tokio::time::sleep(Duration::from_millis(rng.random_range(20..400))).await;
        presim.child.kill().unwrap();
        presim.child.wait().unwrap();
        clients.join_all().await;
    }
    let presim = Presim::start(&flags);
    let rpc = Rpc::new(&presim.url);
    witness.check(&rpc).await;
    let counts = witness.finish(&rpc).await;
    say(&format!("killed {kills} times: {counts}"));
    assert!(counts.answered > kills as usize && counts.atomic > 0 && counts.raw > kills as usize, "{counts}");
    assert_eq!(witness.refusals(), Vec::<String>::new());
}
