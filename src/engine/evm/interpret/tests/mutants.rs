//! The programs find every mistake that an opcode of a stretch could have. Each mistake is made in revm's loop, which
//! is then compared with itself.

use std::io::Write;

use proptest::strategy::ValueTree;
use revm::bytecode::opcode::*;

use super::*;

/// The programs in which each mistake must be found.
const PROGRAMS: usize = 1_500;

/// The state of a frame before an opcode runs.
struct Before {
    op: u8,
    words: Vec<U256>,
    gas: u64,
    memory: usize,
    code: Bytes,
}

impl Before {
    fn word(&self, depth: usize) -> Option<U256> {
        self.words.len().checked_sub(depth + 1).map(|index| self.words[index])
    }

    fn both(&self, test: impl Fn(U256, U256) -> bool) -> bool {
        matches!((self.word(0), self.word(1)), (Some(top), Some(under)) if test(top, under))
    }

    fn top(&self, test: impl Fn(U256) -> bool) -> bool {
        self.word(0).is_some_and(test)
    }
}

/// The situation in which an opcode is wrong.
type When = fn(&Before) -> bool;

#[derive(Clone, Copy, Debug)]
enum Mistake {
    AnotherWord,
    AnotherGas,
    /// The opcode ends the frame, as if there were not enough gas.
    OutOfGas,
}

/// An opcode that is wrong in one situation.
struct Mutant {
    op: u8,
    situation: &'static str,
    when: When,
    mistake: Mistake,
}

const SIGN: usize = 255;

/// Returns the situations of an opcode.
fn situations(op: u8) -> Vec<(&'static str, When)> {
    let mut all: Vec<(&'static str, When)> = vec![("any", |_| true)];
    let binary: [(&'static str, When); 6] = [
        ("the top is zero", |at| at.both(|top, _| top.is_zero())),
        ("the word below is zero", |at| at.both(|_, under| under.is_zero())),
        ("both are equal", |at| at.both(|top, under| top == under)),
        ("the signs differ", |at| at.both(|top, under| top.bit(SIGN) != under.bit(SIGN))),
        ("both are negative", |at| at.both(|top, under| top.bit(SIGN) && under.bit(SIGN))),
        ("the order of the lowest limbs is another", |at| {
            at.both(|top, under| (top < under) != (top.as_limbs()[0] < under.as_limbs()[0]))
        }),
    ];
    match op {
        PUSH0..=PUSH32
        | DUP1..=DUP16
        | PC
        | GAS
        | MSIZE
        | CALLDATASIZE
        | CALLVALUE
        | CALLER
        | ADDRESS
        | RETURNDATASIZE => {
            all.push(("the stack is full", |at| at.words.len() == 1024));
            all.push(("the stack becomes full", |at| at.words.len() == 1023));
        }
        ADD | MUL | SUB | DIV | MOD | LT | GT | SLT | SGT | EQ | AND | OR | XOR => all.extend(binary),
        SHL | SHR => all.extend([
            ("no bits", (|at| at.top(|top| top.is_zero())) as When),
            ("255 bits", |at| at.top(|top| top == U256::from(255))),
            ("256 bits", |at| at.top(|top| top == U256::from(256))),
            ("bits in a higher limb", |at| at.top(|top| top > U256::from(u64::MAX) && top.as_limbs()[0] == 0)),
        ]),
        CALLDATALOAD => all.extend([
            ("within the data", (|at| at.top(|top| top <= U256::from(8))) as When),
            ("at the data's end", |at| at.top(|top| top > U256::from(8) && top < U256::from(40))),
            ("behind the data", |at| at.top(|top| top >= U256::from(40))),
        ]),
        ISZERO => {
            all.push(("a word with a higher limb alone", |at| at.top(|top| !top.is_zero() && top.as_limbs()[0] == 0)))
        }
        MLOAD | MSTORE => all.extend([
            (
                "at the memory's end",
                (|at| at.top(|top| top.checked_add(U256::from(32)) == Some(U256::from(at.memory)))) as When,
            ),
            ("one byte behind the memory", |at| {
                at.top(|top| top.checked_add(U256::from(31)) == Some(U256::from(at.memory)))
            }),
            ("the memory grows by several words", |at| {
                at.top(|top| top >= U256::from(at.memory + 32) && top < U256::from(4_096))
            }),
            ("an offset in a higher limb", |at| at.top(|top| top > U256::from(u64::MAX) && top.as_limbs()[0] == 0)),
        ]),
        JUMP | JUMPI => all.extend([
            (
                "into the data of a push",
                (|at| {
                    let Some(to) = at.word(0).and_then(|to| usize::try_from(to).ok()) else { return false };
                    at.code.get(to) == Some(&JUMPDEST)
                        && Bytecode::new_legacy(at.code.clone())
                            .legacy_jump_table()
                            .is_some_and(|jumps| !jumps.is_valid(to))
                        && at.word(1).is_none_or(|condition| at.op == JUMP || !condition.is_zero())
                }) as When,
            ),
            ("to a label, with a higher limb", |at| {
                at.top(|to| to > U256::from(u64::MAX) && at.code.get(to.as_limbs()[0] as usize) == Some(&JUMPDEST))
            }),
        ]),
        _ => {}
    }
    if op == JUMPI {
        all.push(("a condition of a higher limb alone", |at| {
            at.word(1).is_some_and(|condition| !condition.is_zero() && condition.as_limbs()[0] == 0)
        }));
        all.push(("no jump to a wrong place", |at| {
            at.both(|to, condition| condition.is_zero() && to > U256::from(24_576))
        }));
    }
    if op != PUSH0 {
        all.push(("one unit of gas is missing", |at| at.gas == price(at.op) - 1));
    }
    let needs = match op {
        DUP1..=DUP16 => usize::from(op - DUP1) + 1,
        SWAP1..=SWAP16 => usize::from(op - SWAP1) + 2,
        _ => 0,
    };
    if needs > 0 {
        all.push(("one word is missing", |at| {
            let needs = if at.op >= SWAP1 { at.op - SWAP1 + 2 } else { at.op - DUP1 + 1 };
            at.words.len() + 1 == usize::from(needs)
        }));
    }
    all
}

/// Returns the gas cost of an opcode of a stretch.
const fn price(op: u8) -> u64 {
    match op {
        JUMPDEST => 1,
        PUSH0 | POP | PC | GAS | MSIZE | CALLDATASIZE | CALLVALUE | CALLER | ADDRESS | RETURNDATASIZE => 2,
        MUL | DIV | MOD => 5,
        JUMP => 8,
        JUMPI => 10,
        _ => 3,
    }
}

fn mutants() -> Vec<Mutant> {
    let rest = [
        ADD,
        MUL,
        SUB,
        DIV,
        MOD,
        LT,
        GT,
        SLT,
        SGT,
        EQ,
        ISZERO,
        AND,
        OR,
        XOR,
        NOT,
        SHL,
        SHR,
        POP,
        JUMPDEST,
        JUMP,
        JUMPI,
        PC,
        GAS,
        MSIZE,
        MLOAD,
        MSTORE,
        CALLDATALOAD,
        CALLDATASIZE,
        CALLVALUE,
        CALLER,
        ADDRESS,
        RETURNDATASIZE,
    ];
    let mutants = |op: u8| {
        let leaves_word = !matches!(op, POP | JUMPDEST | JUMP | JUMPI | MSTORE);
        let mistake = if leaves_word { Mistake::AnotherWord } else { Mistake::AnotherGas };
        let last = |at: &Before| at.gas == price(at.op);
        let rest = [
            Mutant { op, situation: "any", when: |_| true, mistake: Mistake::AnotherGas },
            Mutant { op, situation: "the last unit of gas", when: last, mistake: Mistake::OutOfGas },
        ];
        let situations = situations(op).into_iter();
        situations.map(move |(situation, when)| Mutant { op, situation, when, mistake }).chain(rest)
    };
    (PUSH0..=SWAP16).chain(rest).flat_map(mutants).collect()
}

impl FrameRun {
    /// Runs the program in revm's loop, with a mistake. Returns `None` if the program has no such situation.
    fn mutated(&self, mutant: &Mutant) -> Option<End> {
        let (mut made, mut ends_wrong) = (false, false);
        let end = self.run(Meter::default(), |frame, instructions, host| {
            let end = loop {
                let before = (frame.bytecode.opcode() == mutant.op).then(|| Before {
                    op: mutant.op,
                    words: frame.stack.data().clone(),
                    gas: frame.gas.remaining(),
                    memory: frame.memory.len(),
                    code: self.code.clone(),
                });
                let mut stepped = step(frame, instructions, host);
                if before.is_some_and(|before| (mutant.when)(&before)) {
                    made = true;
                    match (mutant.mistake, frame.stack.data_mut().last_mut()) {
                        (Mistake::AnotherWord, Some(top)) => *top ^= U256::ONE,
                        (Mistake::OutOfGas, _) => {
                            // The opcode may have ended the frame itself, and an end is set only once.
                            frame.bytecode.reset_action();
                            *frame.bytecode.action() = None;
                            stepped = Err(InstructionResult::OutOfGas);
                        }
                        _ if stepped.is_ok() => frame.gas.set_remaining(frame.gas.remaining() ^ 1),
                        _ => ends_wrong = true,
                    }
                }
                if let Err(end) = stepped {
                    break end;
                }
            };
            let action = next_action(frame, end);
            if ends_wrong {
                frame.gas.set_remaining(frame.gas.remaining() ^ 1);
            }
            action
        });
        made.then_some(end)
    }
}

#[test]
fn a_mistake_in_any_opcode_is_found() {
    let mut runner = TestRunner::deterministic();
    let strategy = frame_programs();
    let runs: Vec<FrameRun> = (0..PROGRAMS)
        .flat_map(|_| strategy.new_tree(&mut runner).expect("a program").current().runs())
        .filter(|run| run.spec.is_enabled_in(SpecId::SHANGHAI))
        .collect();
    let ends: Vec<End> = runs.iter().map(|run| run.revms(Meter::default())).collect();
    let (mut found, mut missed) = (0, Vec::new());
    for mutant in mutants() {
        let is_found = runs.iter().zip(&ends).any(|(run, end)| run.mutated(&mutant).is_some_and(|other| other != *end));
        if is_found {
            found += 1;
        } else {
            let name = revm::bytecode::OpCode::new(mutant.op).map_or("?", |op| op.as_str());
            missed.push(format!("{name}: {}: {:?}", mutant.situation, mutant.mistake));
        }
    }
    let _ = writeln!(std::io::stderr(), "mutants: {found} found in {PROGRAMS} programs");
    assert!(
        missed.is_empty(),
        "{} of {} mistakes are not found:\n{}",
        missed.len(),
        found + missed.len(),
        missed.join("\n")
    );
}
