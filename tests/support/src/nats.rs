//! A NATS server of a test: loopback only, a free port, its data in a directory of its own.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::Instant,
};

use tempfile::TempDir;

use crate::{BOUND, skip};

/// A NATS server with streams, which is killed when dropped.
pub struct NatsServer {
    pub child: Child,
    program: &'static Path,
    pub port: u16,
    pub data: TempDir,
    config: Vec<String>,
}

/// The part of a server's configuration that gives its streams room.
const ROOM: &str = "8GB";

/// Where the program of the server may be.
pub const PROGRAMS: [&str; 3] = ["nats-server", "/usr/sbin/nats-server", "/usr/local/bin/nats-server"];

/// Returns the program of the server; `None` if there is none on this machine.
pub fn program() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let runs = |path: &PathBuf| {
        Command::new(path).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    let found = FOUND.get_or_init(|| PROGRAMS.map(PathBuf::from).into_iter().find(runs));
    if found.is_none() {
        skip("nats-server is not installed (Debian: apt-get install nats-server)");
    }
    found.as_deref()
}

impl NatsServer {
    /// Starts a server; `None` if there is none on this machine.
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// Starts a server with more lines in its configuration.
    pub fn start_with(more: &[&str]) -> Option<Self> {
        Self::start_in(ROOM, more)
    }

    /// Starts a server whose streams have so much room on the disk, with more lines in its configuration.
    pub fn start_in(room: &str, more: &[&str]) -> Option<Self> {
        let program = program()?;
        let data = tempfile::tempdir().expect("a directory");
        let streams =
            format!("jetstream {{ store_dir: {:?}, max_file_store: {room} }}", data.path().display().to_string());
        let config: Vec<String> = [streams].into_iter().chain(more.iter().map(ToString::to_string)).collect();
        let child = run(program, data.path(), -1, &config);
        let port = port_of(&child, program, data.path());
        Some(Self { child, program, port, data, config })
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Kills the server at once, without letting it write anything more.
    pub fn kill(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
    }

    /// Starts the server again, on the same port and data.
    pub fn restart(&mut self) {
        self.kill();
        self.child = run(self.program, self.data.path(), i32::from(self.port), &self.config);
        port_of(&self.child, self.program, self.data.path());
    }

    /// Returns a connection to the server.
    pub async fn connect(&self) -> async_nats::Client {
        async_nats::connect(self.url()).await.expect("the server answers")
    }

    /// Returns the stream of a fleet.
    pub async fn stream(&self, fleet: &str) -> async_nats::jetstream::stream::Stream {
        let jetstream = async_nats::jetstream::new(self.connect().await);
        jetstream.get_stream(format!("presim_{fleet}")).await.expect("the fleet has a stream")
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn run(program: &Path, data: &Path, port: i32, more: &[String]) -> Child {
    let text = format!(
        "host: 127.0.0.1\nport: {port}\nports_file_dir: {:?}\n{}\n",
        data.display().to_string(),
        more.join("\n")
    );
    let config = data.join("server.conf");
    std::fs::write(&config, text).expect("it is written");
    let log = std::fs::File::options().create(true).append(true).open(data.join("log")).expect("a log");
    Command::new(program)
        .arg("-c")
        .arg(config)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("the server runs")
}

/// Waits until the server has told its ports.
fn port_of(child: &Child, program: &Path, data: &Path) -> u16 {
    let name = program.file_name().expect("a program").to_string_lossy();
    let file = data.join(format!("{name}_{}.ports", child.id()));
    let begun = Instant::now();
    loop {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let url = text.split('"').find(|part| ["nats://", "tls://"].iter().any(|scheme| part.starts_with(scheme)));
        if let Some(port) = url.and_then(|url| url.rsplit_once(':')?.1.parse().ok()) {
            return port;
        }
        let log = || std::fs::read_to_string(data.join("log")).unwrap_or_default();
        assert!(begun.elapsed() < BOUND, "the server does not start: {}", log());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
