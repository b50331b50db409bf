//! The sink of a leader: a change is in the stream before anyone sees it.

use std::{collections::VecDeque, sync::Arc};

use futures::{FutureExt, future::LocalBoxFuture};
use tokio::sync::MutexGuard;

use super::{NotLeading, StreamSending, StreamWriter};
use crate::{
    ledger::{Chain, FeedProblem, SnapshotId},
    lock::Mutex,
    publish::{Change, Commit, Sink, Unpublished},
};

/// A message that was taken, with its id.
type TakenMessage = (SnapshotId, Vec<u8>);

/// The sink that sends changes to the stream, while this node leads. Its clones are one sink.
#[derive(Clone, Debug, Default)]
pub struct StreamSink {
    writer: Arc<tokio::sync::Mutex<Option<StreamWriter>>>,
    /// The messages that were taken and are not in the stream.
    taken: Arc<Mutex<VecDeque<TakenMessage>>>,
    /// The first of them, on its way.
    sending: Arc<Mutex<Option<StreamSending>>>,
}

impl StreamSink {
    /// Returns the leader's end of the stream; nothing while another node leads.
    pub async fn writer(&self) -> MutexGuard<'_, Option<StreamWriter>> {
        self.writer.lock().await
    }

    /// Returns whether this node leads, and no other node has been seen to hold the lease.
    pub async fn is_leased(&self) -> bool {
        self.writer().await.as_ref().is_some_and(StreamWriter::is_leased)
    }

    /// Takes the message about a change that is encoded already.
    pub fn take_message(&self, id: SnapshotId, message: Vec<u8>) {
        self.taken.lock().push_back((id, message));
    }

    async fn send(&self) -> Result<Commit, NotLeading> {
        let mut end = self.writer().await;
        let writer = end.as_mut().ok_or(NotLeading)?;
        while let Some(mut sending) = self.next(writer) {
            match writer.try_send(&mut sending).await {
                Ok(true) => {}
                Ok(false) => {
                    *self.sending.lock() = Some(sending);
                    return Ok(Commit::Waits(FeedProblem::Stream));
                }
                Err(not_leading) => {
                    *end = None;
                    return Err(not_leading);
                }
            }
        }
        Ok(Commit::Done)
    }

    /// Returns the message to send next.
    fn next(&self, writer: &StreamWriter) -> Option<StreamSending> {
        let sending = self.sending.lock().take();
        sending.or_else(|| self.taken.lock().pop_front().map(|(id, message)| writer.sending(id, &message)))
    }
}

impl Sink for StreamSink {
    /// Takes nothing: messages are encoded where they wait for the stream ([`take_message`](Self::take_message)).
    fn take(&mut self, _: &Arc<Change>, _: &Arc<Chain>) -> bool {
        false
    }

    fn commit(&mut self) -> LocalBoxFuture<'_, Result<Commit, Unpublished>> {
        async { self.send().await.map_err(|NotLeading| Unpublished::Superseded) }.boxed_local()
    }

    fn discard(&mut self) {
        self.taken.lock().clear();
        *self.sending.lock() = None;
    }
}
