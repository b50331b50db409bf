//! Flashblocks: the sub-blocks that an OP-stack builder gives out while it builds a block, before the block is canonical.
//!
//! [`stream`] keeps the connection, [`decode`] reads its messages, and [`rules`] decide what each of them, and each canonical block, means
//! for what is pre-confirmed. None of them knows of state: whoever drives them executes what the rules say.
//! The format is that of <https://specs.optimism.io/protocol/flashblocks.html>, as builders send it.

pub mod decode;
pub mod rules;
pub mod stream;

pub use decode::{DecodeError, Flashblock, Metadata};
pub use rules::{Action, CanonicalBlock, FlashblockSequence, Ignored, Parent, Replaced};
pub use stream::{Event, Events, Settings, StreamError, open};
