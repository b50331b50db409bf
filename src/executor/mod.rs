//! Where simulations run: two bounded lanes over one pool of CPU workers.
//!
//! Short calls and bundles wait apart, so that bundles cannot push short calls back; the workers take short calls first, and a
//! bundle lets waiting short calls pass between two of its own calls. A job runs to its end on one worker, in memory that the worker
//! keeps. A full lane refuses at once, and an overloaded one admits what it can answer in time.

mod admission;
mod batch;
mod lane;
mod pool;

pub use admission::{Admission, NoPlace, Place};
pub use batch::{Batch, Turn};
pub use lane::{Drain, LaneActor, LaneName};
pub use pool::{Executor, ExecutorConfig, Refused, Ticket};
