//! Single calls of every kind, as `eth_simulateV1` takes them.

use alloy_primitives::{Address, B256, Bytes, U256, address, hex, uint};
use alloy_sol_types::{SolCall, sol};
use rand::{Rng, rngs::SmallRng, seq::IndexedRandom};
use serde_json::{Value, json};

use super::{programs, world::RecordedWorld};

sol! {
    function transfer(address to, uint256 value) external returns (bool);
    function balanceOf(address account) external view returns (uint256);
    function getAmountsOut(uint256 amountIn, address[] path) external view returns (uint256[] amounts);
    function swapExactTokensForTokens(uint256 amountIn, uint256 amountOutMin, address[] path, address to, uint256 deadline) external;
    struct ExactInputSingle {
        address tokenIn; address tokenOut; uint24 fee; address recipient; uint256 deadline;
        uint256 amountIn; uint256 amountOutMinimum; uint160 sqrtPriceLimitX96;
    }
    function exactInputSingle(ExactInputSingle params) external payable returns (uint256);
}

/// Deadline of swaps, in seconds since 1970. No block is that late.
const DEADLINE: U256 = uint!(99_999_999_999_U256);
/// The fee of the V3 pool, in hundredths of a basis point.
const POOL_FEE: u32 = 3_000;
/// The address at which overrides put programs.
pub const PROGRAM: Address = address!("c0de000000000000000000000000000000000000");
/// The address at which overrides put the contract that creates others: anvil simulates no call without a receiver.
pub const FACTORY: Address = address!("c0de000000000000000000000000000000000001");
/// The largest code of a contract (EIP-170).
pub const MAX_CODE: usize = 24 << 10;

/// Makes calls from the accounts of a world.
pub struct CallMaker<'a> {
    pub world: &'a RecordedWorld,
    pub rng: SmallRng,
}

impl CallMaker<'_> {
    /// Returns a number of 0 to `most`, small ones as often as large ones.
    pub fn size(&mut self, most: usize) -> usize {
        let scale = ((most + 1) as f64).log2();
        (self.rng.random_range(0.0..=scale).exp2() as usize).saturating_sub(1).min(most)
    }

    pub fn account(&mut self) -> Address {
        self.world.account(self.rng.random())
    }

    fn token(&mut self) -> Address {
        [self.world.token_a, self.world.token_b][self.rng.random_range(0..2)]
    }

    fn pair(&mut self) -> [Address; 2] {
        let (a, b) = (self.world.token_a, self.world.token_b);
        if self.rng.random() { [a, b] } else { [b, a] }
    }

    /// An amount of 1e12 to 1e15, which moves no price much.
    fn amount(&mut self) -> U256 {
        U256::from(self.rng.random_range(1_000_000_000_000_u64..1_000_000_000_000_000))
    }

    pub fn bytes(&mut self, length: usize) -> Bytes {
        let mut bytes = vec![0; length];
        self.rng.fill(bytes.as_mut_slice());
        bytes.into()
    }

    /// A transfer of ether, or of a token.
    pub fn transfer(&mut self) -> Value {
        let (from, to) = (self.account(), self.account());
        if self.rng.random() {
            return json!({"from": from, "to": to, "value": self.amount()});
        }
        let value = self.amount();
        json!({"from": from, "to": self.token(), "data": data(&transferCall { to, value })})
    }

    /// A swap on Uniswap V2.
    pub fn swap_v2(&mut self) -> Value {
        let (from, path) = (self.account(), self.pair().to_vec());
        let swap = swapExactTokensForTokensCall {
            amountIn: self.amount(),
            amountOutMin: U256::ZERO,
            path,
            to: from,
            deadline: DEADLINE,
        };
        json!({"from": from, "to": self.world.router2, "data": data(&swap)})
    }

    /// A swap on Uniswap V3.
    pub fn swap_v3(&mut self) -> Value {
        let (from, [token_in, token_out]) = (self.account(), self.pair());
        let params = ExactInputSingle {
            tokenIn: token_in,
            tokenOut: token_out,
            fee: POOL_FEE.try_into().unwrap_or_default(),
            recipient: from,
            deadline: DEADLINE,
            amountIn: self.amount(),
            amountOutMinimum: U256::ZERO,
            sqrtPriceLimitX96: Default::default(),
        };
        json!({"from": from, "to": self.world.router3, "data": data(&exactInputSingleCall { params })})
    }

    /// The creation of a contract of up to 24 KiB.
    pub fn creation(&mut self) -> Value {
        let length = self.size(MAX_CODE);
        let mut code = self.bytes(length).to_vec();
        // No code may begin with 0xef (EIP-3541).
        if let Some(first) = code.first_mut() {
            *first = 0;
        }
        json!({"from": self.account(), "to": FACTORY, "data": programs::creation(&code)})
    }

    /// A creation that destroys itself, or a call of a contract that does.
    pub fn selfdestruct(&mut self) -> Value {
        let from = self.account();
        if self.rng.random() {
            json!({"from": from, "to": FACTORY, "data": programs::selfdestruct(), "value": "0x1"})
        } else {
            json!({"from": from, "to": PROGRAM, "value": "0x1"})
        }
    }

    /// A call of a precompiled contract with valid input.
    pub fn precompile(&mut self) -> Value {
        let word = |number: u64| B256::from(U256::from(number)).to_vec();
        let generator = [word(1), word(2)].concat();
        let (number, input) = match self.rng.random_range(0..8) {
            0 => (1, self.bytes(128)),
            1 => (2, {
                let length = self.size(4_096);
                self.bytes(length)
            }),
            2 => (3, {
                let length = self.size(1_024);
                self.bytes(length)
            }),
            3 => (4, {
                let length = self.size(16_384);
                self.bytes(length)
            }),
            4 => {
                let length = 32;
                let lengths = [word(length), word(length), word(length)].concat();
                (5, [lengths, self.bytes(3 * length as usize).to_vec()].concat().into())
            }
            5 => (6, [generator.clone(), generator].concat().into()),
            6 => (7, [generator, self.bytes(32).to_vec()].concat().into()),
            _ => {
                let rounds = self.rng.random_range(1_u32..100).to_be_bytes();
                (9, [&rounds[..], &self.bytes(208), &[1]].concat().into())
            }
        };
        json!({"from": self.account(), "to": Address::with_last_byte(number), "data": input})
    }

    /// A call that fails: a program that reverts, or a token that is not owned.
    pub fn reverting(&mut self) -> Value {
        let from = self.account();
        if self.rng.random() {
            return json!({"from": from, "to": PROGRAM});
        }
        let transfer = transferCall { to: from, value: U256::MAX };
        json!({"from": from, "to": self.token(), "data": data(&transfer)})
    }

    /// A transfer as a transaction of any type, with the fields of its type.
    pub fn typed(&mut self) -> Value {
        let mut call = self.transfer();
        let price = "0x174876e800";
        match self.rng.random_range(0..5) {
            0 => call["gasPrice"] = json!(price),
            1 => {
                let slots: Vec<B256> = (0..self.size(16)).map(|slot| B256::from(U256::from(slot))).collect();
                call["accessList"] = json!([{"address": self.token(), "storageKeys": slots}]);
                call["gasPrice"] = json!(price);
            }
            2 => {
                call["maxFeePerGas"] = json!(price);
                call["maxPriorityFeePerGas"] = json!("0x1");
            }
            3 => {
                let hashes: Vec<String> = (0..self.rng.random_range(1..=6)).map(|_| self.blob_hash()).collect();
                call["blobVersionedHashes"] = json!(hashes);
                call["maxFeePerBlobGas"] = json!(price);
                call["maxFeePerGas"] = json!(price);
            }
            _ => {
                let authorizations: Vec<Value> =
                    (0..self.rng.random_range(1..=4)).map(|_| self.authorization()).collect();
                call["authorizationList"] = json!(authorizations);
                call["maxFeePerGas"] = json!(price);
            }
        }
        call
    }

    fn blob_hash(&mut self) -> String {
        let mut hash = self.bytes(32).to_vec();
        // KZG commitments have version 1 (EIP-4844).
        hash[0] = 1;
        hex::encode_prefixed(hash)
    }

    /// An authorization (EIP-7702) with a signature that nobody has made: it is paid for, and has no effect.
    fn authorization(&mut self) -> Value {
        let (r, s) = (U256::from(self.rng.random::<u128>()), U256::from(self.rng.random::<u128>()));
        json!({"chainId": "0x7a69", "address": PROGRAM, "nonce": "0x1", "yParity": "0x0", "r": r, "s": s})
    }

    /// The parameters of an `eth_call` without the block: a balance, a quote, or a swap.
    pub fn view(&mut self) -> Value {
        match self.rng.random_range(0..4) {
            0 => {
                let account = self.account();
                json!({"from": account, "to": self.token(), "data": data(&balanceOfCall { account })})
            }
            1 | 2 => {
                let quote = getAmountsOutCall { amountIn: self.amount(), path: self.pair().to_vec() };
                json!({"to": self.world.router2, "data": data(&quote)})
            }
            _ => self.swap_v2(),
        }
    }

    /// A read of state: the method, and its parameters without the block.
    pub fn read(&mut self) -> (&'static str, Vec<Value>) {
        let contracts = [self.world.pair, self.world.pool3, self.world.router2, self.world.weth, self.token()];
        let contract = *contracts.choose(&mut self.rng).unwrap_or(&self.world.weth);
        match self.rng.random_range(0..4) {
            0 => ("eth_getBalance", vec![json!(self.account())]),
            1 => ("eth_getTransactionCount", vec![json!(self.account())]),
            2 => ("eth_getStorageAt", vec![json!(contract), json!(U256::from(self.rng.random_range(0_u64..16)))]),
            _ => ("eth_getCode", vec![json!(contract)]),
        }
    }
}

fn data(call: &impl SolCall) -> Bytes {
    call.abi_encode().into()
}
