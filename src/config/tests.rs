//! The wallet's settings and key files: their allowed contents, and the errors for unusable ones.

use std::{
    ffi::OsString,
    fs::Permissions,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use alloy_signer::k256::elliptic_curve::rand_core::OsRng;
use alloy_signer_local::PrivateKeySigner;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{ApprovalPolicy, Config, RevertPolicy, UpgradePolicy};
use crate::{rpc::Access, wallet::keys};

/// The first two keys of the test mnemonic.
const KEYS: [&str; 2] = [
    "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80",
    "59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d",
];
const ADDRESSES: [&str; 2] =
    ["0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266", "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"];
const PASSWORD: &str = "correct horse";

/// A directory of files that only their owner may read.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// Creates a keystore of one of the keys.
    fn keystore(&self, name: &str, key: &str, password: &str) -> PathBuf {
        let key = const_hex::decode(key).unwrap();
        PrivateKeySigner::encrypt_keystore(self.0.path(), &mut OsRng, key, password, Some(name)).unwrap();
        self.0.path().join(name)
    }
}

fn addresses(files: &[PathBuf], passwords: &[PathBuf]) -> Vec<String> {
    let signers = keys::load(files, passwords).unwrap_or_else(|error| panic!("{files:?}: {error}"));
    signers.iter().map(|signer| signer.address().to_string()).collect()
}

/// Returns the beginning of an error that names a key file with its flag.
fn named(path: &Path) -> String {
    format!("--wallet-key-file {}: ", path.display())
}

/// Returns the error for unusable files, and checks that it contains no key.
fn refusal(files: &[PathBuf], passwords: &[PathBuf]) -> String {
    let error = keys::load(files, passwords).map(|signers| signers.len()).expect_err("they are used");
    for told in [format!("{error}"), format!("{error:?}")] {
        assert!(KEYS.iter().all(|key| !told.contains(&key[..16])), "a key is told: {told}");
    }
    error.to_string()
}

#[test]
fn keystores_and_raw_keys_load_in_their_order() {
    let folder = Folder::new();
    let keystore = folder.keystore("keystore", KEYS[1], PASSWORD);
    let password = folder.file("password", format!("{PASSWORD}\r\nmore\n"));
    for raw in [KEYS[0].to_owned(), format!("0x{}\n", KEYS[0]), format!("  {}\r\n", KEYS[0].to_uppercase())] {
        let raw = folder.file("raw", raw);
        assert_eq!(addresses(&[raw.clone(), keystore.clone()], std::slice::from_ref(&password)), ADDRESSES);
        assert_eq!(addresses(&[raw], &[]), ADDRESSES[..1]);
    }
    assert!(addresses(&[], &[]).is_empty());
}

#[test]
fn keystores_have_a_password_in_common_or_one_each() {
    let folder = Folder::new();
    let (one, other) = (folder.file("one", PASSWORD), folder.file("other", "battery staple\n"));
    let alike = [folder.keystore("a", KEYS[0], PASSWORD), folder.keystore("b", KEYS[1], PASSWORD)];
    assert_eq!(addresses(&alike, std::slice::from_ref(&one)), ADDRESSES);
    let each = [alike[0].clone(), folder.keystore("c", KEYS[1], "battery staple")];
    assert_eq!(addresses(&each, &[one.clone(), other.clone()]), ADDRESSES);

    let told = refusal(&each, &[other.clone(), one.clone()]);
    assert!(
        told.starts_with(&named(&each[0]))
            && told.contains("the password in")
            && told.contains(other.to_str().unwrap()),
        "{told}"
    );
    let told = refusal(&each, &[one.clone(), other, one]);
    assert!(told.contains("3 files for 2 keystores"), "{told}");
    let told = refusal(&each, &[]);
    assert!(told.starts_with(&named(&each[0])) && told.contains("--wallet-password-file"), "{told}");
}

#[test]
fn a_password_without_a_keystore_is_refused() {
    let folder = Folder::new();
    let told = refusal(&[folder.file("raw", KEYS[0])], &[folder.file("password", PASSWORD)]);
    assert!(told.contains("1 files for 0 keystores"), "{told}");
}

#[test]
fn a_password_file_that_cannot_be_read_is_named_with_its_flag() {
    let folder = Folder::new();
    let (keystore, absent) = (folder.keystore("keystore", KEYS[0], PASSWORD), folder.0.path().join("absent"));
    let told = refusal(&[keystore], std::slice::from_ref(&absent));
    assert!(told.starts_with(&format!("--wallet-password-file {}: cannot be read: ", absent.display())), "{told}");
}

#[test]
fn a_file_that_is_no_key_is_named_with_what_was_expected() {
    let folder = Folder::new();
    let order = "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141";
    let cases: [(&[u8], &str); 10] = [
        (b"", "64 hex digits"),
        (&KEYS[0].as_bytes()[1..], "64 hex digits"),
        (&[KEYS[0].as_bytes(), b"\n", KEYS[1].as_bytes()].concat(), "64 hex digits"),
        (&[b"0x0x", KEYS[0].as_bytes()].concat(), "64 hex digits"),
        (&[0xff; 64], "64 hex digits"),
        (&[b'0'; 64], "1 to the order"),
        (order.as_bytes(), "1 to the order"),
        (&[b'0'; 65_537], "65536 bytes"),
        (b"{", "not valid JSON"),
        (&[br#"{"version": 3, "crypto": "#, &format!("{:?}", KEYS[0]).into_bytes()[..], b"}"].concat(), "crypto"),
    ];
    for (content, expected) in cases {
        let path = folder.file("key", content);
        let told = refusal(std::slice::from_ref(&path), &[]);
        assert!(told.starts_with(&named(&path)) && told.contains(expected), "{told}");
    }
    let absent = folder.0.path().join("absent");
    for path in [absent, folder.0.path().to_owned()] {
        let told = refusal(std::slice::from_ref(&path), &[]);
        assert!(told.starts_with(&named(&path)) && told.contains("cannot be read"), "{told}");
    }
}

/// Without a check, the library would panic on each of these, use all memory, or read another format.
#[test]
fn a_keystore_that_is_not_right_is_refused_and_its_field_named() {
    let folder = Folder::new();
    let good: Value =
        serde_json::from_slice(&std::fs::read(folder.keystore("good", KEYS[0], PASSWORD)).unwrap()).unwrap();
    let password = folder.file("password", PASSWORD);
    let cases = [
        ("/version", json!(1), "version"),
        ("/version", json!(KEYS[0]), "version"),
        ("/id", json!(KEYS[0]), "id"),
        ("/crypto/cipher", json!("aes-128-cbc"), "crypto.cipher"),
        ("/crypto/cipherparams", json!([good["crypto"]["cipherparams"]["iv"]]), "crypto.cipherparams"),
        ("/crypto/cipherparams/iv", json!("00"), "crypto.cipherparams.iv"),
        ("/crypto/ciphertext", json!("0011"), "crypto.ciphertext"),
        ("/crypto/mac", json!("zz"), "crypto.mac"),
        ("/crypto/kdf", json!("argon2"), "crypto.kdf"),
        ("/crypto/kdf", json!("pbkdf2"), "crypto.kdf"),
        ("/crypto/kdfparams/dklen", json!(8), "crypto.kdfparams.dklen"),
        ("/crypto/kdfparams/n", json!(0), "crypto.kdfparams.n"),
        ("/crypto/kdfparams/n", json!(8193), "crypto.kdfparams.n"),
        ("/crypto/kdfparams/n", json!(1_u64 << 31), "too costly"),
        ("/crypto/kdfparams/p", json!(1_u64 << 30), "too costly"),
        ("/crypto/kdfparams/r", json!(0), "an r and a p"),
        ("/crypto/kdfparams/r", json!(1_u64 << 40), "too costly"),
        ("/crypto/kdfparams/salt", json!("xyz"), "crypto.kdfparams.salt"),
        (
            "/crypto/kdfparams",
            json!({"c": 4_000_000_000_u64, "dklen": 32, "prf": "hmac-sha256", "salt": ""}),
            "crypto.kdf",
        ),
    ];
    for (field, value, expected) in cases {
        let mut bad = good.clone();
        *bad.pointer_mut(field).unwrap() = value;
        let path = folder.file("bad", bad.to_string());
        let told = refusal(std::slice::from_ref(&path), std::slice::from_ref(&password));
        assert!(told.starts_with(&named(&path)) && told.contains(expected), "{field}: {told}");
    }
    let mut bad = good;
    bad["crypto"]["kdf"] = json!("pbkdf2");
    bad["crypto"]["kdfparams"] = json!({"c": 4_000_000_000_u64, "dklen": 32, "prf": "hmac-sha256", "salt": ""});
    let path = folder.file("bad", bad.to_string());
    let told = refusal(std::slice::from_ref(&path), std::slice::from_ref(&password));
    assert!(told.contains("crypto.kdfparams.c"), "{told}");
}

/// The test vector of the definition:
/// <https://ethereum.org/en/developers/docs/data-structures-and-encoding/web3-secret-storage/>
#[test]
fn a_keystore_by_pbkdf2_loads_as_the_definition_has_it() {
    let folder = Folder::new();
    let keystore = json!({
        "crypto": {
            "cipher": "aes-128-ctr",
            "cipherparams": {"iv": "6087dab2f9fdbbfaddc31a909735c1e6"},
            "ciphertext": "5318b4d5bcd28de64ee5559e671353e16f075ecae9f99c7a79a38af5f869aa46",
            "kdf": "pbkdf2",
            "kdfparams": {
                "c": 262_144,
                "dklen": 32,
                "prf": "hmac-sha256",
                "salt": "ae3cd4e7013836a3df6bd7241b12db061dbe2c6785853cce422d148a624ce0bd"
            },
            "mac": "517ead924a9d0dc3124507e3393d175ce3ff7c1e96529c6c555ce9e51205e9b2"
        },
        "id": "3198bc9c-6672-5ab3-d995-4942343ae5b6",
        "version": 3
    });
    let path = folder.file("pbkdf2", keystore.to_string());
    let found = addresses(&[path], &[folder.file("password", "testpassword")]);
    assert_eq!(found, ["0x008AeEda4D805471dF9b2A5B0f38A0C3bCBA786b"]);
}

#[test]
fn the_key_of_one_account_in_two_files_is_refused() {
    let folder = Folder::new();
    let files = [folder.file("raw", KEYS[0]), folder.keystore("keystore", KEYS[0], PASSWORD)];
    let told = refusal(&files, &[folder.file("password", PASSWORD)]);
    for part in [files[0].to_str().unwrap(), files[1].to_str().unwrap(), ADDRESSES[0]] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns what is logged while `act` runs.
fn logged<T>(act: impl FnOnce() -> T) -> String {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(subscriber, act);
    let bytes = log.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

/// Returns whether this log warns that others can read the file at `path`.
fn warns(log: &str, path: &Path) -> bool {
    log.lines().any(|line| line.contains("WARN") && line.contains(&format!("chmod 600 {}", path.display())))
}

#[test]
fn keys_and_passwords_that_others_can_read_are_warned_of() {
    let folder = Folder::new();
    let files = [folder.file("raw", KEYS[0]), folder.keystore("keystore", KEYS[1], PASSWORD)];
    let password = folder.file("password", PASSWORD);
    let log_at = |mode: u32| {
        for path in [&files[0], &password] {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        logged(|| addresses(&files, std::slice::from_ref(&password)))
    };
    let log = log_at(0o640);
    assert!(warns(&log, &files[0]) && warns(&log, &password), "{log}");
    assert!(!log.contains(PASSWORD) && KEYS.iter().all(|key| !log.contains(key)), "{log}");
    let log = log_at(0o600);
    assert!(!log.contains("WARN"), "{log}");
}

#[test]
fn tokens_that_others_can_read_are_warned_of() {
    let folder = Folder::new();
    let token = "a-token-of-some-length";
    let [node, wallet] = ["node", "wallet"]
        .map(|name| folder.file(name, format!("[[token]]\nname = \"{name}\"\ntoken = \"{token}-{name}\"\nrate = 1\n")));
    let log_at = |mode: u32| {
        for path in [&node, &wallet] {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        logged(|| Access::new(Some(node.clone()), Some(wallet.clone())).unwrap())
    };
    let log = log_at(0o604);
    assert!(warns(&log, &node) && warns(&log, &wallet), "{log}");
    assert!(!log.contains(token), "{log}");
    let log = log_at(0o600);
    assert!(!log.contains("WARN"), "{log}");
}

// Settings.

fn load(flags: &[&str]) -> Result<Config, String> {
    let args = ["presim"].iter().chain(flags).map(OsString::from);
    Config::load(args).map_err(|error| error.to_string())
}

#[test]
fn the_wallets_settings_have_these_defaults() {
    let config = load(&[]).unwrap();
    assert_eq!(config.wallet_approval, ApprovalPolicy::Auto);
    assert_eq!(config.wallet_upgrade, UpgradePolicy::Allow);
    assert_eq!(config.wallet_revert, RevertPolicy::Refuse);
    assert_eq!((config.wallet_approval_timeout_ms, config.wallet_max_waiting), (300_000, 256));
    assert_eq!((config.wallet_max_calls, config.wallet_max_bytes, config.wallet_gas_margin), (100, 131_072, 25));
    assert_eq!((config.wallet_executor, config.wallet_key_file.len()), (None, 0));
}

#[test]
fn key_files_are_repeated_or_separated_by_commas() {
    let expected = [PathBuf::from("a"), PathBuf::from("b")];
    let folder = Folder::new();
    let listed = folder.file("presim.toml", "wallet-key-file = [\"a\", \"b\"]\n");
    for flags in [
        &["--wallet-key-file", "a", "--wallet-key-file", "b"][..],
        &["--wallet-key-file", "a,b"],
        &["--config", listed.to_str().unwrap()],
    ] {
        assert_eq!(load(flags).unwrap().wallet_key_file, expected, "{flags:?}");
    }
}

#[test]
fn settings_that_do_not_go_together_are_refused_with_what_to_do() {
    let public = ["--listen", "0.0.0.0:8545", "--token-file", "t", "--wallet-key-file", "a"];
    let cases: [(&[&str], &str); 6] = [
        (&["--wallet-approval", "ask"], "--wallet-approval ask needs --data-dir"),
        (&["--wallet-password-file", "p"], "--wallet-password-file needs --wallet-key-file"),
        (&["--wallet-key-file", "a", "--wallet-password-file", "p,q"], "2 files, and --wallet-key-file has 1"),
        (&public, "needs --wallet-token-file"),
        (&["--wallet-approval-timeout-ms", "0"], "--wallet-approval-timeout-ms"),
        (&["--wallet-executor", "0x12"], "--wallet-executor"),
    ];
    for (flags, expected) in cases {
        let told = load(flags).expect_err("it is refused");
        assert!(told.contains(expected), "{flags:?}: {told}");
    }
    for flags in [
        &["--wallet-approval", "ask", "--data-dir", "d"][..],
        &["--wallet-key-file", "a,b", "--wallet-password-file", "p,q"],
        &["--wallet-key-file", "a,b", "--wallet-password-file", "p"],
        &[&public[..], &["--wallet-token-file", "w"]].concat(),
    ] {
        load(flags).unwrap_or_else(|told| panic!("{flags:?}: {told}"));
    }
}
