//! Requests of many classes, made at random: presim compared with anvil over HTTP, and with bare revm in process.
//!
//! `cargo bench --bench classes -- [--seed N,…] [--class CLASS,…] [--rounds N] [--binary FILE]`. Every class of `loadtest bodies`
//! is sent to the servers in turn, by one client thread over eight connections: presim with default settings, presim with `--prefix-cache-mb 0`,
//! which shares no beginnings of the bodies that come again, and anvil. Anvil is looked for in `tests/anvil/node_modules` (which
//! `tests/anvil/run` installs) and on the path; `PRESIM_ANVIL` names another. Without it, only bare revm is compared.
//!
//! `-- --counts` counts instead, by callgrind, the instructions of a worker's part of a request: parse, simulate, encode.
//! Counts have no noise, so two builds can be compared on a busy machine. `--callgrind DIR` keeps callgrind's files there.

mod world;

use std::{
    collections::VecDeque,
    fmt::Write as _,
    fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use clap::{Parser, ValueEnum};
use loadtest::classes::{Class, ClassBodies, RecordedWorld};
use memchr::memmem;
use presim::testing::state::Overlay;
use serde_json::value::RawValue;
use support::figures::median;
use tokio::{net::TcpStream, runtime::Runtime};

use crate::world::{
    BODIES, BodiesChain, Body,
    bare::Request,
    client::{connect, exchange, post},
    parse_body,
    process::NodeProcess,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of bodies of each class.
const COUNT: u64 = 48;
/// The duration of a turn.
const TURN: Duration = Duration::from_millis(700);
/// The least ratio to anvil of the median class, and of each class, if nothing is shared.
const GOALS: (f64, f64) = (2.3, 1.5);

#[derive(Parser)]
struct Options {
    /// The seeds of the bodies
    #[arg(long, value_delimiter = ',', default_value = "1")]
    seed: Vec<u64>,
    /// The number of turns of each side
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// The program to measure over HTTP, in place of the one that cargo has compiled with this bench
    #[arg(long, value_name = "FILE", default_value = env!("CARGO_BIN_EXE_presim"))]
    binary: PathBuf,
    /// The classes to measure; all by default
    #[arg(long, value_enum, value_delimiter = ',')]
    class: Vec<Class>,
    /// Count the instructions of a worker's part of a request, by callgrind
    #[arg(long)]
    counts: bool,
    /// Keep callgrind's files in this folder, one for each class
    #[arg(long, value_name = "DIR", requires = "counts")]
    callgrind: Option<PathBuf>,
    /// Answer the bodies of a class in the process that callgrind runs
    #[arg(long, hide = true, conflicts_with = "counts")]
    counted: bool,
    /// Passed by cargo
    #[arg(long, hide = true)]
    bench: bool,
    /// Passed by cargo where benches are only to be tried
    #[arg(long, hide = true)]
    test: bool,
}

/// The result of a class.
struct ClassRow {
    class: Class,
    /// Requests a second of presim and of anvil.
    rates: [f64; 2],
    /// The ratio to anvil, sorted by round.
    anvil: Vec<f64>,
    /// The same where presim shares no beginnings.
    alone: Vec<f64>,
    /// The ratio to bare revm, sorted by round.
    bare: Vec<f64>,
}

fn main() {
    let options = Options::parse();
    let Some(chain) = BodiesChain::start(&[]) else { return };
    if options.test {
        return;
    }
    let recorded = RecordedWorld::read(Path::new(BODIES)).expect("a description of the world");
    let bodies = |seed: u64, class: Class| {
        let bodies = ClassBodies { world: &recorded, seed, tag: "latest" };
        (0..COUNT).map(|number| bodies.body(class, number)).collect::<Vec<String>>()
    };
    let classes = if options.class.is_empty() { Class::value_variants() } else { &options.class };
    if options.counted {
        return classes.iter().for_each(|class| answer_counted(&chain, &bodies(options.seed[0], *class)));
    }
    if options.counts {
        println!("{:15}{:>14}{:>14}", "", "instructions", "bytes");
        let folder = options.callgrind.as_deref();
        return classes.iter().for_each(|class| println!("{}", counts(&options, folder, *class)));
    }
    let genesis = Path::new(BODIES).join("genesis.json");
    let flags = ["--genesis", genesis.to_str().expect("a path in UTF-8"), "--feed", "static"];
    let presim = NodeProcess::of(&options.binary, &flags);
    let alone = NodeProcess::of(&options.binary, &[&flags[..], &["--prefix-cache-mb", "0"]].concat());
    let anvil = Anvil::start(&genesis);
    let client = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a thread");
    println!(
        "{} interleaved rounds of {} ms; ratios with the least and the greatest",
        options.rounds,
        TURN.as_millis()
    );
    let servers: Vec<SocketAddr> =
        [&presim, &alone].iter().map(|node| node.listen).chain(anvil.as_ref().map(|anvil| anvil.address)).collect();
    let measured = |seed: u64| {
        println!(
            "\n{:15}{:>10}{:>10}{:>24}{:>24}{:>24}",
            format!("seed {seed}"),
            "presim/s",
            "anvil/s",
            "ratio to anvil",
            "nothing shared",
            "ratio to bare revm"
        );
        let measured = |class: &Class| {
            let bodies = bodies(seed, *class);
            let (rates, [anvil, alone]) = over_http(&client, &servers, &bodies, options.rounds);
            let bare = in_process(&chain, &bodies, options.rounds);
            let row = ClassRow { class: *class, rates, anvil, alone, bare };
            println!("{row}");
            row
        };
        classes.iter().map(measured).collect::<Vec<_>>()
    };
    let seeds: Vec<Vec<ClassRow>> = options.seed.iter().map(|seed| measured(*seed)).collect();
    verdict(&seeds);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("classes.svg");
    fs::write(&file, plot(&seeds[0])).expect("the plot is written");
    println!("plot of seed {}: {}", options.seed[0], file.display());
}

/// Compares the ratios to anvil with the goals. That of a class is the median of its seeds.
fn verdict(seeds: &[Vec<ClassRow>]) {
    if seeds[0].iter().any(|row| row.anvil.is_empty()) {
        println!("anvil was not found: `tests/anvil/run target/release/presim` installs it");
        return;
    }
    let of_seeds =
        |index: usize, ratio: fn(&ClassRow) -> f64| median(seeds.iter().map(|rows| ratio(&rows[index])).collect());
    let all = |ratio: fn(&ClassRow) -> f64| (0..seeds[0].len()).map(|index| of_seeds(index, ratio)).collect::<Vec<_>>();
    let met = |is_met: bool| if is_met { "met" } else { "MISSED" };
    let alone = all(ClassRow::ratio_alone);
    let middle = median(alone.clone());
    println!("\nmedians of the seeds: the median class {:.2}", median(all(ClassRow::ratio)));
    println!("nothing shared: the median class {middle:.2} (goal {}, {})", GOALS.0, met(middle >= GOALS.0));
    let below: Vec<String> = seeds[0]
        .iter()
        .zip(&alone)
        .filter(|(_, ratio)| **ratio < GOALS.1)
        .map(|(row, ratio)| format!(" {} {ratio:.2}", row.class))
        .collect();
    println!("nothing shared: the classes below {} ({}):{}", GOALS.1, met(below.is_empty()), below.concat());
}

impl ClassRow {
    fn ratio(&self) -> f64 {
        median(self.anvil.clone())
    }

    fn ratio_alone(&self) -> f64 {
        median(self.alone.clone())
    }
}

impl std::fmt::Display for ClassRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ratio = |ratios: &[f64]| match ratios {
            [] => "-".to_owned(),
            ratios => format!("{:.2}  {:.2} to {:.2}", median(ratios.to_vec()), ratios[0], ratios[ratios.len() - 1]),
        };
        let [presim, anvil] = self.rates;
        write!(
            f,
            "{:15}{presim:>10.0}{anvil:>10.0}{:>24}{:>24}{:>24}",
            self.class.to_string(),
            ratio(&self.anvil),
            ratio(&self.alone),
            ratio(&self.bare)
        )
    }
}

/// Returns the requests a second of presim and of anvil, and the ratios of the rounds: of presim, and of presim that
/// shares nothing. The servers are these two, and anvil where it is there.
fn over_http(client: &Runtime, servers: &[SocketAddr], bodies: &[String], rounds: usize) -> ([f64; 2], [Vec<f64>; 2]) {
    let posts: Vec<Vec<u8>> = bodies.iter().map(|body| post(body)).collect();
    let mut clients: Vec<Vec<TcpStream>> = servers.iter().map(|server| client.block_on(connect(*server))).collect();
    for streams in &mut clients {
        client.block_on(check(&mut streams[0], &posts));
    }
    let mut rates = vec![Vec::new(); clients.len()];
    for _ in 0..rounds {
        for (streams, rates) in clients.iter_mut().zip(&mut rates) {
            rates.push(client.block_on(turn(streams, &posts)));
        }
    }
    let rate = |index: usize| rates.get(index).map_or(0.0, |rates| median(rates.clone()));
    let ratios = |index: usize| {
        let anvil = rates.get(2).into_iter().flatten();
        let mut ratios: Vec<f64> = rates[index].iter().zip(anvil).map(|(presim, anvil)| presim / anvil).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    };
    ([rate(0), rate(2)], [ratios(0), ratios(1)])
}

/// Checks that every body is answered without an error. A call may fail, but no request.
async fn check(stream: &mut TcpStream, posts: &[Vec<u8>]) {
    let mut buffer = Vec::new();
    for post in posts {
        let answer = exchange(stream, post, &mut buffer).await;
        let is_error = memmem::find(answer, b"\"result\"").is_none()
            || memmem::find(answer, b"\"error\":{\"code\":-3260").is_some();
        assert!(
            !is_error,
            "{}: {}",
            String::from_utf8_lossy(&post[..post.len().min(600)]),
            String::from_utf8_lossy(answer)
        );
    }
}

/// Sends bodies over all connections for a turn. Returns the requests answered a second.
async fn turn(streams: &mut [TcpStream], posts: &[Vec<u8>]) -> f64 {
    let (began, next) = (Instant::now(), std::cell::Cell::new(0));
    let each = streams.iter_mut().map(|stream| async {
        let mut buffer = Vec::new();
        while began.elapsed() < TURN {
            let number = next.replace(next.get() + 1);
            exchange(stream, &posts[number % posts.len()], &mut buffer).await;
        }
    });
    futures::future::join_all(each).await;
    next.get() as f64 / began.elapsed().as_secs_f64()
}

/// Returns the throughput of a worker's part of the requests (parse, simulate, encode) as a share of bare revm's on the
/// same calls, by rounds. Empty if the class does not simulate, or has no call.
fn in_process(chain: &BodiesChain, bodies: &[String], rounds: usize) -> Vec<f64> {
    if !bodies.iter().all(|body| body.contains("eth_simulateV1") && body.starts_with('{')) {
        return Vec::new();
    }
    let requests: Vec<Request> = bodies.iter().map(|body| Request::new(chain, parse_body(body))).collect();
    if requests.iter().all(|request| request.calls() == 0) {
        return Vec::new();
    }
    let (mut overlay, mut out) = Default::default();
    let time = |run: &mut dyn FnMut(&Request)| {
        let (began, mut count) = (Instant::now(), 0);
        while began.elapsed() < TURN / 4 {
            requests.iter().for_each(&mut *run);
            count += 1;
        }
        began.elapsed().as_secs_f64() / f64::from(count)
    };
    let mut ratios: VecDeque<f64> = (0..=rounds)
        .map(|_| {
            let ours = time(&mut |request| chain.answer(&request.body, &mut overlay, &mut out));
            time(&mut |request| chain.bare::<false>(request, |_| {})) / ours
        })
        .collect();
    // The first round warms up.
    ratios.pop_front();
    let mut ratios: Vec<f64> = ratios.into();
    ratios.sort_by(f64::total_cmp);
    ratios
}

/// Counts the instructions of a class's requests in a process under callgrind. Returns a line of the table.
fn counts(options: &Options, folder: Option<&Path>, class: Class) -> String {
    let temporary = tempfile::tempdir().expect("a folder");
    let folder = folder.unwrap_or(temporary.path());
    fs::create_dir_all(folder).expect("a folder");
    let file = folder.join(class.to_string()).with_extension("callgrind");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*counted_requests*", "--collect-atstart=no"])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(std::env::current_exe().expect("this program"))
        .args(["--counted", "--class", &class.to_string(), "--seed", &options.seed[0].to_string()])
        .output()
        .expect("valgrind is installed");
    let (counts, bytes) = (fs::read_to_string(&file).unwrap_or_default(), String::from_utf8_lossy(&output.stdout));
    let total = counts.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse::<u64>().ok());
    match total {
        Some(total) => format!("{:15}{:>14}{:>14}", class.to_string(), total / COUNT, bytes.trim()),
        None => panic!("callgrind counted nothing: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// Answers the bodies while callgrind counts, and prints the mean length of an answer.
fn answer_counted(chain: &BodiesChain, bodies: &[String]) {
    let requests: Vec<Vec<Body>> = bodies
        .iter()
        .map(|body| match serde_json::from_str::<Vec<Box<RawValue>>>(body) {
            Ok(batch) => batch.iter().map(|request| parse_body(request.get())).collect(),
            Err(_) => vec![parse_body(body)],
        })
        .collect();
    let (mut overlay, mut out, mut bytes) = (Overlay::of_thread(), Vec::new(), 0);
    let mut all = || {
        bytes = 0;
        for request in requests.iter().flatten() {
            chain.answer(request, &mut overlay, &mut out);
            bytes += out.len();
        }
    };
    // One-time work is not part of a request's cost.
    all();
    counted_requests(&mut all);
    println!("{}", bytes / requests.len());
}

/// callgrind counts only while this function runs.
#[inline(never)]
fn counted_requests(all: &mut dyn FnMut()) {
    all();
}

/// Plots the ratios to anvil if nothing is shared: a bar for the median of each class, with a line from the least to the greatest.
fn plot(rows: &[ClassRow]) -> String {
    const LEFT: f64 = 130.;
    const WIDTH: f64 = 560.;
    const ROW: f64 = 22.;
    let most = rows.iter().flat_map(|row| &row.alone).fold(3.0_f64, |most, ratio| most.max(*ratio));
    let x = |ratio: f64| LEFT + WIDTH * ratio / most;
    let height = ROW * (rows.len() as f64 + 2.);
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{}' height='{height}' font-family='sans-serif' font-size='12'>\
         <rect width='100%' height='100%' fill='white'/>\n",
        LEFT + WIDTH + 60.
    );
    for goal in [1.0, GOALS.1, GOALS.0] {
        let x = x(goal);
        let _ = writeln!(
            svg,
            "<line x1='{x:.1}' x2='{x:.1}' y1='{ROW}' y2='{height}' stroke='#bbb'/><text x='{x:.1}' y='15' text-anchor='middle'>{goal}</text>"
        );
    }
    for (index, row) in rows.iter().enumerate() {
        let y = ROW * (index as f64 + 1.5);
        let _ = writeln!(svg, "<text x='{}' y='{:.1}' text-anchor='end'>{}</text>", LEFT - 6., y + 4., row.class);
        let (Some(least), Some(greatest)) = (row.alone.first(), row.alone.last()) else { continue };
        let middle = row.ratio_alone();
        let fill = if middle < GOALS.1 { "#c33" } else { "#06c" };
        let _ = writeln!(
            svg,
            "<rect x='{LEFT}' y='{:.1}' width='{:.1}' height='12' fill='{fill}' fill-opacity='0.7'/>\
             <line x1='{:.1}' x2='{:.1}' y1='{y}' y2='{y}' stroke='#000'/><text x='{:.1}' y='{:.1}'>{middle:.2}</text>",
            y - 6.,
            x(middle) - LEFT,
            x(*least),
            x(*greatest),
            x(*greatest) + 6.,
            y + 4.
        );
    }
    svg + "</svg>\n"
}

/// A process of anvil, which is ended when dropped.
struct Anvil {
    child: Child,
    address: SocketAddr,
}

impl Anvil {
    /// Starts anvil on a genesis. Returns `None` if there is no anvil on the machine.
    fn start(genesis: &Path) -> Option<Self> {
        // Not the script in `.bin`, whose end would leave anvil running.
        const INSTALLED: &str = "tests/anvil/node_modules/@foundry-rs/anvil-linux-amd64/bin/anvil";
        let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join(INSTALLED);
        let program = match std::env::var_os("PRESIM_ANVIL") {
            Some(program) => PathBuf::from(program),
            None if installed.exists() => installed,
            None => "anvil".into(),
        };
        // Free a moment ago: anvil does not say which port it has taken.
        let address = TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a free port");
        let child = Command::new(program)
            .arg("--init")
            .arg(genesis)
            .args(["--hardfork", "prague", "--silent", "--port", &address.port().to_string()])
            .stdout(Stdio::null())
            .spawn()
            .ok()?;
        let anvil = Self { child, address };
        let began = Instant::now();
        while std::net::TcpStream::connect(address).is_err() {
            assert!(began.elapsed() < Duration::from_secs(30), "anvil does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(anvil)
    }
}

impl Drop for Anvil {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
