//! The flow of a browser's wallet: accounts, permissions, chains, and signatures of messages.

use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope};
use alloy_eips::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, Signature, U256, address, hex, keccak256};
use alloy_signer::SignerSync;
use alloy_sol_types::{SolStruct, eip712_domain, sol};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    NOBODY, QUIET, WalletChain, account,
    approval::{Asking, answer, check_rejected},
    keyed::keyed,
};
use crate::{
    process::{Presim, command, eventually, text},
    support::{BOUND, TestNode, http, items, request},
};

const CONTRACT: Address = address!("0xCcCCccccCCCCcCCCCCCcCcCccCcCCCcCcccccccC");

sol! {
    struct Person { string name; address[] wallets; }
    struct Mail { Person from; Person[] to; bytes32 topic; int128 delta; bytes body; bool urgent; }
}

/// Returns a message with nested types, its domain on this chain.
fn mail(chain_id: u64) -> Value {
    json!({
        "types": {
            "EIP712Domain": [
                {"name": "name", "type": "string"}, {"name": "chainId", "type": "uint256"},
                {"name": "verifyingContract", "type": "address"},
            ],
            "Person": [{"name": "name", "type": "string"}, {"name": "wallets", "type": "address[]"}],
            "Mail": [
                {"name": "from", "type": "Person"}, {"name": "to", "type": "Person[]"},
                {"name": "topic", "type": "bytes32"}, {"name": "delta", "type": "int128"},
                {"name": "body", "type": "bytes"}, {"name": "urgent", "type": "bool"},
            ],
        },
        "primaryType": "Mail",
        "domain": {"name": "Post", "chainId": chain_id, "verifyingContract": CONTRACT},
        "message": {
            "from": {"name": "Cow\u{1b}[2J", "wallets": [account(0), account(1)]},
            "to": [{"name": "Bob", "wallets": []}, {"name": "Eve", "wallets": [NOBODY]}],
            "topic": B256::repeat_byte(5), "delta": "-7", "body": "0x0102", "urgent": true,
        },
    })
}

/// Returns the hash of that message, as the types of a compiler have it.
fn hash_of_mail() -> B256 {
    let person = |name: &str, wallets: &[Address]| Person { name: name.to_owned(), wallets: wallets.to_vec() };
    let mail = Mail {
        from: person("Cow\u{1b}[2J", &[account(0), account(1)]),
        to: vec![person("Bob", &[]), person("Eve", &[NOBODY])],
        topic: B256::repeat_byte(5),
        delta: -7,
        body: vec![1, 2].into(),
        urgent: true,
    };
    let domain = eip712_domain! { name: "Post", chain_id: 31_337, verifying_contract: CONTRACT, };
    mail.eip712_signing_hash(&domain)
}

fn signature(value: &Value) -> Signature {
    let text = value.as_str().unwrap_or_else(|| panic!("no signature: {value}"));
    let bytes = hex::decode(text).unwrap();
    assert!(bytes.len() == 65 && (bytes[64] == 27 || bytes[64] == 28), "{text}");
    Signature::from_raw(&bytes).unwrap()
}

fn node() -> TestNode {
    WalletChain::new().node(&[&QUIET])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_signed_as_text_or_hex_and_in_either_order() {
    let (node, from) = (node(), account(3));
    let lower = from.to_string().to_lowercase();
    let long = "0x".to_owned() + &"ab".repeat(40);
    let address = NOBODY.to_string();
    for (params, message) in [
        (json!(["hello", from]), &b"hello"[..]),
        (json!([from, "hello"]), b"hello"),
        (json!(["0x68656c6c6f", lower]), b"hello"),
        (json!([lower, "0x68656c6c6f", "a password"]), b"hello"),
        (json!(["", from]), b""),
        (json!(["0x", from]), b""),
        (json!(["0xhello", from]), b"0xhello"),
        (json!(["gr\u{fc}\u{df}", from]), "gr\u{fc}\u{df}".as_bytes()),
        (json!([long, from]), &[0xab; 40]),
        // Of two addresses, the second signs the first.
        (json!([address, from]), NOBODY.as_slice()),
    ] {
        for path in ["/", "/standard"] {
            let signed = signature(&node.result(path, "personal_sign", params.clone()).await);
            assert_eq!(signed.recover_address_from_msg(message).unwrap(), from, "{params}");
        }
    }
    // eth_sign has the account first.
    for (given, message) in [("0x68656c6c6f", &b"hello"[..]), ("hello", b"hello"), (&address, NOBODY.as_slice())] {
        let signed = signature(&node.result("/standard", "eth_sign", json!([from, given])).await);
        assert_eq!(signed.recover_address_from_msg(message).unwrap(), from, "{given}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn typed_data_is_signed_as_an_object_or_as_its_json() {
    let (node, from) = (node(), account(4));
    let typed = mail(31_337);
    for (path, data) in [
        ("/", typed.clone()),
        ("/standard", typed.clone()),
        ("/", json!(typed.to_string())),
        ("/standard", json!(typed.to_string())),
    ] {
        let signed = signature(&node.result(path, "eth_signTypedData_v4", json!([from, data])).await);
        assert_eq!(signed.recover_address_from_prehash(&hash_of_mail()).unwrap(), from, "{path}");
    }
    // A field of the domain that its type does not list is not signed, as in other wallets; nor is one of the message.
    let mut more = typed.clone();
    more["domain"]["version"] = json!("2");
    more["message"]["extra"] = json!(1);
    let signed = signature(&node.result("/", "eth_signTypedData_v4", json!([from, more])).await);
    assert_eq!(signed.recover_address_from_prehash(&hash_of_mail()).unwrap(), from);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_domain_is_signed_alone_and_without_a_message() {
    let (node, from) = (node(), account(4));
    let mut alone = changed("/primaryType", json!("EIP712Domain"));
    alone.as_object_mut().unwrap().remove("message");
    let domain = eip712_domain! { name: "Post", chain_id: 31_337, verifying_contract: CONTRACT, };
    // EIP-712: hashStruct(message) is left out.
    let hash = keccak256([&[0x19, 0x01], domain.separator().as_slice()].concat());
    for (path, data) in [("/", alone.clone()), ("/standard", json!(alone.to_string()))] {
        let signed = signature(&node.result(path, "eth_signTypedData_v4", json!([from, data])).await);
        assert_eq!(signed.recover_address_from_prehash(&hash).unwrap(), from, "{path}");
    }
    // Any other type needs its message.
    alone["primaryType"] = json!("Mail");
    let error = node.error("/standard", "eth_signTypedData_v4", json!([from, alone])).await;
    assert!(error.to_string().contains("params[1].message: missing") && error["code"] == -32602, "{error}");
}

/// Returns the message with one part replaced.
fn changed(pointer: &str, value: Value) -> Value {
    let mut data = mail(31_337);
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    data.pointer_mut(parent).unwrap()[name] = value;
    data
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_signed_says_why() {
    let (node, from) = (node(), account(1));
    let chain: Value = (0..40)
        .map(|index| (format!("T{index}"), json!([{"name": "next", "type": format!("T{}", index + 1)}])))
        .collect::<serde_json::Map<_, _>>()
        .into();
    // Twenty types, each with the next one twice: a million fields when written out.
    let mut doubling = serde_json::Map::from_iter([("EIP712Domain".to_owned(), json!([]))]);
    for index in 0..20 {
        let next = format!("T{}", index + 1);
        doubling.insert(format!("T{index}"), json!([{"name": "a", "type": next}, {"name": "b", "type": next}]));
    }
    doubling.insert("T20".to_owned(), json!([]));
    let doubling = json!({"types": doubling, "primaryType": "T0", "domain": {}, "message": {}});
    let list = |name: &str| json!([{"name": "list", "type": name}]);
    for (data, named, code) in [
        (mail(1), "params[1].domain.chainId: 1: expected 31337", -32602),
        (changed("/domain/chainId", json!("0x1")), "expected 31337", -32602),
        (changed("/primaryType", json!("Letter")), "params[1].primaryType: \"Letter\"", -32602),
        (changed("/types/EIP712Domain", json!([])), "EIP712Domain()", 0),
        (changed("/types/EIP712Domain", json!([{"name": "version", "type": "string"}])), "types.EIP712Domain", -32602),
        (changed("/types/EIP712Domain", json!([{"name": "chainId", "type": "uint8"}])), "types.EIP712Domain", -32602),
        (changed("/message/urgent", json!(3)), "params[1].message", -32602),
        (changed("/message/delta", json!(U256::MAX)), "params[1].message", -32602),
        (changed("/message/from", json!({"name": "Cow"})), "params[1].message", -32602),
        (changed("/types/Person", list("Missing")), "Missing", -32602),
        (changed("/types/Person", list("Mail")), "nested", -32602),
        (changed("/types/Person", list("Person[]")), "nested", -32602),
        (changed("/types/Person", list("uint256[][][][][]")), "4 dimensions", -32602),
        (changed("/types/Person", json!([{"name": "a b", "type": "string"}])), "params[1].types.Person", -32602),
        (changed("/types", chain), "at most 32", -32602),
        (doubling, "written out", -32602),
        (json!("not JSON"), "params[1]", -32602),
        (json!(7), "typed data", -32602),
        (changed("/message", json!({"to": vec![0; 5_000]})), "at most 4096", -32602),
    ] {
        let answer = node.call("/standard", "eth_signTypedData_v4", json!([from, data])).await;
        if code == 0 {
            assert!(answer["result"].is_string(), "{named}: {answer}");
            continue;
        }
        assert_eq!(answer["error"]["code"], code, "{named}: {answer}");
        assert!(answer["error"].to_string().replace("\\\"", "\"").contains(named), "{named}: {answer}");
    }
    for (method, params, code) in [
        ("personal_sign", json!(["hi", NOBODY]), 4100),
        ("eth_sign", json!([NOBODY, "hi"]), 4100),
        ("eth_sign", json!(["hi", from]), -32602),
        ("eth_sign", json!([from, "0xabc"]), -32602),
        ("personal_sign", json!([NOBODY, "hi"]), 4100),
        ("personal_sign", json!(["hi", "you"]), -32602),
        ("personal_sign", json!(["hi", format!("0x0x{}", "1".repeat(38))]), -32602),
        ("personal_sign", json!(["0xabc", from]), -32602),
        ("personal_sign", json!([["hi"], from]), -32602),
        ("personal_sign", json!(["a".repeat(131_073), from]), -32602),
        ("eth_signTypedData_v4", json!([from, changed("/message/from/name", json!("a".repeat(131_073)))]), -32602),
        ("eth_signTypedData_v4", json!([NOBODY, mail(31_337)]), 4100),
        ("eth_signTypedData_v4", json!([mail(31_337), from]), -32602),
    ] {
        let error = node.error("/", method, params.clone()).await;
        assert_eq!(error["code"], code, "{method} {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_connects_and_stays_on_the_chain() {
    let node = WalletChain::new().node(&[&QUIET, &["--allow-origin", "http://localhost:3000"]]);
    let accounts = node.result("/", "eth_accounts", json!([])).await;
    assert_eq!(node.result("/", "eth_requestAccounts", json!([])).await, accounts);
    let permission = json!({
        "parentCapability": "eth_accounts",
        "caveats": [{"type": "restrictReturnedAccounts", "value": accounts}],
    });
    for path in ["/", "/standard"] {
        assert_eq!(node.result(path, "wallet_getPermissions", json!([])).await, json!([permission]));
        let granted = node.result(path, "wallet_requestPermissions", json!([{"eth_accounts": {}}])).await;
        assert_eq!(granted, json!([permission]));
        let error = node.error(path, "wallet_requestPermissions", json!([{"eth_coinbase": {}}])).await;
        assert_eq!(error["code"], -32602, "{error}");
    }
    // A page is named by its origin.
    let body = request(1, "wallet_requestPermissions", json!([{"eth_accounts": {"limit": 1}}])).to_string();
    let post = node.client.post(node.url("/")).header("content-type", "application/json");
    let named = post.header("origin", "http://localhost:3000").body(body).send().await.unwrap();
    let named: Value = named.json().await.unwrap();
    assert_eq!(named["result"][0]["invoker"], "http://localhost:3000", "{named}");

    assert_eq!(node.result("/", "wallet_switchEthereumChain", json!([{"chainId": "0x7a69"}])).await, Value::Null);
    for other in ["0x1", "0xffffffffffffffffffffffffffffffff"] {
        let error = node.error("/", "wallet_switchEthereumChain", json!([{"chainId": other}])).await;
        assert_eq!(error["code"], 4902, "{error}");
        assert!(error["data"].as_str().unwrap().contains("expected 0x7a69"), "{error}");
    }
    assert_eq!(node.error("/", "wallet_switchEthereumChain", json!([{"chainId": 1}])).await["code"], -32602);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wallet_that_denies_everything_connects_and_signs_nothing() {
    let node = WalletChain::new().node(&[&QUIET, &["--wallet-approval", "deny"]]);
    let from = account(1);
    for (method, params) in [
        ("eth_requestAccounts", json!([])),
        ("wallet_requestPermissions", json!([{"eth_accounts": {}}])),
        ("personal_sign", json!(["hi", from])),
        ("eth_signTypedData_v4", json!([from, mail(31_337)])),
    ] {
        check_rejected(&node.call("/", method, params).await, "--wallet-approval is deny");
    }
    assert_eq!(node.result("/", "wallet_getPermissions", json!([])).await, json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_a_key_file_is_signed_when_it_is_approved_and_not_sent() {
    let (signer, key) = keyed();
    let asking = Asking::start(&[&QUIET, &["--wallet-key-file", text(key.path())]]);
    let data = format!("0xa9059cbb{:0>64}{:0>64}", hex::encode(NOBODY), "7");
    let fields = json!({
        "from": signer.address(), "to": CONTRACT, "value": "0x1bc16d674ec80000", "data": data, "nonce": "0x9",
        "gas": "0x186a0", "maxFeePerGas": "0x77359400", "maxPriorityFeePerGas": "0x1",
    });
    let expected = TxEip1559 {
        chain_id: 31_337,
        nonce: 9,
        gas_limit: 100_000,
        max_fee_per_gas: 2_000_000_000,
        max_priority_fee_per_gas: 1,
        to: CONTRACT.into(),
        value: U256::from(2_000_000_000_000_000_000_u64),
        input: hex::decode(&data).unwrap().into(),
        ..TxEip1559::default()
    };
    let asked = asking.request("eth_signTransaction", json!([fields]));
    let one = asking.listed(|list| list.len() == 1).await.pop().unwrap();
    assert_eq!((&one["kind"], &one["from"]), (&json!("transaction"), &json!(signer.address())), "{one}");
    assert_eq!(one["hash"], json!(expected.signature_hash()), "{one}");
    let shown: Vec<(&str, &str)> = items(&one["fields"])
        .iter()
        .map(|field| (field["name"].as_str().unwrap(), field["value"].as_str().unwrap()))
        .collect();
    let to = CONTRACT.to_string();
    let gas = "100000, for at most 0.0002 ether of fees";
    assert_eq!(shown, [("nonce", "9"), ("to", &to), ("value", "2 ether"), ("gas", gas), ("data", &data)]);
    let said = asking.says(&["list"]);
    for part in [
        "1 transaction waits for approval\n",
        "  signs    a transaction, as 0x",
        "  fields   nonce  9\n",
        "  means    send 7 ",
        &format!(" to {NOBODY}\n"),
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!asked.is_finished());
    asking.approve(one["id"].as_str().unwrap());
    let answered = answer(asked).await;
    let signature = signer.sign_hash_sync(&expected.signature_hash()).unwrap();
    let signed: TxEnvelope = expected.into_signed(signature).into();
    assert_eq!(answered["result"]["raw"], json!(Bytes::from(signed.encoded_2718())), "{answered}");
    assert_eq!(answered["result"]["tx"]["hash"], json!(signed.tx_hash()), "{answered}");
    let status = asking.node.result("/", "txpool_status", json!([])).await;
    assert_eq!((&status["pending"], &status["queued"]), (&json!("0x0"), &json!("0x0")), "nothing is sent");

    let asked = asking.request("eth_signTransaction", json!([fields]));
    let one = asking.listed(|list| list.len() == 1).await.pop().unwrap();
    asking.says(&["reject", one["id"].as_str().unwrap()]);
    check_rejected(&answer(asked).await, "the approver rejected the transaction");
    // Open accounts need no approval. An account of a key file signs no delegation.
    let mut open = fields.clone();
    open["from"] = json!(account(3));
    assert!(asking.node.result("/", "eth_signTransaction", json!([open])).await["raw"].is_string());
    let mut delegating = fields;
    delegating["authorizationList"] =
        json!([{"chainId": "0x7a69", "address": NOBODY, "nonce": "0x0", "yParity": "0x1", "r": "0x1", "s": "0x2"}]);
    let error = asking.node.error("/", "eth_signTransaction", json!([delegating])).await;
    assert!(error["message"].as_str().unwrap().contains("no transaction with authorizations"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_signed_when_it_is_approved_and_not_before() {
    let asking = Asking::start(&[&QUIET, &["--deadline-ms", "200"]]);
    let from = account(2);
    let asked = asking.request("personal_sign", json!(["Sign in\nNonce: 7", from]));
    let list = asking.listed(|list| list.first().is_some_and(|one| one["waitedMs"].as_u64() > Some(500))).await;
    let one = &list[0];
    assert_eq!((&one["kind"], &one["from"]), (&json!("message"), &json!(from)), "{one}");
    assert_eq!(one["message"], format!("0x{}", hex::encode("Sign in\nNonce: 7")), "{one}");
    let said = asking.says(&["list"]);
    assert!(said.contains("  message  | Sign in\n           | Nonce: 7\n"), "{said}");
    assert!(!asked.is_finished());
    let id = one["id"].as_str().unwrap();
    asking.says(&["approve", id, one["digest"].as_str().unwrap()]);
    let signed = signature(&answer(asked).await["result"]);
    assert_eq!(signed.recover_address_from_msg("Sign in\nNonce: 7").unwrap(), from);

    let asked = asking.request("eth_signTypedData_v4", json!([from, mail(31_337)]));
    let list = asking.listed(|list| list.len() == 1).await;
    let one = &list[0];
    assert_eq!((&one["kind"], &one["primaryType"]), (&json!("typedData"), &json!("Mail")), "{one}");
    let names: Vec<_> = items(&one["fields"]).iter().map(|field| field["name"].as_str().unwrap()).collect();
    let expected = [
        "from.name",
        "from.wallets[0]",
        "from.wallets[1]",
        "to[0].name",
        "to[0].wallets",
        "to[1].name",
        "to[1].wallets[0]",
        "topic",
        "delta",
        "body",
        "urgent",
    ];
    assert_eq!(names, expected, "{one}");
    let said = asking.says(&["list"]);
    let from_line = format!("           from.wallets[1]   {}\n", account(1));
    for part in [
        "  signs    typed data, Mail, as 0x",
        "  domain   name               \"Post\"\n",
        &format!("           verifyingContract  {CONTRACT}\n"),
        // No control character reaches the terminal.
        "  fields   from.name         \"Cow\\u{1b}[2J\"\n",
        &from_line,
        "           to[0].wallets     []\n",
        "           delta             -7\n",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    asking.says(&["reject", one["id"].as_str().unwrap()]);
    check_rejected(&answer(asked).await, "the approver rejected the typed message");

    // A message that the rules refuse asks nobody.
    let refused = tokio::time::timeout(BOUND, asking.node.error("/", "personal_sign", json!(["hi", NOBODY]))).await;
    assert_eq!(refused.expect("at once")["code"], 4100);
    // A client that goes away withdraws its message.
    let asked = asking.request("personal_sign", json!(["hi", from]));
    asking.listed(|list| list.len() == 1).await;
    asked.abort();
    asking.listed(<[Value]>::is_empty).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_says_that_something_waits_and_nothing_of_what_is_signed() {
    let folder = TempDir::new().unwrap();
    let data_dir = ["--data-dir", text(folder.path())];
    let mut presim = Presim::start(&[&data_dir[..], &["--wallet-approval", "ask", "--traffic", "0"]].concat());
    let body = request(1, "personal_sign", json!(["a secret to sign", account(1)])).to_string();
    let post = http().post(&presim.url).header("content-type", "application/json").body(body);
    let asked = tokio::spawn(async move { post.send().await.unwrap().json::<Value>().await.unwrap() });
    let list = || {
        let output = command(&[&["wallet", "list", "--json"], &data_dir[..]].concat(), &[]).output().unwrap();
        let list: Value = serde_json::from_slice(&output.stdout).ok()?;
        list["batches"].get(0).cloned()
    };
    let one = eventually("it waits", async || tokio::task::block_in_place(list)).await;
    let (id, digest) = (one["id"].as_str().unwrap(), one["digest"].as_str().unwrap());
    let approve = [&["wallet", "approve", id, digest], &data_dir[..]].concat();
    assert!(tokio::task::block_in_place(|| command(&approve, &[]).output()).unwrap().status.success());
    let signed = answer(asked).await;
    assert!(signed["result"].is_string(), "{signed}");
    presim.signal("TERM");
    let (_, told) = presim.ended().await;
    let line = told.lines().find(|line| line.contains("waits for approval")).unwrap_or_else(|| panic!("{told}"));
    for part in ["INFO", id, digest, &account(1).to_string(), "presim wallet watch"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    for secret in ["a secret", &hex::encode("a secret"), &signed["result"].as_str().unwrap()[2..]] {
        assert!(!told.contains(secret), "{secret}: {told}");
    }
}
