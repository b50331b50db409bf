//! The command line of the load test; the crate `loadtest` does the work.

use std::process::ExitCode;

// The generator shares its machine with the target: the less it costs, the more load it can generate.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    loadtest::command(std::env::args_os())
}
