//! `eth_sendRawTransactionSync` (EIP-7966): a transaction is sent, and its client waits for the receipt.

use bytestring::ByteString;
use tokio::{sync::Semaphore, time::timeout};

use super::{
    error::RpcError,
    front::{Front, Job, kept},
    methods::{Awaited, Method},
    remote::Remote,
    wire,
};
use crate::executor::LaneName;

/// The seats of those who wait. Waiting holds no worker: a task is woken by each publication, and looks.
#[derive(Debug)]
pub struct Waiters {
    seats: Semaphore,
    count: usize,
}

impl Waiters {
    /// Seats for `count`.
    pub fn new(count: usize) -> Self {
        Self { seats: Semaphore::new(count.min(Semaphore::MAX_PERMITS)), count }
    }
}

impl Front {
    /// Sends the transaction of `job` and answers its receipt, from the first snapshot that it is in.
    ///
    /// # Errors
    /// As `eth_sendRawTransaction`; -32005 where too many wait; 4 when the time is up, and 5 when the transaction cannot be mined as
    /// things are, both with its hash as data.
    pub(super) async fn send_and_wait(
        &self,
        lane: LaneName,
        job: Job,
        out: Vec<u8>,
    ) -> (Vec<u8>, Result<(), RpcError>) {
        let Ok(_seat) = self.waiters.seats.try_acquire() else {
            let text = format!("too busy: {} requests wait for receipts already", self.waiters.count);
            return (out, Err(RpcError::limit(text)));
        };
        if let Some(remote) = &self.remote {
            return match self.send_on_to_await(remote, &job).await {
                Ok(awaited) => self.wait(lane, awaited, job, out).await,
                Err(error) => (out, Err(error)),
            };
        }
        let sent = self.on_lane(lane, job.clone(), |backend, job, _, _| backend.send_to_await(job.asked())).await;
        match sent.and_then(|sent| sent) {
            Ok((awaited, commit)) => match kept(commit, &job.ticket).await {
                Ok(()) => self.wait(lane, awaited, job, out).await,
                Err(error) => (out, Err(error)),
            },
            Err(error) => (out, Err(error)),
        }
    }

    /// Sends a transaction on to the upstream.
    async fn send_on_to_await(&self, remote: &Remote, job: &Job) -> Result<Awaited, RpcError> {
        let (raw, timeout) = wire::parse_raw_sync(&job.params, job.dialect)?;
        let hash = Self::send_on(remote, &raw, job).await?;
        Ok(Awaited { hash, timeout: self.limits().sync.choose(timeout) })
    }

    async fn wait(
        &self,
        lane: LaneName,
        Awaited { hash, timeout: most }: Awaited,
        job: Job,
        out: Vec<u8>,
    ) -> (Vec<u8>, Result<(), RpcError>) {
        let mut changes = self.changes();
        let included = async {
            loop {
                // In this order: a transaction leaves the pool only after the snapshot with it was published.
                let waits = self.remote.is_some() || self.pool().get(&hash).is_some();
                let published = self.published();
                if published.transaction(&hash).is_some() {
                    return Some(published);
                }
                if !waits {
                    return None;
                }
                if changes.changed().await.is_err() {
                    // Nothing is published any more: its time runs out.
                    std::future::pending::<()>().await;
                }
            }
        };
        match timeout(most, included).await {
            Ok(Some(published)) => {
                let params = ByteString::from(format!("[\"{hash}\"]"));
                let job = Job { params, published, ticket: self.ticket(), ..job };
                self.run_on(lane, Method::GetTransactionReceipt, job, out).await
            }
            Ok(None) => {
                let text = "The transaction was added to the transaction pool but left it again: another took its place, or it cannot be mined";
                (out, Err(RpcError::unready(hash, text)))
            }
            Err(_) => {
                let text =
                    format!("The transaction was added to the transaction pool but wasn't processed in {most:?}");
                (out, Err(RpcError::receipt_timeout(hash, text)))
            }
        }
    }
}
