//! The signing keys of the wallet, from files: encrypted keystores and raw keys.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    time::Duration,
};

use alloy_primitives::Address;
use alloy_signer_local::{LocalSignerError, PrivateKeySigner};
use eth_keystore::KeystoreError;
use indicatif::ProgressBar;
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::{
    objects::ObjectsOnly,
    secrets::{is_open_to_others, warn_of_others},
};

/// Maximum length of a key file or a password file in bytes.
const MAX_FILE: usize = 64 << 10;
/// Maximum memory of scrypt in bytes: four times the requirement of geth's keystores.
const MAX_SCRYPT_MEMORY: u64 = 1 << 30;
/// Maximum work of scrypt, n * r * p: 32 times the requirement of geth's keystores.
const MAX_SCRYPT_WORK: u64 = 1 << 26;
/// Maximum number of rounds of PBKDF2: 38 times the requirement of geth's keystores.
const MAX_PBKDF2_ROUNDS: u64 = 10_000_000;

/// The reason why no key can be read from a file. The text never contains any part of a key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("{flag} {}: cannot be read: {cause}", path.display())]
    Read { flag: &'static str, path: PathBuf, cause: std::io::Error },
    /// The file is longer than any key or password.
    #[error("{flag} {}: more than {MAX_FILE} bytes: no key or password is that long", path.display())]
    TooLong { flag: &'static str, path: PathBuf },
    /// The file is neither a keystore nor a raw key.
    #[error("--wallet-key-file {}: expected a keystore (Web3 secret storage, JSON), or one private key: 64 hex digits", path.display())]
    Neither { path: PathBuf },
    /// The number is not a private key of secp256k1.
    #[error("--wallet-key-file {}: not a private key: expected a number from 1 to the order of secp256k1 minus 1", path.display())]
    NoKey { path: PathBuf },
    /// A field of the keystore is missing, wrong or not supported.
    #[error("--wallet-key-file {}: the keystore's {problem}", path.display())]
    Keystore { path: PathBuf, problem: String },
    /// The password does not decrypt the keystore.
    #[error("--wallet-key-file {}: the password in --wallet-password-file {} is wrong", path.display(), password.display())]
    Password { path: PathBuf, password: PathBuf },
    /// A keystore has no password file.
    #[error("--wallet-key-file {}: a keystore needs its password: give --wallet-password-file", path.display())]
    NoPassword { path: PathBuf },
    /// The number of password files is neither one nor the number of keystores.
    #[error(
        "--wallet-password-file: {passwords} files for {keystores} keystores: give one file for all of them, or one for each in their order"
    )]
    Count { passwords: usize, keystores: usize },
    /// Two files hold the key of the same account.
    #[error("--wallet-key-file {}: holds the key of {address}, as {} does: give each key once", path.display(), first.display())]
    Twice { path: PathBuf, first: PathBuf, address: Address },
}

/// Returns the signers of these key files, in their order. The password of a keystore is the first line of its file in
/// `passwords`: a single file serves all keystores, else there is one for each, in their order.
///
/// Takes about a second for each keystore. Logs a warning for each raw key or password that other users can read.
///
/// # Errors
///
/// Returns a [`KeyError`] for the first file that gives no key.
pub fn load(files: &[PathBuf], passwords: &[PathBuf]) -> Result<Vec<PrivateKeySigner>, KeyError> {
    let files = files.iter().map(|path| KeyFile::read(path)).collect::<Result<Vec<_>, _>>()?;
    let keystores = files.iter().filter(|file| file.raw.is_none()).count();
    if let Some(file) = files.iter().find(|file| file.raw.is_none() && passwords.is_empty()) {
        return Err(KeyError::NoPassword { path: file.path.clone() });
    }
    if !passwords.is_empty() && (keystores == 0 || (passwords.len() > 1 && passwords.len() != keystores)) {
        return Err(KeyError::Count { passwords: passwords.len(), keystores });
    }
    let mut passwords = passwords.iter().cycle();
    let mut loaded: Vec<(PathBuf, PrivateKeySigner)> = Vec::with_capacity(files.len());
    for KeyFile { path, raw } in files {
        let signer = match raw {
            Some(signer) => signer,
            None => {
                let password = passwords.next().ok_or_else(|| KeyError::NoPassword { path: path.clone() })?;
                decrypt(&path, password)?
            }
        };
        let address = signer.address();
        if let Some((first, _)) = loaded.iter().find(|(_, other)| other.address() == address) {
            return Err(KeyError::Twice { path, first: first.clone(), address });
        }
        loaded.push((path, signer));
    }
    Ok(loaded.into_iter().map(|(_, signer)| signer).collect())
}

/// A file of `--wallet-key-file`.
struct KeyFile {
    path: PathBuf,
    /// The key of the file. `None` for an encrypted keystore, whose form and costs have been checked.
    raw: Option<PrivateKeySigner>,
}

impl KeyFile {
    fn read(path: &Path) -> Result<Self, KeyError> {
        let (text, open_to_others) = read("--wallet-key-file", path)?;
        let text = text.trim_ascii();
        if text.starts_with(b"{") {
            check_keystore(text).map_err(|problem| KeyError::Keystore { path: path.into(), problem })?;
            return Ok(Self { path: path.into(), raw: None });
        }
        let mut key = Zeroizing::new([0; 32]);
        const_hex::decode_to_slice(text, key.as_mut()).map_err(|_| KeyError::Neither { path: path.into() })?;
        let signer = PrivateKeySigner::from_slice(key.as_ref()).map_err(|_| KeyError::NoKey { path: path.into() })?;
        if open_to_others {
            warn_of_others(path, "a private key");
        }
        Ok(Self { path: path.into(), raw: Some(signer) })
    }
}

/// Returns the bytes of a file, and whether users other than its owner can read it.
fn read(flag: &'static str, path: &Path) -> Result<(Zeroizing<Vec<u8>>, bool), KeyError> {
    let fail = |cause| KeyError::Read { flag, path: path.into(), cause };
    let file = File::open(path).map_err(fail)?;
    let open_to_others = is_open_to_others(&file).map_err(fail)?;
    // Full capacity from the start, because growing would leave copies of the key in memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_FILE + 1));
    file.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() > MAX_FILE {
        return Err(KeyError::TooLong { flag, path: path.into() });
    }
    Ok((bytes, open_to_others))
}

fn decrypt(path: &Path, password: &Path) -> Result<PrivateKeySigner, KeyError> {
    let (text, open_to_others) = read("--wallet-password-file", password)?;
    if open_to_others {
        warn_of_others(password, "a password");
    }
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);

    tracing::info!(file = %path.display(), "decrypting a keystore: it takes about a second");
    let spinner = ProgressBar::new_spinner().with_message(format!("decrypting {}", path.display()));
    spinner.enable_steady_tick(Duration::from_millis(100));
    let signer = PrivateKeySigner::decrypt_keystore(path, line);
    spinner.finish_and_clear();
    let problem = |problem: &str| KeyError::Keystore { path: path.into(), problem: problem.to_owned() };
    signer.map_err(|error| match error {
        LocalSignerError::EthKeystoreError(KeystoreError::MacMismatch) => {
            KeyError::Password { path: path.into(), password: password.into() }
        }
        // The other fields have been checked already.
        LocalSignerError::EthKeystoreError(KeystoreError::SerdeJson(_)) => problem("id: expected a UUID"),
        LocalSignerError::EthKeystoreError(KeystoreError::StdIo(_)) => problem("file: cannot be read a second time"),
        LocalSignerError::EthKeystoreError(_) => problem("crypto.kdfparams: not valid for scrypt"),
        _ => KeyError::NoKey { path: path.into() },
    })
}

/// The fields of a keystore that decryption relies on.
#[derive(Deserialize)]
struct Keystore {
    version: u64,
    crypto: Crypto,
}

#[derive(Deserialize)]
struct Crypto {
    cipher: String,
    cipherparams: CipherParams,
    ciphertext: String,
    kdf: String,
    kdfparams: KdfParams,
    mac: String,
}

#[derive(Deserialize)]
struct CipherParams {
    iv: String,
}

#[derive(Deserialize)]
struct KdfParams {
    dklen: u64,
    salt: String,
    n: Option<u64>,
    r: Option<u64>,
    p: Option<u64>,
    c: Option<u64>,
    prf: Option<String>,
}

/// Checks that a keystore can be decrypted at an acceptable cost. Returns the wrong field and its expected value.
///
/// The library trusts the lengths and the costs in a keystore, and would panic or run out of memory on some.
/// <https://ethereum.org/en/developers/docs/data-structures-and-encoding/web3-secret-storage/>
fn check_keystore(text: &[u8]) -> Result<(), String> {
    let mut json = serde_json::Deserializer::from_slice(text);
    // The message of the parser may quote the file, so only the position is shown.
    let Keystore { version, crypto } = serde_path_to_error::deserialize(ObjectsOnly(&mut json)).map_err(|error| {
        let (path, inner) = (error.path().to_string(), error.inner());
        let position = format!("line {} column {}", inner.line(), inner.column());
        match inner.classify() {
            serde_json::error::Category::Data if path == "." => {
                format!("form: {position}: a field is missing or of the wrong type: expected version and crypto")
            }
            serde_json::error::Category::Data => {
                format!("{path}: {position}: it or a field in it is missing or of the wrong type")
            }
            _ => format!("form: {position}: not valid JSON"),
        }
    })?;
    let Crypto { cipher, cipherparams, ciphertext, kdf, kdfparams, mac } = crypto;
    let expect = |holds: bool, problem: &str| if holds { Ok(()) } else { Err(problem.to_owned()) };
    expect(version == 3, "version: expected 3")?;
    expect(cipher == "aes-128-ctr", "crypto.cipher: expected aes-128-ctr")?;
    expect(is_hex(&cipherparams.iv, 16), "crypto.cipherparams.iv: expected 16 bytes in hex")?;
    expect(is_hex(&ciphertext, 32), "crypto.ciphertext: expected 32 bytes in hex")?;
    expect(is_hex(&mac, 32), "crypto.mac: expected 32 bytes in hex")?;
    let KdfParams { dklen, salt, n, r, p, c, prf } = kdfparams;
    expect(dklen == 32, "crypto.kdfparams.dklen: expected 32")?;
    expect(is_hex(&salt, salt.len() / 2), "crypto.kdfparams.salt: expected bytes in hex")?;
    match (kdf.as_str(), n, r, p, c) {
        ("scrypt", Some(n), Some(r), Some(p), None) => {
            expect(n > 1 && n.is_power_of_two(), "crypto.kdfparams.n: expected a power of two, 2 or more")?;
            expect(r > 0 && p > 0, "crypto.kdfparams: expected an r and a p of 1 or more")?;
            let memory = n.saturating_add(p).saturating_mul(r).saturating_mul(128);
            let work = n.saturating_mul(r).saturating_mul(p);
            expect(
                memory <= MAX_SCRYPT_MEMORY && work <= MAX_SCRYPT_WORK,
                "crypto.kdfparams: too costly: expected 128 * r * (n + p) of at most 2^30, and n * r * p of at most 2^26",
            )
        }
        ("pbkdf2", None, None, None, Some(c)) => {
            expect(prf.as_deref() == Some("hmac-sha256"), "crypto.kdfparams.prf: expected hmac-sha256")?;
            expect((1..=MAX_PBKDF2_ROUNDS).contains(&c), "crypto.kdfparams.c: expected 1 to 10000000")
        }
        _ => Err("crypto.kdf: expected scrypt with n, r and p, or pbkdf2 with c and prf, in kdfparams".to_owned()),
    }
}

fn is_hex(text: &str, bytes: usize) -> bool {
    text.len() == 2 * bytes && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
