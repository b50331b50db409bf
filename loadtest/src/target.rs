//! The endpoints that requests go to.

use std::{fmt, str::FromStr};

use eyre::{Result, bail, eyre};
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use serde_json::Value;

use crate::usage::NodeProcess;

/// The protocol of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http,
    WebSocket,
    /// JSON texts on a Unix socket, a line each.
    Lines,
}

/// A JSON-RPC endpoint.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name in the report: `A`, `B`, …
    pub name: String,
    /// Empty for a Unix socket.
    pub host: String,
    pub port: u16,
    /// The path of the URL, or of the Unix socket.
    pub path: String,
    pub protocol: Protocol,
    /// Whether to use TLS.
    pub tls: bool,
    /// Sent with each request, or with the WebSocket's handshake.
    pub headers: HeaderMap,
}

impl Target {
    /// # Errors
    ///
    /// Returns an error if `url` is not an HTTP or WebSocket URL or the path of a socket, or contains a user.
    pub fn parse(url: &str, name: String, web_socket: bool, extra: &[Header]) -> Result<Self> {
        let expected = "expected http://HOST:PORT[/PATH] (or https, ws, wss), or the path of a Unix socket";
        if !url.contains("://") && (url.contains('/') || url.ends_with(".ipc")) {
            if web_socket || !extra.is_empty() {
                bail!("{url:?}: a Unix socket takes neither --ws nor --header");
            }
            let (path, protocol) = (url.to_owned(), Protocol::Lines);
            return Ok(Self {
                name,
                host: String::new(),
                port: 0,
                path,
                protocol,
                tls: false,
                headers: HeaderMap::new(),
            });
        }
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
        let protocol = if web_socket || is_web_socket { Protocol::WebSocket } else { Protocol::Http };
        Ok(Self { name, host, port, path, protocol, tls, headers })
    }

    /// Returns the same endpoint over HTTP, or on its Unix socket.
    pub fn for_calls(&self) -> Self {
        self.over(Protocol::Http)
    }

    /// Returns the same endpoint, over WebSocket or on its Unix socket, where it can notify.
    pub fn for_messages(&self) -> Self {
        self.over(Protocol::WebSocket)
    }

    fn over(&self, protocol: Protocol) -> Self {
        let protocol = if self.protocol == Protocol::Lines { Protocol::Lines } else { protocol };
        Self { protocol, ..self.clone() }
    }

    /// Returns whether requests and answers are messages of a connection on which several may be under way.
    pub fn has_messages(&self) -> bool {
        self.protocol != Protocol::Http
    }

    pub fn url(&self) -> String {
        let scheme = match (self.protocol, self.tls) {
            (Protocol::Lines, _) => return self.path.clone(),
            (Protocol::Http, false) => "http",
            (Protocol::Http, true) => "https",
            (Protocol::WebSocket, false) => "ws",
            (Protocol::WebSocket, true) => "wss",
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
