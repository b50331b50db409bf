//! Work on several threads at once.

/// Returns whether the calling thread may divide its work among rayon's global pool, and wait for it.
///
/// A thread of a pool may not: while it waits for a part, it runs other jobs queued in its pool. On a CPU worker, that
/// would be another request in the middle of this one.
pub fn may_divide() -> bool {
    rayon::current_thread_index().is_none()
}

/// Runs both at once if the calling thread [may divide](may_divide) its work, else one after the other.
pub fn join(one: impl FnOnce() + Send, other: impl FnOnce() + Send) {
    if may_divide() {
        rayon::join(one, other);
    } else {
        one();
        other();
    }
}
