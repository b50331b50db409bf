//! Random bundles that read what there is to read, from a small pool of accounts that random changes touch.

use alloy_primitives::{Address, B256, U256, hex};
use rand::{Rng, rngs::SmallRng};
use serde_json::{Value, json};

/// The sender of the bundles.
pub const FROM: &str = "0x000000000000000000000000000000000000f00d";
/// The account that an override gives the bundles' own code.
pub const RUNNER: &str = "0x0000000000000000000000000000000000004e11";
/// The accounts that bundles read and changes touch. The last ones are those that the runner creates.
pub const ACCOUNTS: u64 = 9;
/// The slots of each.
pub const SLOTS: u64 = 4;
/// The kinds of code of an account of the pool.
pub const POOL_CODES: u64 = 8;

/// Returns the account of the pool with this number.
pub fn account(number: u64) -> String {
    address(number).to_string().to_lowercase()
}

/// Returns the address of the account of the pool with this number.
pub fn address(number: u64) -> Address {
    let runner: Address = RUNNER.parse().unwrap();
    match number {
        6 => runner,
        7 => runner.create(0),
        8 => runner.create2_from_code(B256::ZERO, []),
        _ => Address::left_padding_from(&(0xacc0_0000 + number).to_be_bytes()),
    }
}

/// Returns the code of an account of the pool.
pub fn pool_code(kind: u64) -> String {
    match kind {
        // Returns slot 0.
        0 => "0x5f545f5260205ff3".to_owned(),
        // Returns slot 1.
        1 => "0x6001545f5260205ff3".to_owned(),
        // Counts slot 2 up.
        2 => "0x600254600101600255".to_owned(),
        // Reverts unless slot 3 is zero.
        3 => "0x60035415600a575f5ffd5b".to_owned(),
        // Destroys itself for its caller.
        4 => "0x33ff".to_owned(),
        // Runs the first account's code (EIP-7702).
        5 => format!("0xef0100{}", &account(0)[2..]),
        // Returns its own balance.
        6 => "0x475f5260205ff3".to_owned(),
        _ => "0x".to_owned(),
    }
}

/// Returns code that returns words, each from one piece.
fn code(pieces: &[Vec<u8>]) -> String {
    let mut code = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        code.extend(piece);
        // PUSH2 offset, MSTORE
        code.extend([0x61, (index >> 3) as u8, (index << 5) as u8, 0x52]);
    }
    // PUSH2 length, PUSH0, RETURN
    code.extend([0x61, (pieces.len() >> 3) as u8, (pieces.len() << 5) as u8, 0x5f, 0xf3]);
    hex::encode_prefixed(code)
}

/// Returns code that leaves one word, which follows from the state or the block.
fn piece(random: &mut SmallRng) -> Vec<u8> {
    let address = [&[0x73], address(random.random_range(0..ACCOUNTS)).as_slice()].concat();
    let unary = |opcode: u8| [address.as_slice(), &[opcode]].concat();
    let small = random.random_range(0..3);
    match random.random_range(0..27) {
        // BALANCE, EXTCODESIZE, EXTCODEHASH
        0 | 1 => unary(0x31),
        2 => unary(0x3b),
        3 => unary(0x3f),
        // TIMESTAMP, NUMBER, BASEFEE, COINBASE, GASLIMIT, PREVRANDAO, BLOBBASEFEE
        4 => vec![0x42],
        5 => vec![0x43],
        6 => vec![0x48],
        7 => vec![0x41],
        8 => vec![0x45],
        9 => vec![0x44],
        10 => vec![0x4a],
        // BLOCKHASH of a number up to two before
        11 => vec![0x60, small, 0x43, 0x03, 0x40],
        // CALL with up to 2 wei, whose return data is a word at 0x3e0; whether it succeeded
        12..=15 => [&[0x60, 32, 0x61, 0x03, 0xe0, 0x5f, 0x5f, 0x60, small], address.as_slice(), &[0x5a, 0xf1]].concat(),
        // STATICCALL, then the word that it returned
        16..=18 => {
            [&[0x60, 32, 0x61, 0x03, 0xe0, 0x5f, 0x5f], address.as_slice(), &[0x5a, 0xfa, 0x50, 0x61, 0x03, 0xe0, 0x51]]
                .concat()
        }
        // DELEGATECALL, which reads the runner's slots, then the word that it returned
        19 => {
            [&[0x60, 32, 0x61, 0x03, 0xe0, 0x5f, 0x5f], address.as_slice(), &[0x5a, 0xf4, 0x50, 0x61, 0x03, 0xe0, 0x51]]
                .concat()
        }
        // SELFBALANCE
        20 => vec![0x47],
        // SLOAD, and SSTORE of a small value with the gas that is left after
        21 => vec![0x60, small, 0x54],
        22 => vec![0x60, small, 0x60, small, 0x55, 0x5a],
        // CREATE and CREATE2 of a contract without code
        23 => vec![0x5f, 0x5f, 0x60, small, 0xf0],
        24 => vec![0x5f, 0x5f, 0x5f, 0x60, small, 0xf5],
        // A call of the precompile that copies, and the gas that is left
        25 => vec![0x5f, 0x5f, 0x60, 32, 0x5f, 0x60, 4, 0x5a, 0xfa],
        // The size of the last return data
        _ => vec![0x3d],
    }
}

/// Returns a random payload of `presim_simulate`. If `names_gas`, all calls do.
pub fn bundle(random: &mut SmallRng, names_gas: bool) -> Value {
    let pieces: Vec<Vec<u8>> = (0..random.random_range(1..5)).map(|_| piece(random)).collect();
    let mut state = json!({ RUNNER: { "code": code(&pieces) }, FROM: { "balance": "0xde0b6b3a7640000" } });
    match random.random_range(0..7) {
        0 => state[account(0)] = json!({ "balance": "0x5" }),
        1 => state[account(1)] = json!({ "code": pool_code(random.random_range(0..POOL_CODES)) }),
        2 => state[account(2)] = json!({ "stateDiff": { word(0): word(7) } }),
        3 => state[account(7)] = json!({ "state": { word(1): word(7) } }),
        _ => {}
    }
    let to_pool = account(random.random_range(0..ACCOUNTS));
    let with_gas = |mut call: Value, gas: &str, random: &mut SmallRng| {
        if names_gas || random.random_range(0..3) > 0 {
            call["gas"] = gas.into();
        }
        call
    };
    let mut calls = vec![with_gas(json!({ "from": FROM, "to": RUNNER, "value": "0x3" }), "0x493e0", random)];
    match random.random_range(0..7) {
        0 => calls.push(with_gas(json!({ "from": FROM, "to": to_pool, "value": "0x1" }), "0x186a0", random)),
        1 => calls.push(with_gas(json!({ "from": to_pool, "to": FROM, "value": "0x64" }), "0x186a0", random)),
        2 => {
            let create =
                json!({ "from": to_pool, "to": null, "data": "0x600a600c600039600a6000f3602a60805260206080f3" });
            calls.push(with_gas(create, "0x186a0", random));
        }
        3 => {
            let pays =
                json!({ "from": FROM, "to": to_pool, "maxFeePerGas": "0x77359400", "maxPriorityFeePerGas": "0x1" });
            calls.push(with_gas(pays, "0x186a0", random));
        }
        _ => {}
    }
    let mut block = json!({ "stateOverrides": state, "calls": calls });
    match random.random_range(0..12) {
        0 => block["blockOverrides"] = json!({ "baseFeePerGas": "0x7" }),
        1 => block["blockOverrides"] = json!({ "feeRecipient": account(3) }),
        2 => block["blockOverrides"] = json!({ "gasLimit": "0x1c9c380" }),
        _ => {}
    }
    let mut blocks = vec![block];
    if random.random_range(0..6) == 0 {
        blocks.push(json!({ "calls": [with_gas(json!({ "from": FROM, "to": RUNNER }), "0x30d40", random)] }));
    }
    let all = "status gasUsed returnData error logs transfers stateDiff accessList assets coinbase";
    let outputs: Vec<&str> = all.split(' ').filter(|_| random.random_range(0..2) == 0).collect();
    let validates = random.random_range(0..6) == 0;
    json!({ "blockStateCalls": blocks, "outputs": outputs, "validation": validates })
}

/// Returns a number as a word of storage.
pub fn word(value: u64) -> String {
    format!("{:#066x}", U256::from(value))
}
