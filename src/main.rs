//! The program. Its code is in the library, so that the compiler sees what is unused.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    presim::run_program()
}
