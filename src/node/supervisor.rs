//! The service manager that has started the process: systemd, or another that speaks its protocol (`sd_notify(3)`).

use std::{thread, time::Duration};

use sd_notify::NotifyState;
use tokio::{
    sync::oneshot,
    time::{MissedTickBehavior, interval},
};

use super::{NodeInfo, Vitals};

/// Notifies the service manager, if there is one, that the node answers requests.
pub fn notify_ready(info: &NodeInfo) {
    let status = format!("answers on {}, chain id {}", info.listens_on(), info.chain_id);
    notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// Notifies the service manager that the node is stopping.
pub fn notify_stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("ends the requests under way")]);
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager cannot be notified (NOTIFY_SOCKET)");
    }
}

/// A thread that reports to the service manager at intervals that the node works. Dropping it ends the thread.
#[derive(Debug)]
pub struct Watchdog {
    _stop: oneshot::Sender<()>,
}

impl Watchdog {
    /// Checks per time-out of the service manager, so that one late check does not end the node.
    const CHECKS: u32 = 4;

    /// Starts the thread if the service manager expects it (`WatchdogSec=` of systemd). A check that fails is logged and
    /// not reported, so that the service manager ends the node and starts it again.
    ///
    /// # Errors
    ///
    /// Returns the system's error if it cannot create a thread.
    pub fn start(vitals: Vitals) -> std::io::Result<Option<Self>> {
        let Some(limit) = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero()) else { return Ok(None) };
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        thread::Builder::new().name("presim-watchdog".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = report(vitals, limit / Self::CHECKS) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Some(Self { _stop: stop }))
    }
}

async fn report(vitals: Vitals, every: Duration) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match vitals.check(every).await {
            Ok(()) => notify(&[NotifyState::Watchdog]),
            Err(error) => {
                tracing::error!(%error, "the node does not work: the service manager's watchdog is not notified")
            }
        }
    }
}
