//! The methods, one file or folder per feature.
//!
//! A method is a type. Its fields are the parameters, in their order on the wire; [`Method::run`] is its handler, and
//! [`Method::Answer`] the shape of its result. Their comments and types form the document of `rpc.discover`. The table
//! of methods has a row for each.

/// Defines methods whose result is one value: the text by which an error counts their parameters, the parameters with an
/// example, the shape of the result with an example, and the handler, which returns the value.
macro_rules! queries {
    ($($(#[$meta:meta])* $name:ident $(<$block:ident>)? = $expecting:literal, { $($params:tt)* }, $given:expr => $answer:ty = $answered:expr,
        |$query:pat_param, $backend:pat_param, $run:pat_param| $result:expr;)*) => {$(
        #[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
        #[serde(expecting = $expecting)]
        $(#[$meta])*
        pub struct $name $(<$block>)? { $($params)* }

        impl $(<$block: $crate::rpc::params::NamesBlock>)? $crate::rpc::api::Method for $name $(<$block>)? {
            type Answer = $answer;
            const EXAMPLE: $crate::rpc::api::Example = $crate::rpc::api::Example { params: $given, answer: $answered };

            fn run(
                self,
                backend: &$crate::rpc::run::Backend,
                run: &mut $crate::rpc::run::Attempt<'_>,
            ) -> $crate::rpc::protocol::error::Result<()> {
                let result = {
                    let ($query, $backend, $run) = (self, backend, &mut *run);
                    $result
                };
                <$answer as $crate::rpc::json::Shape<_>>::write(&mut run.out, result);
                Ok(())
            }
        }
    )*};
}

/// Defines methods like [`queries`], without parameters.
macro_rules! without_params {
    ($($(#[$doc:meta])* $name:ident -> $answer:ty = $example:expr, |$backend:pat_param, $run:pat_param| $result:expr;)*) => {
        queries! {$($(#[$doc])* $name = "no parameters", {}, "[]" => $answer = $example, |_, $backend, $run| $result;)*}
    };
}

pub mod block;
pub mod bundle;
pub mod call;
pub mod document;
pub mod fee;
pub mod log;
pub mod many;
pub mod mev;
pub mod node;
pub mod pool;
pub mod search;
pub mod send;
pub mod shadow;
pub mod simulate;
pub mod state;
pub mod status;
pub mod subscribe;
pub mod testing;
pub mod trace;
pub mod wallet;
pub mod watch;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use super::{
    protocol::error::Result,
    run::{Attempt, Backend, request::Request, runner::RequestRunner},
};

/// A method that is one run on a snapshot.
///
/// Its comment is its summary in the document. It deserializes from an array of its fields.
pub trait Method: DeserializeOwned + JsonSchema {
    /// The shape of the result.
    type Answer: JsonSchema;
    /// A request and its answer, for the document.
    const EXAMPLE: Example;

    /// Runs the method, and writes the JSON of its result to `run.out`: null, or in a raw method no bytes, if there is
    /// none, which an upstream or the leader of a fleet may know.
    ///
    /// # Errors
    ///
    /// Returns -32602 with the path of a parameter that the method cannot accept, or the error of the run.
    fn run(self, backend: &Backend, run: &mut Attempt<'_>) -> Result<()>;
}

/// A method of several runs, or of none. Its other work may wait.
///
/// Its comment is its summary in the document. It deserializes from an array of its fields, which it does itself, because long
/// parameters are parsed on a worker.
pub trait Serve: DeserializeOwned + JsonSchema {
    /// The part of the node that the method uses in addition to the runner; `()` for none.
    type Part: Sync + 'static;
    /// The shape of the result.
    type Answer: JsonSchema;
    /// A request and its answer, for the document.
    const EXAMPLE: Example;

    /// Answers a request: returns the answer up to the end of its result.
    ///
    /// # Errors
    ///
    /// Returns -32602 with the path of a parameter that the method cannot have, or the error that answers the request.
    fn serve<'a>(
        part: &'a Self::Part,
        runner: &'a Arc<RequestRunner>,
        request: Request,
    ) -> impl Future<Output = Result<Vec<u8>>> + Send + 'a;
}

/// A request and its answer, as JSON.
#[derive(Clone, Copy, Debug)]
pub struct Example {
    /// The parameters.
    pub params: &'static str,
    /// The result.
    pub answer: &'static str,
}
