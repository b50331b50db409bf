//! Small values of presim's own, as JSON in a string of RLP.

use alloy_rlp::{BufMut, Decodable, Encodable};
use serde::{Serialize, de::DeserializeOwned};

use crate::objects;

/// A value as JSON.
#[derive(Clone, Copy, Debug)]
pub struct Json<T>(pub T);

impl<T: Serialize> Json<T> {
    fn text(&self) -> Vec<u8> {
        // Serializing fails only for a map whose keys are not strings, and no value has one.
        serde_json::to_vec(&self.0).unwrap_or_default()
    }
}

impl<T: Serialize> Encodable for Json<T> {
    fn encode(&self, out: &mut dyn BufMut) {
        self.text().as_slice().encode(out);
    }

    fn length(&self) -> usize {
        self.text().as_slice().length()
    }
}

impl<T: DeserializeOwned> Decodable for Json<T> {
    fn decode(bytes: &mut &[u8]) -> alloy_rlp::Result<Self> {
        let text = alloy_rlp::Header::decode_bytes(bytes, false)?;
        objects::from_slice(text).map(Self).map_err(|_| alloy_rlp::Error::Custom("a value in JSON is unknown"))
    }
}
