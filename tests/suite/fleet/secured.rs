//! Fleets over servers that ask for certificates, nkeys or credentials.

use std::fs;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use nkeys::KeyPair;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{QUICK, advance, agree_on, ingester, reach, server::NatsServer, start, try_start};
use crate::upstream::StreamedDevnet;

/// Publishes and follows with these flags, and returns the errors of nodes that follow with the other ones.
async fn works_and_refuses(url: &str, flags: &[&str], refused: &[&[&str]]) -> Vec<String> {
    let chain = StreamedDevnet::start(&QUICK).await;
    let leader = ingester(&chain, url, flags);
    let id = advance(&leader, 3).await;
    let follower = start(&[&["--follow", url, "--fleet", "test"], flags].concat());
    reach(&follower, id).await;
    agree_on(&[&leader, &follower], id, "/").await;
    let error = |flags: &&[&str]| {
        let refused = try_start(&[&["--follow", url, "--fleet", "test"], *flags].concat());
        format!("{:#}", refused.err().expect("it is refused"))
    };
    refused.iter().map(error).collect()
}

fn written(dir: &TempDir, name: &str, text: &str) -> String {
    let path = dir.path().join(name);
    fs::write(&path, text).expect("it is written");
    path.to_str().expect("UTF-8").to_owned()
}

/// Writes a key and a certificate for it that `issuer` has signed, and returns the paths of both.
fn certified(dir: &TempDir, name: &str, issuer: &Issuer<'_, rcgen::KeyPair>) -> (String, String) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name");
    let certificate = params.signed_by(&key, issuer).expect("a certificate");
    (
        written(dir, &format!("{name}.crt"), &certificate.pem()),
        written(dir, &format!("{name}.key"), &key.serialize_pem()),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_checked_by_its_authority_and_checks_the_nodes_certificate() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().expect("a key");
    let ca = written(&dir, "ca.crt", &params.self_signed(&key).expect("a certificate").pem());
    let issuer = Issuer::new(params, key);
    let ((server, server_key), (node, node_key)) =
        (certified(&dir, "server", &issuer), certified(&dir, "node", &issuer));
    let tls = format!("tls {{ cert_file: {server:?}, key_file: {server_key:?}, ca_file: {ca:?}, verify: true }}");
    let Some(server) = NatsServer::start_with(&[&tls]) else { return };
    let url = format!("tls://127.0.0.1:{}", server.port);
    let own = ["--nats-cert", &node, "--nats-key", &node_key];
    let all = [&["--nats-ca", &ca], &own[..]].concat();
    let errors = works_and_refuses(&url, &all, &[&own, &["--nats-ca", &ca]]).await;
    // The system does not know the authority, and the server rejects a node without a certificate.
    assert!(errors[0].contains("certificate"), "{}", errors[0]);
    assert!(errors.iter().all(|error| error.contains("127.0.0.1")), "{errors:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_shows_the_nkey_that_the_server_knows() {
    let dir = tempfile::tempdir().expect("a directory");
    let (known, unknown) = (KeyPair::new_user(), KeyPair::new_user());
    let users = format!("authorization {{ users: [ {{ nkey: {} }} ] }}", known.public_key());
    let Some(server) = NatsServer::start_with(&[&users]) else { return };
    let [known, unknown] =
        [("known", known), ("unknown", unknown)].map(|(name, key)| written(&dir, name, &key.seed().expect("a seed")));
    let refused: [&[&str]; 2] = [&["--nats-nkey-file", &unknown], &[]];
    let errors = works_and_refuses(&server.url(), &["--nats-nkey-file", &known], &refused).await;
    let text = fs::read_to_string(&unknown).expect("a file");
    assert!(errors.iter().all(|error| error.contains("authorization") && !error.contains(&text)), "{errors:?}");
}

/// Returns a JSON Web Token of NATS about `subject`, which `issuer` has signed.
fn token(subject: &KeyPair, issuer: &KeyPair, mut claims: Value) -> String {
    claims["version"] = json!(2);
    let body = json!({"iat": 1, "iss": issuer.public_key(), "sub": subject.public_key(), "nats": claims});
    let encode = |value: Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", encode(json!({"typ": "JWT", "alg": "ed25519-nkey"})), encode(body));
    let signature = issuer.sign(signed.as_bytes()).expect("a signature");
    format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}

fn credentials(dir: &TempDir, name: &str, user: &KeyPair, token: &str) -> String {
    let part = |name: &str, text: &str| format!("-----BEGIN {name}-----\n{text}\n------END {name}------\n\n");
    let seed = user.seed().expect("a seed");
    written(dir, name, &(part("NATS USER JWT", token) + &part("USER NKEY SEED", &seed)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_shows_credentials_that_the_accounts_key_has_signed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (operator, system, account) = (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account());
    let most = json!({"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1,
        "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1});
    let mut none = most.clone();
    none.as_object_mut().expect("an object").retain(|name, _| !name.contains("storage") && name != "streams");
    let of_operator = json!({"type": "operator", "system_account": system.public_key()});
    let accounts = [(&system, none), (&account, most)].map(|(account, limits)| {
        let claims = json!({"type": "account", "limits": limits});
        format!("{}: {}", account.public_key(), token(account, &operator, claims))
    });
    let config = format!(
        "operator: {}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{\n{}\n}}",
        token(&operator, &operator, of_operator),
        system.public_key(),
        accounts.join("\n")
    );
    let Some(server) = NatsServer::start_with(&[&config]) else { return };
    let user = KeyPair::new_user();
    let claims = json!({"type": "user", "subs": -1, "data": -1, "payload": -1});
    let right = credentials(&dir, "right.creds", &user, &token(&user, &account, claims.clone()));
    let wrong = credentials(&dir, "wrong.creds", &user, &token(&user, &KeyPair::new_account(), claims));
    let refused: [&[&str]; 2] = [&["--nats-credentials", &wrong], &[]];
    let errors = works_and_refuses(&server.url(), &["--nats-credentials", &right], &refused).await;
    assert!(errors.iter().all(|error| error.contains("authorization")), "{errors:?}");
}
