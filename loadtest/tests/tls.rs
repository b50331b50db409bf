//! Tests of targets that speak TLS.

mod support;

use std::{path::Path, process::Output, sync::Arc};

use rcgen::CertifiedKey;
use serde_json::json;
use support::{Reply, Server, binary};
use tempfile::TempDir;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
};

/// Writes a self-signed certificate of `localhost` into the folder, and returns the server's side of TLS with it.
fn localhost(folder: &Path) -> TlsAcceptor {
    let CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    std::fs::write(folder.join("root.pem"), cert.pem()).expect("a file");
    let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(vec![cert.der().clone()], key));
    TlsAcceptor::from(Arc::new(config.expect("a server's settings")))
}

fn run(url: &str, folder: &Path, roots: &Path) -> Output {
    std::fs::write(folder.join("bodies"), r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}"#)
        .expect("a file");
    let mut command = binary();
    command.arg(url).arg("--bodies").arg(folder.join("bodies"));
    command.args(["--duration=200ms", "--warmup=0s", "--assert=errors=0,requests>10"]);
    command.env("SSL_CERT_FILE", roots).env_remove("SSL_CERT_DIR").output().expect("the binary runs")
}

#[test]
fn https_and_wss_are_spoken_with_who_is_trusted() {
    for (web_socket, scheme) in [(false, "https"), (true, "wss")] {
        let (folder, other) = (TempDir::new().expect("a directory"), TempDir::new().expect("a directory"));
        let tls = localhost(folder.path());
        drop(localhost(other.path()));
        let script = |number, _: &serde_json::Value| match number {
            0 => Reply::Error(-32601),
            _ => Reply::Result(json!("0x1")),
        };
        let server = Server::secure(web_socket, tls, script);
        let url = format!("{scheme}://localhost:{}", server.address.port());
        let trusted = run(&url, folder.path(), &folder.path().join("root.pem"));
        assert_eq!(trusted.status.code(), Some(0), "{trusted:?}");
        let stranger = run(&url, folder.path(), &other.path().join("root.pem"));
        let stderr = String::from_utf8_lossy(&stranger.stderr);
        assert_eq!(stranger.status.code(), Some(2), "{stranger:?}");
        assert!(stderr.lines().count() == 1 && stderr.contains("certificate"), "{stderr}");
    }
}

#[test]
fn a_server_that_does_not_speak_tls_is_refused_in_a_line() {
    let folder = TempDir::new().expect("a directory");
    drop(localhost(folder.path()));
    let server = Server::start(|_, _| Reply::Result(json!("0x1")));
    let url = format!("https://localhost:{}", server.address.port());
    let run = run(&url, folder.path(), &folder.path().join("root.pem"));
    let stderr = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(2), "{run:?}");
    assert!(stderr.lines().count() == 1 && stderr.contains("cannot set up TLS"), "{stderr}");
}
