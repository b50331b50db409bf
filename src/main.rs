//! The program. Its code is in the library, so that the compiler detects unused code.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    presim::run_program()
}
