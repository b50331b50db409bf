//! The `OpenRPC` document, which `rpc.discover` returns: made of the types of the methods.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, Error, Visitor, value},
    forward_to_deserialize_any,
};
use serde_json::{Map, Value, json};

use super::Example;
use crate::{objects, rpc::protocol::dialect::Dialect};

/// The mark of a parameter that the dialect of `/` requires and the one of execution-apis does not.
const NEEDED: &str = "x-needed";

/// This document.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "no parameters")]
pub struct Discover {}

/// The document.
#[derive(Debug, Serialize, JsonSchema)]
pub struct OpenRpc {
    openrpc: &'static str,
    info: Info,
    methods: Vec<Value>,
    components: Components,
}

/// The interface that the document describes.
#[derive(Debug, Serialize, JsonSchema)]
struct Info {
    title: &'static str,
    version: &'static str,
    description: &'static str,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Components {
    schemas: Map<String, Value>,
}

/// Writes a method's part of the document.
pub type Describe = fn(&str, &Dialect, &mut SchemaGenerator) -> Value;

/// Returns the document in a dialect, with these methods, each by its name.
pub fn document<'a>(dialect: &Dialect, methods: impl Iterator<Item = (&'a str, Describe)>) -> OpenRpc {
    let settings = SchemaSettings::draft07().with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut generator = settings.into_generator();
    let mut methods: Vec<Value> = methods.map(|(name, describe)| describe(name, dialect, &mut generator)).collect();
    methods.sort_by(|one, other| one["name"].as_str().cmp(&other["name"].as_str()));
    OpenRpc {
        openrpc: "1.2.6",
        info: Info {
            title: "presim",
            version: env!("CARGO_PKG_VERSION"),
            description: "Simulation on the pre-confirmed state of a chain. / speaks presim's own contract, /standard speaks execution-apis.",
        },
        methods,
        components: Components { schemas: generator.take_definitions(true) },
    }
}

/// Describes a method by the types of its parameters and of its result.
pub fn describe<P: DeserializeOwned + JsonSchema, A: JsonSchema>(
    example: Example,
    name: &str,
    dialect: &Dialect,
    generator: &mut SchemaGenerator,
) -> Value {
    let schema = P::json_schema(generator);
    let answer = generator.subschema_for::<A>();
    method(example, name, dialect, fields::<P>(), (schema, answer))
}

/// Describes a method by the names of its parameters, and by the schemas of these and of its result. It is apart from
/// [`describe`], which is compiled for each method.
fn method(
    Example { params: given, answer }: Example,
    name: &str,
    dialect: &Dialect,
    names: &[&str],
    (params, result): (Schema, Schema),
) -> Value {
    let schema = params.to_value();
    let given: Vec<Value> = objects::from_str(given).unwrap_or_default();
    let answer: Value = objects::from_str(answer).unwrap_or_default();
    let params: Vec<Value> = names.iter().map(|name| parameter(name, &schema, dialect)).collect();
    let given: Vec<Value> =
        names.iter().zip(given).map(|(name, value)| json!({"name": name, "value": value})).collect();
    json!({
        "name": name,
        "summary": in_one_line(&schema["description"]),
        "paramStructure": "by-position",
        "params": params,
        "result": {"name": "result", "schema": result},
        "examples": [{"name": "example", "params": given, "result": {"name": "result", "value": answer}}],
    })
}

/// Describes the parameter that is a field of a method.
fn parameter(name: &str, method: &Value, dialect: &Dialect) -> Value {
    let mut schema = method["properties"][name].clone();
    let is_needed = schema.as_object_mut().is_some_and(|schema| schema.remove(NEEDED).is_some());
    let is_required = method["required"].as_array().is_some_and(|required| required.iter().any(|one| one == name));
    let mut parameter = Map::new();
    parameter.insert("name".to_owned(), name.into());
    parameter.insert("required".to_owned(), (is_required || is_needed && dialect.requires_to_and_selector).into());
    if let Some(description) = schema.as_object_mut().and_then(|schema| schema.remove("description")) {
        parameter.insert("description".to_owned(), in_one_line(&description));
    }
    parameter.insert("schema".to_owned(), schema);
    parameter.into()
}

/// Returns the text of a comment without its line breaks and its marks of code.
fn in_one_line(comment: &Value) -> Value {
    comment.as_str().unwrap_or_default().replace('\n', " ").replace('`', "").into()
}

/// Returns the names of a struct's fields, in their order.
fn fields<T: DeserializeOwned>() -> &'static [&'static str] {
    struct Fields<'a>(&'a mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for Fields<'_> {
        type Error = value::Error;

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, value::Error> {
            *self.0 = fields;
            self.deserialize_any(visitor)
        }

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, value::Error> {
            Err(value::Error::custom(fmt::Error))
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
            newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    let mut fields: &[&str] = &[];
    // The error ends the visit. Its outcome is in `fields`.
    let _ = T::deserialize(Fields(&mut fields));
    fields
}
