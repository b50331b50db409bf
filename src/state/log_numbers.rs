//! Log indices of simulated blocks.

/// Numbers the logs of a block in the order in which they are written, reverted ones included, as geth's `logIndex` of
/// a simulation does.
#[derive(Clone, Debug, Default)]
pub struct LogNumbers {
    next: u64,
    /// The call's logs that were not reverted. A revert removes logs from the end, so a log's position identifies the
    /// remaining ones.
    marks: Vec<LogMark>,
    transfers: TransferLogs,
}

/// Whether transfers of the native currency are written as logs, and whether such logs have indices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransferLogs {
    /// Transfers are not written.
    #[default]
    Hidden,
    /// Transfers are written separately from the logs of contracts, whose indices are the same as without transfers.
    Aside,
    /// Transfers are logs among the others (`traceTransfers` of `eth_simulateV1`).
    Numbered,
}

/// Facts about a log that the log itself does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogMark {
    /// The log's index in its block.
    pub number: u64,
    /// The log's author.
    pub origin: LogOrigin,
}

/// The origin of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogOrigin {
    /// A contract.
    Contract,
    /// The protocol, for a transfer of the native currency ([EIP-7708](https://eips.ethereum.org/EIPS/eip-7708)).
    Protocol,
    /// The simulation, for a transfer of the native currency. No receipt has such a log.
    Simulation,
}

impl LogOrigin {
    /// Returns whether the log reports a transfer of the native currency.
    pub const fn is_transfer(self) -> bool {
        !matches!(self, Self::Contract)
    }

    /// Returns whether receipts have the log.
    pub const fn is_real(self) -> bool {
        !matches!(self, Self::Simulation)
    }
}

impl LogNumbers {
    /// Numbers a log that was written after `before` other logs of its call that were not reverted.
    pub fn push(&mut self, before: usize, origin: LogOrigin) {
        self.marks.truncate(before);
        self.marks.push(LogMark { number: self.next, origin });
        self.skip(origin);
    }

    /// Counts a log that is not retained, of a transfer that was reverted at once.
    pub fn skip(&mut self, origin: LogOrigin) {
        if origin.is_real() || self.transfers == TransferLogs::Numbered {
            self.next += 1;
        }
    }

    /// Returns the marks of the `count` logs that the call which ran last has left.
    pub fn marks(&self, count: usize) -> &[LogMark] {
        &self.marks[..count.min(self.marks.len())]
    }

    /// Begins a block. Its first log has index zero.
    pub fn restart(&mut self) {
        self.next = 0;
        self.marks.clear();
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
