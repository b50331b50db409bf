//! Values that have several forms in JSON.

use std::fmt;

use serde::{
    Deserialize,
    de::{
        DeserializeOwned, Error, IgnoredAny, MapAccess, Unexpected, Visitor,
        value::{self, MapAccessDeserializer, StrDeserializer},
    },
};

/// The visitor of a value that is a scalar of several types or, if it may be one, an object that `O` reads.
pub struct Forms<T, O = IgnoredAny> {
    /// The forms in words, for errors.
    pub expected: &'static str,
    /// Reads a boolean, a number or a string. Returns `None` if the value has no form of that type.
    pub scalar: fn(Unexpected<'_>) -> Option<Result<T, String>>,
    /// Reads an object.
    pub object: Option<fn(O) -> Result<T, String>>,
}

impl<T, O> Forms<T, O> {
    fn read<E: Error>(self, given: Unexpected<'_>) -> Result<T, E> {
        match (self.scalar)(given) {
            Some(value) => value.map_err(E::custom),
            None => Err(E::invalid_type(given, &self.expected)),
        }
    }
}

impl<'de, T, O: Deserialize<'de>> Visitor<'de> for Forms<T, O> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_bool<E: Error>(self, given: bool) -> Result<T, E> {
        self.read(Unexpected::Bool(given))
    }

    fn visit_i64<E: Error>(self, given: i64) -> Result<T, E> {
        self.read(Unexpected::Signed(given))
    }

    fn visit_u64<E: Error>(self, given: u64) -> Result<T, E> {
        self.read(Unexpected::Unsigned(given))
    }

    fn visit_str<E: Error>(self, given: &str) -> Result<T, E> {
        self.read(Unexpected::Str(given))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        let Some(object) = self.object else { return Err(A::Error::invalid_type(Unexpected::Map, &self.expected)) };
        object(O::deserialize(MapAccessDeserializer::new(map))?).map_err(A::Error::custom)
    }
}

/// Deserializes a value from a string.
pub fn from_text<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    T::deserialize(StrDeserializer::<value::Error>::new(text)).map_err(|error| error.to_string())
}

/// Returns a scalar if it is a string.
pub fn text(given: Unexpected<'_>) -> Option<&str> {
    if let Unexpected::Str(text) = given { Some(text) } else { None }
}
