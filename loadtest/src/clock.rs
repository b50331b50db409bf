//! A timer for arrivals. Tokio's timer rounds up to a millisecond, which would be most of the latency of a short call.

use std::{io, time::Instant};

/// Sleeps until a moment: to within some microseconds if the system has timers as files (Linux), else to a millisecond.
pub struct Timer {
    #[cfg(target_os = "linux")]
    fd: tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>,
}

#[cfg(target_os = "linux")]
impl Timer {
    /// # Errors
    ///
    /// Returns an error if the system provides no timer.
    pub fn new() -> io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        #[expect(
            deprecated,
            reason = "an OwnedFd is open for as long as it lives, which is all that its successor has the caller promise"
        )]
        let fd = tokio::io::unix::AsyncFd::new(fd)?;
        Ok(Self { fd })
    }

    /// Sleeps until `moment`. Returns at once if it has passed.
    ///
    /// # Errors
    ///
    /// Returns an error if the timer cannot be set or read.
    pub async fn sleep_until(&self, moment: Instant) -> io::Result<()> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        let left = moment.saturating_duration_since(Instant::now());
        if left.is_zero() {
            tokio::task::yield_now().await;
            return Ok(());
        }
        let value =
            Timespec { tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.fd.readable().await?;
            let mut expirations = [0_u8; 8];
            if let Ok(read) = ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut expirations)?)) {
                return read.map(drop);
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Timer {
    /// # Errors
    ///
    /// Returns no error.
    pub fn new() -> io::Result<Self> {
        Ok(Self {})
    }

    /// Sleeps until `moment`. Returns at once if it has passed.
    ///
    /// # Errors
    ///
    /// Returns no error.
    pub async fn sleep_until(&self, moment: Instant) -> io::Result<()> {
        tokio::time::sleep_until(moment.into()).await;
        Ok(())
    }
}
