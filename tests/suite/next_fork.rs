//! The rules of another fork than the block's own: in one request, and for the transactions of a chain (`presim shadow`).

use std::io::{BufRead, BufReader};

use alloy_primitives::{Address, B256, Bytes, address};
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::{
    op_chain,
    process::{command, file},
    support::{TestNode, hex, items, number, request, signal},
};

const ALICE: Address = address!("0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266");
const BOB: Address = address!("0x70997970c51812dc3a010c7d01b50e0d17dc79c8");
/// An account that nobody has.
const STRANGER: Address = Address::repeat_byte(0x5a);
const CODE: Address = Address::repeat_byte(0xc0);
/// Returns the slot (EIP-7843), of Amsterdam: SLOTNUM PUSH0 MSTORE PUSH1 32 PUSH0 RETURN.
const SLOTNUM: &str = "0x4b5f5260205ff3";
/// Returns the number of leading zeros of 1 (EIP-7939), of Osaka: PUSH1 1 CLZ PUSH0 MSTORE PUSH1 32 PUSH0 RETURN.
const CLZ: &str = "0x60011e5f5260205ff3";
/// The gas of a new account (EIP-8037).
const NEW_ACCOUNT: u64 = 183_600;

/// Starts a chain of Osaka.
fn osaka(flags: &[&str]) -> TestNode {
    TestNode::start(&[&["--testing", "--dialect", "project", "--hardfork", "osaka"], flags].concat())
}

/// Returns an `eth_call` of a contract with this code, under a fork.
fn call(code: &str, fork: &str) -> Value {
    json!([{"to": CODE}, "latest", {CODE.to_string(): {"code": code}}, {"fork": fork}])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_has_the_rules_of_the_fork_that_it_names_later_or_earlier() {
    let node = osaka(&[]);
    let told = |answer: Value| number(&answer);
    assert_eq!(told(node.result("/", "eth_call", call(SLOTNUM, "amsterdam")).await), 0);
    let mut with_slot = call(SLOTNUM, "Amsterdam");
    with_slot[3]["slotNumber"] = json!("0x1f");
    assert_eq!(told(node.result("/", "eth_call", with_slot).await), 0x1f);
    assert_eq!(told(node.result("/", "eth_call", call(CLZ, "osaka")).await), 255);
    for (code, fork) in [(SLOTNUM, "osaka"), (CLZ, "prague"), (CLZ, "paris")] {
        let error = node.error("/", "eth_call", call(code, fork)).await;
        assert!(error["message"].as_str().unwrap().starts_with("invalid opcode"), "{fork}: {error}");
    }
    // PUSH0 is of Shanghai.
    let error = node.error("/", "eth_call", call("0x5f5ff3", "paris")).await;
    assert_eq!(error["message"], "invalid opcode", "{error}");
    let error = node.error("/", "eth_call", call(SLOTNUM, "glamsterdam")).await;
    let text = "blockOverrides.fork: unknown fork \"glamsterdam\": expected one of paris, shanghai, cancun, prague, osaka, amsterdam";
    assert_eq!((&error["code"], &error["message"]), (&json!(-32602), &json!(text)));

    let transfer = json!([{"from": ALICE, "to": STRANGER, "value": "0x1"}, "latest", {}, {"fork": "amsterdam"}]);
    let gas = node.result("/", "eth_estimateGas", transfer.clone()).await;
    assert_eq!(told(gas), 21_000 + NEW_ACCOUNT);
    let options =
        json!({"blockOverrides": {"fork": "amsterdam"}, "stateOverrides": {CODE.to_string(): {"code": SLOTNUM}}});
    let trace = node.result("/", "debug_traceCall", json!([{"to": CODE}, "latest", options])).await;
    assert_eq!((&trace["failed"], &trace["structLogs"][0]["op"]), (&json!(false), &json!("SLOTNUM")), "{trace}");
}

#[tokio::test(flavor = "multi_thread")]
async fn simulated_blocks_have_the_header_fields_of_their_fork() {
    let node = osaka(&[]);
    let state = json!({CODE.to_string(): {"code": SLOTNUM}});
    let blocks = |fork: &str| {
        let transfer = json!({"from": ALICE, "to": STRANGER, "value": "0x1"});
        json!([
            {"blockOverrides": {"fork": fork}, "stateOverrides": state, "calls": [{"to": CODE}, transfer]}, {},
            {"blockOverrides": {"fork": "osaka"}, "calls": [{"to": CODE}]},
        ])
    };
    for at in ["latest", "pending"] {
        let payload = json!({"blockStateCalls": blocks("amsterdam")});
        let simulated = node.result("/standard", "eth_simulateV1", json!([payload, at])).await;
        let slots: Vec<Option<u64>> = items(&simulated).iter().map(|one| one.get("slotNumber").map(number)).collect();
        assert_eq!(slots, [Some(0), Some(1), None], "the blocks after the first have its fork: {simulated}");
        let lists = items(&simulated).iter().map(|one| one["blockAccessListHash"].is_string()).collect::<Vec<_>>();
        assert_eq!(lists, [true, true, false]);
        assert_eq!(simulated[0]["calls"][0]["status"], "0x1");
        assert_eq!(number(&simulated[0]["calls"][1]["gasUsed"]), 21_000 + NEW_ACCOUNT);
        assert_eq!(simulated[2]["calls"][0]["status"], "0x0");
        assert_eq!(simulated[1]["parentHash"], simulated[0]["hash"]);
        assert!(simulated[0].get("fork").is_none(), "the standard's result has no such field");
    }
    let payload = json!({"blockStateCalls": [{"blockOverrides": {"fork": "shanghai"}}]});
    let simulated = node.result("/standard", "eth_simulateV1", json!([payload, "latest"])).await;
    let has = |field: &str| simulated[0].get(field).is_some();
    assert!(has("withdrawalsRoot") && !has("blobGasUsed") && !has("excessBlobGas") && !has("parentBeaconBlockRoot"));
    assert!(!has("requestsHash") && !has("slotNumber"), "{simulated}");

    let mut payload = json!({"blockStateCalls": blocks("amsterdam"), "outputs": ["status"]});
    let simulated = node.result("/", "presim_simulate", json!([payload, "latest"])).await;
    let forks: Vec<&Value> = items(&simulated).iter().map(|one| &one["fork"]).collect();
    assert_eq!(forks, ["amsterdam", "amsterdam", "osaka"]);
    payload["vary"] = json!([{"path": "blocks[0].calls[1].value", "values": ["0x1", "0x2"]}]);
    payload["objective"] = json!("coinbase");
    let found = node.result("/", "presim_search", json!([payload, "latest"])).await;
    assert_eq!((&found["fork"], &found["result"][0]["fork"]), (&json!("amsterdam"), &json!("amsterdam")), "{found}");
    payload["blockStateCalls"][2]["blockOverrides"]["fork"] = json!("bogota");
    for (method, params) in [
        ("presim_search", json!([payload, "latest"])),
        ("eth_simulateV1", { json!([{"blockStateCalls": [{"blockOverrides": {"fork": "bpo1"}}]}, "latest"]) }),
    ] {
        let error = node.error("/", method, params).await;
        assert_eq!(error["code"], -32602, "{method}: {error}");
        assert!(error["message"].as_str().unwrap().contains("unknown fork"), "{method}: {error}");
    }
}

/// Gaps have the fork of the block that they come before, and what is shared between requests does not mix forks.
#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_fill_gaps_have_the_fork_of_the_next() {
    let node = osaka(&[]);
    let hashes = async |fork: &str, value: u64| {
        let call = json!({"from": ALICE, "to": BOB, "value": hex(value)});
        let next = json!({"blockOverrides": {"number": "0x6", "fork": fork}, "calls": [call]});
        let payload =
            json!({"blockStateCalls": [{"calls": [{"from": ALICE, "to": BOB}]}, next], "outputs": ["header"]});
        let simulated = node.result("/", "presim_simulate", json!([payload, "latest"])).await;
        let last = items(&simulated).last().expect("a block").clone();
        (last["parentHash"].clone(), last.get("slotNumber").is_some())
    };
    let (first, _) = hashes("amsterdam", 1).await;
    assert_eq!(hashes("amsterdam", 2).await, (first.clone(), true));
    assert_eq!(hashes("amsterdam", 3).await, (first.clone(), true));
    let (other, has_slot) = hashes("shanghai", 4).await;
    assert!(other != first && !has_slot);
    assert_eq!(hashes("shanghai", 5).await, (other, false));
}

/// Each bundle names its fork or has that of the one before, and the rules are those of the chain's fork, however they were come to.
#[tokio::test(flavor = "multi_thread")]
async fn bundles_of_call_many_have_their_forks() {
    let node = osaka(&[]);
    let bundle = |code: &str, fork: Option<&str>| {
        let at = if code == CLZ { BOB } else { CODE };
        json!({"transactions": [{"to": at, "gas": "0x20000"}], "blockOverride": fork.map_or(json!({}), |fork| json!({"fork": fork}))})
    };
    let forks = [
        (CLZ, Some("osaka")),
        (SLOTNUM, Some("amsterdam")),
        (SLOTNUM, None),
        (CLZ, Some("paris")),
        (CLZ, Some("amsterdam")),
    ];
    let bundles: Vec<Value> = forks.iter().map(|(code, fork)| bundle(code, *fork)).collect();
    let state = json!({CODE.to_string(): {"code": SLOTNUM}, BOB.to_string(): {"code": CLZ}});
    let answer = node.result("/", "eth_callMany", json!([bundles, {"blockNumber": "latest"}, state])).await;
    let values: Vec<Option<u64>> = items(&answer).iter().map(|one| one[0].get("value").map(number)).collect();
    assert_eq!(values, [Some(255), Some(0), Some(0), None, Some(255)], "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_header_and_the_snapshot_name_the_fork() {
    let node = osaka(&[]);
    let header = async |params: Value| {
        let body = request(1, "eth_call", params);
        let answer = node.client.post(node.url("/")).json(&body).send().await.expect("it answers");
        let header = answer.headers()["x-presim-snapshot"].to_str().expect("a text").to_owned();
        header.split(", ").find_map(|field| field.strip_prefix("fork=")).expect("the fork").to_owned()
    };
    assert_eq!(header(json!([{"to": CODE}, "latest"])).await, "osaka");
    assert_eq!(header(call(SLOTNUM, "amsterdam")).await, "amsterdam");
    assert_eq!(header(call("0x4b5f5260205ffd", "amsterdam")).await, "amsterdam", "a revert");
    assert_eq!(header(call(CLZ, "prague")).await, "prague", "an invalid opcode");
    assert_eq!(node.result("/", "presim_snapshot", json!([])).await["fork"], "osaka");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_the_op_stack_has_the_forks_of_its_family() {
    let genesis = json!({"config": op_chain::config(31_337, "jovian"), "gasLimit": "0x1c9c380", "difficulty": "0x0", "alloc": {}});
    let node = TestNode::on(&genesis, &["--traffic", "0", "--sub-block-ms", "60000"]);
    let known = "bedrock, regolith, canyon, ecotone, fjord, granite, holocene, isthmus, jovian, karst, lagoon, azul, beryl, cobalt, denim";
    for fork in ["amsterdam", "paris", "zenith"] {
        let error = node.error("/", "eth_call", call(SLOTNUM, fork)).await;
        let text = format!("blockOverrides.fork: unknown fork \"{fork}\": expected one of {known}");
        assert_eq!((&error["code"], &error["message"]), (&json!(-32602), &json!(text)));
    }
    for (fork, has) in [("jovian", false), ("karst", true), ("azul", true), ("isthmus", false), ("bedrock", false)] {
        let answer = node.call("/", "eth_call", call(CLZ, fork)).await;
        assert_eq!(answer.get("result").is_some(), has, "{fork}: {answer}");
    }
}

/// The outcome of a command.
struct Ended {
    code: Option<i32>,
    out: String,
    told: String,
}

async fn run(args: &[&str]) -> Ended {
    block_in_place(|| {
        let ended = command(args, &[]).output().expect("the program runs");
        let [out, told] = [ended.stdout, ended.stderr].map(|text| String::from_utf8(text).expect("a text"));
        Ended { code: ended.status.code(), out, told }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flag_overrides_fields_of_the_block() {
    let node = osaka(&[]);
    let url = node.url("/");
    node.result("/", "anvil_setCode", json!([CODE, SLOTNUM])).await;
    let to = CODE.to_string();
    let on = ["simulate", "--url", &url, "--to", &to, "--json"];
    let with = async |overrides: &[&str]| run(&[&on[..], overrides].concat()).await;
    assert_eq!(with(&[]).await.code, Some(1));
    let ended = with(&["--block-override", "fork=amsterdam", "--block-override", "slotNumber=7"]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.told);
    let simulated: Value = serde_json::from_str(&ended.out).expect("JSON");
    assert_eq!((&simulated[0]["fork"], number(&simulated[0]["calls"][0]["returnData"])), (&json!("amsterdam"), 7));
    // A flag wins over what a file has, under whatever name, and over null.
    for own in [Value::Null, json!({"fork": "paris", "timestamp": "0x1"})] {
        let payload = json!({"blockStateCalls": [{"blockOverrides": own, "calls": [{"to": CODE}]}]});
        let bundle = file(&payload.to_string());
        let path = bundle.path().to_str().expect("a path");
        let flags = ["--block-override", "fork=amsterdam", "--block-override", "time=9000000000"];
        let ended = run(&[&["simulate", path, "--url", &url, "--json"], &flags[..]].concat()).await;
        assert_eq!(ended.code, Some(0), "{own}: {}", ended.told);
    }
    for (wrong, text) in [
        ("fork", "--block-override fork: expected FIELD=VALUE, as in fork=amsterdam"),
        ("fee=1", "--block-override fee=1: unknown field: expected one of number, time,"),
        ("gasLimit=much", "no amount"),
        ("fork=berlin", "unknown fork \"berlin\""),
    ] {
        let ended = with(&["--block-override", wrong]).await;
        assert_eq!(ended.code, Some(2), "{wrong}: {}", ended.told);
        assert!(ended.told.contains(text), "{wrong}: {}", ended.told);
    }
}

/// A chain of Osaka with transactions that somebody shadows.
struct Shadowed {
    node: TestNode,
}

impl Shadowed {
    fn start() -> Self {
        Self { node: osaka(&["--enable-tx-gas-limit"]) }
    }

    /// Puts a contract with this code at an address.
    async fn code(&self, at: Address, code: &str) {
        self.node.result("/", "anvil_setCode", json!([at, code])).await;
    }

    /// Sends a transaction, in a block of its own. Returns its hash.
    async fn send(&self, mut transaction: Value) -> Value {
        transaction["from"] = json!(ALICE);
        self.node.result("/", "eth_sendTransaction", json!([transaction])).await
    }

    /// Returns the gas that a transaction needs as it is, and under Amsterdam.
    async fn needs(&self, mut transaction: Value) -> [u64; 2] {
        transaction["from"] = json!(ALICE);
        let own = self.node.result("/", "eth_estimateGas", json!([transaction, "latest"])).await;
        let under = json!([transaction, "latest", {}, {"fork": "amsterdam"}]);
        [number(&own), number(&self.node.result("/", "eth_estimateGas", under).await)]
    }

    /// Shadows the whole chain. Returns the blocks with what is told of them.
    async fn told(&self, flags: &[&str]) -> Vec<Value> {
        let ended = self.shadow(&[&["--json"], flags].concat()).await;
        assert_eq!(ended.code, Some(0), "{}", ended.told);
        ended.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    async fn shadow(&self, flags: &[&str]) -> Ended {
        let newest = self.node.height().await;
        let (url, blocks) = (self.node.url("/standard"), format!("1..{newest}"));
        run(&[&["shadow", "--upstream", &url, "--under", "amsterdam", "--blocks", &blocks], flags].concat()).await
    }
}

/// Returns what is told of a transaction.
fn difference<'a>(told: &'a [Value], hash: &Value) -> Option<&'a Value> {
    told.iter().flat_map(|block| items(&block["differences"])).find(|one| one["hash"] == *hash)
}

/// Each is a contract or a transaction that an EIP of Amsterdam concerns.
#[tokio::test(flavor = "multi_thread")]
async fn each_eip_of_amsterdam_that_changes_behaviour_is_told_with_its_step_and_cause() {
    let chain = Shadowed::start();
    let at = Address::repeat_byte;
    // The contract, its code, and the step and the cause that are expected.
    let opcodes = [
        // EIP-7843: SLOTNUM POP.
        (at(0xa1), "0x4b5000".to_owned(), "SLOTNUM", 0),
        // EIP-8024: 17 zeros, DUPN 17.
        (at(0xa2), format!("0x{}e68000", "5f".repeat(17)), "DUPN", 17),
        // EIP-8024: 18 zeros, SWAPN 17.
        (at(0xa3), format!("0x{}e78000", "5f".repeat(18)), "SWAPN", 18),
        // EIP-8024: 3 zeros, EXCHANGE.
        (at(0xa4), "0x5f5f5fe88e00".to_owned(), "EXCHANGE", 3),
    ];
    let mut sent = Vec::new();
    for (contract, code, op, pc) in &opcodes {
        chain.code(*contract, code).await;
        let hash = chain.send(json!({"to": contract, "gas": "0x20000"})).await;
        sent.push((hash, format!("opcode {op}"), Some((*op, *pc)), *contract));
    }
    // EIP-7954: init code of 50,000 bytes: PUSH2 50000 PUSH0 PUSH0 CREATE PUSH0 SSTORE.
    chain.code(at(0xa5), "0x61c3505f5ff05f5500").await;
    let init = chain.send(json!({"to": at(0xa5), "gas": hex(1_000_000)})).await;
    sent.push((init, "size of init code".to_owned(), Some(("CREATE", 5)), at(0xa5)));
    // EIP-8246: a contract that is created and destroyed for itself keeps its ether: ADDRESS SELFDESTRUCT.
    let kept = chain.send(json!({"to": null, "data": "0x30ff", "value": "0x1", "gas": hex(1_000_000)})).await;
    sent.push((kept, "opcode SELFDESTRUCT".to_owned(), None, Address::ZERO));
    // EIP-8037: a new slot costs more than the gas that is there: PUSH1 1 PUSH0 SSTORE.
    chain.code(at(0xa6), "0x60015f5500").await;
    let [own, _] = chain.needs(json!({"to": at(0xa6)})).await;
    let slot = chain.send(json!({"to": at(0xa6), "gas": hex(own)})).await;
    sent.push((slot, "out of gas".to_owned(), Some(("SSTORE", 3)), at(0xa6)));
    // As the function of a compiler returns it: PUSH1 6 GAS SWAP1 JUMP, and at its end JUMPDEST PUSH0 SSTORE.
    chain.code(at(0xa9), "0x60065a9056005b5f5500").await;
    // The gas that is left becomes a value: GAS PUSH0 SSTORE.
    chain.code(at(0xa7), "0x5a5f5500").await;
    let gas = chain.send(json!({"to": at(0xa7), "gas": hex(1_000_000)})).await;
    sent.push((gas, "gas left".to_owned(), Some(("SSTORE", 2)), at(0xa7)));
    let returned = chain.send(json!({"to": at(0xa9), "gas": hex(1_000_000)})).await;
    sent.push((returned, "gas left".to_owned(), Some(("SSTORE", 8)), at(0xa9)));
    // A call with all gas, of which too little is there: the callee is named, not its caller, which goes on and stores 0.
    // PUSH0 PUSH0 PUSH0 PUSH0 PUSH0 PUSH20 GAS CALL PUSH0 SSTORE.
    let callee = &at(0xab).to_string()[2..];
    chain.code(at(0xaa), &format!("0x5f5f5f5f5f73{callee}5af15f5500")).await;
    chain.code(at(0xab), "0x60015f5500").await;
    let [own, under] = chain.needs(json!({"to": at(0xaa)})).await;
    assert!(own < under, "{own} {under}");
    let nested = chain.send(json!({"to": at(0xaa), "gas": hex(own)})).await;
    sent.push((nested, "out of gas".to_owned(), Some(("SSTORE", 3)), at(0xab)));

    // EIP-8038: a slot that is there already is written at another price: PUSH1 2 PUSH0 SSTORE.
    chain.code(at(0xa8), "0x60025f5500").await;
    chain.node.result("/", "anvil_setStorageAt", json!([at(0xa8), "0x0", B256::with_last_byte(1)])).await;
    let [own, under] = chain.needs(json!({"to": at(0xa8)})).await;
    if own < under {
        let written = chain.send(json!({"to": at(0xa8), "gas": hex(own)})).await;
        sent.push((written, "out of gas".to_owned(), Some(("SSTORE", 3)), at(0xa8)));
    }

    let told = chain.told(&[]).await;
    for (hash, cause, step, contract) in &sent {
        let one = difference(&told, hash).unwrap_or_else(|| panic!("{cause} is not told: {told:?}"));
        assert_eq!(one["cause"], json!(cause), "{one}");
        if let Some((op, pc)) = step {
            let at = &one["at"];
            assert_eq!((at["op"].as_str(), at["pc"].as_u64()), (Some(*op), Some(*pc)), "{one}");
            assert_eq!(one["contracts"][0], json!(contract), "{one}");
        }
    }
    let part = |index: usize| &difference(&told, &sent[index].0).expect("it is told")["at"];
    assert_eq!((&part(0)["kind"], part(0).get("own"), &part(0)["under"]["pc"]), (&json!("pc"), None, &json!(1)));
    assert_eq!(part(6)["kind"], "outOfGas");
    assert_eq!(part(7)["kind"], "operands");
    let end = |index: usize| {
        let one = difference(&told, &sent[index].0).expect("it is told");
        (one["status"].clone(), one["statusUnder"].clone(), one["differs"].clone())
    };
    assert_eq!(end(0), (json!("0x0"), json!("0x1"), json!(["status"])));
    assert_eq!(end(5), (json!("0x1"), json!("0x1"), json!(["balance"])));
    assert_eq!(end(6), (json!("0x1"), json!("0x0"), json!(["status", "storage"])));
    assert_eq!(end(7), (json!("0x1"), json!("0x1"), json!(["storage"])));
}

/// The fork before Osaka has neither the opcode nor the precompile of these contracts.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_fork_lacks_is_told_with_the_step() {
    let chain = Shadowed::start();
    let at = Address::repeat_byte;
    // EIP-7939: PUSH1 1 CLZ PUSH0 SSTORE. EIP-7951: STATICCALL of 0x100 with 160 zeros, and the size of what it returns is stored.
    chain.code(at(0xa1), "0x60011e5f5500").await;
    let valid = concat!(
        "4cee90eb86eaa050036147a12d49004b6b9c72bd725d39d4785011fe190f0b4d",
        "a73bd4903f0ce3b639bbbf6e8e80d16931ff4bcf5993d58468e8fb19086e8cac",
        "36dbcd03009df8c59286b162af3bd7fcc0450c9aa81be5d10d312af6c66b1d60",
        "4aebd3099c618202fcfe16ae7770b0c49ab5eadf74b754204a3bb6060e44eff3",
        "7618b065f9832de4ca6ca971a7a1adc826d0f7c00181a5fb2ddf79ae00b4e10e",
    );
    // CALLDATASIZE PUSH0 PUSH0 CALLDATACOPY, STATICCALL(gas, 0x100, 0, CALLDATASIZE, 0, 0), POP RETURNDATASIZE PUSH0 SSTORE.
    chain.code(at(0xa2), "0x365f5f375f5f365f6101005afa503d5f5500").await;
    let clz = chain.send(json!({"to": at(0xa1), "gas": hex(100_000)})).await;
    let p256 = chain.send(json!({"to": at(0xa2), "gas": hex(200_000), "data": format!("0x{valid}")})).await;
    let (url, blocks) = (chain.node.url("/standard"), "1..2");
    let ended = run(&["shadow", "--upstream", &url, "--under", "prague", "--blocks", blocks, "--json"]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.told);
    let told: Vec<Value> = ended.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let one = difference(&told, &clz).expect("it is told");
    assert_eq!(
        (&one["cause"], &one["status"], &one["statusUnder"]),
        (&json!("opcode CLZ"), &json!("0x1"), &json!("0x0"))
    );
    let at_step = &one["at"];
    assert_eq!((&at_step["kind"], &at_step["pc"], &at_step["op"]), (&json!("pc"), &json!(2), &json!("CLZ")), "{one}");
    assert_eq!((&at_step["own"]["pc"], at_step.get("under")), (&json!(3), None), "the other run has ended: {one}");
    let one = difference(&told, &p256).expect("it is told");
    assert_eq!(one["cause"], "precompile 0x0000000000000000000000000000000000000100", "{one}");
    assert_eq!((&one["at"]["kind"], &one["at"]["op"]), (&json!("operands"), &json!("SSTORE")), "{one}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_has_too_little_gas_is_told_with_how_much_more_it_needs() {
    let chain = Shadowed::start();
    // Each contract is new, so that the slot is.
    let mut sent = Vec::new();
    for (index, parts) in [(1_u8, (2, 3)), (2, (5, 9)), (3, (2, 5))] {
        let contract = Address::repeat_byte(0xd0 + index);
        chain.code(contract, "0x60015f5500").await;
        let [own, under] = chain.needs(json!({"to": contract})).await;
        let gas = under * parts.0 / parts.1 + 1;
        assert!((own..under).contains(&gas), "{own} {gas} {under}");
        sent.push(chain.send(json!({"to": contract, "gas": hex(gas)})).await);
    }
    // EIP-7976 and EIP-7981: the floor of a transaction with data, or with an access list. EIP-8037: a transfer to a new account.
    let data = Bytes::from(vec![1; 4_000]);
    let keys: Vec<B256> = (0..40).map(B256::with_last_byte).collect();
    let list = json!([{"address": BOB, "storageKeys": keys}]);
    let mut invalid = Vec::new();
    for mut transaction in [json!({"to": BOB, "data": data}), json!({"to": BOB, "accessList": list})] {
        let [own, under] = chain.needs(transaction.clone()).await;
        assert!(own < under, "{own} {under}");
        transaction["gas"] = hex(own);
        invalid.push(chain.send(transaction).await);
    }
    let new = chain.send(json!({"to": STRANGER, "value": "0x1", "gas": hex(21_000)})).await;
    let told = chain.told(&[]).await;
    let more = |hash: &Value| difference(&told, hash).expect("it is told")["succeedsWith"].clone();
    let expected =
        [(true, true), (false, true), (false, false)].map(|(half, twice)| json!({"halfMore": half, "twice": twice}));
    assert_eq!(sent.iter().map(more).collect::<Vec<_>>(), expected, "{told:?}");
    for hash in &invalid {
        let one = difference(&told, hash).expect("it is told");
        assert!(one["cause"].as_str().expect("a cause").starts_with("invalid: "), "{one}");
        assert!(one["invalid"].as_str().expect("the reason").contains("gas"), "{one}");
        assert_eq!((&one["statusUnder"], &one["differs"]), (&Value::Null, &json!([])), "{one}");
        assert_eq!(one["succeedsWith"]["twice"], true, "{one}");
    }
    let one = difference(&told, &new).expect("it is told");
    assert_eq!((&one["cause"], one.get("at")), (&json!("out of gas"), None), "{one}");
    assert_eq!(one["succeedsWith"], json!({"halfMore": false, "twice": false}), "{one}");
}

/// Logs of transfers (EIP-7708) and gas are no difference.
#[tokio::test(flavor = "multi_thread")]
async fn transfers_and_swaps_do_not_differ() {
    let node = osaka(&["--world"]);
    let trading = node.node.info().trading.expect("the trading world");
    let word = |address: Address| address.into_word().to_string()[2..].to_owned();
    let number = |number: u64| format!("{number:064x}");
    let swap = [
        "0x7ff36ab5",
        &number(0),
        &number(0x80),
        &word(ALICE),
        &number(u64::MAX),
        &number(2),
        &word(trading.weth),
        &word(trading.alpha),
    ]
    .concat();
    let chain = Shadowed { node };
    for _ in 0..3 {
        chain.send(json!({"to": BOB, "value": "0x1", "gas": hex(100_000)})).await;
        chain.send(json!({"to": STRANGER, "value": "0x1", "gas": hex(300_000)})).await;
        chain.send(json!({"to": trading.router, "value": "0x1000000000", "data": swap, "gas": hex(1_000_000)})).await;
    }
    let told = chain.told(&["--gas"]).await;
    assert_eq!(told.len(), 9);
    for block in &told {
        assert_eq!((&block["fork"], &block["under"]), (&json!("osaka"), &json!("amsterdam")));
        assert_eq!((&block["differences"], &block["transactions"]), (&json!([]), &json!(1)), "{block}");
        assert_eq!(block["gas"][0]["gasUsed"], block["gasUsed"]);
        assert_eq!(block["gas"][0]["gasUsedUnder"], block["gasUsedUnder"]);
    }
    let ended = chain.shadow(&[]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.told);
    assert!(
        ended.out.starts_with("9 blocks, 9 transactions: 0 differ under amsterdam, 0 of them invalid; gas "),
        "{}",
        ended.out
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn differences_are_summed_by_contract_and_by_cause_and_a_file_restricts_them() {
    let chain = Shadowed::start();
    let (one, other) = (Address::repeat_byte(0xa1), Address::repeat_byte(0xa2));
    for contract in [one, other] {
        chain.code(contract, "0x60015f5500").await;
        let [own, _] = chain.needs(json!({"to": contract})).await;
        chain.send(json!({"to": contract, "gas": hex(own)})).await;
    }
    let ended = chain.shadow(&[]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.told);
    for part in [
        "block 1: 1 of 1 transactions differ; gas ",
        "success → failed: status, storage",
        &format!("out of gas at pc 3 SSTORE of {one}"),
        "2 blocks, 2 transactions: 2 differ under amsterdam, 0 of them invalid; gas ",
        "CAUSE",
        "out of gas  2       2",
        &format!("{other}  1       1"),
    ] {
        assert!(ended.out.contains(part), "{part:?} is not in:\n{}", ended.out);
    }
    let listed = file(&format!("# mine\n\n  {one} # the first\n"));
    let told = chain.told(&["--contracts", listed.path().to_str().expect("a path")]).await;
    let counts: Vec<usize> = told.iter().map(|block| items(&block["differences"]).len()).collect();
    assert_eq!(counts, [1, 0]);
    let empty = file("# none\n");
    let ended = chain.shadow(&["--contracts", empty.path().to_str().expect("a path")]).await;
    assert_eq!(ended.code, Some(2));
    assert!(ended.told.contains("no address: expected one in each line"), "{}", ended.told);
    let ended = chain.shadow(&["--under", "osaka"]).await;
    assert_eq!(ended.code, Some(2), "--under twice: {}", ended.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_blocks_are_shadowed_until_the_command_is_interrupted() {
    let chain = Shadowed::start();
    let contract = Address::repeat_byte(0xa1);
    chain.code(contract, SLOTNUM).await;
    chain.send(json!({"to": BOB, "value": "0x1", "gas": hex(50_000)})).await;
    let url = chain.node.url("/standard");
    let mut child =
        command(&["shadow", "--upstream", &url, "--under", "amsterdam", "--gas"], &[]).spawn().expect("it runs");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let mut next = |part: &str| {
        block_in_place(|| {
            let line = lines.next().expect("a line").expect("a text");
            assert!(line.contains(part), "{part:?}: {line}");
        });
    };
    // The newest block, and one that comes later.
    next("block 1: 0 of 1 transactions differ");
    next(" gas 21,000 → ");
    chain.send(json!({"to": contract, "gas": hex(100_000)})).await;
    next("block 2: 1 of 1 transactions differ");
    next(" gas 100,000 → ");
    next("failed → success: status");
    next("opcode SLOTNUM at pc 0 SLOTNUM of ");
    next("succeeds with 1.5 times its gas limit");
    next("contracts 0xA1");
    signal(child.id(), "INT");
    next("2 blocks, 2 transactions: 1 differ under amsterdam, 0 of them invalid; gas ");
    assert_eq!(block_in_place(|| child.wait()).expect("it ends").code(), Some(0));
}

/// An archive that has lost the state of some blocks.
#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_cannot_be_run_are_reported_and_the_others_run() {
    let node = osaka(&["--keep-blocks", "8"]);
    let chain = Shadowed { node };
    for _ in 0..12 {
        chain.send(json!({"to": BOB, "value": "0x1", "gas": hex(50_000)})).await;
    }
    let ended = chain.shadow(&[]).await;
    assert_eq!(ended.code, Some(1), "{}{}", ended.out, ended.told);
    for part in ["block 2 could not be run: ", " blocks could not be run", " transactions: 0 differ under amsterdam"] {
        assert!(ended.out.contains(part), "{part:?} is not in:\n{}", ended.out);
    }
    let ended = chain.shadow(&["--json"]).await;
    assert_eq!(ended.code, Some(1), "{}", ended.told);
    let told: Vec<Value> = ended.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(told.len(), 12, "a line for each block");
    assert!(told[1]["error"].is_string() && told[11]["differences"].is_array(), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_shadowed_is_refused_with_the_reason() {
    let node = osaka(&[]);
    let (url, standard) = (node.url("/"), node.url("/standard"));
    let of_url = run(&["shadow", "--url", &url, "--under", "amsterdam"]).await;
    assert_eq!(of_url.code, Some(2));
    assert!(of_url.told.contains("--upstream: missing"), "{}", of_url.told);
    let upstream = ["shadow", "--upstream", &standard];
    for (flags, text) in [
        (&["--under", "berlin", "--blocks", "0"][..], "block 0 has no transactions"),
        (&["--under", "amsterdam", "--blocks", "7..3"], "the last block is before the first"),
        (&["--under", "amsterdam", "--blocks", "x"], "expected N or N..M"),
        (&["--under", "amsterdam", "--blocks", "1..9"], "--blocks: 9: the newest block is 0"),
        (&["--blocks", "1"], "--under"),
    ] {
        let ended = run(&[&upstream[..], flags].concat()).await;
        assert_eq!(ended.code, Some(2), "{flags:?}: {}", ended.out);
        assert!(ended.told.contains(text), "{flags:?}: {}", ended.told);
    }
    node.result("/", "evm_mine", json!([])).await;
    let ended = run(&[&upstream[..], &["--under", "berlin", "--blocks", "1"]].concat()).await;
    assert_eq!(ended.code, Some(2));
    assert!(ended.told.contains("unknown fork \"berlin\": expected one of paris, "), "{}", ended.told);
    // The processors of a node that serves are its own.
    let error = node.error("/", "presim_shadow", json!(["0x1", {"under": "amsterdam"}])).await;
    assert_eq!(error["code"], -32601);
    assert!(error["message"].as_str().expect("a text").contains("is for `presim shadow`"), "{error}");
}
