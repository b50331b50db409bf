//! The allocations of a warm request: how many, how many bytes, and where.
//!
//! `cargo bench --bench allocations [WORKLOAD ...]`. dhat counts them, so the result does not depend on the machine.
//! `worker` is a worker's part: parse, run, encode. `front` is the whole HTTP request, from socket to socket.

mod world;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    io::{Read, Write},
    net::TcpStream,
    path::PathBuf,
};

use dhat::{HeapStats, Profiler};
use presim::testing::{Node, state::Overlay};
use serde::Deserialize;

use crate::world::{BodiesChain, Body, bodies};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const WORKLOADS: [&str; 6] = ["call_balance", "call_quote", "sim_swap", "sim_sandwich", "sim_multi", "sim_big"];
/// The maximum number of requests to count.
const REQUESTS: usize = 40;
/// The number of sites to show.
const SITES: usize = 15;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    if std::env::args().any(|argument| argument == "--test" || argument == "--list") {
        return;
    }
    let Some(chain) = BodiesChain::start(&[]) else { return };
    let mut client = Client::connect(&chain.node);

    let mut table = Vec::new();
    for name in WORKLOADS.iter().filter(|name| arguments.is_empty() || arguments.iter().any(|one| one == *name)) {
        let Some(mut bodies) = bodies(name) else { continue };
        bodies.truncate(REQUESTS);
        let (mut overlay, mut out) = (Overlay::of_thread(), Vec::new());
        let worker = count(&bodies, |body| chain.answer(body, &mut overlay, &mut out));
        let front = count(&bodies, |body| client.ask(body));
        println!("\n{name}: where a worker allocates\n{:>10}{:>12}  at, called by", "a request", "bytes");
        worker
            .sites
            .iter()
            .take(SITES)
            .for_each(|site| println!("{:10.2}{:12.0}  {}", site.count, site.bytes, site.place));
        table.push((name, worker, front));
    }
    println!("\nallocations of a warm request\n{:14}{:>10}{:>12}{:>10}{:>12}", "", "worker", "bytes", "front", "bytes");
    for (name, worker, front) in table {
        println!("{name:14}{:10.1}{:12.0}{:10.1}{:12.0}", worker.count, worker.bytes, front.count, front.bytes);
    }
}

/// The allocations of one request, on average.
struct Allocations {
    count: f64,
    bytes: f64,
    /// The most frequent site first.
    sites: Vec<Site>,
}

struct Site {
    place: String,
    count: f64,
    bytes: f64,
}

/// Counts what `answer` allocates for one of `bodies`, after it has answered each of them once.
fn count(bodies: &[Body], mut answer: impl FnMut(&Body)) -> Allocations {
    bodies.iter().for_each(&mut answer);
    let file = tempfile::NamedTempFile::new().expect("a file");
    let profiler = Profiler::builder().file_name(file.path()).trim_backtraces(Some(40)).build();
    bodies.iter().for_each(&mut answer);
    let stats = HeapStats::get();
    drop(profiler);
    let each = |total: u64| total as f64 / bodies.len() as f64;
    let profile: Profile =
        serde_json::from_reader(std::fs::File::open(file.path()).expect("it is there")).expect("a profile");
    let ours = own_files();
    let mut sites = BTreeMap::<String, (u64, u64)>::new();
    for point in &profile.points {
        let (count, bytes) = sites.entry(profile.place(point, &ours)).or_default();
        (*count, *bytes) = (*count + point.blocks, *bytes + point.bytes);
    }
    let mut sites: Vec<Site> = sites
        .into_iter()
        .map(|(place, (count, bytes))| Site { place, count: each(count), bytes: each(bytes) })
        .collect();
    sites.sort_by(|a, b| b.count.total_cmp(&a.count));
    Allocations { count: each(stats.total_blocks), bytes: each(stats.total_bytes), sites }
}

/// The needed part of dhat's output file.
#[derive(Deserialize)]
struct Profile {
    #[serde(rename = "pps")]
    points: Vec<Point>,
    #[serde(rename = "ftbl")]
    frames: Vec<String>,
}

#[derive(Deserialize)]
struct Point {
    #[serde(rename = "tb")]
    bytes: u64,
    #[serde(rename = "tbk")]
    blocks: u64,
    /// Indices of frames, the innermost first.
    #[serde(rename = "fs")]
    frames: Vec<usize>,
}

impl Profile {
    /// Names the innermost frame outside allocators and collections, and the innermost frame of presim.
    fn place(&self, point: &Point, ours: &BTreeSet<String>) -> String {
        let frames: Vec<Frame<'_>> = point.frames.iter().filter_map(|at| Frame::parse(self.frames.get(*at)?)).collect();
        let caller = frames.iter().find(|frame| ours.contains(frame.file()));
        match (frames.iter().find(|frame| !frame.is_collection()), caller) {
            (Some(site), Some(caller)) if site.place != caller.place => format!("{site} < {caller}"),
            (Some(site), _) => site.to_string(),
            (None, _) => "?".to_owned(),
        }
    }
}

/// A frame in dhat's format: `0x1234: name<generics> (end/of/path.rs:line:column)`.
struct Frame<'a> {
    name: &'a str,
    /// The end of the path, the line and the column.
    place: &'a str,
}

impl<'a> Frame<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (name, place) = text.split_once(": ")?.1.rsplit_once(" (")?;
        let name = if name.starts_with('<') { name } else { name.split('<').next().unwrap_or(name) };
        Some(Self { name, place: place.trim_end_matches(')') })
    }

    fn file(&self) -> &'a str {
        self.place.split(':').next().unwrap_or(self.place)
    }

    fn is_collection(&self) -> bool {
        const COLLECTIONS: [&str; 17] = [
            "dhat-",
            "src/alloc",
            "alloc/src",
            "src/boxed",
            "src/raw_vec",
            "src/vec",
            "src/string",
            "src/slice",
            "src/fmt",
            "core/src",
            "src/iter",
            "iter/",
            "src/collections",
            "collections/hash",
            "hashbrown-",
            "src/raw/",
            "bytes-",
        ];
        self.name.starts_with("__rust") || COLLECTIONS.iter().any(|start| self.place.starts_with(start))
    }
}

impl fmt::Display for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.place)
    }
}

/// Returns presim's source files as dhat names files: by the last three components of their paths.
fn own_files() -> BTreeSet<String> {
    let mut folders = vec![PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
    let mut files = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the source is there").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let parts: Vec<_> = path.iter().collect();
                files.insert(parts[parts.len() - 3..].iter().collect::<PathBuf>().display().to_string());
            }
        }
    }
    files
}

/// A connection that allocates nothing during a request.
struct Client {
    stream: TcpStream,
    head: Vec<u8>,
    answer: Vec<u8>,
}

impl Client {
    fn connect(node: &Node) -> Self {
        let stream = TcpStream::connect(node.info().listen.expect("it listens")).expect("the node listens");
        stream.set_nodelay(true).expect("a socket option");
        Self { stream, head: Vec::with_capacity(256), answer: vec![0; 16 << 20] }
    }

    fn ask(&mut self, body: &Body) {
        self.head.clear();
        write!(
            self.head,
            "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.text.len()
        )
        .expect("it is memory");
        self.stream.write_all(&self.head).expect("it is sent");
        self.stream.write_all(body.text.as_bytes()).expect("it is sent");
        let (mut read, mut whole) = (0, usize::MAX);
        while read < whole {
            read += self.stream.read(&mut self.answer[read..]).expect("it is answered");
            if whole == usize::MAX {
                whole = length(&self.answer[..read]).unwrap_or(whole);
            }
        }
        assert!(memchr::memmem::find(&self.answer[..read], b"\"result\"").is_some(), "an answer");
    }
}

/// Returns the length of an answer including its head, once the head is complete.
fn length(answer: &[u8]) -> Option<usize> {
    const LENGTH: &[u8] = b"content-length: ";
    let head = memchr::memmem::find(answer, b"\r\n\r\n")?;
    let at = memchr::memmem::find(&answer[..head], LENGTH)? + LENGTH.len();
    let digits = answer[at..].iter().take_while(|byte| byte.is_ascii_digit());
    Some(head + 4 + digits.fold(0, |length, digit| 10 * length + usize::from(digit - b'0')))
}
