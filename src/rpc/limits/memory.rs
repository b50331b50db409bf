//! The bytes that connections make the node hold (bodies, answers and notifications), under one bound.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
    time::Duration,
};

use bytes::Bytes;

use crate::lock::Mutex;
use crate::rpc::protocol::error::{Result, RpcError};

/// The bytes that all connections together may make the node hold (`--max-memory-io`).
///
/// An eighth is reserved and divided: each connection may always hold its small part of it, which fits an ordinary
/// request and its answer. So the newest client is served however much the others hold. Of the rest, a connection may
/// hold as much as is left for all others: `n` more bytes are granted if the bytes that the connection holds, `n`
/// included, do not exceed the bytes that stay free (dynamic thresholds, Choudhury and Hahne 1998, used by switches to
/// share their buffers). A single connection gets half of the rest, and the number of connections need not be known.
#[derive(Debug)]
pub struct IoMemory {
    bound: usize,
    /// The bytes that are reserved for small parts.
    kept_back: usize,
    /// The bytes that each connection may always hold.
    small: usize,
    held: AtomicUsize,
}

/// The quota of one connection.
#[derive(Debug)]
pub struct MemoryQuota {
    memory: Arc<IoMemory>,
    held: AtomicUsize,
}

/// Bytes that count for a connection and for the node. Released on drop.
#[derive(Debug)]
pub struct HeldBytes {
    quota: Arc<MemoryQuota>,
    bytes: usize,
}

/// Bytes that count only for a connection, because several connections share the text, and it counts once for the
/// node. Released on drop.
#[derive(Debug)]
pub struct SharedBytes {
    quota: Arc<MemoryQuota>,
    bytes: usize,
}

impl IoMemory {
    /// Creates a bound of `bound` bytes for up to `connections` connections.
    pub fn new(bound: usize, connections: usize) -> Self {
        let kept_back = bound / 8;
        Self { bound, kept_back, small: kept_back / connections.max(1), held: AtomicUsize::new(0) }
    }

    /// The interval at which a body without room tries again. Released bytes do not wake waiting bodies, because each
    /// answer releases some, and many wake-ups would slow down all other connections.
    pub const RETRY: Duration = Duration::from_millis(10);

    /// Returns the quota of a new connection.
    pub fn quota(self: &Arc<Self>) -> Arc<MemoryQuota> {
        Arc::new(MemoryQuota { memory: self.clone(), held: AtomicUsize::new(0) })
    }

    /// Returns the bytes that are held now.
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Returns a text that connections share. It counts for the node until the last of them drops it. It is always
    /// granted, because it exists already. Connections that do not take it reach their own bound
    /// ([`MemoryQuota::take_shared`]).
    pub fn shared_text(self: &Arc<Self>, text: Vec<u8>) -> Bytes {
        struct SharedText(Vec<u8>, Arc<IoMemory>);
        impl AsRef<[u8]> for SharedText {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        impl Drop for SharedText {
            fn drop(&mut self) {
                self.1.held.fetch_sub(self.0.len(), AcqRel);
            }
        }
        self.held.fetch_add(text.len(), AcqRel);
        Bytes::from_owner(SharedText(text, self.clone()))
    }

    /// Returns the bytes that a connection may hold while all together hold `all`.
    fn quota_of(&self, all: usize) -> usize {
        let free = self.bound.saturating_sub(all);
        if free == 0 { 0 } else { free.saturating_sub(self.kept_back).max(self.small) }
    }

    /// Returns the error of a request or an answer for which there was no room.
    pub fn full(&self, what: &str, bytes: usize) -> RpcError {
        RpcError::limit(format!(
            "{what} of {bytes} bytes finds no room: connections may hold {} bytes of bodies, answers and notifications together \
             (--max-memory-io), and each of them as much as is left free: read the answers that are unread, and try again",
            self.bound
        ))
    }
}

impl MemoryQuota {
    /// Returns the node's memory that this is a quota of.
    pub const fn memory(&self) -> &Arc<IoMemory> {
        &self.memory
    }

    /// Returns the bytes that the connection holds now.
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Returns a holder of no bytes, which can grow.
    pub const fn empty(self: Arc<Self>) -> HeldBytes {
        HeldBytes { quota: self, bytes: 0 }
    }

    /// Takes `bytes`, if the connection may have them.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Option<HeldBytes> {
        self.grant(bytes).then(|| HeldBytes { quota: self.clone(), bytes })
    }

    /// Takes `bytes` in any case, for the answer to a request that has committed something.
    pub fn take_always(self: &Arc<Self>, bytes: usize) -> HeldBytes {
        self.memory.held.fetch_add(bytes, AcqRel);
        self.held.fetch_add(bytes, AcqRel);
        HeldBytes { quota: self.clone(), bytes }
    }

    /// Counts bytes of a [shared text](IoMemory::shared_text) for this connection, if it may have them.
    pub fn take_shared(self: &Arc<Self>, bytes: usize) -> Option<SharedBytes> {
        let mine = self.held.fetch_add(bytes, AcqRel) + bytes;
        let shared = SharedBytes { quota: self.clone(), bytes };
        (mine <= self.memory.quota_of(self.memory.held.load(Acquire))).then_some(shared)
    }

    /// Returns whether a connection can ever hold so many bytes.
    pub fn can_ever_hold(&self, bytes: usize) -> bool {
        bytes <= (self.memory.bound - self.memory.kept_back) / 2
    }

    fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes, AcqRel);
        self.memory.held.fetch_sub(bytes, AcqRel);
    }

    fn grant(&self, bytes: usize) -> bool {
        let all = self.memory.held.fetch_add(bytes, AcqRel) + bytes;
        let mine = self.held.fetch_add(bytes, AcqRel) + bytes;
        let granted = mine <= self.memory.quota_of(all);
        if !granted {
            self.give_back(bytes);
        }
        granted
    }
}

impl HeldBytes {
    /// Takes `bytes` more, if the connection may have them. Returns whether it did.
    pub fn grow(&mut self, bytes: usize) -> bool {
        let granted = self.quota.grant(bytes);
        if granted {
            self.bytes += bytes;
        }
        granted
    }

    /// Takes `bytes` more in any case.
    pub fn grow_always(&mut self, bytes: usize) {
        self.merge(self.quota.take_always(bytes));
    }

    /// Waits until the connection may have `bytes` more, and takes them.
    pub async fn wait_to_grow(&mut self, bytes: usize) {
        while !self.grow(bytes) {
            tokio::time::sleep(IoMemory::RETRY).await;
        }
    }

    /// Returns the quota that these are of.
    pub const fn quota(&self) -> &Arc<MemoryQuota> {
        &self.quota
    }

    /// Returns the number of bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Releases `bytes` of the bytes.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.quota.give_back(bytes);
    }

    /// Adds the bytes of `other` to these.
    pub fn merge(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Returns a text that releases these bytes when its last part has been written and dropped.
    pub fn attach(self, text: Vec<u8>) -> Bytes {
        struct HeldText(Vec<u8>, HeldBytes);
        impl AsRef<[u8]> for HeldText {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        let text = HeldText(text, self);
        debug_assert!(text.1.bytes >= text.0.len(), "an answer holds what it has taken");
        Bytes::from_owner(text)
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.quota.give_back(self.bytes);
    }
}

impl Drop for SharedBytes {
    fn drop(&mut self) {
        self.quota.held.fetch_sub(self.bytes, AcqRel);
    }
}

/// The memory of an answer. It counts from the creation of the answer, so that answers that wait for their
/// connection's thread count, too.
#[derive(Clone, Debug)]
pub struct AnswerRoom(Arc<Mutex<HeldBytes>>);

impl AnswerRoom {
    /// Returns the room that holds these bytes: a request's body, until its answer is created.
    pub fn of(held: HeldBytes) -> Self {
        Self(Arc::new(Mutex::new(held)))
    }

    /// Takes memory for a text in place of the bytes held before.
    ///
    /// # Errors
    ///
    /// Returns -32005 and drops the text if the connection may not have them.
    pub fn take(&self, text: &mut Vec<u8>) -> Result<()> {
        let mut held = self.0.lock();
        let before = held.bytes();
        held.shrink(before);
        if held.grow(text.len()) {
            return Ok(());
        }
        let length = std::mem::take(text).len();
        Err(held.quota().memory().full("the answer", length))
    }

    /// Returns the room that was taken.
    pub fn taken(&self) -> HeldBytes {
        let mut held = self.0.lock();
        let nothing = held.quota().clone().empty();
        std::mem::replace(&mut *held, nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a bound of 8,000 shared bytes, and 100 reserved bytes for each of ten connections.
    fn memory() -> Arc<IoMemory> {
        Arc::new(IoMemory::new(8_000, 10))
    }

    #[test]
    fn one_connection_alone_may_hold_half_of_what_is_for_all() {
        let memory = memory();
        let quota = memory.quota();
        assert!(quota.can_ever_hold(3_500) && !quota.can_ever_hold(3_501));
        let held = quota.take(3_500).expect("half");
        assert!(quota.take(1).is_none());
        drop(held);
        assert_eq!(memory.held(), 0);
    }

    #[test]
    fn whoever_comes_last_has_a_small_part_however_much_the_others_hold() {
        let memory = memory();
        let quotas: Vec<_> = (0..9).map(|_| memory.quota()).collect();
        let mut held = Vec::new();
        for quota in &quotas {
            while let Some(more) = quota.take(50) {
                held.push(more);
            }
        }
        let last = memory.quota();
        let small = last.take(100).expect("the small part");
        assert!(last.take(1).is_none());
        assert!(memory.held() <= 8_000);
        drop((held, small));
        assert_eq!(memory.held(), 0);
    }

    #[test]
    fn text_that_connections_share_counts_once_and_until_the_last_has_let_it_go() {
        let memory = memory();
        let text = memory.shared_text(vec![b'x'; 2_000]);
        let quotas: Vec<_> = (0..3).map(|_| memory.quota()).collect();
        let counted: Vec<_> = quotas.iter().map(|quota| quota.take_shared(2_000).expect("room")).collect();
        assert_eq!(memory.held(), 2_000);
        assert!(quotas[0].take_shared(3_500).is_none());
        drop(counted);
        let copy = text.clone();
        drop(text);
        assert_eq!(memory.held(), 2_000);
        drop(copy);
        assert_eq!(memory.held(), 0);
    }

    #[tokio::test]
    async fn a_body_waits_until_bytes_are_given_back() {
        let memory = memory();
        let held = memory.quota().take(3_500).expect("half");
        let mut body = memory.quota().empty();
        let wait = tokio::spawn(async move {
            body.wait_to_grow(3_000).await;
            body
        });
        tokio::task::yield_now().await;
        assert!(!wait.is_finished());
        drop(held);
        let body = wait.await.expect("it ends");
        assert_eq!(memory.held(), 3_000);
        drop(body);
    }
}
