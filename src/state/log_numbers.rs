//! Log indices of simulated blocks.

/// Numbers the logs of a block in the order in which they are written, reverted ones included, as geth's `logIndex` of
/// a simulation does.
#[derive(Clone, Debug, Default)]
pub struct LogNumbers {
    next: u64,
    /// The call's logs that were not reverted. A revert removes logs from the end, so a log's position tells which are
    /// left.
    standing: Vec<LogMark>,
    transfers: TransferLogs,
}

/// Whether transfers of the native currency are written as logs, and whether such logs have indices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransferLogs {
    /// Transfers are not written.
    #[default]
    Hidden,
    /// Transfers are written beside the logs of contracts, whose indices are those of a run without transfers.
    Aside,
    /// Transfers are logs among the others (`traceTransfers` of `eth_simulateV1`).
    Numbered,
}

/// Facts about a log that the log itself does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogMark {
    /// The log's index in its block.
    pub number: u64,
    /// Whether the log reports a transfer of the native currency. No contract wrote such a log, and no receipt has it.
    pub transfer: bool,
}

impl LogNumbers {
    /// Numbers a log that was written after `before` other logs of its call that were not reverted.
    pub fn push(&mut self, before: usize, transfer: bool) {
        self.standing.truncate(before);
        self.standing.push(LogMark { number: self.next, transfer });
        if !transfer || self.transfers == TransferLogs::Numbered {
            self.next += 1;
        }
    }

    /// Counts the log of a transfer that was reverted at once.
    pub fn skip_transfer(&mut self) {
        if self.transfers == TransferLogs::Numbered {
            self.next += 1;
        }
    }

    /// Returns the marks of the `count` logs that the call which ran last has left.
    pub fn standing(&self, count: usize) -> &[LogMark] {
        &self.standing[..count.min(self.standing.len())]
    }

    /// Begins a block, whose first log has index zero.
    pub fn restart(&mut self) {
        self.next = 0;
        self.standing.clear();
    }

    /// Returns whether transfers are written as logs.
    pub fn shows_transfers(&self) -> bool {
        self.transfers != TransferLogs::Hidden
    }

    /// Sets whether transfers are written as logs.
    pub const fn show_transfers(&mut self, transfers: TransferLogs) {
        self.transfers = transfers;
    }
}
