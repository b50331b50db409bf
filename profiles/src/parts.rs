//! The parts of the program that stacks belong to.

use crate::perf::Stack;

/// The parts of frames of presim and its libraries: a part of the frame's name, and the part. A stack belongs to the part of
/// its innermost frame that has one. The first matching rule decides. `^` matches the beginning of the name.
const PARTS: &[(&str, &str)] = &[
    ("^_mi_", ALLOCATION),
    ("^mi_", ALLOCATION),
    ("^__rust_", ALLOCATION),
    ("const_hex::decode", PARSE),
    ("const_hex::check", PARSE),
    ("const_hex", ENCODE),
    ("presim::rpc::encode", ENCODE),
    ("serde_json::ser", ENCODE),
    ("presim::rpc::wire", PARSE),
    ("presim::rpc::hex", PARSE),
    ("presim::rpc::envelope", PARSE),
    ("serde", PARSE),
    ("presim::feed", FEED),
    ("presim::rpc::subscriptions", FEED),
    ("presim::state::snapshots", FEED),
    ("presim::state::overlay", OVERLAY),
    ("presim::state", STATE),
    ("imbl::", STATE),
    ("revm_context::journal", JOURNAL),
    ("journaled_state", JOURNAL),
    ("alloy_trie", ROOTS),
    ("alloy_rlp", ROOTS),
    ("alloy_consensus", ROOTS),
    ("presim::chain", ROOTS),
    ("presim::engine::fees::unsigned_tx", ROOTS),
    ("revm_precompile", "precompiles"),
    ("presim::engine::evm::interpret", INTERPRETER),
    ("revm_interpreter", INTERPRETER),
    // The interpreter's loop is inlined into these two.
    ("revm_handler::handler::Handler::execution", INTERPRETER),
    ("alloy_evm::evm::Evm>::transact_raw", INTERPRETER),
    ("revm", HANDLER),
    ("alloy_evm", HANDLER),
    ("presim::engine", "simulation around the EVM"),
    ("presim::scheduler", EXECUTOR),
    ("rayon", EXECUTOR),
    ("crossbeam", EXECUTOR),
    ("metrics", "metrics"),
    ("presim::rpc", "front: routing, envelope, headers"),
    ("hyper", HYPER),
    ("httparse", HYPER),
    ("httpdate", HYPER),
    ("http::", HYPER),
    ("tower", HYPER),
    ("tokio", TOKIO),
    ("mio::", TOKIO),
];

const ALLOCATION: &str = "allocation (mimalloc)";
const PARSE: &str = "parse";
const ENCODE: &str = "encode";
const FEED: &str = "feed and publishing";
const OVERLAY: &str = "overlay";
const STATE: &str = "state reads";
const JOURNAL: &str = "journal";
const ROOTS: &str = "roots, receipts, transactions";
const INTERPRETER: &str = "EVM: interpreter";
const HANDLER: &str = "EVM: handler and frames";
const EXECUTOR: &str = "executor hop";
const HYPER: &str = "hyper";
const TOKIO: &str = "tokio";

/// The parts of kernel frames, by the outermost frame that says why the kernel was entered.
const KERNEL: &[(&str, &str)] = &[
    ("futex", "kernel: threads that wait and wake"),
    ("sched_yield", "kernel: threads that wait and wake"),
    ("epoll", "kernel: epoll"),
    ("eventfd", "kernel: epoll"),
    ("send", "kernel: network"),
    ("write", "kernel: network"),
    ("recv", "kernel: network"),
    ("read", "kernel: network"),
    ("page_fault", "kernel: page faults"),
    ("mmap", "kernel: page faults"),
    ("munmap", "kernel: page faults"),
    ("madvise", "kernel: page faults"),
];

/// Returns the part that a stack belongs to.
pub fn part(stack: &Stack) -> &'static str {
    let frames = &stack.frames[1..];
    if stack.innermost().ends_with("_[k]") {
        let why = frames.iter().filter(|frame| frame.ends_with("_[k]")).find_map(|frame| rule(KERNEL, frame));
        return why.unwrap_or("kernel: interrupts and the rest");
    }
    let keccak = |frame: &String| frame.to_lowercase().contains("keccak");
    if frames.last().is_some_and(keccak) {
        let opcode = frames.iter().any(|frame| frame.contains("instructions::system::keccak256"));
        return if opcode { "keccak: the opcode" } else { "keccak: hashes, roots, blooms" };
    }
    frames.iter().rev().find_map(|frame| rule(PARTS, frame)).unwrap_or("other")
}

fn rule(rules: &[(&str, &'static str)], frame: &str) -> Option<&'static str> {
    let fits = |part: &str| part.strip_prefix('^').map_or(frame.contains(part), |begin| frame.starts_with(begin));
    rules.iter().find(|(part, _)| fits(part)).map(|(_, part)| *part)
}
