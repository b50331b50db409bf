//! presim maintains the pre-confirmed state of an EVM chain and answers over JSON-RPC what calls and bundles would do
//! on it.
//!
//! Users run the program: `cargo run --release` starts a node on `127.0.0.1:8545` with a devnet, and `presim --help`
//! lists every flag. The `README.md` next to `Cargo.toml` begins with a first simulation; `src/README.md` explains the
//! architecture.
//!
//! Programs that embed a node use [`Node`]: it starts from a [`Config`], inside of any asynchronous runtime or without one,
//! and answers without HTTP and JSON.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use alloy_primitives::{U256, address};
//! use presim::{Config, Node, simulation::{Call, SimBlock, Simulation}};
//!
//! // The built-in devnet; `Config::following("wss://…")` follows a node.
//! let node = Node::start(Config::default()).await?;
//! let from = address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266");
//! let pay = Call::to(address!("70997970C51812dc3A010C7d01b50e0d17dc79C8")).with_from(from).with_value(U256::from(1));
//! // Two blocks: the first continues the block being built, where the bundle would be included.
//! let bundle = Simulation::of([SimBlock::of([pay.clone()]), SimBlock::of([pay])]);
//! let simulated = node.simulate(&bundle).await?;
//! assert_eq!(simulated.gas_used, 42_000);
//! node.stop().await;
//! # Ok(()) }
//! ```
//!
//! presim is not on crates.io. A program depends on a checkout, and on the crates of alloy whose types it uses:
//!
//! ```toml
//! [dependencies]
//! presim = { path = "../presim" }
//! alloy-primitives = "1.5"
//! # For headers and signed transactions.
//! alloy-consensus = "2"
//! futures = "0.3"
//! tokio = { version = "1", features = ["macros", "rt-multi-thread"] }
//! ```
//!
//! A copy of presim's `Cargo.lock`, made before the first build, gives the program the versions that presim is tested with.
//! In a build without optimisation the EVM is slow, unless the program's `Cargo.toml` has the `[profile.dev.package.*]`
//! sections of presim's.
//!
//! What a node can be asked:
//!
//! | you want to | use |
//! |---|---|
//! | read the newest block context, an account or a slot | [`Node::snapshot`], [`Node::account`], [`Node::storage`] |
//! | run one call, or a bundle of calls in blocks | [`Node::call`], [`Node::simulate`] |
//! | find the best amount, or other values, of a bundle | [`Node::search`] with a [`Search`] |
//! | act on each snapshot | [`Node::watch`], a [`Stream`](futures::Stream) |
//! | have several answers of one state | the methods that end in `_on`, such as [`Node::simulate_on`] |
//! | give the sub-blocks yourself | [`Node::start_fed`] and its [`Feeder`] |
//!
//! The types of bundles and results are in [`simulation`]. `examples/` has a program for each row. Until 1.0, a minor
//! version may change signatures; `docs/stability.md` lists the parts that are stable.
//!
//! # For maintainers
//!
//! The modules are layers. Each uses only the ones below it:
//!
//! - [`testing`]: the items that the tests and benches of the project use.
//! - [`library`]: the library: a node inside of another program.
//! - [`program`]: the program: reads the command line, and runs a node or asks one.
//! - [`command`]: the command line: run a node, simulate, search, watch and trace, or approve for a wallet.
//! - [`node`]: wires the actors together, and defines the order of start and shutdown.
//! - [`config`]: the settings, from flags, environment and file.
//! - [`page`]: the page for browsers: its files.
//! - [`rpc`]: servers, methods, wire types of the two dialects, error codes and limits.
//! - [`fleet`]: fleets: many machines that answer from one feed, over NATS.
//! - [`watch`]: standing bundles: they run again when a snapshot may have changed their answers.
//! - [`search`]: searches for the values of a bundle that optimise an objective.
//! - [`wallet`]: EIP-5792 batches: rules, signing, approval and the ledger.
//! - [`source`]: the sources of state, and the one actor that turns them into snapshots.
//! - [`publish`]: where changes are written before they are visible: the sink of a feed, and the journal on disk.
//! - [`upstream`]: the node that is followed: its heads, its blocks, and the state that is missing here.
//! - [`pool`]: the transaction pool.
//! - [`scheduler`]: where and when each request runs, and which requests are rejected.
//! - [`engine`]: pure simulation, from a snapshot and a request to a result.
//! - [`ledger`]: the published chain: snapshots with their block context, history, and the records of changes.
//! - [`store`]: the durable store: one file, and group commits.
//! - [`state`]: immutable worlds, the cache of an upstream's state, and the overlay of a run.
//! - [`chain`]: chain rules: forks, genesis, blocks and headers.
//! - [`abi`]: names and parameters of usual functions, events and errors, and of ABI files.
//! - [`meter`]: bounds on how long a run may take.
//! - [`telemetry`]: logs and metrics.
//! - [`clock`]: the time, of the system or of a test.
//! - [`secrets`]: files and settings with secrets.
//! - [`objects`]: parses users' text, in which structs are objects, never arrays.
//! - [`nearest`]: names that a user may have meant.
//! - [`shown`]: displays text of third parties, and URLs with secrets.
//! - [`unix_socket`]: Unix sockets that only the user of the process may open.
//! - [`lock`]: locks that the meter knows about.

// Locks must be the types of `lock`.
#![warn(clippy::disallowed_types)]
// Text of users is read by `objects`.
#![warn(clippy::disallowed_methods)]

mod abi;
mod chain;
mod clock;
mod command;
mod config;
mod engine;
#[cfg(test)]
#[expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "neither the meter nor users are here")]
mod faults;
mod fleet;
mod ledger;
mod library;
mod lock;
mod meter;
mod nearest;
mod node;
mod objects;
mod page;
mod pool;
mod program;
#[expect(clippy::disallowed_methods, reason = "the journal reads what it has written")]
mod publish;
mod rpc;
mod scheduler;
mod search;
mod secrets;
mod shown;
#[expect(clippy::disallowed_methods, reason = "feeds are written by other nodes")]
mod source;
mod state;
mod store;
mod telemetry;
#[doc(hidden)]
pub mod testing;
mod unix_socket;
#[expect(clippy::disallowed_methods, reason = "answers are written by other nodes")]
mod upstream;
mod wallet;
mod watch;

pub use self::library::*;
#[doc(hidden)]
pub use self::program::run as run_program;

/// The Rust examples of this README, as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../tests/clients/README.md")]
struct ClientsReadme;
