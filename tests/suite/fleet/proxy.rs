//! A network that can be cut or slowed down: proxies before a server. One drops its connections and takes no new ones while it
//! is cut, the other delays what goes through it.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    task::JoinSet,
    time::Instant,
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

/// A way to a server on which all bytes take a time.
pub struct SlowProxy {
    address: SocketAddr,
    delay: Arc<AtomicU64>,
}

impl SlowProxy {
    /// Opens a way to a port of this machine, which takes no time at first.
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let delay = Arc::new(AtomicU64::new(0));
        let kept = delay.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                tokio::spawn(late(near_in, far_out, kept.clone()));
                tokio::spawn(late(far_in, near_out, kept.clone()));
            }
        });
        Self { address, delay }
    }

    /// Returns the URL of the server by this way.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Sets the time that the way takes from here on, in each direction.
    pub fn delay(&self, time: Duration) {
        self.delay.store(u64::try_from(time.as_millis()).expect("it is short"), Relaxed);
    }
}

/// Copies bytes in order, each after the delay that there was when it came.
async fn late(
    mut from: impl AsyncRead + Unpin + Send + 'static,
    mut to: impl AsyncWrite + Unpin + Send + 'static,
    delay: Arc<AtomicU64>,
) {
    let (send, mut under_way) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let reading = async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count) = from.read(&mut buffer).await {
            let due = Instant::now() + Duration::from_millis(delay.load(Relaxed));
            if count == 0 || send.send((due, buffer[..count].to_vec())).is_err() {
                return;
            }
        }
    };
    let writing = async move {
        while let Some((due, bytes)) = under_way.recv().await {
            tokio::time::sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(reading, writing);
}
