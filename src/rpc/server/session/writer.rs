//! The task that writes a connection.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::framing::MessageWriter;
use crate::rpc::run::subscriber::{Outgoing, Subscriber};

/// Writes the messages until the connection is closed or broken, and returns its writing end.
pub async fn write<W: MessageWriter>(
    mut writer: W,
    mut outgoing: mpsc::UnboundedReceiver<Outgoing>,
    subscriber: Arc<Subscriber>,
) -> W {
    while let Some(next) = outgoing.recv().await {
        let sent = match next {
            Outgoing::Answer(text, permit) => {
                let bytes = text.len();
                let sent = writer.send(text).await;
                drop(permit);
                subscriber.sent_answer(bytes);
                sent
            }
            Outgoing::Notification(notification, held) => {
                let bytes = notification.size();
                // An ending connection is sent the reason next, and no further messages.
                let sent = if subscriber.is_ending() { Ok(()) } else { writer.send(notification.text().into()).await };
                drop((notification, held));
                subscriber.sent_notification(bytes);
                sent
            }
            Outgoing::Ping => writer.ping().await,
            Outgoing::Close(code, reason) => {
                writer.close(code, reason).await;
                return writer;
            }
        };
        if sent.is_err() {
            break;
        }
    }
    writer
}
