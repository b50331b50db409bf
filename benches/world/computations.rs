//! Programs that only compute.

use alloy_primitives::hex;

use super::pools::pools;

const DUP1: u8 = 0x80;
const SWAP1: u8 = 0x90;

/// Returns the programs by their names.
pub fn computations() -> Vec<(&'static str, Vec<u8>)> {
    // Squares and adds one, while there is gas.
    let squares = hex!("60025b80026001015a61c3501060025760005260206000f3").to_vec();
    let simple = [
        ("squares", squares),
        ("words", repeat(&hex!("600360056007"), &hex!("838301840192508284019350").repeat(4))),
        ("memory", repeat(&hex!("600161020052"), &hex!("61010051600101610100526101205161014052").repeat(4))),
        ("division", repeat(&factors(), &PRODUCTS)),
        (
            "shifts",
            repeat(
                &hex!("6f0102030405060708090a0b0c0d0e0f10"),
                &hex!("8160601c8260e01b1782111515508163ffffffff1650").repeat(4),
            ),
        ),
        ("straight", straight()),
    ];
    simple.into_iter().chain(pools()).collect()
}

/// Returns a program that runs `body` 1,500 times over what `beginning` leaves on the stack. The counter lies on top.
fn repeat(beginning: &[u8], body: &[u8]) -> Vec<u8> {
    let start = (beginning.len() + 3) as u8;
    let count_down = [0x60, 1, SWAP1, 0x03, DUP1, 0x60, start, 0x57, 0x00];
    [beginning, &hex!("6105dc5b"), body, &count_down].concat()
}

/// Pushes three words of 112 bits.
fn factors() -> Vec<u8> {
    let word = |byte: u8| [&[0x6d], &[byte; 14][..]].concat();
    [0x31, 0x57, 0x23].map(word).concat()
}

/// Divides the product of two of the three words below the counter by the other one, for each of them.
const PRODUCTS: [u8; 18] = hex!("818484020450828483020450838284020450");

/// Repeats 3,000 opcodes in a random order, which branch predictors do not learn. The counter lies in memory.
fn straight() -> Vec<u8> {
    let mut seed = 12_345_u64;
    let mut below = |count: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((seed >> 33) % count) as u8
    };
    let mut code = hex!("60036004600560066007600860096003601e6000525b").to_vec();
    let start = code.len() as u8 - 1;
    let mut depth = 8;
    for _ in 0..3_000 {
        if depth < 12 || depth < 40 && below(2) == 0 {
            match below(3) {
                0 => code.extend([0x60, below(255)]),
                1 => code.extend([0x61, below(255), below(255)]),
                _ => code.push(DUP1 + below(8)),
            }
            depth += 1;
        } else {
            const UNARY: [u8; 2] = [0x15, 0x19];
            const BINARY: [u8; 9] = [0x01, 0x03, 0x02, 0x16, 0x17, 0x18, 0x10, 0x11, 0x14];
            match usize::from(below(12)) {
                0 => code.push(SWAP1 + below(7)),
                op @ 1..=2 => code.push(UNARY[op - 1]),
                op => {
                    code.push(BINARY[op - 3]);
                    depth -= 1;
                }
            }
        }
    }
    code.extend(vec![0x50; depth - 8]);
    code.extend([0x60, 1, 0x60, 0, 0x51, 0x03, DUP1, 0x60, 0, 0x52, 0x60, start, 0x57, 0x00]);
    code
}
