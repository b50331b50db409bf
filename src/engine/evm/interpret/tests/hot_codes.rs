//! The conditions under which a code is hot, and the bounds on the blocks that a thread keeps.

use std::{sync::Arc, time::Instant};

use super::*;
use crate::{lock::Mutex, meter::Pause};

/// A program that passes a destination `count` times, and adds up a sum. Each time it has an opcode that ends a stretch.
fn counting(count: u32) -> Bytes {
    let [a, b, c, d] = count.to_be_bytes();
    // The sum is under the counter.
    let code = [0x5f, opcode::PUSH4, a, b, c, d, opcode::JUMPDEST, opcode::ORIGIN, opcode::POP]
        .into_iter()
        .chain([opcode::SWAP1, opcode::DUP2, opcode::ADD])
        .chain([opcode::SWAP1, opcode::PUSH1, 1, opcode::SWAP1, opcode::SUB, opcode::DUP1, opcode::PUSH1, 6])
        .chain([opcode::JUMPI, opcode::POP, opcode::PUSH0, opcode::MSTORE, opcode::PUSH1, 32, opcode::PUSH0])
        .chain([opcode::RETURN])
        .collect::<Vec<_>>();
    code.into()
}

fn run(code: Bytes) -> FrameRun {
    FrameRun::new(code, SpecId::OSAKA, 10_000_000)
}

/// Runs the code here and in revm, and compares the ends.
fn check(run: &FrameRun) {
    assert_eq!(run.ours(Meter::default()), run.revms(Meter::default()));
}

fn hot_codes() -> usize {
    hot::tests::blocks().0
}

#[test]
fn a_code_is_hot_after_so_many_ticks_in_all_its_frames() {
    hot::tests::forget(1_000);
    // A run that begins a stride counts the first tick only as a beginning.
    let run = run(counting(301));
    for frames in 1..=3 {
        check(&run);
        assert_eq!(hot_codes(), 0, "after {frames} frames");
    }
    check(&run);
    assert_eq!(hot_codes(), 1);
    check(&run);
    assert_eq!(hot_codes(), 1);
}

#[test]
fn short_frames_make_no_code_hot() {
    hot::tests::forget_short(1_000, 512);
    let frames = |count, times| (0..times).for_each(|_| check(&run(counting(count))));
    // The first tick of a run is no destination.
    frames(512, 10);
    assert_eq!(hot_codes(), 0);
    frames(513, 1);
    assert_eq!(hot_codes(), 0);
    frames(513, 1);
    assert_eq!(hot_codes(), 1);
    // The beginning of the code, which did not run in blocks yet, is translated once.
    frames(513, 1);
    let size = hot::tests::blocks().1;
    frames(513, 3);
    assert_eq!(hot::tests::blocks(), (1, size));
}

#[test]
fn a_code_becomes_hot_in_the_middle_of_a_frame() {
    // The sum of all counters needs each iteration to run once, whether in a stretch or in a block.
    for count in [999, 1_000, 5_000, 20_000] {
        hot::tests::forget(1_000);
        let run = run(counting(count));
        check(&run);
        assert_eq!(hot_codes(), usize::from(count > 1_000), "{count} iterations");
        let stops = FrameRun { code: counting(u32::MAX), gas: u64::MAX, ..run };
        assert_eq!(stops.ours(Meter::short(3)), stops.revms(Meter::short(3)));
    }
}

#[test]
fn forks_have_blocks_of_their_own() {
    hot::tests::forget(0);
    let run = run(counting(10));
    let forks = &FORKS[1..];
    for spec in forks.iter().chain(forks) {
        check(&FrameRun { spec: *spec, ..run.clone() });
    }
    assert_eq!(hot_codes(), forks.len());
    check(&FrameRun { spec: FORKS[0], ..run });
    assert_eq!(hot_codes(), forks.len());
}

#[test]
fn a_code_without_a_known_hash_has_no_blocks() {
    hot::tests::forget(0);
    let run = run(counting(10));
    let end = run.run(Meter::default(), |frame, instructions, host| {
        frame.bytecode = ExtBytecode::new(Bytecode::new_legacy(run.code.clone()));
        interpret(frame, instructions.instruction_table(), instructions.gas_table(), host)
    });
    assert_eq!(end, run.revms(Meter::default()));
    assert_eq!(hot_codes(), 0);
}

#[test]
fn blocks_run_for_no_other_code_of_the_same_hash() {
    hot::tests::forget(0);
    let (one, other) = (run(counting(10)), counting(11));
    check(&one);
    check(&FrameRun { code: other, ..one.clone() });
    check(&FrameRun { code: Bytes::from_static(&[opcode::PUSH1, 1, opcode::STOP]), ..one.clone() });
    check(&one);
}

#[test]
fn of_two_codes_in_one_slot_the_one_with_more_ticks_has_it() {
    let other = |ticks, one: &FrameRun| {
        let codes = (0_u16..).map(|tail| [&counting(ticks)[..], &tail.to_be_bytes()].concat());
        codes.map(|code| run(code.into())).find(|run| run.hash[0] == one.hash[0]).unwrap()
    };
    hot::tests::forget(1_000);
    let one = run(counting(2_001));
    // However often it runs, it has the ticks of twice the threshold.
    check(&one);
    check(&one);
    assert_eq!(hot_codes(), 1);
    // 1,900 ticks of others leave the code its slot, and 200 more do not.
    for _ in 0..19 {
        check(&other(101, &one));
    }
    assert_eq!(hot_codes(), 1);
    check(&other(301, &one));
    assert_eq!(hot_codes(), 0);
    // The newcomer is not hot yet, and the old one must earn its slot again.
    for _ in 0..3 {
        check(&other(301, &one));
    }
    assert_eq!(hot_codes(), 1);
    check(&one);
    assert_eq!(hot_codes(), 1);
}

/// A loop over about `length` bytes of pushes, nearly all of different words. The code has `length` bytes.
fn long(length: usize) -> Bytes {
    let mut code = vec![opcode::PUSH1, 3, opcode::JUMPDEST];
    for number in 0_u32.. {
        if code.len() + 13 > length {
            break;
        }
        let [_, a, b, c] = number.to_be_bytes();
        code.extend([opcode::PUSH3, a, b, c, opcode::POP]);
    }
    code.extend([opcode::PUSH1, 1, opcode::SWAP1, opcode::SUB, opcode::DUP1, opcode::PUSH1, 2, opcode::JUMPI]);
    code.resize(length, opcode::STOP);
    code.into()
}

#[test]
fn a_code_of_more_than_64_kib_has_no_blocks() {
    for (length, hot) in [(65_536, 1), (65_537, 0)] {
        hot::tests::forget(0);
        check(&run(long(length)));
        assert_eq!(hot_codes(), hot, "{length} bytes");
    }
}

#[test]
fn a_thread_keeps_few_blocks() {
    hot::tests::forget(0);
    let (mut emptied, mut most) = (0, 0);
    for tail in 0..60_u8 {
        let before = hot_codes();
        check(&run([&long(60_000)[..], &[tail]].concat().into()));
        let (codes, size) = hot::tests::blocks();
        assert!(size <= hot::tests::MAX_SIZE);
        most = most.max(size);
        emptied += usize::from(codes < before && codes == 0);
    }
    assert!(emptied > 1 && most > hot::tests::MAX_SIZE / 2, "{emptied} times of at most {most}");
}

#[test]
fn a_frame_runs_while_another_of_the_same_code_pauses() {
    hot::tests::forget(0);
    let run = run(counting(20_000));
    let ends = Arc::new(Mutex::new(Vec::new()));
    let other = FrameRun { gas: 50_000, ..run.clone() };
    let pause = {
        let (ends, other) = (ends.clone(), other.clone());
        Pause::new(move || {
            let end = other.ours(Meter::default());
            ends.lock().push(end);
        })
    };
    let deadline = Instant::now() + Duration::from_secs(3600);
    assert_eq!(run.ours(Meter::until(deadline, Arc::default(), Some(pause))), run.revms(Meter::default()));
    let ends = ends.lock();
    assert!(ends.len() >= 4);
    for end in &*ends {
        assert_eq!(end, &other.revms(Meter::default()));
    }
}
