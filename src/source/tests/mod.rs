//! Blocks of chains and of official tests, executed and imported.

mod official;
mod op_stack;
