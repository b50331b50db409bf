//! TLS for `https://` and `wss://` targets, with the certificates that the system trusts (or those of `SSL_CERT_FILE`).

use std::sync::{Arc, OnceLock};

use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName},
};

/// Why a TLS connection could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read any certificate that this system trusts; name a file of certificates in SSL_CERT_FILE")]
    NoRoots,
    #[error(transparent)]
    Setup(#[from] tokio_rustls::rustls::Error),
    #[error("{0:?} is not a host name that a certificate can have")]
    Name(String),
    #[error(transparent)]
    Handshake(#[from] std::io::Error),
}

/// Adds TLS to a connection.
///
/// # Errors
///
/// Returns an error if the server's certificate is not trusted or is another host's, or if it does not speak TLS.
pub async fn secure(stream: TcpStream, host: &str) -> Result<TlsStream<TcpStream>, TlsError> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Name(host.to_owned()))?;
    Ok(connector()?.connect(name, stream).await?)
}

/// Returns the connector, which reads the certificates once.
fn connector() -> Result<TlsConnector, TlsError> {
    static CONNECTOR: OnceLock<TlsConnector> = OnceLock::new();
    if let Some(connector) = CONNECTOR.get() {
        return Ok(connector.clone());
    }
    let mut roots = RootCertStore::empty();
    // The stores of many systems contain certificates that cannot be used.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(TlsError::NoRoots);
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(CONNECTOR.get_or_init(|| TlsConnector::from(Arc::new(config))).clone())
}
