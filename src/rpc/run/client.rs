//! A client: whoever has a token, or a connection. Its rights, its rate, and the quota of the workers that the scheduler gives it.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter, clock::Clock, middleware::StateInformationMiddleware};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use tokio::sync::watch;

use crate::rpc::protocol::error::{Result, RpcError};
use crate::scheduler::Flow;

/// A client, for which requests are counted and workers are divided: all connections with one token, or one connection
/// without a token.
#[derive(Debug)]
pub struct Client {
    named: Option<Named>,
    may_use_wallet: bool,
    /// The client as the scheduler sees it.
    flow: Arc<Flow>,
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
    limiter: DefaultDirectRateLimiter<StateInformationMiddleware>,
}

impl RateLimit {
    fn new(rate: NonZeroU32) -> Self {
        Self { rate, limiter: RateLimiter::direct(Quota::per_second(rate)).with_middleware() }
    }

    /// Counts one more request. Returns how many more there may be at once, or the time until there may be one.
    fn count(&self) -> Result<u32, Duration> {
        match self.limiter.check() {
            Ok(state) => Ok(state.remaining_burst_capacity()),
            Err(not_yet) => Err(not_yet.wait_time_from(self.limiter.clock().now())),
        }
    }
}

/// A request that takes more from a client's rate than the rate allows in the time that the request has.
#[derive(Clone, Copy, Debug)]
pub struct TooFast<'a> {
    /// The client's name.
    pub name: &'a str,
    /// The requests per second that the client may send.
    pub rate: NonZeroU32,
    /// The number of requests that the rate allows in that time.
    pub most: usize,
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

    /// Returns the HMAC-SHA-256 of some texts, keyed with the token.
    pub fn proof(&self, texts: &[&[u8]]) -> [u8; 32] {
        self.mac(texts).finalize().into_bytes().into()
    }

    /// Returns whether `proof` is the HMAC of these texts. Compares in constant time.
    pub fn has_proved(&self, texts: &[&[u8]], proof: &[u8]) -> bool {
        self.mac(texts).verify_slice(proof).is_ok()
    }

    fn mac(&self, texts: &[&[u8]]) -> Hmac<Sha256> {
        // A key of HMAC has any length.
        let mut mac = Hmac::<Sha256>::new_from_slice(self.secret.as_bytes())
            .unwrap_or_else(|error| panic!("a key of any length is taken: {error}"));
        for text in texts {
            // With the lengths, so that no two lists of texts are the same.
            mac.update(&(text.len() as u64).to_be_bytes());
            mac.update(text);
        }
        mac
    }
}

impl Client {
    /// Creates the client of a connection without a token.
    pub fn without_token(may_use_wallet: bool) -> Self {
        Self { named: None, may_use_wallet, flow: Flow::new() }
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

    /// Counts a request against the client's rate, if it has one.
    ///
    /// # Errors
    ///
    /// Returns -32005 if the rate is exceeded.
    pub fn admit(&self) -> Result<()> {
        let Some(Named { token: Token { name, .. }, limit, .. }) = &self.named else { return Ok(()) };
        let limit = limit.load();
        limit.count().map(drop).map_err(|_| {
            let rate = limit.rate;
            RpcError::limit(format!("rate limit: {name:?} may send {rate} requests per second"))
        })
    }

    /// Draws up to `most` requests from the client's rate, at least one, for a request that takes as many as several. Returns how many it
    /// has drawn.
    ///
    /// # Errors
    ///
    /// Returns the time until one can be drawn.
    pub fn draw(&self, most: NonZeroU32) -> Result<NonZeroU32, Duration> {
        let Some(Named { limit, .. }) = &self.named else { return Ok(most) };
        let limit = limit.load();
        let more = limit.count()?.min(most.get() - 1);
        let has_more = |more| matches!(limit.limiter.check_n(more), Ok(Ok(_)));
        // Another request may take them first.
        let more = NonZeroU32::new(more).filter(|more| has_more(*more)).map_or(0, NonZeroU32::get);
        Ok(NonZeroU32::MIN.saturating_add(more))
    }

    /// Begins a request that takes as many as `requests` from the client's rate, itself included, within a time. Returns how many have been
    /// drawn for it, itself included.
    ///
    /// # Errors
    ///
    /// Returns the number of requests that the rate allows in that time, if they are fewer.
    pub fn begin_several(&self, requests: usize, within: Duration) -> Result<u32, TooFast<'_>> {
        let Some(Named { token, limit, .. }) = &self.named else { return Ok(u32::MAX) };
        if requests <= 1 {
            return Ok(1);
        }
        let limit = limit.load();
        let (drawn, left, wait) = match limit.count() {
            Ok(left) => (2, left, Duration::ZERO),
            Err(wait) => (1, 0, wait),
        };
        let later = within.saturating_sub(wait).as_secs_f64() * f64::from(limit.rate.get());
        // At most what a rate of 32 bits allows in the time that a request has.
        let most = drawn as usize + left as usize + later as usize;
        match requests <= most {
            true => Ok(drawn),
            false => Err(TooFast { name: &token.name, rate: limit.rate, most }),
        }
    }

    /// Sets the requests per second that a client with a token may send.
    pub fn set_rate(&self, rate: NonZeroU32) {
        if let Some(Named { limit, .. }) = self.named.as_ref().filter(|named| named.limit.load().rate != rate) {
            limit.store(Arc::new(RateLimit::new(rate)));
        }
    }

    /// Notes that the token is no longer in its file.
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
    pub const fn flow(&self) -> &Arc<Flow> {
        &self.flow
    }
}
