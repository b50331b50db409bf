//! Flashblocks: the sub-blocks that an OP-stack builder sends while it builds a block, before the block is canonical.
//!
//! [`stream`] maintains the connection, [`decode`] reads its messages, `block` collects the content of a block, and
//! [`sequence`] decides what each message and each canonical block mean for the pre-confirmed blocks. None of them
//! touches state: the caller executes the actions. The format is specified in
//! <https://specs.optimism.io/protocol/flashblocks.html>, as implemented by builders.

mod block;
pub mod decode;
pub mod sequence;
pub mod stream;

pub use self::{
    block::CanonicalBlock,
    sequence::{Action, FlashblockSequence, Replaced},
};
pub use decode::{DecodeError, Flashblock, UnreadPostExec, UnreadTx};
pub use stream::{Event, Events, Settings, open};
