//! Shapes: types that define the fields of a JSON object once, for its writer and for the document of `rpc.discover`.

use std::collections::BTreeMap;

use alloy_primitives::U256;
use serde::Serialize;

use super::{
    Object, data,
    hex::{Data, Fixed, Quantity, Word},
    list, null, quantity, quantity_u256, string, value,
};

/// The form that a value of type `V` has in JSON. schemars describes the form by the type that implements this.
pub trait Shape<V> {
    /// Writes a value.
    fn write(out: &mut Vec<u8>, value: V);

    /// Writes a field of an object, unless the value leaves it out.
    fn write_field(object: &mut Object<'_>, key: &str, value: V) {
        Self::write(object.key(key), value);
    }
}

/// A shape that is an object.
pub trait Fields<V> {
    /// Writes the fields.
    fn write_fields(object: &mut Object<'_>, value: V);
}

/// A value that is null if it is `None`. A field whose value is only an `Option` is left out instead.
pub struct OrNull<V>(pub Option<V>);

/// A value that serde writes.
pub struct Json<V>(pub V);

/// A number that may be negative, written as a decimal string, which the parsers of large numbers take.
pub struct Signed(pub (bool, U256));

impl<T: Shape<V>, V> Shape<Option<V>> for Option<T> {
    fn write(out: &mut Vec<u8>, value: Option<V>) {
        <T as Shape<OrNull<V>>>::write(out, OrNull(value));
    }

    fn write_field(object: &mut Object<'_>, key: &str, value: Option<V>) {
        if let Some(value) = value {
            T::write_field(object, key, value);
        }
    }
}

impl<T: Fields<V>, V> Fields<Option<V>> for Option<T> {
    fn write_fields(object: &mut Object<'_>, value: Option<V>) {
        if let Some(value) = value {
            T::write_fields(object, value);
        }
    }
}

/// An object by hex keys.
impl<T: Shape<V>, V, K: AsRef<[u8]>, I: IntoIterator<Item = (K, V)>> Shape<I> for BTreeMap<String, T> {
    fn write(out: &mut Vec<u8>, entries: I) {
        let mut object = Object::new(out);
        for (key, value) in entries {
            T::write(object.hex_key(key.as_ref()), value);
        }
        object.end();
    }
}

/// Defines the shapes of types of values, each with its writer.
macro_rules! write_as {
    ($([$($generics:tt)*] $value:ty => $shape:ty: |$out:ident, $given:pat_param| $write:expr;)*) => {$(
        impl<$($generics)*> Shape<$value> for $shape {
            fn write($out: &mut Vec<u8>, $given: $value) {
                $write;
            }
        }
    )*};
}

write_as! {
    [] u64 => Quantity<u64>: |out, value| quantity(out, value);
    [] usize => Quantity<u64>: |out, value| quantity(out, value as u64);
    [] u128 => Quantity<u128>: |out, value| quantity_u256(out, U256::from(value));
    [] U256 => Quantity<U256>: |out, value| quantity_u256(out, value);
    [] U256 => Word: |out, word| data(out, &word.to_be_bytes::<32>());
    [B: AsRef<[u8]>] B => Data: |out, bytes| data(out, bytes.as_ref());
    [B: AsRef<[u8]>, const N: usize] B => Fixed<N>: |out, bytes| data(out, bytes.as_ref());
    [] () => (): |out, ()| null(out);
    [] bool => bool: |out, value| out.extend_from_slice(if value { b"true" } else { b"false" });
    [] f64 => f64: |out, value| out.extend_from_slice(value.to_string().as_bytes());
    [] i32 => i32: |out, value| out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    [] u32 => u32: |out, value| out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    [] u128 => u128: |out, value| out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    [] u64 => u64: |out, value| out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    [] usize => u64: |out, value| out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    [] usize => usize: |out, value| out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    [S: AsRef<str>] S => String: |out, text| string(out, text.as_ref());
    [] Signed => String: |out, Signed((negative, amount))| {
        use std::io::Write;
        let _ = write!(out, "\"{}{amount}\"", if negative { "-" } else { "" });
    };
    [T: Shape<I::Item>, I: IntoIterator] I => Vec<T>: |out, items| list(out, items, T::write);
    [T, V: Serialize] Json<V> => T: |out, Json(given)| value(out, &given);
    [T: Shape<V>, V] OrNull<V> => T: |out, OrNull(value)| match value {
        Some(value) => T::write(out, value),
        None => null(out),
    };
}

/// Returns the name of a field, of `r#type` without the mark of its identifier.
pub const fn field_name(identifier: &'static str) -> &'static str {
    match identifier.as_bytes() {
        b"r#type" => "type",
        _ => identifier,
    }
}

/// Defines objects. Each is `name: type of the value => |value| let { statements } { fields }`, and a field is `name:
/// shape = value,`. With `[flatten]` before it, its own fields replace it.
macro_rules! shapes {
    (@field $object:ident, [flatten], $key:ident, $shape:ty, $value:expr) => {
        <$shape as $crate::rpc::json::Fields<_>>::write_fields($object, $value)
    };
    (@field $object:ident, , $key:ident, $shape:ty, $value:expr) => {{
        const KEY: &str = $crate::rpc::json::field_name(stringify!($key));
        <$shape as $crate::rpc::json::Shape<_>>::write_field($object, KEY, $value);
    }};
    ($(
        $(#[$meta:meta])*
        $vis:vis $name:ident $(<$param:ident>)? $([$($generics:tt)*])?: $type:ty => |$value:pat_param| $(let { $($let:tt)* })? {
            $($(#[$field_meta:meta])* $([$flatten:ident])? $key:ident: $shape:ty = $field:expr,)*
        }
    )*) => {$(
        #[derive(schemars::JsonSchema)]
        $(#[$meta])*
        #[allow(dead_code, non_snake_case, reason = "the fields are those of the JSON, of which the value is written")]
        $vis struct $name $(<$param>)? {
            $($(#[$field_meta])* $(#[serde($flatten)])? $key: $shape,)*
        }

        impl<$($($generics)*)?> $crate::rpc::json::Fields<$type> for $name $(<$param>)? {
            fn write_fields(object: &mut $crate::rpc::json::Object<'_>, $value: $type) {
                $($($let)*)?
                $($crate::rpc::json::shapes!(@field object, $([$flatten])?, $key, $shape, $field);)*
            }
        }

        impl<$($($generics)*)?> $crate::rpc::json::Shape<$type> for $name $(<$param>)? {
            fn write(out: &mut Vec<u8>, value: $type) {
                let mut object = $crate::rpc::json::Object::new(out);
                <Self as $crate::rpc::json::Fields<_>>::write_fields(&mut object, value);
                object.end();
            }
        }
    )*};
}

pub(crate) use shapes;
