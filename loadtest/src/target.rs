//! The endpoints that requests go to.

use std::{fmt, str::FromStr};

use eyre::{Result, bail, eyre};
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use serde_json::Value;

use crate::usage::NodeProcess;

/// A JSON-RPC endpoint.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name in the report: `A`, `B`, …
    pub name: String,
    pub host: String,
    pub port: u16,
    pub path: String,
    /// Whether to speak WebSocket rather than HTTP.
    pub web_socket: bool,
    /// Whether to use TLS.
    pub tls: bool,
    /// Sent with each request, or with the WebSocket's handshake.
    pub headers: HeaderMap,
}

impl Target {
    /// # Errors
    ///
    /// Returns an error if `url` is not an HTTP or WebSocket URL, or contains a user.
    pub fn parse(url: &str, name: String, web_socket: bool, extra: &[Header]) -> Result<Self> {
        let expected = "expected http://HOST:PORT[/PATH] (or https, ws, wss)";
        let uri = Uri::from_str(url).map_err(|error| eyre!("{url:?} is not a URL: {error}; {expected}"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            bail!("{url:?} has no scheme or no host; {expected}");
        };
        let (is_web_socket, tls) = match scheme {
            "http" => (false, false),
            "https" => (false, true),
            "ws" => (true, false),
            "wss" => (true, true),
            _ => bail!("{url:?}: unsupported scheme {scheme}://; {expected}"),
        };
        if authority.as_str().contains('@') {
            bail!(
                "a target's URL contains a user: give it with --header \"Authorization: Basic …\", which reports do not show"
            );
        }
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(authority.as_str())?);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for Header { name, value } in extra {
            headers.insert(name.clone(), value.clone());
        }
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).to_owned();
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        Ok(Self { name, host, port, path, web_socket: web_socket || is_web_socket, tls, headers })
    }

    /// Returns the same endpoint, over WebSocket or HTTP.
    pub fn over(&self, web_socket: bool) -> Self {
        Self { web_socket, ..self.clone() }
    }

    pub fn url(&self) -> String {
        let scheme = match (self.web_socket, self.tls) {
            (false, false) => "http",
            (false, true) => "https",
            (true, false) => "ws",
            (true, true) => "wss",
        };
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        format!("{scheme}://{host}:{}{}", self.port, self.path)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.url())
    }
}

/// A header of the command line. Reports do not show its value, which may be a secret.
#[derive(Clone, Debug)]
pub struct Header {
    pub name: HeaderName,
    pub value: HeaderValue,
}

impl FromStr for Header {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected \"NAME: VALUE\"";
        let (name, value) = text.split_once(':').ok_or_else(|| format!("no colon; {expected}"))?;
        let name = HeaderName::from_str(name.trim()).map_err(|error| format!("{error}; {expected}"))?;
        let mut value = HeaderValue::from_str(value.trim()).map_err(|error| format!("{error}; {expected}"))?;
        value.set_sensitive(true);
        Ok(Self { name, value })
    }
}

/// A target, and what it answered about itself before the run.
pub struct Found {
    pub target: Target,
    /// The client version that the target reports, or `unknown`.
    pub client: String,
    pub presim: bool,
    pub chain_id: Value,
    /// The hash of its block 0; `None` if the target does not report it.
    pub genesis: Option<String>,
    /// The process, if it is on this machine and may be observed.
    pub process: Option<NodeProcess>,
}
