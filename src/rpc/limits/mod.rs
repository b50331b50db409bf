//! The limits of connections: the [`memory`] that they make the node hold, the bytes of the [`message`] that each
//! is reading, the [`frames`] that are read only as far as there is room, and the [`stalls`] after which they are closed.

pub mod frames;
pub mod memory;
pub mod message;
pub mod stalls;
