//! Where requests go.

use std::{fmt, str::FromStr};

use eyre::{Result, bail, eyre};
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};

/// A JSON-RPC endpoint.
#[derive(Clone, Debug)]
pub struct Target {
    /// As the report calls it: `A`, `B`, …
    pub name: String,
    pub host: String,
    pub port: u16,
    pub path: String,
    /// Speak WebSocket, not HTTP.
    pub web_socket: bool,
    /// Sent with each request, or with the WebSocket's handshake.
    pub headers: HeaderMap,
}

impl Target {
    /// # Errors
    /// The address is no `http://` or `ws://` URL.
    pub fn parse(url: &str, name: String, web_socket: bool, extra: &[Header]) -> Result<Self> {
        let expected = "expected http://HOST:PORT[/PATH] or ws://HOST:PORT[/PATH]";
        let uri = Uri::from_str(url).map_err(|error| eyre!("{url:?} is no URL: {error}; {expected}"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            bail!("{url:?} is no URL with a scheme and a host; {expected}");
        };
        if !matches!(scheme, "http" | "ws") {
            bail!("{url:?}: {scheme}:// is not spoken; {expected}");
        }
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(authority.as_str())?);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for Header { name, value } in extra {
            headers.insert(name.clone(), value.clone());
        }
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).to_owned();
        let web_socket = web_socket || scheme == "ws";
        Ok(Self { name, host, port: uri.port_u16().unwrap_or(80), path, web_socket, headers })
    }

    /// The same endpoint, over HTTP or WebSocket.
    pub fn over(&self, web_socket: bool) -> Self {
        Self { web_socket, ..self.clone() }
    }

    pub fn url(&self) -> String {
        let scheme = if self.web_socket { "ws" } else { "http" };
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        format!("{scheme}://{host}:{}{}", self.port, self.path)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.url())
    }
}

/// A header of the command line. Its value may be a secret: reports do not show it.
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
