//! The known state of an upstream, block by block.

mod cache;
mod cell;
mod chain;
mod codes;
mod fetched;
mod held;
mod hold;
mod image;
mod miss;
mod misses;
mod recent;
#[cfg(test)]
mod tests;
mod versions;
mod view;

pub use cache::{RemoteSettings, RemoteState, RemoteView};
pub(crate) use cell::Cell;
pub use fetched::Fetched;
pub use hold::Held;
pub use image::{NumberedHash, RemoteImage, StoredSlot};
pub use miss::Miss;
pub use misses::Missed;
