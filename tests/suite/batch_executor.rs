//! The batch executor: what an account that delegated to it does, and what it accepts from other accounts.

use alloy_primitives::{Address, B256, Bytes, Signature, U256, address, hex, uint};
use alloy_signer::SignerSync;
use alloy_sol_types::{SolCall, SolError, SolValue, sol};
use presim::testing::{source::devnet::world::dev_signers, wallet::BatchExecutor};
use serde_json::{Value, json};

use crate::support::{TestNode, items};

sol! {
    // ERC-7821 and what else contracts call on accounts, from the standards and not from the contract's build.
    interface IAccount {
        function execute(bytes32 mode, bytes calldata executionData) external payable;
        function supportsExecutionMode(bytes32 mode) external view returns (bool);
        function isValidSignature(bytes32 hash, bytes calldata signature) external view returns (bytes4);
        function onERC721Received(address operator, address from, uint256 id, bytes calldata data) external returns (bytes4);
        function onERC1155Received(address operator, address from, uint256 id, uint256 value, bytes calldata data) external returns (bytes4);
        function onERC1155BatchReceived(address operator, address from, uint256[] calldata ids, uint256[] calldata values, bytes calldata data) external returns (bytes4);
        function supportsInterface(bytes4 id) external view returns (bool);
    }

    struct Call {
        address to;
        uint256 value;
        bytes data;
    }

    error Unauthorized(address caller);
    error UnsupportedExecutionMode(bytes32 mode);
    error GasLimitCountMismatch(uint256 gasLimits, uint256 calls);
    error NotEnoughGas(uint256 index, uint256 gasLimit);
}

/// Logs its call data, with its caller and its value as topics.
const WITNESS: Address = address!("0x000000000000000000000000000000000000c0d1");
/// Logs the result of GAS as its first instruction, which is its gas less 2.
const METER: Address = address!("0x000000000000000000000000000000000000c0d2");
/// Reverts with its call data.
const REVERTER: Address = address!("0x000000000000000000000000000000000000c0d3");
/// An account that has delegated to [`METER`].
const DELEGATED_METER: Address = address!("0x000000000000000000000000000000000000c0d4");
/// An address without an account.
const NOBODY: Address = address!("0x000000000000000000000000000000000000abcd");
const ETHER: u64 = 1_000_000_000_000_000_000;

/// A devnet in which nothing happens by itself. State overrides delegate its accounts to the executor.
struct DelegatedDevnet {
    node: TestNode,
    account: Address,
    stranger: Address,
}

/// The outcome of a call.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// The call succeeded: its return data, and the topics and data of its logs.
    Done(Bytes, Vec<(Vec<B256>, Bytes)>),
    /// The call reverted with this data and left no logs.
    Reverted(Bytes),
    /// The call failed for another reason.
    Failed(Value),
}

impl DelegatedDevnet {
    fn new() -> Self {
        let node = TestNode::quiet();
        let [account, stranger] = [1, 2].map(|index| node.account(index));
        Self { node, account, stranger }
    }

    fn overrides(&self) -> Value {
        json!({
            self.account.to_string(): {"code": designator(BatchExecutor::default_address())},
            Address::ZERO.to_string(): {"code": designator(BatchExecutor::default_address())},
            BatchExecutor::default_address().to_string(): {"code": BatchExecutor::runtime_code()},
            WITNESS.to_string(): {"code": "0x365f5f373433365fa2"},
            METER.to_string(): {"code": "0x5a5f5260205fa0"},
            REVERTER.to_string(): {"code": "0x365f5f37365ffd"},
            DELEGATED_METER.to_string(): {"code": designator(METER)},
        })
    }

    /// Simulates calls in order.
    async fn run(&self, calls: Vec<Value>) -> Vec<Outcome> {
        let params = json!([{"blockStateCalls": [{"stateOverrides": self.overrides(), "calls": calls}]}, "pending"]);
        let blocks = self.node.result("/standard", "eth_simulateV1", params).await;
        items(&blocks[0]["calls"]).iter().map(outcome).collect()
    }

    async fn one(&self, call: Value) -> Outcome {
        self.run(vec![call]).await.pop().expect("one call has one outcome")
    }

    /// Returns the account's call to itself, as its own transaction makes it.
    fn own(&self, data: impl AsRef<[u8]>) -> Value {
        json!({"from": self.account, "to": self.account, "input": hex::encode_prefixed(data), "gas": "0x1e8480"})
    }

    /// Returns a batch of the account in the mode without `opData`.
    fn plain(&self, calls: &[Call]) -> Value {
        self.own(execute(mode("01000000000000000000"), batch(calls)))
    }

    /// Returns a batch of the account with a gas limit for each call.
    fn limited(&self, calls: &[Call], limits: &[u64]) -> Value {
        let limits: Vec<U256> = limits.iter().copied().map(U256::from).collect();
        let data = (calls.to_vec(), Bytes::from(limits.abi_encode())).abi_encode_params();
        self.own(execute(mode("01000000000078210001"), data))
    }

    /// Returns the log of the witness for a call from the account.
    fn seen(&self, value: u64, data: impl Into<Bytes>) -> (Vec<B256>, Bytes) {
        (vec![self.account.into_word(), U256::from(value).into()], data.into())
    }

    /// Calls a view function of the account.
    async fn view<C: SolCall>(&self, to: Address, call: C) -> C::Return {
        let params = json!([{"to": to, "input": hex::encode_prefixed(call.abi_encode())}, "pending", self.overrides()]);
        let answer = self.node.result("/standard", "eth_call", params).await;
        C::abi_decode_returns(&hex::decode(answer.as_str().unwrap()).unwrap()).unwrap()
    }
}

fn outcome(call: &Value) -> Outcome {
    let bytes = |value: &Value| Bytes::from(hex::decode(value.as_str().unwrap()).unwrap());
    if call["status"] == "0x1" {
        let logs = items(&call["logs"]).iter();
        let log = |log: &Value| (serde_json::from_value(log["topics"].clone()).unwrap(), bytes(&log["data"]));
        return Outcome::Done(bytes(&call["returnData"]), logs.map(log).collect());
    }
    assert!(call["logs"].as_array().is_none_or(Vec::is_empty), "{call}");
    if call["error"]["code"] != 3 {
        return Outcome::Failed(call["error"].clone());
    }
    Outcome::Reverted(call["error"].get("data").map(bytes).unwrap_or_default())
}

/// Returns the code of an account that has delegated to this contract.
fn designator(to: Address) -> Bytes {
    [&hex!("ef0100")[..], to.as_slice()].concat().into()
}

/// Returns the mode that begins with these bytes.
fn mode(start: &str) -> B256 {
    B256::right_padding_from(&hex::decode(start).unwrap())
}

fn execute(mode: B256, data: Vec<u8>) -> Vec<u8> {
    IAccount::executeCall { mode, executionData: data.into() }.abi_encode()
}

/// Encodes calls as `abi.encode(Call[])`.
fn batch(calls: &[Call]) -> Vec<u8> {
    calls.abi_encode()
}

fn call(to: Address, value: u64, data: impl Into<Bytes>) -> Call {
    Call { to, value: U256::from(value), data: data.into() }
}

/// Returns a call that reads an account's balance.
fn balance_of(address: Address) -> Value {
    json!({"to": null, "input": format!("0x73{}315f5260205ff3", hex::encode(address))})
}

fn word(outcome: &Outcome) -> U256 {
    let Outcome::Done(data, _) = outcome else { panic!("no word: {outcome:?}") };
    U256::from_be_slice(data)
}

fn reverted(error: impl SolError) -> Outcome {
    Outcome::Reverted(error.abi_encode().into())
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_made_in_order_by_the_account_with_their_values_and_data() {
    let bench = DelegatedDevnet::new();
    let long: Vec<u8> = (0..10_001).map(|index| index as u8).collect();
    let calls = [
        call(WITNESS, 0, vec![]),
        call(WITNESS, 7, vec![1]),
        call(NOBODY, ETHER, vec![]),
        call(WITNESS, 1, long.clone()),
        call(WITNESS, 0, vec![2; 33]),
    ];
    let seen = vec![bench.seen(0, vec![]), bench.seen(7, vec![1]), bench.seen(1, long), bench.seen(0, vec![2; 33])];
    for batch in [bench.plain(&calls), bench.limited(&calls, &[0; 5]), bench.limited(&calls, &[200_000; 5])] {
        let outcomes = bench.run(vec![batch, balance_of(WITNESS), balance_of(NOBODY)]).await;
        assert_eq!(outcomes[0], Outcome::Done(Bytes::new(), seen.clone()));
        assert_eq!((word(&outcomes[1]), word(&outcomes[2])), (U256::from(8), U256::from(ETHER)));
    }
    // The mode with `opData` also accepts missing or empty `opData`; a mode's free bytes are ignored.
    let with_op_data = mode("01000000000078210001");
    let empty = (calls.to_vec(), Bytes::new()).abi_encode_params();
    let free = mode("01000000000000000000ffffffffffffffffffffffffffffffffffffffffffff");
    for (mode, data) in [(with_op_data, batch(&calls)), (with_op_data, empty), (free, batch(&calls))] {
        assert_eq!(
            bench.one(bench.own(execute(mode, data))).await,
            Outcome::Done(Bytes::new(), seen.clone()),
            "{mode}"
        );
    }
    assert_eq!(bench.one(bench.plain(&[])).await, Outcome::Done(Bytes::new(), vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn all_calls_are_made_or_none_and_the_first_failure_is_told_unchanged() {
    let bench = DelegatedDevnet::new();
    let custom = Unauthorized { caller: WITNESS }.abi_encode();
    for data in [custom, vec![], vec![0xff], vec![3; 1_000]] {
        let calls = [call(WITNESS, 5, vec![]), call(REVERTER, 0, data.clone()), call(REVERTER, 0, vec![9])];
        for batch in [bench.plain(&calls), bench.limited(&calls, &[0, 50_000, 0])] {
            let outcomes = bench.run(vec![batch, balance_of(WITNESS)]).await;
            assert_eq!(outcomes[0], Outcome::Reverted(data.clone().into()));
            assert_eq!(word(&outcomes[1]), U256::ZERO);
        }
    }
    // The value exceeds the account's balance: the EVM fails the call without return data.
    let mut poor = call(NOBODY, 0, vec![]);
    poor.value = U256::MAX;
    assert_eq!(bench.one(bench.plain(&[call(WITNESS, 1, vec![]), poor])).await, Outcome::Reverted(Bytes::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_account_itself_has_calls_made() {
    let bench = DelegatedDevnet::new();
    let data = execute(mode("01000000000000000000"), batch(&[call(WITNESS, 0, vec![])]));
    for to in [bench.account, BatchExecutor::default_address()] {
        let from_outside =
            json!({"from": bench.stranger, "to": to, "input": hex::encode_prefixed(&data), "gas": "0x1e8480"});
        assert_eq!(bench.one(from_outside).await, reverted(Unauthorized { caller: bench.stranger }));
    }
    // The executor contract cannot act for the account either, because it is not the account.
    let through = bench.plain(&[call(BatchExecutor::default_address(), 0, data)]);
    assert_eq!(bench.one(through).await, reverted(Unauthorized { caller: bench.account }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_may_be_in_a_batch() {
    let bench = DelegatedDevnet::new();
    let inner = |calls: &[Call]| execute(mode("01000000000000000000"), batch(calls));
    let deepest = inner(&[call(WITNESS, 2, vec![2])]);
    let middle = inner(&[call(WITNESS, 1, vec![1]), call(bench.account, 0, deepest), call(WITNESS, 3, vec![3])]);
    let seen = (1u8..=3).map(|index| bench.seen(index.into(), vec![index])).collect();
    assert_eq!(bench.one(bench.plain(&[call(bench.account, 0, middle)])).await, Outcome::Done(Bytes::new(), seen));
    let failing = inner(&[call(WITNESS, 1, vec![1]), call(REVERTER, 0, vec![4])]);
    let calls = [call(WITNESS, 0, vec![0]), call(bench.account, 0, failing)];
    assert_eq!(bench.one(bench.plain(&calls)).await, Outcome::Reverted(vec![4].into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_address_0_is_the_account_without_op_data_and_itself_with_it() {
    let bench = DelegatedDevnet::new();
    let inner = execute(mode("01000000000000000000"), batch(&[call(WITNESS, 0, vec![1])]));
    let calls = [call(Address::ZERO, 0, inner)];
    let seen = Outcome::Done(Bytes::new(), vec![bench.seen(0, vec![1])]);
    assert_eq!(bench.one(bench.plain(&calls)).await, seen);
    // The account at the real address 0 has also delegated, and its error names its caller.
    assert_eq!(bench.one(bench.limited(&calls, &[0])).await, reverted(Unauthorized { caller: bench.account }));

    let calls = [call(Address::ZERO, 3, vec![])];
    for (batch, gain) in [(bench.plain(&calls), 0), (bench.limited(&calls, &[0]), 3)] {
        let outcomes = bench.run(vec![balance_of(Address::ZERO), batch, balance_of(Address::ZERO)]).await;
        assert_eq!(word(&outcomes[2]) - word(&outcomes[0]), U256::from(gain));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gas_limit_is_what_the_callee_has() {
    let bench = DelegatedDevnet::new();
    for to in [METER, DELEGATED_METER] {
        // With value, the stipend of 2300 is part of the limit, and the minimum that the callee gets.
        for (limit, value, has) in [(50_000, 0, 50_000), (50_000, 1, 50_000), (2_301, 1, 2_301), (1_500, 1, 2_300)] {
            let Outcome::Done(_, logs) = bench.one(bench.limited(&[call(to, value, vec![])], &[limit])).await else {
                panic!("{limit} gas and {value} wei: the call fails")
            };
            assert_eq!(U256::from_be_slice(&logs[0].1) + U256::from(2), U256::from(has), "{limit} gas, {value} wei");
        }
    }
    // A limit that is too low for the callee makes it fail, and the batch with it.
    let calls = [call(WITNESS, 0, vec![]), call(METER, 0, vec![])];
    assert_eq!(bench.one(bench.limited(&calls, &[0, 100])).await, Outcome::Reverted(Bytes::new()));
    // 0 means no limit.
    let Outcome::Done(_, logs) = bench.one(bench.limited(&[call(METER, 0, vec![])], &[0])).await else {
        panic!("it fails")
    };
    assert!(U256::from_be_slice(&logs[0].1) > U256::from(1_800_000));
}

/// The EVM silently gives a callee less than the requested gas if 63/64 of the remaining gas is less (EIP-150).
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_cannot_have_its_gas_limit_is_not_made() {
    let bench = DelegatedDevnet::new();
    for limit in [30_000u64, 3_000_000] {
        for (to, value) in [(METER, 0), (DELEGATED_METER, 1)] {
            let batch = bench.limited(&[call(to, value, vec![])], &[limit]);
            let calls = (0..60).map(|step| {
                let mut call = batch.clone();
                call["gas"] = json!(format!("{:#x}", limit + limit / 64 + 20_000 + step * 1_500));
                call
            });
            let (mut made, mut refused) = (0, 0);
            for outcome in bench.run(calls.collect()).await {
                match outcome {
                    Outcome::Done(_, logs) => {
                        made += 1;
                        assert_eq!(U256::from_be_slice(&logs[0].1) + U256::from(2), U256::from(limit));
                    }
                    Outcome::Reverted(data)
                        if data == NotEnoughGas { index: U256::ZERO, gasLimit: U256::from(limit) }.abi_encode() =>
                    {
                        refused += 1;
                        assert_eq!(made, 0, "more gas is refused where less was enough");
                    }
                    // The gas does not even suffice to read the batch.
                    other => assert_eq!((refused, made), (0, 0), "{other:?}"),
                }
            }
            assert!(made > 0 && refused > 0, "limit {limit}, value {value}: {made} made, {refused} refused");
        }
    }
    // The error has the index of the call.
    let batch = bench.limited(&[call(METER, 0, vec![]), call(METER, 0, vec![])], &[1_000, u64::MAX]);
    assert_eq!(bench.one(batch).await, reverted(NotEnoughGas { index: U256::from(1), gasLimit: U256::from(u64::MAX) }));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_has_a_gas_limit_where_one_has() {
    let bench = DelegatedDevnet::new();
    let calls = [call(WITNESS, 0, vec![]), call(WITNESS, 0, vec![])];
    for limits in [&[][..], &[50_000], &[50_000; 3]] {
        let error = GasLimitCountMismatch { gasLimits: U256::from(limits.len()), calls: U256::from(2) };
        assert_eq!(bench.one(bench.limited(&calls, limits)).await, reverted(error));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_modes_are_supported_and_others_refused() {
    let bench = DelegatedDevnet::new();
    let cases = [
        ("01000000000000000000", true),
        ("01000000000000000000ffffffffffffffffffffffffffffffffffffffffffff", true),
        ("01000000000078210001", true),
        ("01000000000078210001ffffffffffffffffffffffffffffffffffffffffffff", true),
        // Single call; continue after failures; reserved byte; batch of batches; other selector; unknown call type.
        ("00000000000000000000", false),
        ("01010000000000000000", false),
        ("01000000000100000000", false),
        ("01000000000078210002", false),
        ("01000000000078210000", false),
        ("ff000000000000000000", false),
    ];
    for (start, supported) in cases {
        let mode = mode(start);
        let says = bench.view(bench.account, IAccount::supportsExecutionModeCall { mode }).await;
        assert_eq!(says, supported, "{start}");
        let outcome = bench.one(bench.own(execute(mode, batch(&[call(WITNESS, 0, vec![])])))).await;
        let expected = match supported {
            true => Outcome::Done(Bytes::new(), vec![bench.seen(0, vec![])]),
            false => reverted(UnsupportedExecutionMode { mode }),
        };
        assert_eq!(outcome, expected, "{start}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_batch_makes_no_call() {
    let bench = DelegatedDevnet::new();
    let calls = [call(WITNESS, 0, vec![1])];
    let whole = batch(&calls);
    let with = |at: usize, word: U256| {
        let mut data = whole.clone();
        data[at * 32..][..32].copy_from_slice(&word.to_be_bytes::<32>());
        data
    };
    // Words: 0 array offset, 1 array length, 2 offset of the first call, 3 callee, 5 data offset, 6 data length.
    let mut cases = vec![vec![], vec![0; 31], whole[..whole.len() - 32].to_vec()];
    cases.extend([0, 1, 2, 3, 5, 6].map(|at| with(at, U256::MAX)));
    cases.extend([0, 1, 2, 5, 6].map(|at| with(at, U256::from(1) << 63)));
    cases.push(with(0, U256::from(1_000)));
    cases.push((calls.to_vec(), Bytes::from(vec![1])).abi_encode_params());
    for data in cases {
        for start in ["01000000000000000000", "01000000000078210001"] {
            // In the first mode, `opData` is just trailing data after the batch.
            if start == "01000000000000000000" && data.get(31) == Some(&64) {
                continue;
            }
            let outcome = bench.one(bench.own(execute(mode(start), data.clone()))).await;
            assert!(matches!(outcome, Outcome::Reverted(_)), "{start}, {}: {outcome:?}", hex::encode(&data));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_account_takes_tokens() {
    let bench = DelegatedDevnet::new();
    let (operator, from, id, data) = (bench.stranger, NOBODY, U256::from(1), Bytes::from(vec![1, 2, 3]));
    let one = IAccount::onERC721ReceivedCall { operator, from, id, data: data.clone() };
    assert_eq!(bench.view(bench.account, one).await, hex!("150b7a02"));
    let one = IAccount::onERC1155ReceivedCall { operator, from, id, value: id, data: data.clone() };
    assert_eq!(bench.view(bench.account, one).await, hex!("f23a6e61"));
    let many = IAccount::onERC1155BatchReceivedCall { operator, from, ids: vec![id; 3], values: vec![id; 3], data };
    assert_eq!(bench.view(bench.account, many).await, hex!("bc197c81"));
    for (id, supported) in [("01ffc9a7", true), ("150b7a02", true), ("4e2312e0", true), ("ffffffff", false)] {
        let call = IAccount::supportsInterfaceCall { id: hex::decode_to_array(id).unwrap().into() };
        assert_eq!(bench.view(bench.account, call).await, supported, "{id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_account_takes_ether() {
    let bench = DelegatedDevnet::new();
    let sent = json!({"from": bench.stranger, "to": bench.account, "value": "0x5"});
    // A contract that forwards its value with only the stipend, like Solidity's `transfer`, and returns the outcome.
    let code = format!("0x5f5f5f5f3473{}5ff15f5260205ff3", hex::encode(bench.account));
    let passed = json!({"from": bench.stranger, "to": null, "value": "0x3", "input": code});
    let outcomes = bench.run(vec![balance_of(bench.account), sent, passed, balance_of(bench.account)]).await;
    assert_eq!(outcomes[1], Outcome::Done(Bytes::new(), vec![]));
    assert_eq!(word(&outcomes[2]), U256::from(1));
    assert_eq!(word(&outcomes[3]) - word(&outcomes[0]), U256::from(8));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_no_function_is_for_succeeds_as_on_an_account_without_code() {
    let bench = DelegatedDevnet::new();
    let sent = json!({"from": bench.stranger, "to": bench.account, "value": "0x5", "input": "0x12345678aabb"});
    let outcomes = bench.run(vec![balance_of(bench.account), sent, balance_of(bench.account)]).await;
    assert_eq!(outcomes[1], Outcome::Done(Bytes::new(), vec![]));
    assert_eq!(word(&outcomes[2]) - word(&outcomes[0]), U256::from(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_accounts_own_signature_is_valid_and_no_other() {
    let bench = DelegatedDevnet::new();
    let signers = dev_signers().unwrap();
    let order = uint!(0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141_U256);
    let (valid, invalid) = (hex!("1626ba7e"), hex!("ffffffff"));
    // Several rounds, so that both values of v occur.
    for round in 0..4u8 {
        let hash = B256::repeat_byte(round);
        let own = signers[1].sign_hash_sync(&hash).unwrap();
        let bytes = own.as_bytes();
        let with_v = |v: u8| [&bytes[..64], &[v]].concat();
        let high = Signature::new(own.r(), order - own.s(), !own.v());
        let cases = [
            ("its own", hash, bytes.to_vec(), valid),
            ("of another hash", B256::repeat_byte(0xff), bytes.to_vec(), invalid),
            ("of another account", hash, signers[2].sign_hash_sync(&hash).unwrap().as_bytes().to_vec(), invalid),
            ("with the high s", hash, high.as_bytes().to_vec(), invalid),
            ("with the other v", hash, with_v(55 - bytes[64]), invalid),
            ("with v as parity", hash, with_v(bytes[64] - 27), invalid),
            ("with v 29", hash, with_v(29), invalid),
            ("short", hash, bytes[..64].to_vec(), invalid),
            ("long", hash, [&bytes[..], &[0]].concat(), invalid),
            ("compact (EIP-2098)", hash, own.as_erc2098().to_vec(), invalid),
            ("empty", hash, vec![], invalid),
        ];
        for (what, hash, signature, expected) in cases {
            let call = IAccount::isValidSignatureCall { hash, signature: signature.into() };
            assert_eq!(bench.view(bench.account, call).await, expected, "a signature {what}");
        }
    }
    // A signature that recovers to no account is invalid, also for address 0.
    let mut nobody = vec![0; 65];
    nobody[64] = 27;
    let call = IAccount::isValidSignatureCall { hash: B256::ZERO, signature: nobody.into() };
    assert_eq!(bench.view(Address::ZERO, call).await, invalid);
}
