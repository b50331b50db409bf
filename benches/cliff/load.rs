//! Load over HTTP: on a schedule, as fast as answers arrive, or one request at a time.

use std::{
    cell::{Cell, RefCell},
    io,
    net::SocketAddr,
    path::Path,
    rc::Rc,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Runtime,
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::{LocalSet, spawn_local},
};

/// The maximum number of connections of a load.
const CONNECTIONS: usize = 768;

/// The minimum interval at which the clock wakes.
const TICK: Duration = Duration::from_micros(100);

/// Requests that are ready to be sent.
#[derive(Clone)]
pub struct Bodies(Rc<Vec<Vec<u8>>>);

impl Bodies {
    /// Reads the bodies of a file of `../shared/bench`, changed to `pending`, for `path`. `None` if it does not exist.
    pub fn read(folder: &Path, name: &str, path: &str) -> Option<Self> {
        let text = std::fs::read_to_string(folder.join(name).with_extension("ndjson")).ok()?;
        Some(Self::new(text.lines().map(|line| line.replace("\"latest\"", "\"pending\"")), path, None))
    }

    /// Prepares these bodies for `path`, with this client's token.
    pub fn new(bodies: impl IntoIterator<Item = String>, path: &str, token: Option<&str>) -> Self {
        let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        let bodies = bodies.into_iter().map(|body| {
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\n{token}content-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            (head + &body).into_bytes()
        });
        Self(Rc::new(bodies.collect()))
    }
}

/// The outcome of a load.
#[derive(Default)]
pub struct LoadOutcome {
    /// Latencies of the results in seconds. On a schedule, they count from when each request was due.
    pub results: Vec<f64>,
    /// Latencies of the rejections with -32005, in seconds.
    pub refusals: Vec<f64>,
    /// Requests that were due while all connections were in use, which an unbounded client would have sent.
    pub unsent: usize,
    /// The number of other errors.
    pub errors: usize,
    /// Delays with which requests were sent, in seconds. They are the load generator's part of the latencies.
    pub late: Vec<f64>,
    /// The duration of the load in seconds.
    pub seconds: f64,
}

impl LoadOutcome {
    /// Returns the results per second.
    pub fn rate(&self) -> f64 {
        self.results.len() as f64 / self.seconds
    }

    /// Formats the outcome in one line.
    pub fn line(&self) -> String {
        format!(
            "{:8.0} results/s  p50 {:7.2} ms  p99 {:7.2} ms   refused {} (p99 {:.2} ms)  unsent {}  errors {}  sent late p99 {:.2} ms",
            self.rate(),
            quantile(&self.results, 0.5) * 1e3,
            quantile(&self.results, 0.99) * 1e3,
            self.refusals.len(),
            quantile(&self.refusals, 0.99) * 1e3,
            self.unsent,
            self.errors,
            quantile(&self.late, 0.99) * 1e3
        )
    }

    fn take(&mut self, answer: Answer, seconds: f64) {
        match answer {
            Answer::Result => self.results.push(seconds),
            Answer::Refused => self.refusals.push(seconds),
            Answer::Error => self.errors += 1,
        }
    }
}

/// Returns the value that `share` of `values` do not exceed, or zero if there are none.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or_default()
}

/// Runs `connections` clients for `time`. Each sends its next request after the answer to its last.
pub fn closed(to: SocketAddr, bodies: &Bodies, connections: usize, time: Duration) -> LoadOutcome {
    paced(to, bodies, connections, Duration::ZERO, time)
}

/// Like [`closed`], but each client sends at most one request per `every`.
pub fn paced(to: SocketAddr, bodies: &Bodies, connections: usize, every: Duration, time: Duration) -> LoadOutcome {
    let seen = Rc::new(RefCell::new(LoadOutcome::default()));
    let next = Rc::new(Cell::new(0));
    let began = Instant::now();
    local(async {
        let clients = (0..connections).map(|_| {
            let (seen, next, bodies) = (seen.clone(), next.clone(), bodies.clone());
            async move {
                let mut connection = Connection::open(to).await.expect("it listens");
                while began.elapsed() < time {
                    let sent = Instant::now();
                    let answer = connection.ask(&bodies.0[turn(&next) % bodies.0.len()]).await.expect("an answer");
                    seen.borrow_mut().take(answer, sent.elapsed().as_secs_f64());
                    if !every.is_zero() {
                        tokio::time::sleep_until((sent + every).into()).await;
                    }
                }
            }
        });
        futures::future::join_all(clients).await;
    });
    let mut seen = seen.take();
    seen.seconds = began.elapsed().as_secs_f64();
    seen
}

/// Sends `rate` requests a second for `time`, evenly spaced and independent of the answers.
pub fn open(to: SocketAddr, bodies: &Bodies, rate: f64, time: Duration) -> LoadOutcome {
    let mut seen = open_both(to, [(bodies, rate), (bodies, 0.)], time);
    std::mem::take(&mut seen[0])
}

/// Sends one uninterrupted load. Separates requests due before `warm_up` from those due in the `time` after it.
pub fn open_warm(to: SocketAddr, bodies: &Bodies, rate: f64, warm_up: Duration, time: Duration) -> [LoadOutcome; 2] {
    local(on_clock(to, bodies.clone(), rate, warm_up, time))
}

/// Runs two loads at once, like [`open`].
pub fn open_both(to: SocketAddr, loads: [(&Bodies, f64); 2], time: Duration) -> [LoadOutcome; 2] {
    local(async {
        let [a, b] = loads.map(|(bodies, rate)| on_clock(to, bodies.clone(), rate, Duration::ZERO, time));
        let ([_, a], [_, b]) = tokio::join!(a, b);
        [a, b]
    })
}

async fn on_clock(to: SocketAddr, bodies: Bodies, rate: f64, warm_up: Duration, time: Duration) -> [LoadOutcome; 2] {
    let due = (0..(rate * (warm_up + time).as_secs_f64()) as usize).map(|index| index as f64 / rate).collect();
    let [mut before, mut after] = on_schedule(to, bodies, due, &[warm_up]).await.try_into().unwrap_or_default();
    (before.seconds, after.seconds) = (warm_up.as_secs_f64(), time.as_secs_f64());
    [before, after]
}

/// Sends requests that are due at these seconds, and separates them by `marks`: due before the first, the second, …
pub fn scheduled(to: SocketAddr, bodies: &Bodies, due: Vec<f64>, marks: &[Duration]) -> Vec<LoadOutcome> {
    local(on_schedule(to, bodies.clone(), due, marks))
}

/// Returns the arrival times of a Poisson process between two moments, in seconds. They depend only on the seed.
pub fn poisson(rate: f64, from: f64, to: f64, seed: &mut u64) -> Vec<f64> {
    let mut due = Vec::new();
    let mut at = from;
    loop {
        // xorshift64* (Vigna 2016).
        *seed ^= *seed >> 12;
        *seed ^= *seed << 25;
        *seed ^= *seed >> 27;
        let uniform = (seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1_u64 << 53) as f64;
        at -= (1. - uniform).ln() / rate;
        if at >= to {
            return due;
        }
        due.push(at);
    }
}

async fn on_schedule(to: SocketAddr, bodies: Bodies, due: Vec<f64>, marks: &[Duration]) -> Vec<LoadOutcome> {
    let seen: Rc<Vec<RefCell<LoadOutcome>>> = Rc::new((0..=marks.len()).map(|_| RefCell::default()).collect());
    if due.is_empty() {
        return seen.iter().map(RefCell::take).collect();
    }
    let idle: Rc<RefCell<Vec<Connection>>> = Rc::default();
    // Connections are opened before the clock starts, because only requests are measured.
    for _ in 0..CONNECTIONS {
        let connection = Connection::open(to).await.expect("it listens");
        idle.borrow_mut().push(connection);
    }
    let began = Instant::now();
    let mut clock = clock(due.clone(), began);
    while let Some(index) = clock.recv().await {
        let after = Duration::from_secs_f64(due[index]);
        let (due, part) = (began + after, marks.iter().filter(|mark| after >= **mark).count());
        let Some(mut connection) = idle.borrow_mut().pop() else {
            seen[part].borrow_mut().unsent += 1;
            continue;
        };
        let (seen, idle, bodies) = (seen.clone(), idle.clone(), bodies.clone());
        spawn_local(async move {
            seen[part].borrow_mut().late.push(due.elapsed().as_secs_f64());
            let answer = connection.ask(&bodies.0[index % bodies.0.len()]).await.unwrap_or(Answer::Error);
            seen[part].borrow_mut().take(answer, due.elapsed().as_secs_f64());
            idle.borrow_mut().push(connection);
        });
    }
    let patience = Instant::now();
    while idle.borrow().len() < CONNECTIONS && patience.elapsed() < Duration::from_secs(10) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    seen.iter().map(RefCell::take).collect()
}

/// Sends the index of each request when it is due. A thread of its own is used because the timers of an event loop are
/// too coarse. It wakes at most once per [`TICK`], so that it takes little time from the node on its cores.
fn clock(due: Vec<f64>, began: Instant) -> UnboundedReceiver<usize> {
    let (tell, requests) = unbounded_channel();
    std::thread::spawn(move || {
        let mut sent = 0;
        while sent < due.len() {
            while sent < due.len() && due[sent] <= began.elapsed().as_secs_f64() {
                if tell.send(sent).is_err() {
                    return;
                }
                sent += 1;
            }
            let Some(next) = due.get(sent) else { return };
            let next = began + Duration::from_secs_f64(*next);
            std::thread::sleep(next.saturating_duration_since(Instant::now()).max(TICK));
        }
    });
    requests
}

fn turn(next: &Cell<usize>) -> usize {
    next.replace(next.get() + 1)
}

fn local<T>(work: impl Future<Output = T>) -> T {
    let runtime: Runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a thread");
    runtime.block_on(LocalSet::new().run_until(work))
}

enum Answer {
    Result,
    Refused,
    Error,
}

struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    async fn open(to: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    async fn ask(&mut self, request: &[u8]) -> io::Result<Answer> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        let body = loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Ok(Answer::Error);
            }
            let Some(head) = memchr::memmem::find(&self.buffer, b"\r\n\r\n") else { continue };
            let Some(at) = memchr::memmem::find(&self.buffer[..head], b"content-length: ") else {
                return Ok(Answer::Error);
            };
            let digits = self.buffer[at + 16..head].iter().take_while(|byte| byte.is_ascii_digit());
            let length = digits.fold(0, |length, digit| 10 * length + usize::from(digit - b'0'));
            if self.buffer.len() >= head + 4 + length {
                break &self.buffer[head + 4..];
            }
        };
        // An error answer is short, so its error is at the start.
        let start = &body[..body.len().min(200)];
        Ok(if memchr::memmem::find(start, b"\"error\":{\"code\":-32005").is_some() {
            Answer::Refused
        } else if memchr::memmem::find(start, b"\"error\":{\"code\"").is_some() {
            Answer::Error
        } else {
            Answer::Result
        })
    }
}
