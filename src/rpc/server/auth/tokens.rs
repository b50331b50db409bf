//! Access to the node and its wallet: bearer tokens, each with a rate limit and its own client in the scheduler.

use std::{
    fs::File,
    io::{self, Read},
    num::NonZeroU32,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;
use serde::Deserialize;
use toml::Spanned;

use crate::rpc::{
    protocol::error::{Result, RpcError},
    run::client::{Client, Token},
};
use crate::{
    objects,
    secrets::{TOKEN_SYNTAX, is_bearer_token, is_open_to_others, open_problem, warn_of_others},
};

/// The clients that may use the node, and the clients that may use its wallet.
///
/// A token of either file may use the node. Without a token file, requests without a token may, too. With a wallet
/// token file, only its tokens may use the wallet; without one, every client of the node may.
#[derive(Debug)]
pub struct Access {
    token_file: Option<PathBuf>,
    wallet_token_file: Option<PathBuf>,
    /// Replaced as a whole when the files are read again.
    clients: ArcSwap<Vec<Arc<Client>>>,
    /// The number of these clients.
    count: Arc<AtomicUsize>,
}

/// The reason why a token file cannot be used. `file` is its path, after the flag that names it.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The file cannot be read.
    #[error("{file}: {}", open_problem(cause))]
    Read { file: String, cause: io::Error },
    /// The file is not TOML, or not of the right shape. The line is not shown: there may be a token in it.
    #[error("{file}: {problem}: expected [[token]] tables with name, token and rate")]
    Shape { file: String, problem: String },
    /// A token is too easy to guess, cannot be sent or is used twice, or there is none.
    #[error("{file}: {problem}")]
    Token { file: String, problem: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenFile {
    #[serde(default)]
    token: Vec<TokenEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    name: String,
    token: Spanned<String>,
    rate: NonZeroU32,
}

/// The content of a token file.
struct Tokens {
    /// The file's path, after the flag that names it.
    file: String,
    text: String,
    entries: Vec<TokenEntry>,
}

impl Tokens {
    /// The shortest token accepted, in bytes.
    const SHORTEST: usize = 16;

    /// Reads the file that `flag` names, and logs a warning if other users can read it.
    fn read(flag: &str, path: &Path) -> Result<Self, AccessError> {
        let file = format!("{flag} {}", path.display());
        let (text, open_to_others) = read(path).map_err(|cause| AccessError::Read { file: file.clone(), cause })?;
        let TokenFile { token: entries } = objects::from_toml(&text)
            .map_err(|error| AccessError::Shape { file: file.clone(), problem: problem(&text, &error) })?;
        if entries.is_empty() {
            return Err(AccessError::Token {
                file,
                problem: "no [[token]] in it: expected at least one, because only clients with a token are served"
                    .into(),
            });
        }
        let tokens = Self { file, text, entries };
        let is_short = |entry: &&TokenEntry| entry.token.get_ref().len() < Self::SHORTEST;
        if let Some(entry @ TokenEntry { name, token, .. }) = tokens.entries.iter().find(is_short) {
            let (bytes, least) = (token.get_ref().len(), Self::SHORTEST);
            return Err(tokens.wrong(entry, format!("token of {name:?}: {bytes} bytes: expected at least {least}")));
        }
        let cannot_be_sent = |entry: &&TokenEntry| !is_bearer_token(entry.token.get_ref());
        if let Some(entry) = tokens.entries.iter().find(cannot_be_sent) {
            return Err(tokens.wrong(entry, format!("token of {:?}: {TOKEN_SYNTAX}", entry.name)));
        }
        if open_to_others {
            warn_of_others(path, "tokens");
        }
        Ok(tokens)
    }

    /// Returns the error for an entry, with the number of its token's line.
    fn wrong(&self, entry: &TokenEntry, problem: String) -> AccessError {
        let line = line(&self.text, entry.token.span().start);
        AccessError::Token { file: self.file.clone(), problem: format!("line {line}: {problem}") }
    }
}

/// Returns a file's text, and whether others than its owner can read it.
fn read(path: &Path) -> io::Result<(String, bool)> {
    let mut file = File::open(path)?;
    let open_to_others = is_open_to_others(&file)?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok((text, open_to_others))
}

impl Access {
    /// Reads the file of tokens for the node only, and the file of tokens for the node and its wallet.
    ///
    /// # Errors
    ///
    /// Returns an [`AccessError`] if a file cannot be read, has the wrong shape or no token, or if a token is too short,
    /// cannot be sent in a header, or occurs twice.
    pub fn new(token_file: Option<PathBuf>, wallet_token_file: Option<PathBuf>) -> Result<Self, AccessError> {
        let access = Self { token_file, wallet_token_file, clients: ArcSwap::default(), count: Arc::default() };
        access.read_files()?;
        Ok(access)
    }

    /// Returns the number of clients with a token, which changes when the files are read again.
    pub fn token_count(&self) -> Arc<AtomicUsize> {
        self.count.clone()
    }

    /// Returns whether there is a file to read again.
    pub const fn has_files(&self) -> bool {
        self.token_file.is_some() || self.wallet_token_file.is_some()
    }

    /// Reads the token files again, and returns the number of tokens. A client whose name and token are still there
    /// keeps its share and its connections, and gets the new rate. WebSocket connections of a token that is gone are
    /// closed.
    ///
    /// # Errors
    ///
    /// Returns an [`AccessError`] as [`new`](Self::new) does. The tokens are then unchanged.
    pub fn read_files(&self) -> Result<usize, AccessError> {
        let read = |flag, path: Option<&Path>| path.map(|path| Tokens::read(flag, path)).transpose();
        let node = read("--token-file", self.token_file.as_deref())?;
        let wallet = read("--wallet-token-file", self.wallet_token_file.as_deref())?;
        let files = [(node, false), (wallet, true)];
        let mut entries: Vec<(TokenEntry, bool)> = Vec::new();
        for (file, wallet) in files {
            let Some(mut tokens) = file else { continue };
            for entry in std::mem::take(&mut tokens.entries) {
                if let Some((other, of_wallet)) =
                    entries.iter().find(|(other, _)| other.token.get_ref() == entry.token.get_ref())
                {
                    let of_file = if *of_wallet == wallet { "" } else { " of --token-file" };
                    let problem = format!("{:?}{of_file} and {:?} have the same token", other.name, entry.name);
                    return Err(tokens.wrong(&entry, problem));
                }
                entries.push((entry, wallet));
            }
        }
        // Both files are right, so nothing fails from here on.
        let before = self.clients.load_full();
        let clients: Vec<Arc<Client>> = entries
            .into_iter()
            .map(|(TokenEntry { name, token, rate }, wallet)| {
                let token = Token::new(name, token.into_inner(), wallet);
                match before.iter().find(|old| old.token() == Some(&token)) {
                    Some(old) => {
                        old.set_rate(rate);
                        old.clone()
                    }
                    None => Arc::new(Client::with_token(token, rate, wallet || self.opens_wallet())),
                }
            })
            .collect();
        let count = clients.len();
        let kept = Arc::new(clients);
        self.clients.store(kept.clone());
        self.count.store(count, Relaxed);
        for old in before.iter().filter(|old| !kept.iter().any(|client| Arc::ptr_eq(client, old))) {
            old.withdraw();
        }
        Ok(count)
    }

    /// Returns the client that an `Authorization` header names; `None` if there is no header and none is needed.
    ///
    /// # Errors
    ///
    /// Returns an [`RpcError`] if the header is missing but needed, or its token is in no file.
    pub fn client(&self, authorization: Option<&[u8]>) -> Result<Option<Arc<Client>>> {
        let clients = self.clients.load();
        if clients.is_empty() || (authorization.is_none() && self.token_file.is_none()) {
            return Ok(None);
        }
        // The name of the scheme is case-insensitive (RFC 9110, 11.1).
        let token = authorization
            .and_then(|value| value.split_at_checked(SCHEME.len()))
            .and_then(|(scheme, token)| scheme.eq_ignore_ascii_case(SCHEME).then_some(token));
        let found =
            token.and_then(|token| clients.iter().find(|client| client.token().is_some_and(|own| own.is(token))));
        found.cloned().map(Some).ok_or_else(|| {
            RpcError::new(
                -32000,
                "unauthorized: expected a header `Authorization: Bearer TOKEN` with a token of this node",
            )
        })
    }

    /// Returns the client of a request without an `Authorization` header. A WebSocket may offer its `token` instead,
    /// because a page cannot set headers of an upgrade.
    ///
    /// # Errors
    ///
    /// Returns an [`RpcError`] as [`client`](Self::client) does.
    pub fn client_of_socket(&self, token: Option<Result<Vec<u8>>>) -> Result<Option<Arc<Client>>> {
        match token {
            None => self.client(None),
            Some(Ok(token)) => self.client(Some(&[SCHEME, &token].concat())),
            Some(Err(error)) => Err(error),
        }
    }

    /// Returns whether a request without a token is refused.
    pub const fn needs_token(&self) -> bool {
        self.token_file.is_some()
    }

    /// Returns whether a client needs no token of the wallet to use it.
    pub const fn opens_wallet(&self) -> bool {
        self.wallet_token_file.is_none()
    }
}

/// The part of the header before the token.
const SCHEME: &[u8] = b"Bearer ";

/// Returns the problem of a token file and its line number, without the content of the line.
fn problem(text: &str, error: &toml::de::Error) -> String {
    format!("line {}: {}", line(text, error.span().map_or(0, |span| span.start)), error.message())
}

/// Returns the number of the line that has the byte at this index.
fn line(text: &str, at: usize) -> usize {
    1 + text.get(..at).unwrap_or_default().matches('\n').count()
}
