//! The messages of an IPC socket.

use bytes::{Buf, BytesMut};
use tokio_tungstenite::tungstenite::{
    Message,
    error::{CapacityError, Error},
};
use tokio_util::codec::{Decoder, Encoder};

/// Splits the bytes from an IPC socket into JSON objects and lists. Nodes differ in how they separate messages.
#[derive(Debug, Default)]
pub(super) struct JsonFrames {
    /// The most bytes of a message.
    most: usize,
    /// The bytes of the buffer that were scanned.
    seen: usize,
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
}

impl JsonFrames {
    /// Creates a reader of messages of at most `most` bytes.
    pub fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }
}

impl Decoder for JsonFrames {
    type Item = Message;
    type Error = Error;

    fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Message>, Error> {
        if self.depth == 0 {
            let between = buffer.iter().take_while(|byte| !matches!(byte, b'{' | b'[')).count();
            buffer.advance(between);
        }
        while let Some(byte) = buffer.get(self.seen) {
            self.seen += 1;
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = self.is_in_string,
                b'"' => self.is_in_string = !self.is_in_string,
                b'{' | b'[' if !self.is_in_string => self.depth += 1,
                b'}' | b']' if !self.is_in_string => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        let frame = buffer.split_to(self.seen).freeze();
                        self.seen = 0;
                        return Ok(Some(Message::Binary(frame)));
                    }
                }
                _ => {}
            }
        }
        if buffer.len() > self.most {
            return Err(CapacityError::MessageTooLong { size: buffer.len(), max_size: self.most }.into());
        }
        Ok(None)
    }
}

impl Encoder<Message> for JsonFrames {
    type Error = Error;

    fn encode(&mut self, message: Message, buffer: &mut BytesMut) -> Result<(), Error> {
        buffer.extend_from_slice(&message.into_data());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};
    use tokio_util::codec::Decoder;

    use super::JsonFrames;

    #[test]
    fn messages_of_an_ipc_socket_are_found_whatever_is_between_them() {
        let messages = [r#"{"a":"}\"]"}"#, r#"[{"b":[1,2]},{}]"#, "{}"];
        let stream = messages.join("\n ") + "\r\n";
        for step in [1, 3, stream.len()] {
            let (mut frames, mut buffer) = (JsonFrames::new(32), BytesMut::new());
            let mut found = Vec::new();
            for part in stream.as_bytes().chunks(step) {
                buffer.extend_from_slice(part);
                while let Some(frame) = frames.decode(&mut buffer).unwrap() {
                    found.push(frame.into_data());
                }
            }
            assert_eq!(found, messages.map(|message| Bytes::from_static(message.as_bytes())), "{step} bytes at a time");
        }
        let mut long = BytesMut::from(format!("[\"{}", "x".repeat(40)).as_str());
        assert!(JsonFrames::new(32).decode(&mut long).is_err());
    }
}
