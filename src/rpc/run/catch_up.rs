//! `x-presim-min-snapshot`: a client that has seen a snapshot is answered from that one or a newer one, whichever node of a
//! fleet it reaches.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use crate::ledger::{Chain, SnapshotId, Snapshots};
use crate::rpc::protocol::error::{Result, RpcError};

/// The header with the id of the oldest snapshot that may answer.
pub const MIN_SNAPSHOT: &str = "x-presim-min-snapshot";

/// Returns the id in the header's value, or the oldest snapshot's id without the header.
///
/// # Errors
///
/// Returns -32600 if the value is not an id of the form of `x-presim-snapshot`.
pub fn min_snapshot(value: Option<&str>) -> Result<SnapshotId> {
    let Some(value) = value else { return Ok(SnapshotId::default()) };
    let digits = value.strip_prefix("0x");
    let id = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    id.map(SnapshotId).ok_or_else(|| {
        RpcError::request(format!("{MIN_SNAPSHOT}: expected the id of a snapshot, like the 0x109 of x-presim-snapshot"))
    })
}

/// Returns the result of `find`, which runs now and after each publication. Never returns once publications have
/// ended: the deadline of the request ends the wait.
pub async fn await_published<T>(snapshots: &Snapshots, mut find: impl FnMut() -> Option<T>) -> T {
    let mut changes = snapshots.changes();
    loop {
        if let Some(found) = find() {
            return found;
        }
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Returns the published chain, as soon as an answer from it is not older than the snapshot `least`. While the feed is
/// degraded, `pending` is the canonical head, so its state counts.
///
/// # Errors
///
/// Returns -32000 with the distance if the snapshot is not published within `most`.
pub async fn published_from(snapshots: &Snapshots, least: SnapshotId, most: Duration) -> Result<Arc<Chain>> {
    let reached = || Some(snapshots.load()).filter(|published| shown(published) >= least);
    match reached() {
        Some(published) => Ok(published),
        None => {
            timeout(most, await_published(snapshots, reached)).await.map_err(|_| behind(&snapshots.load(), least, most))
        }
    }
}

fn behind(published: &Chain, least: SnapshotId, most: Duration) -> RpcError {
    let newest = shown(published);
    let distance = match least.epoch() == newest.epoch() {
        true => format!("{} snapshots", least.0.saturating_sub(newest.0)),
        false => "an epoch".to_owned(),
    };
    let cause = match published.feed().problem() {
        Some(problem) => format!(", because the feed is degraded: {}", problem.meaning()),
        None => String::new(),
    };
    RpcError::new(
        -32000,
        format!(
            "snapshot {:#x} is not here yet: the newest is {:#x}, {distance} behind after {} ms (--max-catch-up-ms){cause}: ask again, or another node",
            least.0,
            newest.0,
            most.as_millis()
        ),
    )
}

/// Returns the id of the newest state from which requests are answered.
fn shown(published: &Chain) -> SnapshotId {
    if published.feed().is_degraded() { published.latest().id } else { published.last }
}
