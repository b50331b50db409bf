//! presim from outside: real nodes, real HTTP, real values.

mod support;
mod vectors;
