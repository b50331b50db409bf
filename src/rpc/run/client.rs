//! A client, identified by a token or a connection: its rights, its rate, and the quota of the workers that the
//! scheduler gives it.

use std::{
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter, clock::Clock};
use tokio::sync::watch;

use crate::rpc::protocol::error::{Result, RpcError};
use crate::scheduler::ClientShare;

/// A client, for which requests are counted and workers are divided: all connections with one token, or one connection
/// without a token.
#[derive(Debug)]
pub struct Client {
    named: Option<Named>,
    may_use_wallet: bool,
    /// The client as the scheduler sees it.
    flow: Arc<ClientShare>,
}

/// The part of a client that has a token.
#[derive(Debug)]
struct Named {
    token: Token,
    limit: ArcSwap<RateLimit>,
    /// Turns true when the token is no longer in its file.
    withdrawn: watch::Sender<bool>,
}

/// An entry of a token file.
#[derive(PartialEq, Eq)]
pub struct Token {
    name: String,
    /// The secret. Never printed.
    secret: String,
    /// Whether the token is in the wallet token file.
    is_of_wallet: bool,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("name", &self.name).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct RateLimit {
    /// Requests per second.
    rate: NonZeroU32,
    limiter: DefaultDirectRateLimiter,
}

impl RateLimit {
    fn new(rate: NonZeroU32) -> Self {
        Self { rate, limiter: RateLimiter::direct(Quota::per_second(rate)) }
    }

    /// Counts `requests`, at most the number allowed per second. Returns the time after which the rate admits them,
    /// unless it does now.
    fn count(&self, requests: NonZeroU32) -> Result<(), Duration> {
        match self.limiter.check_n(requests) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(later)) => Err(later.wait_time_from(self.limiter.clock().now())),
            // There are more than a second has.
            Err(_) => Err(Duration::MAX),
        }
    }
}

impl Token {
    /// Creates the token of a client of this name.
    pub const fn new(name: String, secret: String, is_of_wallet: bool) -> Self {
        Self { name, secret, is_of_wallet }
    }

    /// Returns whether a client's text is the token. Compares in constant time.
    pub fn is(&self, text: &[u8]) -> bool {
        let own = self.secret.as_bytes();
        own.len() == text.len() && own.iter().zip(text).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
    }
}

impl Client {
    /// Creates the client of a connection without a token.
    pub fn without_token(may_use_wallet: bool) -> Self {
        Self { named: None, may_use_wallet, flow: ClientShare::new() }
    }

    /// Creates a client without a token that has one quota of the workers with this one.
    pub fn beside(&self, may_use_wallet: bool) -> Self {
        Self { named: None, may_use_wallet, flow: self.flow.clone() }
    }

    /// Creates the client of a token, which may send `rate` requests per second.
    pub fn with_token(token: Token, rate: NonZeroU32, may_use_wallet: bool) -> Self {
        let limit = ArcSwap::from_pointee(RateLimit::new(rate));
        let named = Named { token, limit, withdrawn: watch::Sender::new(false) };
        Self { named: Some(named), ..Self::without_token(may_use_wallet) }
    }

    /// Returns the client's token, if it has one.
    pub fn token(&self) -> Option<&Token> {
        Some(&self.named.as_ref()?.token)
    }

    /// Returns the client's name in the token file. `None` if it has no token.
    pub fn name(&self) -> Option<&str> {
        Some(&self.token()?.name)
    }

    /// Returns whether the client may use the wallet.
    pub const fn may_use_wallet(&self) -> bool {
        self.may_use_wallet
    }

    /// Returns the client's token, if it is one of the wallet.
    pub fn wallet_token(&self) -> Option<&Token> {
        self.token().filter(|token| token.is_of_wallet)
    }

    /// Counts `requests` more against the client's rate, if it has one.
    ///
    /// # Errors
    ///
    /// Returns -32005 if the rate is exceeded.
    pub fn admit(&self, requests: NonZeroU32) -> Result<()> {
        let Some(Named { token: Token { name, .. }, limit, .. }) = &self.named else { return Ok(()) };
        let limit = limit.load();
        let rate = limit.rate;
        let exceeded = |_| RpcError::limit(format!("rate limit: {name:?} may send {rate} requests per second"));
        limit.count(requests).map_err(exceeded)
    }

    /// Begins to count `requests` more against the client's rate, if it has one, which admits them one after the other. Returns
    /// how many of them are counted already; the others have to be counted by [`admit_by`](Self::admit_by).
    ///
    /// # Errors
    ///
    /// Returns -32005 if the rate does not admit all of them by `until`. None is counted then.
    pub fn admit_first(&self, requests: u32, until: Instant) -> Result<u32> {
        let Some(Named { token: Token { name, .. }, limit, .. }) = &self.named else { return Ok(requests) };
        let limit = limit.load();
        let rate = limit.rate.get();
        let at_once = requests.min(rate);
        let Some(first) = NonZeroU32::new(at_once) else { return Ok(0) };
        let left = until.saturating_duration_since(Instant::now());
        let mut takes = Duration::from_secs(1).mul_f64(f64::from(requests - at_once) / f64::from(rate));
        if takes <= left {
            match limit.count(first) {
                Ok(()) => return Ok(at_once),
                Err(wait) => takes = takes.saturating_add(wait),
            }
            if takes <= left {
                return Ok(0);
            }
        }
        let [takes, left] = [takes, left].map(|time| time.as_secs_f64());
        Err(RpcError::limit(format!(
            "rate limit: {name:?} may send {rate} requests per second: {requests} more take at least {takes:.1} s, and {left:.1} s are left: expected fewer"
        )))
    }

    /// Counts `requests` more against the client's rate, if it has one, as the rate admits them. Returns false as soon
    /// as it is clear that the rate does not admit them by `until`.
    pub async fn admit_by(&self, mut requests: u32, until: Instant) -> bool {
        let Some(Named { limit, .. }) = &self.named else { return true };
        loop {
            let limit = limit.load_full();
            // A tenth of a second's, so that other requests of the client are admitted in between.
            let some = requests.min((limit.rate.get() / 10).max(1));
            let Some(next) = NonZeroU32::new(some) else { return true };
            match limit.count(next) {
                Ok(()) => requests -= some,
                Err(wait) => match Instant::now().checked_add(wait).filter(|free| *free <= until) {
                    Some(free) => tokio::time::sleep_until(free.into()).await,
                    None => return false,
                },
            }
        }
    }

    /// Sets the requests per second that a client with a token may send.
    pub fn set_rate(&self, rate: NonZeroU32) {
        if let Some(Named { limit, .. }) = self.named.as_ref().filter(|named| named.limit.load().rate != rate) {
            limit.store(Arc::new(RateLimit::new(rate)));
        }
    }

    /// Records that the token is no longer in its file.
    pub fn withdraw(&self) {
        if let Some(Named { withdrawn, .. }) = &self.named {
            withdrawn.send_replace(true);
        }
    }

    /// Returns when the token is no longer in its file, and never for a client without a token.
    pub async fn withdrawn(&self) {
        let Some(Named { withdrawn, .. }) = &self.named else { return std::future::pending().await };
        let _ = withdrawn.subscribe().wait_for(|withdrawn| *withdrawn).await;
    }

    /// Returns the client as the scheduler sees it.
    pub const fn flow(&self) -> &Arc<ClientShare> {
        &self.flow
    }
}
