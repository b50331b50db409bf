//! Who may use the node: bearer tokens, each with a rate and a fair share of the lanes.

use std::{
    num::NonZeroU32,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::AcqRel},
    },
};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use serde::Deserialize;

use super::error::RpcError;
use crate::executor::{LaneName, Refused};

/// The clients that may use the node: everybody, or those with a token.
#[derive(Debug, Default)]
pub struct Access {
    clients: Option<Vec<Arc<Client>>>,
}

/// A client with a token of its own.
#[derive(Debug)]
pub struct Client {
    name: String,
    token: String,
    rate: NonZeroU32,
    limiter: DefaultDirectRateLimiter,
    short: Share,
    bundle: Share,
}

/// How much of a lane a client may use, and how much it uses.
#[derive(Debug)]
struct Share {
    most: usize,
    used: AtomicUsize,
}

/// A client's place in a lane, given back when dropped.
#[derive(Debug)]
pub struct Seat {
    client: Arc<Client>,
    lane: LaneName,
}

/// A token file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// It cannot be read.
    #[error("--token-file {path}: {source}")]
    Read {
        #[doc = "The file."]
        path: String,
        #[doc = "Why."]
        source: std::io::Error,
    },
    /// It is no TOML, or not of the right shape.
    #[error("--token-file {path}: {source}: expected [[token]] tables with name, token and rate")]
    Shape {
        #[doc = "The file."]
        path: String,
        #[doc = "Why."]
        source: toml::de::Error,
    },
    /// A token is too easy to guess, or used twice, or there is none.
    #[error("--token-file {path}: {problem}")]
    Token {
        #[doc = "The file."]
        path: String,
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

impl Access {
    /// The shortest token accepted, in bytes.
    const SHORTEST: usize = 16;

    /// Reads the clients of a token file. Each gets an equal share of lanes of these lengths.
    pub fn from_file(path: &Path, queue_short: usize, queue_bundle: usize) -> Result<Self, AccessError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| AccessError::Read { path: shown.clone(), source })?;
        let file: TokenFile =
            toml::from_str(&text).map_err(|source| AccessError::Shape { path: shown.clone(), source })?;
        let problem = |problem: String| AccessError::Token { path: shown.clone(), problem };
        if file.token.is_empty() {
            return Err(problem("no [[token]] in it: nobody could use the node".into()));
        }
        let count = file.token.len();
        let mut clients: Vec<Arc<Client>> = Vec::with_capacity(count);
        for entry in file.token {
            if entry.token.len() < Self::SHORTEST {
                return Err(problem(format!(
                    "token of {:?}: {} bytes: expected at least {}",
                    entry.name,
                    entry.token.len(),
                    Self::SHORTEST
                )));
            }
            if let Some(other) = clients.iter().find(|client| client.token == entry.token) {
                return Err(problem(format!("{:?} and {:?} have the same token", other.name, entry.name)));
            }
            clients.push(Arc::new(Client {
                name: entry.name,
                token: entry.token,
                rate: entry.rate,
                limiter: RateLimiter::direct(Quota::per_second(entry.rate)),
                short: Share::new(queue_short / count),
                bundle: Share::new(queue_bundle / count),
            }));
        }
        Ok(Self { clients: Some(clients) })
    }

    /// The client that an `Authorization` header names; none where everybody may use the node.
    pub fn client(&self, authorization: Option<&[u8]>) -> Result<Option<Arc<Client>>, RpcError> {
        let Some(clients) = &self.clients else { return Ok(None) };
        let token = authorization.and_then(|value| value.strip_prefix(b"Bearer "));
        let found = token.and_then(|token| clients.iter().find(|client| same(client.token.as_bytes(), token)));
        found.cloned().map(Some).ok_or_else(|| {
            RpcError::new(
                -32000,
                "unauthorized: expected a header `Authorization: Bearer TOKEN` with a token of this node",
            )
        })
    }
}

/// Compares in a time that does not tell how much was right.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

impl Client {
    /// Counts `requests` more against the client's rate.
    pub fn admit(&self, requests: NonZeroU32) -> Result<(), RpcError> {
        match self.limiter.check_n(requests) {
            Ok(Ok(())) => Ok(()),
            _ => Err(RpcError::limit(format!("rate limit: {:?} may send {} requests a second", self.name, self.rate))),
        }
    }

    /// Takes a place of the client's share of `lane`.
    pub fn sit(self: &Arc<Self>, lane: LaneName) -> Result<Seat, Refused> {
        let share = self.share(lane);
        if share.used.fetch_add(1, AcqRel) >= share.most {
            share.used.fetch_sub(1, AcqRel);
            return Err(Refused::ShareFull { lane, share: share.most });
        }
        Ok(Seat { client: self.clone(), lane })
    }

    const fn share(&self, lane: LaneName) -> &Share {
        match lane {
            LaneName::Short => &self.short,
            LaneName::Bundle => &self.bundle,
        }
    }
}

impl Share {
    fn new(most: usize) -> Self {
        Self { most: most.max(1), used: AtomicUsize::new(0) }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.client.share(self.lane).used.fetch_sub(1, AcqRel);
    }
}
