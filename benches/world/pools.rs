//! The computations of pools, in the form in which compilers emit them: the invariant of a stable pool with checked
//! arithmetic and all variables in memory, and the conversion between ticks and square roots of prices on the stack.
//!
//! The programs are text: names of opcodes, numbers to push, `:name` for a destination and `@name` to push it.

use std::{cell::Cell, collections::HashMap, fmt::Write};

use alloy_primitives::U256;
use revm::bytecode::opcode::OpCode;

/// Returns the programs by their names. Each runs its computation several times.
pub fn pools() -> [(&'static str, Vec<u8>); 4] {
    const INVARIANT_AND_BALANCE: &str = "@d @get_d JUMP :d @y @get_y JUMP :y ";
    const PRICE_AND_TICK: &str = "@a DUP2 0x2f1d MUL 0x123 ADD @price JUMP :a @b SWAP1 @tick JUMP :b 0x80 MSTORE ";
    let larger = set(BALANCES + 32, &add(&var(BALANCES + 32), "3000000000000000000000000"));
    let stable = |coins| program(20, INVARIANT_AND_BALANCE, &[&balances(coins), &get_d(coins), &get_y(coins)]);
    let ticks = program(20, PRICE_AND_TICK, &["", &price_at(), &tick_at()]);
    let router = [PRICE_AND_TICK, &larger, INVARIANT_AND_BALANCE].concat();
    let router = program(6, &router, &[&balances(3), &get_d(3), &get_y(3), &price_at(), &tick_at()]);
    [("stable_2", stable(2)), ("stable_3", stable(3)), ("ticks", ticks), ("router", router)]
}

/// Returns a program that selects its function, begins with the first part, runs `body` `times` times, and has the functions
/// in the other parts.
fn program(times: u32, body: &str, parts: &[&str]) -> Vec<u8> {
    let others: String = (1_u32..=12).map(|other| format!("DUP1 {} EQ @fail JUMPI ", other * 0x0102_0304)).collect();
    let select = format!("0 CALLDATALOAD 0xe0 SHR {others} DUP1 0 EQ @go JUMPI :fail 0 DUP1 REVERT :go POP ");
    let repeat = format!("{times} :loop {body} 1 SWAP1 SUB DUP1 @loop JUMPI 0x20 {Y} RETURN ");
    assemble(&["0x80 0x40 MSTORE ", &select, parts[0], &repeat, &parts[1..].concat()].concat())
}

fn assemble(text: &str) -> Vec<u8> {
    let opcodes: HashMap<_, _> = (0..=u8::MAX).filter_map(|op| Some((OpCode::new(op)?.as_str(), op))).collect();
    let (mut code, mut labels, mut uses) = (Vec::new(), HashMap::new(), Vec::new());
    for word in text.split_whitespace() {
        if let Some(label) = word.strip_prefix(':') {
            labels.insert(label, code.len() as u16);
            code.push(0x5b);
        } else if let Some(label) = word.strip_prefix('@') {
            uses.push((code.len() + 1, label));
            code.extend([0x61, 0, 0]);
        } else if let Some(op) = opcodes.get(word) {
            code.push(*op);
        } else {
            let number: U256 = word.parse().expect(word);
            let bytes = number.to_be_bytes_trimmed_vec();
            // As before there was `PUSH0`.
            let bytes = if bytes.is_empty() { vec![0] } else { bytes };
            code.push(0x5f + bytes.len() as u8);
            code.extend(bytes);
        }
    }
    for (at, label) in uses {
        code[at..at + 2].copy_from_slice(&labels[label].to_be_bytes());
    }
    code
}

/// Returns a label that no other call returns.
fn label() -> String {
    thread_local!(static LABELS: Cell<u32> = const { Cell::new(0) });
    LABELS.set(LABELS.get() + 1);
    format!("l{}", LABELS.get())
}

// The places of variables in memory.
const BALANCES: u32 = 0x200;
const SUM: u32 = 0x300;
const PREVIOUS: u32 = 0x320;
const INVARIANT: u32 = 0x340;
const LEVERAGE: u32 = 0x360;
const ROUND: u32 = 0x380;
const PRODUCT: u32 = 0x3a0;
const COIN: u32 = 0x3c0;
const BALANCE: u32 = 0x3e0;
const Y: u32 = 0x400;
const C: u32 = 0x420;
const B: u32 = 0x440;

fn var(place: u32) -> String {
    format!("{place} MLOAD ")
}

fn set(place: u32, value: &str) -> String {
    format!("{value} {place} MSTORE ")
}

fn checked(a: &str, b: &str, check: &str, compute: &str) -> String {
    let ok = label();
    format!("{a} {b} {check} @{ok} JUMPI 0 DUP1 REVERT :{ok} {compute} ")
}

fn add(a: &str, b: &str) -> String {
    checked(a, b, "DUP2 DUP2 DUP4 ADD LT ISZERO", "DUP1 DUP3 ADD SWAP1 POP SWAP1 POP")
}

fn sub(a: &str, b: &str) -> String {
    checked(a, b, "DUP1 DUP3 LT ISZERO", "DUP1 DUP3 SUB SWAP1 POP SWAP1 POP")
}

fn mul(a: &str, b: &str) -> String {
    checked(a, b, "DUP1 DUP3 MUL DUP3 ISZERO DUP3 DUP5 DUP4 DIV EQ OR", "DUP1 SWAP1 POP SWAP1 POP SWAP1 POP")
}

fn div(a: &str, b: &str) -> String {
    checked(a, b, "DUP1 DUP1", "DUP3 DIV SWAP1 POP SWAP1 POP")
}

/// Runs `body` with the numbers from 0 to `times` at `counter`. The label `out` is behind the loop, and `next` at its end.
fn repeat(counter: u32, times: usize, body: &str, out: &str) -> String {
    let begin = label();
    format!(
        "{counter} 0 {times} DUP2 DUP4 MSTORE ADD :{begin} {body} :next{out} DUP2 MLOAD 1 ADD DUP1 DUP4 MSTORE DUP2 EQ ISZERO \
         @{begin} JUMPI :{out} POP POP "
    )
}

/// Jumps to `out` if two variables differ by one at most.
fn leave_if_close(a: u32, b: u32, out: &str) -> String {
    let (other, end) = (label(), label());
    let (a_less, b_less) = (sub(&var(a), &var(b)), sub(&var(b), &var(a)));
    format!(
        "{} {} GT ISZERO @{other} JUMPI 1 {a_less} GT ISZERO @{out} JUMPI @{end} JUMP \
         :{other} 1 {b_less} GT ISZERO @{out} JUMPI :{end} ",
        var(b),
        var(a)
    )
}

fn balances(coins: usize) -> String {
    let balances = ["170000000000000000000000000", "152000000000000000000000123", "63000000000000000000000077"];
    let places = (BALANCES..).step_by(32);
    places.zip(balances).take(coins).map(|(place, balance)| set(place, balance)).collect()
}

fn balance_of_coin() -> String {
    format!("{BALANCES} 0x20 {COIN} MLOAD MUL ADD MLOAD ")
}

/// The function `get_d`: the invariant of the balances, by Newton's method.
fn get_d(coins: usize) -> String {
    let [sums, products, out] = [label(), label(), label()];
    let n = &coins.to_string();
    let sum = set(BALANCE, &balance_of_coin()) + &set(SUM, &add(&var(SUM), &var(BALANCE)));
    let product = div(&mul(&var(PRODUCT), &var(INVARIANT)), &mul(&var(BALANCE), n));
    let product = set(BALANCE, &balance_of_coin()) + &set(PRODUCT, &product);
    let above = add(&mul(&var(LEVERAGE), &var(SUM)), &mul(&var(PRODUCT), n));
    let (all_but_one, one_more) = (sub(&var(LEVERAGE), "1"), (coins + 1).to_string());
    let below = add(&mul(&all_but_one, &var(INVARIANT)), &mul(&one_more, &var(PRODUCT)));
    let round = [
        set(PRODUCT, &var(INVARIANT)),
        repeat(COIN, coins, &product, &products),
        set(PREVIOUS, &var(INVARIANT)),
        set(INVARIANT, &div(&mul(&above, &var(INVARIANT)), &below)),
        leave_if_close(INVARIANT, PREVIOUS, &out),
    ];
    let function = [
        ":get_d ".to_owned(),
        set(SUM, "0"),
        repeat(COIN, coins, &sum, &sums),
        set(INVARIANT, &var(SUM)),
        set(LEVERAGE, &mul("200", n)),
        repeat(ROUND, 255, &round.concat(), &out),
        "JUMP ".to_owned(),
    ];
    function.concat()
}

/// The function `get_y`: the balance of the second coin after the first one has grown, by Newton's method.
fn get_y(coins: usize) -> String {
    let [coin_loop, out, other, known] = [label(), label(), label(), label()];
    let n = &coins.to_string();
    let first = set(BALANCE, &add(&var(BALANCES), "12345000000000000000000"));
    let select = format!(
        "{COIN} MLOAD 0 EQ ISZERO @{other} JUMPI {first} @{known} JUMP :{other} \
         {COIN} MLOAD 1 EQ @next{coin_loop} JUMPI {} :{known} ",
        set(BALANCE, &balance_of_coin())
    );
    let each = [
        select,
        set(SUM, &add(&var(SUM), &var(BALANCE))),
        set(C, &div(&mul(&var(C), &var(INVARIANT)), &mul(&var(BALANCE), n))),
    ];
    let above = add(&mul(&var(Y), &var(Y)), &var(C));
    let below = sub(&add(&mul("2", &var(Y)), &var(B)), &var(INVARIANT));
    let round = [set(PREVIOUS, &var(Y)), set(Y, &div(&above, &below)), leave_if_close(Y, PREVIOUS, &out)];
    let function = [
        ":get_y ".to_owned(),
        set(SUM, "0"),
        set(C, &var(INVARIANT)),
        repeat(COIN, coins, &each.concat(), &coin_loop),
        set(C, &div(&mul(&var(C), &var(INVARIANT)), &mul(&var(LEVERAGE), n))),
        set(B, &add(&var(SUM), &div(&var(INVARIANT), &var(LEVERAGE)))),
        set(Y, &var(INVARIANT)),
        repeat(ROUND, 255, &round.concat(), &out),
        "JUMP ".to_owned(),
    ];
    function.concat()
}

/// The square roots of 1.0001^-(2^k), from k = 1 on, with 128 binary digits.
const ROOTS: [u128; 19] = [
    0xfff97272373d413259a46990580e213a,
    0xfff2e50f5f656932ef12357cf3c7fdcc,
    0xffe5caca7e10e4e61c3624eaa0941cd0,
    0xffcb9843d60f6159c9db58835c926644,
    0xff973b41fa98c081472e6896dfb254c0,
    0xff2ea16466c96a3843ec78b326b52861,
    0xfe5dee046a99a2a811c461f1969c3053,
    0xfcbe86c7900a88aedcffc83b479aa3a4,
    0xf987a7253ac413176f2b074cf7815e54,
    0xf3392b0822b70005940c7a398e4b70f3,
    0xe7159475a2c29b7443b29c7fa6e889d9,
    0xd097f3bdfd2022b8845ad8f792aa5825,
    0xa9f746462d870fdf8a65dc1f90e061e5,
    0x70d869a156d2a1b890bb3df62baf32f7,
    0x31be135f97d08fd981231505542fcfa6,
    0x9aa508b5b7a84e1c677de54f3e99bc9,
    0x5d6af8dedb81196699c329225ee604,
    0x2216e584f5fa1ea926041bedfe98,
    0x48a170391f7dc42444e8fa2,
];

/// The function `price`: the square root of the price at a tick.
fn price_at() -> String {
    let mut text = ":price 0 DUP1 0 DUP4 2 SIGNEXTEND SLT @negative JUMPI DUP3 2 SIGNEXTEND @abs JUMP \
         :negative DUP3 2 SIGNEXTEND 0 SUB :abs SWAP1 POP 0xd89e8 DUP2 GT ISZERO @small JUMPI 0 DUP1 REVERT \
         :small 0 1 DUP3 AND @odd JUMPI 0x100000000000000000000000000000000 @even JUMP \
         :odd 0xfffcb933bd6fad37aa2d162d1a594001 :even 0xffffffffffffffffffffffffffffffffff AND SWAP1 POP "
        .to_owned();
    for (index, root) in ROOTS.into_iter().enumerate() {
        let (bit, skip) = (2 << index, label());
        let _ = write!(text, "{bit} DUP3 AND ISZERO @{skip} JUMPI {root} MUL 0x80 SHR :{skip} ");
    }
    text + "0 DUP5 2 SIGNEXTEND SGT ISZERO @inverse JUMPI DUP1 @divide JUMPI INVALID :divide 0 NOT DIV :inverse \
            0x100000000 DUP2 MOD ISZERO @exact JUMPI 1 @rounded JUMP :exact 0 :rounded 0xff AND 0x20 DUP3 SWAP1 SHR ADD \
            0xffffffffffffffffffffffffffffffffffffffff AND SWAP4 POP POP POP POP SWAP1 JUMP "
}

/// The function `tick`: the greatest tick whose price is at most that of a square root.
fn tick_at() -> String {
    let mut text =
        ":tick 0x1000276a3 0xffffffffffffffffffffffffffffffffffffffff DUP3 AND LT ISZERO @enough JUMPI 0 DUP1 REVERT \
         :enough 0x20 DUP2 SWAP1 SHL 0xffffffffffffffffffffffffffffffffffffffffffffffff AND 0 DUP2 "
            .to_owned();
    for bit in (1..=7).rev() {
        let most = u128::MAX >> (128 - (1 << bit));
        let _ = write!(text, "{most} DUP2 GT {bit} SHL SWAP2 DUP3 OR SWAP2 SHR ");
    }
    text += "1 SWAP1 GT OR 0x80 DUP2 LT ISZERO @high JUMPI DUP1 127 SUB DUP3 SWAP1 SHL @shifted JUMP \
             :high 127 DUP2 SUB DUP3 SWAP1 SHR :shifted SWAP1 128 SWAP1 SUB 64 SHL SWAP1 ";
    for bit in (50..64).rev() {
        let _ = write!(text, "DUP1 MUL 0x7f SHR DUP1 0x80 SHR DUP1 {bit} SHL DUP4 OR SWAP3 POP SHR ");
    }
    text + "POP 0x3627a301d71055774c85 MUL DUP1 0x28f6481ab7f045a5af012a19d003aaa SWAP1 SUB 0x80 SAR SWAP1 \
            0xdb2df09e81959a81455e260799a0632f ADD 0x80 SAR DUP2 2 SIGNEXTEND DUP2 2 SIGNEXTEND EQ ISZERO @differ JUMPI \
            DUP2 @found JUMP :differ DUP4 0xffffffffffffffffffffffffffffffffffffffff AND @compared DUP3 @price JUMP \
            :compared 0xffffffffffffffffffffffffffffffffffffffff AND GT ISZERO @lower JUMPI DUP2 @found JUMP \
            :lower DUP1 :found SWAP4 POP POP POP POP SWAP1 JUMP "
}
