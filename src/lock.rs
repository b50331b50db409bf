//! Locks that the meter knows about.
//!
//! A run that pauses lets another job run on its thread. If the thread held a lock at that time, a job that takes the
//! same lock would wait forever. So a thread counts the locks that it holds, and a run does not pause while there is
//! one ([`Meter::look`](crate::meter::Meter::look)). All locks of the node that block a thread are of these types; the
//! lint `disallowed_types` (`clippy.toml`) rejects others. No lock is held across an `await`, because the guards are
//! not [`Send`].

use std::{
    cell::Cell,
    ops::{Deref, DerefMut},
};

thread_local! {
    /// The number of locks that the thread holds.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// Returns whether the calling thread holds a lock.
pub fn is_held() -> bool {
    HELD.get() > 0
}

/// A lock of one owner at a time.
#[derive(Debug, Default)]
#[expect(clippy::disallowed_types, reason = "the one place that counts it")]
pub struct Mutex<T: ?Sized>(parking_lot::Mutex<T>);

/// A lock of one writer or any number of readers at a time.
#[derive(Debug, Default)]
#[expect(clippy::disallowed_types, reason = "the one place that counts it")]
pub struct RwLock<T: ?Sized>(parking_lot::RwLock<T>);

/// Holds a lock until it is dropped.
#[derive(Debug)]
pub struct Guard<G> {
    inner: G,
    _counted: Counted,
}

/// Holds a [`Mutex`].
pub type MutexGuard<'a, T> = Guard<parking_lot::MutexGuard<'a, T>>;

#[derive(Debug)]
struct Counted(());

impl Counted {
    fn new() -> Self {
        HELD.set(HELD.get() + 1);
        Self(())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
    }
}

impl<T> Mutex<T> {
    /// Creates a lock of `value`.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::const_mutex(value))
    }

    /// Waits until no other thread holds the lock, and takes it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        Guard { inner: self.0.lock(), _counted: Counted::new() }
    }
}

impl<T> RwLock<T> {
    /// Creates a lock of `value`.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::const_rwlock(value))
    }

    /// Waits until no thread writes, and reads.
    pub fn read(&self) -> Guard<parking_lot::RwLockReadGuard<'_, T>> {
        Guard { inner: self.0.read(), _counted: Counted::new() }
    }

    /// Waits until no other thread reads or writes, and takes the lock.
    pub fn write(&self) -> Guard<parking_lot::RwLockWriteGuard<'_, T>> {
        Guard { inner: self.0.write(), _counted: Counted::new() }
    }
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.inner
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.inner
    }
}
