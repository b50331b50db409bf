//! The limits of connections: the [`memory`] that they make the node hold, the [`frames`] that are read only as far as there
//! is room, and the [`stalls`] after which they are closed.

pub mod frames;
pub mod memory;
pub mod stalls;
