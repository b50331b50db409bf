//! JSON texts one after another, as messages: presim's end with a newline, and a client's may end with nothing.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use futures::FutureExt;
use memchr::{memchr, memchr3};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Interest},
    net::unix::{OwnedReadHalf, OwnedWriteHalf},
};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::rpc::{
    limits::{message::MessageBytes, stalls::NotedStream},
    server::session::framing::{Broken, Incoming, MessageReader, MessageWriter, ReadError},
};

/// Bytes that are read ahead.
const AHEAD: usize = 8 << 10;

/// The reading end of a connection.
pub struct TextsIn {
    stream: BufReader<OwnedReadHalf>,
    /// The bytes of the text being read.
    bytes: Arc<MessageBytes>,
    text: Vec<u8>,
    cutter: Cutter,
    /// The most bytes of a text that are read.
    most: usize,
}

impl TextsIn {
    /// Creates the reading end of a connection. Its texts may have `most` bytes, and are counted in `bytes`.
    pub fn new(stream: OwnedReadHalf, bytes: Arc<MessageBytes>, most: usize) -> Self {
        let stream = BufReader::with_capacity(AHEAD, stream);
        Self { stream, bytes, text: Vec::new(), cutter: Cutter::default(), most }
    }

    /// Returns the text that has been read.
    fn message(&mut self) -> Incoming {
        self.cutter = Cutter::default();
        Incoming::Message(std::mem::take(&mut self.text).into_boxed_slice().into())
    }
}

impl MessageReader for TextsIn {
    type Writer = TextsOut;
    const PINGS: bool = false;

    async fn read(&mut self) -> Option<Result<Incoming, ReadError>> {
        loop {
            // Nothing is consumed before the last `await`, so the future can be dropped at any time.
            let ahead = self.stream.fill_buf().await.ok()?;
            if ahead.is_empty() {
                return match self.text.is_empty() {
                    false => Some(Ok(self.message())),
                    true if has_hung_up(self.stream.get_ref().as_ref()) => None,
                    true => Some(Ok(Incoming::End)),
                };
            }
            let blank = match self.text.is_empty() {
                true => ahead.iter().take_while(|byte| byte.is_ascii_whitespace()).count(),
                false => 0,
            };
            let mut cutter = self.cutter;
            let (length, is_whole) = cutter.cut(&ahead[blank..]);
            if self.text.len() + length > self.most {
                return Some(Err(ReadError::TooLarge));
            }
            if self.bytes.wait_to_grow(length).await.is_err() {
                return Some(Err(ReadError::NoRoom));
            }
            // The bytes are there already, so this does not wait.
            let ahead = self.stream.buffer();
            self.text.extend_from_slice(&ahead[blank..blank + length]);
            self.stream.consume(blank + length);
            self.cutter = cutter;
            if is_whole {
                return Some(Ok(self.message()));
            }
            if !self.text.is_empty() {
                self.bytes.moves();
            }
        }
    }

    async fn discard(mut self, _writer: TextsOut) {
        let _ = tokio::io::copy(self.stream.get_mut(), &mut tokio::io::sink()).await;
    }
}

/// The writing end of a connection.
pub struct TextsOut(pub NotedStream<OwnedWriteHalf>);

impl MessageWriter for TextsOut {
    async fn send(&mut self, text: Bytes) -> Result<(), Broken> {
        let mut line = on_one_line(text).chain(&b"\n"[..]);
        self.0.write_all_buf(&mut line).await.map_err(|_| Broken)
    }

    async fn ping(&mut self) -> Result<(), Broken> {
        if has_hung_up(self.0.socket().as_ref()) { Err(Broken) } else { Ok(()) }
    }

    async fn close(&mut self, _: CloseCode, _: String) {
        let _ = self.0.shutdown().await;
    }
}

/// Returns whether the peer has closed the connection, and not only its sending side.
fn has_hung_up(stream: &tokio::net::UnixStream) -> bool {
    let ready = stream.ready(Interest::WRITABLE).now_or_never();
    ready.is_some_and(|ready| ready.is_ok_and(|ready| ready.is_write_closed()))
}

/// Returns a JSON text without newlines, which a text of an upstream may have between its values.
fn on_one_line(text: Bytes) -> Bytes {
    if memchr(b'\n', &text).is_none() {
        return text;
    }
    // Within a string, JSON has no newlines.
    text.iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }).collect()
}

/// Finds the ends of JSON texts, without checking them.
///
/// An object or an array ends with the bracket that closes it. Anything else ends with its line, and so does a string
/// that has a newline, because JSON allows none there. So after invalid JSON a client is understood again from the
/// next line on, unless brackets are open.
#[derive(Clone, Copy, Debug, Default)]
struct Cutter {
    /// The number of open brackets.
    depth: usize,
    place: Place,
}

/// The part of a text in which the next byte is.
#[derive(Clone, Copy, Debug, Default)]
enum Place {
    #[default]
    Start,
    /// Between the brackets of the text, and in no string.
    Brackets,
    String,
    /// After a backslash in a string.
    Escape,
    /// In a text that ends with its line.
    Line,
}

impl Cutter {
    /// Reads on in `bytes`. Returns how many of them belong to the text, and whether it ends there.
    fn cut(&mut self, bytes: &[u8]) -> (usize, bool) {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            match self.place {
                Place::Start if matches!(byte, b'{' | b'[') => self.place = Place::Brackets,
                Place::Start => self.place = Place::Line,
                _ => {}
            }
            at += match self.place {
                Place::Start | Place::Line => match memchr(b'\n', &bytes[at..]) {
                    Some(length) => return (at + length + 1, true),
                    None => return (bytes.len(), false),
                },
                Place::Brackets => {
                    match byte {
                        b'"' => self.place = Place::String,
                        b'{' | b'[' => self.depth += 1,
                        b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                        _ => {}
                    }
                    if self.depth == 0 {
                        return (at + 1, true);
                    }
                    1
                }
                Place::String => match memchr3(b'"', b'\\', b'\n', &bytes[at..]) {
                    None => return (bytes.len(), false),
                    Some(length) => {
                        self.place = match bytes[at + length] {
                            b'"' => Place::Brackets,
                            b'\\' => Place::Escape,
                            _ => return (at + length + 1, true),
                        };
                        length + 1
                    }
                },
                Place::Escape => {
                    self.place = Place::String;
                    // A newline ends the text, here as in the rest of the string.
                    usize::from(byte != b'\n')
                }
            };
        }
        (bytes.len(), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the texts in `sent`, which arrives in parts of `size` bytes, and the rest.
    fn texts(sent: &str, size: usize) -> (Vec<String>, String) {
        let (mut texts, mut text, mut cutter) = (Vec::new(), Vec::new(), Cutter::default());
        for mut part in sent.as_bytes().chunks(size) {
            while !part.is_empty() {
                if text.is_empty() && part[0].is_ascii_whitespace() {
                    part = &part[1..];
                    continue;
                }
                let (length, is_whole) = cutter.cut(part);
                text.extend_from_slice(&part[..length]);
                part = &part[length..];
                if is_whole {
                    texts.push(String::from_utf8(std::mem::take(&mut text)).unwrap());
                    cutter = Cutter::default();
                }
            }
        }
        (texts, String::from_utf8(text).unwrap())
    }

    #[test]
    fn texts_are_cut_at_their_ends_however_they_arrive() {
        let cases: [(&str, &[&str], &str); 10] = [
            (r#"{"a":1}{"b":2}"#, &[r#"{"a":1}"#, r#"{"b":2}"#], ""),
            (" [1,\n2] \r\n\t{}\n", &["[1,\n2]", "{}"], ""),
            (r#"{"a":"}\"]{"}[]"#, &[r#"{"a":"}\"]{"}"#, "[]"], ""),
            (r#"{"a":"\\"}{}"#, &[r#"{"a":"\\"}"#, "{}"], ""),
            (r#"[[{"a":[]}],[]]{"#, &[r#"[[{"a":[]}],[]]"#], "{"),
            ("7\n{}", &["7\n", "{}"], ""),
            ("hello {}\n{}", &["hello {}\n", "{}"], ""),
            ("{\"a\n{}", &["{\"a\n", "{}"], ""),
            ("{\"a\\\n{}", &["{\"a\\\n", "{}"], ""),
            ("}]\n{}", &["}]\n", "{}"], ""),
        ];
        for (sent, expected, rest) in cases {
            for size in 1..=sent.len() {
                let (found, left) = texts(sent, size);
                assert!(found == expected && left == rest, "{sent:?} by {size}: {found:?}, {left:?}");
            }
        }
    }

    #[test]
    fn an_answer_is_one_line() {
        let text = Bytes::from_static(b"{\n  \"a\": 1\n}");
        assert_eq!(on_one_line(text), Bytes::from_static(b"{   \"a\": 1 }"));
    }
}
