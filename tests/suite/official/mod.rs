//! The official execution tests over HTTP. The whole of them runs inside the crate, in `src/source/tests/official`.

mod amsterdam;
#[allow(dead_code, reason = "the unit tests use the rest of it")]
#[path = "../../../src/source/tests/official/cases.rs"]
mod cases;
mod http;
#[path = "../../../src/source/tests/official/network.rs"]
mod network;
#[path = "../../../src/source/tests/official/precompiled.rs"]
mod precompiled;
mod rules;

use crate::support::{say_missing, shared};
