//! The connection of a command to a node: over HTTP or WebSocket, or to a node within the command.

use std::{fs, io::ErrorKind, net::TcpStream, path::PathBuf, time::Duration};

use alloy_json_rpc::{ErrorPayload, RpcError, RpcSend};
use alloy_rpc_client::{ClientBuilder, ConnectionConfig, RpcClient, WebSocketConfig};
use alloy_transport::{Authorization, TransportError};
use alloy_transport_http::{
    Http,
    reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue},
};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::runtime::Runtime;
use url::Url;

use super::{error::CommandError, waiting::Waiting};
use crate::{
    config::{Config, Endpoint},
    node::Node,
    objects,
    secrets::{SecretParser, TOKEN_SYNTAX, is_bearer_token, secret_url},
    shown::{self, printable},
    telemetry,
    upstream::http_client,
};

/// The node that a command asks.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Node")]
pub struct NodeArgs {
    /// Send requests to the presim node at this URL: http, https, ws or wss. The default is port 8545 of this machine, unless
    /// --upstream or --genesis is given.
    #[arg(long, env = "PRESIM_URL", hide_env_values = true, value_name = "URL", value_parser = SecretParser(parse_url))]
    pub url: Option<Url>,
    /// Send the bearer token in this file: its first line, or the first token of a file like the node's --token-file.
    /// `PRESIM_TOKEN` may hold the token itself.
    #[arg(long = "token-file", id = "client_token_file", value_name = "FILE", env = "PRESIM_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// Time-out of an answer of the node, in milliseconds.
    #[arg(long, value_name = "MS", env = "PRESIM_TIMEOUT_MS", default_value_t = 60_000, value_parser = clap::value_parser!(u64).range(1..=3_600_000), hide_short_help = true)]
    pub timeout_ms: u64,
}

/// The node that a command asks.
#[derive(Clone, Debug)]
pub enum NodeTarget {
    /// A running node.
    Url(Url),
    /// A node that is started within the command.
    Own(Box<Config>),
}

/// A connection to a node.
pub struct NodeLink {
    client: RpcClient,
    runtime: Runtime,
    timeout: Duration,
    /// The node, as errors name it.
    name: String,
    /// The node inside the command. It stops when the link is dropped.
    _own: Option<Node>,
}

/// The result of a question with its text, or the error with which the node answers.
pub type Reply<T> = Result<(T, Box<RawValue>), ErrorPayload>;

/// Maximum bytes of an answer over WebSocket.
const MAX_ANSWER: usize = 1 << 30;
/// The time that a connection to an upstream may take before the node is left to try.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

impl NodeLink {
    /// Connects to the node, or starts it.
    ///
    /// # Errors
    ///
    /// Returns [`CommandError::Input`] if the file of the token cannot be read, and [`CommandError::NoNode`] if the
    /// node does not start or no connection can be made.
    pub fn open(args: &NodeArgs, target: NodeTarget) -> Result<Self, CommandError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|error| CommandError::NoNode(format!("no thread can be started: {error}")))?;
        let timeout = Duration::from_millis(args.timeout_ms);
        let (url, name, own, token) = match target {
            NodeTarget::Url(url) => {
                let token = token(args)?;
                let name = shown::url(&url);
                (url, name, None, token)
            }
            NodeTarget::Own(config) => {
                telemetry::init_logs(&config.log, config.log_json)
                    .map_err(|error| CommandError::Input(format!("--log {}: {error}", config.log)))?;
                if let Some(Endpoint::Url(url)) = &config.live.upstream {
                    check_listens(url)?;
                }
                let source = match &config.live.upstream {
                    Some(upstream) => upstream.to_string(),
                    None => "the genesis".to_owned(),
                };
                let waiting = Waiting::new(format!("starting on the state of {source}"));
                let node = Node::start(*config).map_err(|error| CommandError::NoNode(format!("{error:#}")))?;
                drop(waiting);
                let url = Url::parse(&format!("http://{}", node.info().listens_on()))
                    .map_err(|error| CommandError::NoNode(error.to_string()))?;
                (url, format!("the state of {source}"), Some(node), None)
            }
        };
        let client = {
            let _waiting = Waiting::new(format!("connecting to {name}"));
            runtime.block_on(async {
                match tokio::time::timeout(timeout, connect(&url, token)).await {
                    Ok(connected) => connected.map_err(|error| no_node(&name, &error)),
                    Err(_) => Err(CommandError::NoNode(format!("{name}: no connection within {timeout:?}"))),
                }
            })?
        };
        Ok(Self { client, runtime, timeout, name, _own: own })
    }

    /// Sends a request to the node, and returns the result with its text. Shows a spinner if that takes long.
    ///
    /// # Errors
    ///
    /// Returns [`CommandError::NoNode`] if no node answers or the node refuses, [`CommandError::Input`] if it refuses
    /// the parameters, and [`CommandError::Failed`] if a call cannot be included in a block.
    pub fn ask<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: impl RpcSend,
    ) -> Result<(T, Box<RawValue>), CommandError> {
        let _waiting = Waiting::new(format!("{method} at {}", self.name));
        self.ask_quietly(method, params, Duration::ZERO)
    }

    /// Sends a request as [`ask`](Self::ask) does, without a spinner. The answer may take `wait` longer.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`ask`](Self::ask).
    pub fn ask_quietly<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: impl RpcSend,
        wait: Duration,
    ) -> Result<(T, Box<RawValue>), CommandError> {
        let answered = self.ask_until(method, params, wait, std::future::pending())?;
        // A future that is never ready stops nothing.
        let answered = answered.unwrap_or_else(|| unreachable!("nothing stops the question"));
        answered.map_err(|error| self.refused(method, &error))
    }

    /// Sends a request as [`ask_quietly`](Self::ask_quietly) does. Returns the error if the node answers with one, and
    /// `None` if `stopped` is ready first.
    ///
    /// # Errors
    ///
    /// Returns [`CommandError::NoNode`] if no node answers.
    pub fn ask_until<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: impl RpcSend,
        wait: Duration,
        stopped: impl Future<Output = ()>,
    ) -> Result<Option<Reply<T>>, CommandError> {
        let most = self.timeout + wait;
        let answered = self.runtime.block_on(async {
            let request = self.client.request::<_, Box<RawValue>>(method, params);
            tokio::select! {
                answered = tokio::time::timeout(most, request) => Some(answered),
                () = stopped => None,
            }
        });
        let Some(answered) = answered else { return Ok(None) };
        let text = match answered {
            Ok(Ok(text)) => text,
            Ok(Err(RpcError::ErrorResp(error))) => return Ok(Some(Err(error))),
            Ok(Err(error)) => return Err(no_node(&self.name, &error)),
            Err(_) => {
                let text = format!("{}: no answer to {method} within {most:?} (--timeout-ms)", self.name);
                return Err(CommandError::NoNode(text));
            }
        };
        let result = objects::from_str(text.get()).map_err(|error| {
            CommandError::NoNode(format!("{}: unexpected answer to {method}: {error}: is it a presim?", self.name))
        })?;
        Ok(Some(Ok((result, text))))
    }

    /// Returns the error of a command whose request the node rejected.
    pub fn refused(&self, method: &str, error: &ErrorPayload) -> CommandError {
        let message = printable(&error.message);
        match error.code {
            -32601 => CommandError::NoNode(format!(
                "{}: it has no {method}: is it a presim? Simulate on another node's chain with --upstream in the place of --url",
                self.name
            )),
            -32602 => CommandError::Input(message),
            -32000 if message.starts_with("unauthorized") => CommandError::NoNode(format!(
                "{}: the token is missing or unknown: give one by --token-file",
                self.name
            )),
            // The rules of a block that a transaction breaks: nonce, fee, gas and funds.
            -38015..=-38010 => CommandError::Failed(format!("a call cannot be included: {message}")),
            code => CommandError::NoNode(format!("{}: error {code}: {message}", self.name)),
        }
    }
}

/// Checks that an upstream's port accepts connections, because a node that starts would wait for it. Other problems are
/// left to the node, which may reach the upstream in another way, such as through a proxy.
fn check_listens(url: &Url) -> Result<(), CommandError> {
    let port = || matches!(url.scheme(), "ws" | "wss").then_some(if url.scheme() == "wss" { 443 } else { 80 });
    let Ok(addresses) = url.socket_addrs(port) else { return Ok(()) };
    let refusal = |address| match TcpStream::connect_timeout(address, CONNECT_TIMEOUT) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Some(error),
        _ => None,
    };
    let refusals: Option<Vec<_>> = addresses.iter().map(refusal).collect();
    match refusals.as_ref().and_then(|all| all.first()) {
        Some(error) => Err(CommandError::NoNode(format!("no node answers at --upstream {}: {error}", shown::url(url)))),
        None => Ok(()),
    }
}

async fn connect(url: &Url, token: Option<String>) -> Result<RpcClient, TransportError> {
    if matches!(url.scheme(), "ws" | "wss") {
        let limits = WebSocketConfig::default().max_message_size(Some(MAX_ANSWER)).max_frame_size(Some(MAX_ANSWER));
        let mut connection = ConnectionConfig::new().with_ws_config(limits);
        if let Some(auth) = token.map(Authorization::bearer).or_else(|| Authorization::extract_from_url(url)) {
            connection = connection.with_auth(auth);
        }
        return ClientBuilder::default().connect_with_config(url.as_str(), connection).await;
    }
    let mut headers = HeaderMap::new();
    if let Some(token) = token {
        // The token was checked when it was read.
        if let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {token}")) {
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
    }
    let client = http_client(headers).map_err(alloy_transport::TransportErrorKind::custom)?;
    Ok(ClientBuilder::default().transport(Http::with_client(client, url.clone()), true))
}

/// Returns the token to send, if there is one.
fn token(args: &NodeArgs) -> Result<Option<String>, CommandError> {
    let (token, source) = match &args.token_file {
        Some(path) => {
            let shown = format!("--token-file {}", path.display());
            let text = fs::read_to_string(path).map_err(|error| CommandError::Input(format!("{shown}: {error}")))?;
            (first_token(&text), shown)
        }
        None => match std::env::var("PRESIM_TOKEN") {
            Ok(token) => (Some(token), "PRESIM_TOKEN".to_owned()),
            Err(_) => return Ok(None),
        },
    };
    match token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()) {
        Some(token) if is_bearer_token(&token) => Ok(Some(token)),
        Some(_) => Err(CommandError::Input(format!("{source}: the token: {TOKEN_SYNTAX}"))),
        None => Err(CommandError::Input(format!(
            "{source}: no token: expected one in the first line, or a `[[token]]` table with a `token`"
        ))),
    }
}

/// Returns the first token of a file of tokens, or the first line of another file.
fn first_token(text: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct TokenTables {
        token: Vec<TokenTable>,
    }
    #[derive(serde::Deserialize)]
    struct TokenTable {
        token: String,
    }
    match objects::from_toml::<TokenTables>(text) {
        Ok(tables) => tables.token.into_iter().next().map(|table| table.token),
        Err(_) => text.lines().next().map(str::to_owned),
    }
}

fn no_node(name: &str, error: &TransportError) -> CommandError {
    let text = shown::with_causes(error.to_string(), std::error::Error::source(error));
    if let RpcError::Transport(kind) = error
        && let Some(http) = kind.as_http_error()
    {
        let what = match http.status {
            401 => "the token is missing or unknown: give it by --token-file",
            429 => "the token's rate is exceeded",
            _ => "expected a node's JSON-RPC",
        };
        return CommandError::NoNode(format!("{name}: HTTP status {}: {what}", http.status));
    }
    CommandError::NoNode(format!(
        "no node answers at {name}: {}: start one with `presim`, or give its --url",
        printable(&shown::without_secrets(&text))
    ))
}

fn parse_url(text: &str) -> Result<Url, String> {
    secret_url(text, &["http", "https", "ws", "wss"], "http://127.0.0.1:8545")
}
