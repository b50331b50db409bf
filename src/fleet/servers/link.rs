//! The connection to the NATS servers of a fleet.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_nats::{
    Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr,
    jetstream::{
        Context,
        context::{ContextBuilder, CreateStreamError},
        kv, object_store, stream,
    },
};
use futures::TryStreamExt;
use tokio::sync::OnceCell;

use super::{ACK_TIMEOUT, Bucket, FleetError, FleetNames, REQUEST_TIMEOUT, Topic, error::CLUSTER};
use crate::fleet::settings::{Servers, Settings};

/// The time limit for a server to accept a connection, before another server is tried.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause before a lost connection is opened again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// A connection to the NATS servers of a fleet.
#[derive(Clone, Debug)]
pub struct FleetLink {
    /// The connection.
    pub client: Client,
    /// The streams of the servers, over that.
    pub jetstream: Context,
    /// The names of the fleet.
    pub names: FleetNames,
    /// The settings of the fleet's streams and buckets. `None` on a replica, which creates none.
    pub room: Option<Settings>,
    /// The buckets that were opened.
    buckets: Arc<[OnceCell<kv::Store>; 2]>,
}

impl FleetLink {
    /// Creates the connection to a fleet.
    pub fn new(client: Client, jetstream: Context, names: FleetNames, room: Option<Settings>) -> Self {
        Self { client, jetstream, names, room, buckets: Arc::default() }
    }

    /// Opens a bucket.
    ///
    /// # Errors
    ///
    /// Returns [`FleetError::Nats`] if there is none, or NATS does not answer.
    pub(super) async fn bucket(&self, bucket: Bucket) -> Result<&kv::Store, FleetError> {
        let name = self.names.bucket(bucket);
        let opened = self.buckets[bucket as usize].get_or_try_init(|| self.jetstream.get_key_value(name)).await;
        opened.map_err(FleetError::of_nats("a bucket of the fleet cannot be opened"))
    }

    /// Connects to the servers, as `settings` say.
    ///
    /// # Errors
    ///
    /// Returns [`FleetError::Connect`] if no server can be reached, [`FleetError::File`] if a file cannot be read, and
    /// [`FleetError::Cluster`] if the servers are a cluster of an old version.
    pub async fn connect(settings: &Settings, servers: &Servers) -> Result<(Client, Context), FleetError> {
        let failed = |problem: String| FleetError::Connect { servers: servers.to_string(), problem };
        let mut options = ConnectOptions::new()
            .name("presim")
            .request_timeout(Some(REQUEST_TIMEOUT))
            .connection_timeout(CONNECTION_TIMEOUT)
            .reconnect_delay_callback(|_| RETRY_PAUSE)
            .event_callback(log_event);
        let mut addresses = Vec::new();
        for url in &servers.0 {
            // Not in the URL, so that no log of the connection contains them.
            let mut bare = url.clone();
            let (user, password) = (decoded(url.username()), url.password().map(decoded));
            let _ = (bare.set_username(""), bare.set_password(None));
            options = match (user, password) {
                (user, Some(password)) => options.user_and_password(user, password),
                (token, None) if !token.is_empty() => options.token(token),
                (_, None) => options,
            };
            addresses.push(ServerAddr::from_url(bare).map_err(|error| failed(error.to_string()))?);
        }
        let read = |flag: &'static str, path: &PathBuf| {
            std::fs::read_to_string(path).map_err(|error| FleetError::File { flag, path: path.clone(), error })
        };
        if let Some(path) = &settings.credentials {
            let text = read("--nats-credentials", path)?;
            let of_file = |error| FleetError::File { flag: "--nats-credentials", path: path.clone(), error };
            options = options.credentials(&text).map_err(of_file)?;
        }
        if let Some(path) = &settings.nkey_file {
            options = options.nkey(read("--nats-nkey-file", path)?.trim().to_owned());
        }
        if let Some(path) = &settings.authorities {
            options = options.add_root_certificates(path.clone());
        }
        if let (Some(cert), Some(key)) = (&settings.certificate, &settings.key) {
            options = options.add_client_certificate(cert.clone(), key.clone());
        }
        let client = options.connect(addresses).await.map_err(|error| match identity(settings) {
            Some(flag)
                if matches!(
                    error.kind(),
                    ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation
                ) =>
            {
                failed(format!("{error}: they do not know this node by {flag}"))
            }
            _ => failed(error.to_string()),
        })?;
        let info = client.server_info();
        let is_old = version(&info.version).is_none_or(|version| version < CLUSTER);
        if info.cluster.is_some() && is_old {
            return Err(FleetError::Cluster { found: info.version });
        }
        let jetstream = ContextBuilder::new().timeout(REQUEST_TIMEOUT).ack_timeout(ACK_TIMEOUT).build(client.clone());
        Ok((client, jetstream))
    }

    /// Creates the fleet's stream and buckets, or opens them.
    ///
    /// # Errors
    ///
    /// Returns [`FleetError::Nats`] if NATS refuses one, or does not answer.
    pub async fn create(&self) -> Result<(), FleetError> {
        let Some(Settings { copies, stream_bytes, .. }) = self.room else { return Ok(()) };
        let stream = stream::Config {
            name: self.names.stream(),
            subjects: vec![self.names.subject(Topic::Feed)],
            max_bytes: i64::try_from(stream_bytes).unwrap_or(i64::MAX),
            num_replicas: copies,
            duplicate_window: Duration::from_secs(120),
            ..stream::Config::default()
        };
        let opened = self.open_or_create(stream).await;
        let refused = "the stream of the fleet cannot be created (--publish-mb, --publish-copies; the servers need JetStream: nats-server -js)";
        opened.map_err(FleetError::of_nats(refused))?;
        for bucket in [Bucket::Facts, Bucket::Lease].map(|bucket| self.names.bucket(bucket)) {
            let opened = self.open_or_create(bucket_config(&bucket, copies)).await;
            opened.map_err(FleetError::of_nats("a bucket of the fleet cannot be created"))?;
        }
        if self.jetstream.get_object_store(&self.names.images()).await.is_err() {
            let config = object_store::Config {
                bucket: self.names.images(),
                num_replicas: copies,
                ..object_store::Config::default()
            };
            let created = self.jetstream.create_object_store(config).await;
            if let Err(error) = created
                && self.jetstream.get_object_store(self.names.images()).await.is_err()
            {
                return Err(FleetError::nats("the bucket of images cannot be created", error));
            }
        }
        Ok(())
    }

    /// Opens a stream, and creates it if there is none. A server that creates the stream for another node at the same
    /// moment refuses this node's creation, since the subjects of both overlap: the other's stream is opened then.
    async fn open_or_create(&self, config: stream::Config) -> Result<(), CreateStreamError> {
        let name = config.name.clone();
        match self.jetstream.get_or_create_stream(config).await {
            Err(error) if self.jetstream.get_stream(name).await.is_err() => Err(error),
            _ => Ok(()),
        }
    }

    /// Opens the fleet's stream.
    ///
    /// # Errors
    ///
    /// Returns [`FleetError::Nats`] if there is none, or NATS does not answer.
    pub async fn stream(&self) -> Result<stream::Stream, FleetError> {
        let stream = self.jetstream.get_stream(self.names.stream()).await;
        stream.map_err(FleetError::of_nats("the fleet's stream cannot be opened"))
    }
}

/// Logs an event of the connection. Failed attempts to connect are logged as debug, because there are ten every second while
/// the servers are away.
async fn log_event(event: Event) {
    match event {
        Event::Disconnected => tracing::warn!("the connection to the NATS servers is lost: trying to connect again"),
        Event::SlowConsumer(_) | Event::ServerError(_) => tracing::warn!(%event, "an event of the connection to NATS"),
        _ => tracing::debug!(%event, "an event of the connection to NATS"),
    }
}

/// Returns the names of the fleets that the servers have.
///
/// # Errors
///
/// Returns [`FleetError::Nats`] if NATS does not answer.
pub async fn fleets(jetstream: &Context) -> Result<Vec<String>, FleetError> {
    let names: Result<Vec<String>, _> = jetstream.stream_names().try_collect().await;
    let names = names
        .map_err(FleetError::of_nats("the streams cannot be listed (the servers need JetStream: nats-server -js)"))?;
    Ok(names.iter().filter_map(|name| Some(name.strip_prefix("presim_")?.to_owned())).collect())
}

/// Returns the stream of a key-value bucket. The client's own way to create one sends a request that servers before
/// 2.10 do not answer.
fn bucket_config(bucket: &str, copies: usize) -> stream::Config {
    stream::Config {
        name: format!("KV_{bucket}"),
        subjects: vec![format!("$KV.{bucket}.>")],
        max_messages_per_subject: 1,
        num_replicas: copies,
        discard: stream::DiscardPolicy::New,
        allow_rollup: true,
        deny_delete: true,
        ..stream::Config::default()
    }
}

fn decoded(text: &str) -> String {
    url::form_urlencoded::parse(format!("x={}", text.replace('+', "%2B")).as_bytes())
        .next()
        .map_or_else(String::new, |(_, value)| value.into_owned())
}

fn version(text: &str) -> Option<(u64, u64)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Returns the flag, with its file, that identifies this node to NATS.
fn identity(settings: &Settings) -> Option<String> {
    let files = [
        ("--nats-credentials", &settings.credentials),
        ("--nats-nkey-file", &settings.nkey_file),
        ("--nats-cert", &settings.certificate),
    ];
    files.into_iter().find_map(|(flag, file)| Some(format!("{flag} {}", file.as_ref()?.display())))
}
