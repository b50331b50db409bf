//! The pages that may call: protects against browsers with pages of another owner.
//!
//! A browser sends any page's requests to a node on the user's machine, WebSocket upgrades included, and names the
//! page's origin in `Origin` (RFC 6454), or in `Sec-Fetch-Site` (Fetch Metadata) if there is no origin. A page whose
//! own host name resolves to this machine is recognized by its `Host`.

use http::{HeaderMap, Uri, header};

use crate::rpc::protocol::error::{Result, RpcError};
use crate::shown::cut;

/// The hosts that requests may name, and the pages that may send them.
#[derive(Clone, Debug)]
pub struct Origins {
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl Origins {
    /// Creates the rule. `hosts` are names without ports, or `*`; `origins` are values of `--allow-origin`.
    pub const fn new(hosts: Vec<String>, origins: Vec<String>) -> Self {
        Self { hosts, origins }
    }

    /// Returns whether any page of another origin may call.
    pub const fn is_open(&self) -> bool {
        !self.origins.is_empty()
    }

    /// Checks that a request names its host once, because intermediaries between a client and presim may each read a
    /// different one (RFC 9112, 3.2).
    ///
    /// # Errors
    ///
    /// Returns an error if the request has several `Host` headers.
    pub fn check_one_host(headers: &HeaderMap) -> Result<()> {
        match headers.get_all(header::HOST).iter().count() {
            0 | 1 => Ok(()),
            several => Err(RpcError::request(format!("{several} Host headers: expected one"))),
        }
    }

    /// Checks the `Host` of a request, ignoring its port.
    ///
    /// # Errors
    ///
    /// Returns an error if the request names a host that is not allowed, or none.
    pub fn check_host(&self, headers: &HeaderMap, uri: &Uri) -> Result<()> {
        let named = host(headers, uri).map(|host| without_port(host).0);
        if named.is_some_and(|name| self.hosts.iter().any(|host| host == "*" || host.eq_ignore_ascii_case(name))) {
            return Ok(());
        }
        let named = named.map_or_else(|| "no Host".to_owned(), |name| format!("Host {name:?}"));
        Err(RpcError::request(format!("host not allowed: {named}: list it with --allow-host")))
    }

    /// Checks that the sending page may call. The host of the request must have been checked before.
    ///
    /// # Errors
    ///
    /// Returns an error if the request is from a page whose origin is neither this node nor listed.
    pub fn check_page(&self, headers: &HeaderMap, uri: &Uri) -> Result<()> {
        let Some(origin) = headers.get(header::ORIGIN) else {
            return match headers.get("sec-fetch-site").map(http::HeaderValue::as_bytes) {
                Some(site @ (b"cross-site" | b"same-site")) => Err(RpcError::request(format!(
                    "page not allowed: Sec-Fetch-Site: {}: a page of another origin calls without naming its origin: \
                     --allow-origin names those that may",
                    String::from_utf8_lossy(site)
                ))),
                _ => Ok(()),
            };
        };
        let text = origin.to_str().unwrap_or_default();
        if self.allows(text) || host(headers, uri).is_some_and(|host| is_same(text, host)) {
            return Ok(());
        }
        let shown = cut(&String::from_utf8_lossy(origin.as_bytes()), 200);
        Err(RpcError::request(format!("origin not allowed: {shown:?}: list it with --allow-origin")))
    }

    /// Returns whether pages of this origin are listed.
    pub fn allows(&self, origin: &str) -> bool {
        let is_listed = |listed: &String| match listed.strip_suffix("://*") {
            _ if listed == "*" => true,
            Some(scheme) => origin.split_once("://").is_some_and(|(named, _)| named.eq_ignore_ascii_case(scheme)),
            None => listed.eq_ignore_ascii_case(origin),
        };
        self.origins.iter().any(is_listed)
    }
}

/// Returns whether a page of `origin` was served by `host` itself.
fn is_same(origin: &str, host: &str) -> bool {
    let Some((scheme, origin)) = origin.split_once("://") else { return false };
    let usual = match scheme {
        "http" => "80",
        "https" => "443",
        _ => return false,
    };
    let [(name, port), (host, host_port)] = [origin, host].map(without_port);
    name.eq_ignore_ascii_case(host) && port.unwrap_or(usual) == host_port.unwrap_or(usual)
}

/// Returns the host and port that a request is sent to.
fn host<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let named = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    named.or_else(|| uri.authority().map(http::uri::Authority::as_str))
}

/// Returns a host and its port, if it has one.
fn without_port(host: &str) -> (&str, Option<&str>) {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (name, Some(port)),
        _ => (host, None),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    /// Returns whether a request with this `Origin` and `Sec-Fetch-Site` is served at `127.0.0.1:8545`, where these
    /// origins are listed.
    fn is_served(listed: &[&str], origin: Option<&str>, site: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        let value = |text: &str| text.parse::<HeaderValue>().expect("a header");
        headers.insert(header::HOST, value("127.0.0.1:8545"));
        origin.and_then(|text| headers.insert(header::ORIGIN, value(text)));
        site.and_then(|text| headers.insert("sec-fetch-site", value(text)));
        let origins = Origins::new(vec!["127.0.0.1".into()], listed.iter().map(|text| (*text).into()).collect());
        origins.check_host(&headers, &Uri::from_static("/")).expect("the host is allowed");
        origins.check_page(&headers, &Uri::from_static("/")).is_ok()
    }

    #[test]
    fn a_page_is_served_where_its_origin_is_this_node_or_listed() {
        let (evil, own) = ("https://evil.example", "http://127.0.0.1:8545");
        let metamask = "chrome-extension://nkbihfbeogaeaoehlefnkodbefgpgknn";
        for (listed, origin, served) in [
            (&[][..], own, true),
            (&[], "http://127.0.0.1:3000", false),
            (&[], "http://127.0.0.1", false),
            (&[], "http://localhost:8545", false),
            (&[], evil, false),
            (&[], "null", false),
            (&[], metamask, false),
            (&["http://localhost:3000"], "http://localhost:3000", true),
            (&["http://localhost:3000"], own, true),
            (&["http://localhost:3000"], "http://localhost:3001", false),
            (&["http://localhost:3000"], "http://localhost:30000", false),
            (&["chrome-extension://*"], metamask, true),
            (&["chrome-extension://*"], "moz-extension://0", false),
            (&["chrome-extension://*"], "null", false),
            (&["moz-extension://*"], "moz-extension://0", true),
            (&["*"], evil, true),
            (&["*"], "null", true),
        ] {
            for site in [None, Some("cross-site"), Some("same-origin")] {
                assert_eq!(is_served(listed, Some(origin), site), served, "{listed:?} {origin} {site:?}");
            }
        }
    }

    #[test]
    fn without_an_origin_the_browsers_word_on_the_site_decides() {
        for (site, served) in [
            (None, true),
            (Some("none"), true),
            (Some("same-origin"), true),
            (Some("same-site"), false),
            (Some("cross-site"), false),
        ] {
            assert_eq!(is_served(&[], None, site), served, "{site:?}");
        }
    }

    #[test]
    fn the_usual_ports_of_http_and_https_may_be_left_out() {
        for (origin, host, same) in [
            ("https://node.example", "node.example", true),
            ("https://node.example", "node.example:443", true),
            ("http://node.example:80", "node.example", true),
            ("https://node.example", "node.example:80", false),
            ("http://[::1]:8545", "[::1]:8545", true),
            ("http://[::1]", "[::1]:8545", false),
            ("ftp://node.example", "node.example", false),
        ] {
            assert_eq!(is_same(origin, host), same, "{origin} {host}");
        }
    }
}
