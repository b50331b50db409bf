//! Workloads at random: request bodies of one class after another, on the contracts of a recorded world.
//!
//! A body depends on the seed, its class and its number only, so that the same command makes the same bodies.

mod calls;
mod programs;
mod world;

use std::fmt;

use alloy_primitives::{B256, Bytes, U256};
use clap::{ValueEnum, builder::PossibleValue};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use serde_json::{Map, Value, json};

use self::calls::{CallMaker, FACTORY, MAX_CODE, PROGRAM};
pub use self::world::RecordedWorld;

/// Most blocks of a simulation.
const BLOCKS: usize = 64;
/// Most calls of a simulated block.
const CALLS: usize = 20;
/// Most calls of a simulation, so that no body is out of all proportion to the others.
const CALLS_IN_ALL: usize = 200;
/// Most slots of an override.
const SLOTS: usize = 2_000;
/// Most bytes of an answer, and of the logs of a call.
const BYTES: usize = 100_000;
/// Most requests of a JSON-RPC batch.
const BATCH: usize = 100;

/// A class of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Class {
    /// `eth_call`: balances, quotes, swaps
    Calls,
    /// reads: balances, nonces, slots, code
    Reads,
    /// JSON-RPC batches of 1 to 100 calls, reads and small simulations
    Batches,
    /// transfers of ether and tokens, 1 to 20 in a block
    Transfers,
    /// swaps on Uniswap V2, 1 to 5 in a block
    SwapsV2,
    /// swaps on Uniswap V3, 1 to 5 in a block
    SwapsV3,
    /// transactions of every type: legacy, access lists, EIP-1559, blobs, authorizations
    Types,
    /// creations of contracts of up to 24 KiB
    Creations,
    /// contracts that destroy themselves
    Selfdestructs,
    /// precompiled contracts
    Precompiles,
    /// calls that revert
    Reverts,
    /// 1 to 64 blocks without a call
    Empty,
    /// 1 to 64 blocks of 0 to 20 calls
    Blocks,
    /// overrides of 0 to 2,000 slots, as `state` and `stateDiff`
    Slots,
    /// overrides of code of 0 to 24 KiB
    Codes,
    /// answers of 0 to 100 kB
    Answers,
    /// logs of 0 to 100 kB
    Logs,
    /// a loop of arithmetic
    Arithmetic,
    /// `validation`: calls with nonces and fees
    Validation,
    /// `traceTransfers`
    Traced,
    /// `returnFullTransactions`
    Full,
    /// everything at once
    Mixed,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().as_ref().map_or("", PossibleValue::get_name))
    }
}

/// Makes the bodies of classes on a world.
pub struct ClassBodies<'a> {
    /// The contracts and accounts.
    pub world: &'a RecordedWorld,
    /// The seed of all that is chosen at random.
    pub seed: u64,
    /// The block selector of all requests.
    pub tag: &'a str,
}

impl ClassBodies<'_> {
    /// Returns the body of a class with this number: a JSON-RPC request, or a batch.
    pub fn body(&self, class: Class, number: u64) -> String {
        let seed =
            self.seed.wrapping_add((class as u64 + 1) << 32).wrapping_add(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let calls = CallMaker { world: self.world, rng: SmallRng::seed_from_u64(seed) };
        BodyMaker { calls, tag: self.tag }.body(class).to_string()
    }
}

struct BodyMaker<'a> {
    calls: CallMaker<'a>,
    tag: &'a str,
}

impl BodyMaker<'_> {
    fn body(&mut self, class: Class) -> Value {
        match class {
            Class::Batches => {
                let count = self.calls.size(BATCH - 1) + 1;
                (0..count)
                    .map(|id| match self.calls.rng.random_range(0..4) {
                        0 => self.request(Class::Calls, id),
                        1 => self.request(Class::SwapsV2, id),
                        2 => self.request(Class::Transfers, id),
                        _ => self.request(Class::Reads, id),
                    })
                    .collect()
            }
            class => self.request(class, 0),
        }
    }

    fn request(&mut self, class: Class, id: usize) -> Value {
        let (method, mut params) = match class {
            Class::Calls => ("eth_call", vec![self.calls.view()]),
            Class::Reads => self.calls.read(),
            class => ("eth_simulateV1", vec![self.simulation(class)]),
        };
        params.push(json!(self.tag));
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    }

    /// Makes the payload of a simulation.
    fn simulation(&mut self, class: Class) -> Value {
        let calls = &mut self.calls;
        let one = |overrides: Value, calls: Vec<Value>| json!({"blockStateCalls": [{"stateOverrides": overrides, "calls": calls}]});
        let program = |code: Bytes| json!({PROGRAM.to_string(): {"code": code}, FACTORY.to_string(): {"code": programs::factory()}});
        let call_program = |calls: &mut CallMaker<'_>| vec![json!({"from": calls.account(), "to": PROGRAM})];
        match class {
            Class::Transfers => {
                let count = calls.rng.random_range(1..=CALLS);
                one(json!({}), (0..count).map(|_| calls.transfer()).collect())
            }
            Class::SwapsV2 => {
                let count = calls.rng.random_range(1..=5);
                one(json!({}), (0..count).map(|_| calls.swap_v2()).collect())
            }
            Class::SwapsV3 => {
                let count = calls.rng.random_range(1..=5);
                one(json!({}), (0..count).map(|_| calls.swap_v3()).collect())
            }
            Class::Types => {
                let count = calls.rng.random_range(1..=5);
                one(json!({}), (0..count).map(|_| calls.typed()).collect())
            }
            Class::Creations => {
                let count = calls.rng.random_range(1..=3);
                one(program(Bytes::new()), (0..count).map(|_| calls.creation()).collect())
            }
            Class::Selfdestructs => {
                let count = calls.rng.random_range(1..=5);
                one(program(programs::selfdestruct()), (0..count).map(|_| calls.selfdestruct()).collect())
            }
            Class::Precompiles => {
                let count = calls.rng.random_range(1..=5);
                one(json!({}), (0..count).map(|_| calls.precompile()).collect())
            }
            Class::Reverts => {
                let (count, length) = (calls.rng.random_range(1..=5), calls.size(1_000));
                one(program(programs::revert(length)), (0..count).map(|_| calls.reverting()).collect())
            }
            Class::Empty => {
                let count = calls.size(BLOCKS - 1) + 1;
                json!({"blockStateCalls": vec![json!({}); count]})
            }
            Class::Slots => {
                let count = calls.size(SLOTS);
                let loads = calls.size(count.min(100));
                let slots = self.slots(count);
                let kind = if self.calls.rng.random() { "state" } else { "stateDiff" };
                let code = programs::loads(loads);
                one(json!({PROGRAM.to_string(): {"code": code, kind: slots}}), call_program(&mut self.calls))
            }
            Class::Codes => {
                let length = calls.size(MAX_CODE);
                // Behind a STOP, so that the code does nothing; its jump destinations are found all the same.
                let code = [&[0][..], &calls.bytes(length)].concat();
                one(program(Bytes::copy_from_slice(&code[..length])), call_program(calls))
            }
            Class::Answers => {
                let length = calls.size(BYTES);
                one(program(programs::answer(length)), call_program(calls))
            }
            Class::Logs => {
                let count = calls.rng.random_range(1..=10);
                let lengths: Vec<usize> = (0..count).map(|_| calls.size(BYTES / count)).collect();
                one(program(programs::logs(&lengths)), call_program(calls))
            }
            Class::Arithmetic => {
                let rounds = calls.size(20_000);
                one(program(programs::arithmetic(rounds)), call_program(calls))
            }
            Class::Validation => self.validated(),
            Class::Traced | Class::Full => {
                let mut payload = self.simulation(Class::Transfers);
                payload[if class == Class::Traced { "traceTransfers" } else { "returnFullTransactions" }] = json!(true);
                payload
            }
            Class::Blocks | Class::Mixed | Class::Calls | Class::Reads | Class::Batches => {
                self.blocks(class == Class::Mixed)
            }
        }
    }

    fn slots(&mut self, count: usize) -> Map<String, Value> {
        let word = |value: U256| B256::from(value).to_string();
        let slots =
            (0..count).map(|slot| (word(U256::from(slot)), json!(word(U256::from(self.calls.rng.random::<u128>())))));
        slots.collect()
    }

    /// Calls that are valid as transactions, each of another account.
    fn validated(&mut self) -> Value {
        let (count, first) = (self.calls.rng.random_range(1..=10), self.calls.rng.random::<u32>());
        let calls: Vec<Value> = (0..count)
            .map(|index| {
                let mut call = if self.calls.rng.random() { self.calls.transfer() } else { self.calls.swap_v2() };
                call["from"] = json!(self.calls.world.account(u64::from(first) + index));
                call["nonce"] = json!("0x0");
                call["gas"] = json!("0x7a120");
                call["maxFeePerGas"] = json!("0x174876e800");
                call["maxPriorityFeePerGas"] = json!("0x1");
                call
            })
            .collect();
        json!({"blockStateCalls": [{"calls": calls}], "validation": true})
    }

    /// Blocks of 0 to 20 calls. If `mixed`, calls are of any kind, blocks have overrides, and the options are chosen too.
    fn blocks(&mut self, mixed: bool) -> Value {
        let count = self.calls.size(BLOCKS - 1) + 1;
        let mut left = CALLS_IN_ALL;
        let blocks: Vec<Value> = (0..count)
            .map(|_| {
                let count = self.calls.size(CALLS).min(left);
                left -= count;
                let calls: Vec<Value> = (0..count).map(|_| self.any_call(mixed)).collect();
                let mut block = json!({"calls": calls});
                if mixed && self.calls.rng.random_bool(0.3) {
                    block["stateOverrides"] = self.any_override();
                }
                block
            })
            .collect();
        let mut payload = json!({"blockStateCalls": blocks});
        if mixed {
            payload["blockStateCalls"][0]["stateOverrides"][FACTORY.to_string()] = json!({"code": programs::factory()});
        }
        for option in ["traceTransfers", "returnFullTransactions"] {
            if mixed && self.calls.rng.random_bool(0.3) {
                payload[option] = json!(true);
            }
        }
        payload
    }

    fn any_call(&mut self, mixed: bool) -> Value {
        let calls = &mut self.calls;
        match calls.rng.random_range(0..if mixed { 9 } else { 3 }) {
            0 => calls.transfer(),
            1 => calls.swap_v2(),
            2 => calls.swap_v3(),
            3 => calls.typed(),
            4 => calls.creation(),
            5 => calls.selfdestruct(),
            6 => calls.precompile(),
            7 => calls.reverting(),
            _ => json!({"from": calls.account(), "to": PROGRAM}),
        }
    }

    fn any_override(&mut self) -> Value {
        let code = match self.calls.rng.random_range(0..5) {
            0 => programs::revert(self.calls.size(1_000)),
            1 => programs::selfdestruct(),
            2 => programs::logs(&[self.calls.size(1_000), self.calls.size(1_000)]),
            3 => programs::answer(self.calls.size(BYTES / 10)),
            _ => programs::arithmetic(self.calls.size(1_000)),
        };
        let count = self.calls.size(SLOTS / 10);
        json!({PROGRAM.to_string(): {"code": code, "stateDiff": self.slots(count), "balance": "0xde0b6b3a7640000"}})
    }
}
