//! Access to the node and its wallet: bearer tokens, each with a rate limit and a client of its own in the scheduler.

use std::{
    fs::File,
    io::{self, Read},
    num::NonZeroU32,
    path::Path,
    sync::Arc,
};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use serde::Deserialize;

use super::{error::RpcError, ws::OfferedTokenError};
use crate::{
    config::{is_open_to_others, warn_of_others},
    executor::Flow,
};

/// The clients that may use the node, and those that may use its wallet.
///
/// A token of either file may use the node. Without a token file, requests without a token may, too. With a wallet
/// token file, only its tokens may use the wallet; without one, every client of the node may.
#[derive(Debug, Default)]
pub struct Access {
    clients: Vec<Arc<Client>>,
    /// Whether a request without a token is refused.
    node_needs_token: bool,
    /// Whether the wallet requires a token of the wallet token file.
    wallet_needs_token: bool,
}

/// The token files, and the rate limit of each token.
#[derive(Clone, Copy, Debug)]
pub struct AccessConfig<'a> {
    /// The file of tokens for the node alone.
    pub token_file: Option<&'a Path>,
    /// The file of tokens for the node and its wallet.
    pub wallet_token_file: Option<&'a Path>,
}

/// A client's secret. Never printed.
struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// A client with a token.
#[derive(Debug)]
pub struct Client {
    name: String,
    token: Token,
    /// Whether the token is in the wallet token file.
    wallet: bool,
    rate: NonZeroU32,
    limiter: DefaultDirectRateLimiter,
    /// The client as the scheduler sees it.
    flow: Arc<Flow>,
}

/// The reason why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The file cannot be read.
    #[error("{file}: {source}")]
    Read {
        #[doc = "The file, after the flag that names it."]
        file: String,
        #[doc = "Why."]
        source: io::Error,
    },
    /// The file is not TOML, or not of the right shape.
    #[error("{file}: {problem}: expected [[token]] tables with name, token and rate")]
    Shape {
        #[doc = "The file, after the flag that names it."]
        file: String,
        #[doc = "Why. The line is not shown: there may be a token in it."]
        problem: String,
    },
    /// A token is too easy to guess or used twice, or there is none.
    #[error("{file}: {problem}")]
    Token {
        #[doc = "The file, after the flag that names it."]
        file: String,
        #[doc = "What is wrong."]
        problem: String,
    },
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
    token: String,
    rate: NonZeroU32,
}

/// The content of a token file.
struct Tokens {
    /// The file's path, after the flag that names it.
    file: String,
    entries: Vec<TokenEntry>,
}

impl Tokens {
    /// The shortest token accepted, in bytes.
    const SHORTEST: usize = 16;

    /// Reads the file that `flag` names, and logs a warning if other users can read it.
    fn read(flag: &str, path: &Path) -> Result<Self, AccessError> {
        let file = format!("{flag} {}", path.display());
        let (text, open_to_others) = read(path).map_err(|source| AccessError::Read { file: file.clone(), source })?;
        let TokenFile { token: entries } = toml::from_str(&text)
            .map_err(|error| AccessError::Shape { file: file.clone(), problem: problem(&text, &error) })?;
        if entries.is_empty() {
            return Err(AccessError::Token { file, problem: "no [[token]] in it: it would let nobody in".into() });
        }
        if let Some(TokenEntry { name, token, .. }) = entries.iter().find(|entry| entry.token.len() < Self::SHORTEST) {
            let problem = format!("token of {name:?}: {} bytes: expected at least {}", token.len(), Self::SHORTEST);
            return Err(AccessError::Token { file, problem });
        }
        if open_to_others {
            warn_of_others(path, "tokens");
        }
        Ok(Self { file, entries })
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
    /// Reads the token files.
    ///
    /// # Errors
    ///
    /// Returns an [`AccessError`] if a file cannot be read, has the wrong shape or no token, or if a token is too short
    /// or occurs twice.
    pub fn new(config: &AccessConfig<'_>) -> Result<Self, AccessError> {
        let read = |flag, path: Option<&Path>| path.map(|path| Tokens::read(flag, path)).transpose();
        let node = read("--token-file", config.token_file)?;
        let wallet = read("--wallet-token-file", config.wallet_token_file)?;
        let (node_needs_token, wallet_needs_token) = (node.is_some(), wallet.is_some());
        let files = [(node, false), (wallet, true)];
        let count: usize = files.iter().filter_map(|(file, _)| file.as_ref()).map(|file| file.entries.len()).sum();
        let mut clients: Vec<Arc<Client>> = Vec::with_capacity(count);
        for (file, wallet) in files {
            let Some(Tokens { file, entries }) = file else { continue };
            for entry in entries {
                if let Some(other) = clients.iter().find(|client| client.token.0 == entry.token) {
                    let place = if other.wallet == wallet { "" } else { " of --token-file" };
                    let problem = format!("{:?}{place} and {:?} have the same token", other.name, entry.name);
                    return Err(AccessError::Token { file, problem });
                }
                clients.push(Arc::new(Client {
                    name: entry.name,
                    token: Token(entry.token),
                    wallet,
                    rate: entry.rate,
                    limiter: RateLimiter::direct(Quota::per_second(entry.rate)),
                    flow: Flow::new(),
                }));
            }
        }
        Ok(Self { clients, node_needs_token, wallet_needs_token })
    }

    /// Returns the client that an `Authorization` header names; `None` if there is no header and none is needed.
    ///
    /// # Errors
    ///
    /// Returns an [`RpcError`] if the header is missing but needed, or its token is in no file.
    pub fn client(&self, authorization: Option<&[u8]>) -> Result<Option<Arc<Client>>, RpcError> {
        if self.clients.is_empty() || (authorization.is_none() && !self.node_needs_token) {
            return Ok(None);
        }
        // The name of the scheme is case-insensitive (RFC 9110, 11.1).
        let token = authorization
            .and_then(|value| value.split_at_checked(SCHEME.len()))
            .and_then(|(scheme, token)| scheme.eq_ignore_ascii_case(SCHEME).then_some(token));
        let found = token.and_then(|token| self.clients.iter().find(|client| same(client.token.0.as_bytes(), token)));
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
    pub fn client_of_socket(
        &self,
        token: Option<Result<Vec<u8>, OfferedTokenError>>,
    ) -> Result<Option<Arc<Client>>, RpcError> {
        match token {
            None => self.client(None),
            Some(Ok(token)) => self.client(Some(&[SCHEME, &token].concat())),
            Some(Err(error)) => Err(RpcError::new(-32000, format!("unauthorized: {error}"))),
        }
    }

    /// Returns whether a request without a token is refused.
    pub const fn needs_token(&self) -> bool {
        self.node_needs_token
    }

    /// Returns whether this client, or one without a name, may use the wallet.
    pub fn may_use_wallet(&self, client: Option<&Client>) -> bool {
        !self.wallet_needs_token || client.is_some_and(|client| client.wallet)
    }
}

/// The part of the header before the token.
const SCHEME: &[u8] = b"Bearer ";

/// Returns the problem of a token file and its line number, without the content of the line.
fn problem(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().map_or("", |span| text.get(..span.start).unwrap_or_default());
    format!("line {}: {}", before.matches('\n').count() + 1, error.message())
}

/// Compares in constant time.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

impl Client {
    /// Returns the client's name in the token file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Counts `requests` more against the client's rate.
    ///
    /// # Errors
    ///
    /// Returns -32005 if the rate is exceeded.
    pub fn admit(&self, requests: NonZeroU32) -> Result<(), RpcError> {
        match self.limiter.check_n(requests) {
            Ok(Ok(())) => Ok(()),
            _ => {
                Err(RpcError::limit(format!("rate limit: {:?} may send {} requests per second", self.name, self.rate)))
            }
        }
    }

    /// Returns the client as the scheduler sees it.
    pub const fn flow(&self) -> &Arc<Flow> {
        &self.flow
    }
}
