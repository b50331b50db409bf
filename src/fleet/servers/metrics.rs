//! The metrics of a node's part in its fleet.

use crate::{
    ledger::SnapshotId,
    telemetry::{Counter, Gauge, Metrics},
};

/// The part of a node in its fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetRole {
    /// The node publishes.
    Leader,
    /// The node follows, and takes over if the leader fails.
    Standby,
    /// The node follows.
    Replica,
}

impl FleetRole {
    const ALL: [(Self, &str); 3] = [(Self::Leader, "leader"), (Self::Standby, "standby"), (Self::Replica, "replica")];
}

/// The metrics of a node's part in its fleet. Clones share them.
#[derive(Clone, Debug)]
pub struct FleetMetrics {
    metrics: Metrics,
    roles: [(FleetRole, Gauge); FleetRole::ALL.len()],
    epoch: Gauge,
    pub(in crate::fleet) takeovers: Counter,
    pub(in crate::fleet) behind: Gauge,
    pub(in crate::fleet) image_age: Gauge,
    pub(in crate::fleet) connected: Gauge,
    pub(in crate::fleet) dropped_sends: Counter,
    /// The leader that was shown last.
    leader: Option<(String, Gauge)>,
}

impl FleetMetrics {
    /// Creates the metrics of a node.
    pub fn new(metrics: &Metrics) -> Self {
        let role_help = "1 for the part that the node has in its fleet (leader, standby, replica), 0 for the others.";
        Self {
            roles: FleetRole::ALL.map(|(role, name)| (role, metrics.gauge_with("presim_fleet_role", role_help, &[("role", name)]))),
            epoch: metrics.gauge("presim_fleet_epoch", "Epoch of the newest change that the node has."),
            takeovers: metrics.counter(
                "presim_fleet_takeovers_total",
                "Times that the node began to lead its fleet."),
            behind: metrics.gauge(
                "presim_fleet_behind_messages",
                "Changes of the leader's epoch that the node has not read yet, as of the leader's last heartbeat."),
            image_age: metrics.gauge(
                "presim_fleet_image_age_seconds",
                "Age of the state in the fleet's newest image, on the node that leads; 0 on others."),
            connected: metrics.gauge(
                "presim_fleet_connected",
                "1 if the node has a connection to the fleet's servers, otherwise 0."),
            dropped_sends: metrics.counter(
                "presim_fleet_dropped_sends_total",
                "Parts of messages that the stream has not acknowledged: refused, lost, or late. They are sent again while the node leads."),
            metrics: metrics.clone(),
            leader: None,
        }
    }

    /// Shows the role of the node.
    pub fn show_role(&self, shown: FleetRole) {
        for (role, gauge) in &self.roles {
            gauge.set(if *role == shown { 1.0 } else { 0.0 });
        }
    }

    /// Shows the name of the leader, and the node's last change.
    pub fn show_leader(&mut self, name: &str, last: SnapshotId) {
        self.epoch.set(last.epoch() as f64);
        if self.leader.as_ref().is_some_and(|(known, _)| known == name) {
            return;
        }
        if let Some((_, gauge)) = self.leader.take() {
            gauge.set(0.0);
        }
        if !name.is_empty() {
            let help = "1 for the node that leads the fleet, by its name, 0 for those that led it before.";
            let gauge = self.metrics.named_gauge("presim_fleet_leader", help, ("leader", name.to_owned()));
            gauge.set(1.0);
            self.leader = Some((name.to_owned(), gauge));
        }
    }
}
