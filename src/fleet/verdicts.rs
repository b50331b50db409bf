//! The verdicts of the node that builds the blocks on transactions that other nodes have sent: each goes to the inbox of the
//! node that waits for it.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use alloy_primitives::B256;
use alloy_rlp::{RlpDecodable, RlpEncodable};
use async_nats::{Client, Subject};
use bytes::Bytes;
use futures::StreamExt;
use tokio::{
    sync::{broadcast, oneshot, watch},
    task::JoinSet,
};

use super::servers::{FleetError, subject};
use crate::{
    ledger::codec::{self, MAX_SHORT_BYTES},
    lock::Mutex,
    pool::{DropReason, DroppedTransaction, Pool, PoolDrops, PoolError},
};

/// The header of a sent transaction with the inbox for the verdict.
pub const REPLY: &str = "presim-reply";
/// The beginning of all inboxes. Nothing is told to other subjects: this node may publish to more than a replica may.
const INBOX: &str = "_INBOX.";
/// The sent transactions without a verdict that are remembered.
const MAX_UNCHECKED: usize = 65_536;
/// The verdicts of a node that stands by that are held until it leads, because the leader may not have come to them.
const MAX_HELD: usize = 4_096;
/// The senders of transactions that are remembered, beyond which those whose transactions have left the pool are forgotten.
const MAX_SENDERS: usize = 65_536;

/// A verdict, or a later word on a transaction that was accepted.
#[derive(RlpEncodable, RlpDecodable)]
struct PoolVerdict {
    kind: u8,
    hash: B256,
    /// The reason, unless the transaction is accepted.
    problem: String,
}

const ACCEPTED: u8 = 0;
const REJECTED: u8 = 1;
const DROPPED: u8 = 2;

fn write(kind: u8, hash: B256, problem: String) -> Bytes {
    codec::write(&PoolVerdict { kind, hash, problem }).into()
}

/// The inbox of a node for verdicts on the transactions that it has sent.
#[derive(Debug)]
pub struct VerdictInbox {
    prefix: String,
    next: AtomicU64,
    waiting: Arc<Mutex<Unchecked>>,
    _hearing: JoinSet<()>,
}

/// The senders that wait for verdicts, by the last part of their subject.
type Unchecked = BTreeMap<u64, oneshot::Sender<Result<(), PoolError>>>;

impl VerdictInbox {
    /// Opens the inbox. Transactions that are dropped after their clients were answered are counted by `drops`.
    ///
    /// # Errors
    ///
    /// Returns [`FleetError::Nats`] if NATS does not take the subscription.
    pub async fn open(client: &Client, drops: PoolDrops) -> Result<Self, FleetError> {
        let prefix = client.new_inbox();
        let heard = client.subscribe(subject(format!("{prefix}.*"))).await;
        let mut heard = heard.map_err(FleetError::of_nats("verdicts cannot be heard"))?;
        let waiting: Arc<Mutex<Unchecked>> = Arc::default();
        let known = waiting.clone();
        let mut hearing = JoinSet::new();
        hearing.spawn(async move {
            while let Some(message) = heard.next().await {
                let number = message.subject.rsplit('.').next().and_then(|number| number.parse().ok());
                let verdict = codec::read(&message.payload, MAX_SHORT_BYTES);
                let (Some(number), Ok(PoolVerdict { kind, hash, problem })) = (number, verdict) else { continue };
                match kind {
                    ACCEPTED | REJECTED => {
                        let Some(waits) = known.lock().remove(&number) else { continue };
                        let verdict =
                            if kind == ACCEPTED { Ok(()) } else { Err(PoolError::Elsewhere(problem.clone())) };
                        if waits.send(verdict).is_err() && kind == REJECTED {
                            drops.count(hash, DropReason::Rejected, &problem);
                        }
                    }
                    DROPPED => {
                        drops.count(hash, problem.parse().unwrap_or(DropReason::Rejected), &problem);
                    }
                    _ => {}
                }
            }
        });
        Ok(Self { prefix, next: AtomicU64::new(0), waiting, _hearing: hearing })
    }

    /// Returns a subject for a verdict, and the receiver of the verdict.
    pub fn wait(&self) -> (String, oneshot::Receiver<Result<(), PoolError>>) {
        let number = self.next.fetch_add(1, Relaxed);
        let (sender, verdict) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        waiting.insert(number, sender);
        if waiting.len() > MAX_UNCHECKED {
            waiting.pop_first();
        }
        (format!("{}.{number}", self.prefix), verdict)
    }
}

/// The verdicts of a node that builds blocks while it leads. While it stands by, its verdicts wait until it leads.
#[derive(Clone, Debug)]
pub struct PoolVerdicts {
    client: Client,
    leads: watch::Receiver<bool>,
    open: Arc<Mutex<OpenVerdicts>>,
}

#[derive(Debug, Default)]
struct OpenVerdicts {
    held: VecDeque<(Subject, Bytes)>,
    /// The inboxes of those who have sent the transactions in the pool.
    senders: HashMap<B256, Subject>,
}

impl PoolVerdicts {
    /// Creates the verdicts of a node that leads while `leads` is true.
    pub fn new(client: Client, leads: watch::Receiver<bool>) -> Self {
        Self { client, leads, open: Arc::default() }
    }

    /// Returns whether this node leads.
    pub fn leads(&self) -> bool {
        *self.leads.borrow()
    }

    /// Tells the verdict on a transaction to whoever has sent it, if that waits for one in an inbox.
    pub async fn announce(&self, pool: &Pool, reply: Option<&str>, hash: B256, verdict: Result<(), PoolError>) {
        let Some(reply) = reply.filter(|reply| reply.starts_with(INBOX)) else { return };
        let reply = Subject::from(reply);
        let message = match verdict {
            Ok(()) => {
                let senders = &mut self.open.lock().senders;
                senders.insert(hash, reply.clone());
                if senders.len() > MAX_SENDERS {
                    senders.retain(|hash, _| pool.holds(hash));
                }
                write(ACCEPTED, hash, String::new())
            }
            Err(error) => write(REJECTED, hash, error.to_string()),
        };
        {
            let held = &mut self.open.lock().held;
            held.push_back((reply, message));
            if held.len() > MAX_HELD {
                held.pop_front();
            }
        }
        self.send_held().await;
    }

    /// Tells what is held, if this node leads.
    async fn send_held(&self) {
        if !self.leads() {
            return;
        }
        let held = std::mem::take(&mut self.open.lock().held);
        for (reply, message) in held {
            // A node that does not hear it says that the transaction is not checked.
            let _ = self.client.publish(reply, message).await;
        }
    }

    /// Tells what was held as soon as this node leads, and the senders of dropped transactions that these are dropped.
    pub async fn run(mut self, mut dropped: broadcast::Receiver<DroppedTransaction>) {
        loop {
            self.send_held().await;
            tokio::select! {
                changed = self.leads.changed() => if changed.is_err() {
                    return;
                },
                dropped = dropped.recv() => match dropped {
                    Ok(DroppedTransaction { hash, reason, .. }) => {
                        let sender = self.open.lock().senders.remove(&hash);
                        if let Some(sender) = sender.filter(|_| self.leads()) {
                            let message = write(DROPPED, hash, reason.as_str().to_owned());
                            let _ = self.client.publish(sender, message).await;
                        }
                    }
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return,
                },
            }
        }
    }
}
