//! Ends the tests if one of them hangs, and names it.

use std::{
    collections::BTreeMap,
    io::Write,
    sync::{LazyLock, Mutex},
    thread,
    time::{Duration, Instant},
};

/// The time after which a test hangs. The longest takes some minutes on a busy machine.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// The tests that run, by their threads. The first use starts the thread that looks at them.
static RUNNING: LazyLock<Mutex<BTreeMap<String, Instant>>> = LazyLock::new(|| {
    thread::spawn(|| {
        loop {
            thread::sleep(LIMIT / 60);
            let running = RUNNING.lock().expect("no holder panics");
            for test in running.iter().filter(|(_, began)| began.elapsed() > LIMIT).map(|(test, _)| test) {
                let _ = writeln!(std::io::stderr(), "the test {test} hangs: it has run for more than {LIMIT:?}");
            }
            if running.values().any(|began| began.elapsed() > LIMIT) {
                std::process::exit(101);
            }
        }
    });
    Mutex::default()
});

thread_local! {
    static WATCHED: Watched = Watched::begin();
}

/// A test that runs, until its thread ends.
struct Watched(Option<String>);

impl Watched {
    fn begin() -> Self {
        // The test harness names the thread of a test after it. The main thread runs many.
        let test = thread::current().name().filter(|name| name.contains("::")).map(str::to_owned);
        RUNNING.lock().expect("no holder panics").extend(test.clone().map(|test| (test, Instant::now())));
        Self(test)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.take().map(|test| RUNNING.lock().expect("no holder panics").remove(&test));
    }
}

/// Watches the test that runs on this thread.
pub fn watch() {
    WATCHED.with(|_| ());
}
