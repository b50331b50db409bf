//! A network that can be cut: a proxy before a server, which drops its connections and takes no new ones while it is cut.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// A way to a server that can be cut.
pub struct CutProxy {
    pub address: SocketAddr,
    is_open: watch::Sender<bool>,
    links: Arc<Mutex<JoinSet<()>>>,
}

impl CutProxy {
    /// Opens a way to a port of this machine.
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (is_open, mut opened) = watch::channel(true);
        let links: Arc<Mutex<JoinSet<()>>> = Arc::default();
        let kept = links.clone();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                if !*opened.borrow_and_update() {
                    continue;
                }
                kept.lock().expect("no test panics here").spawn(async move {
                    if let Ok(mut far) = TcpStream::connect(("127.0.0.1", port)).await {
                        let _ = copy_bidirectional(&mut near, &mut far).await;
                    }
                });
            }
        });
        Self { address, is_open, links }
    }

    /// Returns the URL of the server by this way.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Cuts all connections, and takes none.
    pub fn cut(&self) {
        self.is_open.send_replace(false);
        self.links.lock().expect("no test panics here").abort_all();
    }

    /// Takes connections again.
    pub fn mend(&self) {
        self.is_open.send_replace(true);
    }
}
