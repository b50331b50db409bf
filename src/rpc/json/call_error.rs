//! The errors of calls that fail within a result.

use schemars::JsonSchema;

use super::{Shape, hex::Data, string, value};
use crate::rpc::protocol::{dialect::ErrorForm, error::RpcError};

/// The reason why a call has failed: on `/` a text, on `/standard` an object.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "the error is written in one of the forms")]
pub enum CallError {
    Text(String),
    Object { code: i32, message: String, data: Option<Data> },
}

impl Shape<(RpcError, ErrorForm)> for CallError {
    fn write(out: &mut Vec<u8>, (error, form): (RpcError, ErrorForm)) {
        let error = error.into_object();
        match form {
            ErrorForm::Text => string(out, error.message()),
            ErrorForm::Object => value(out, &error),
        }
    }
}
