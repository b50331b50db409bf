//! The numbers of logs.

/// Numbers the logs of a block as they are written, those that are later reverted included: what geth's `logIndex` of a simulation counts.
#[derive(Debug, Default)]
pub struct LogNumbers {
    next: u64,
    /// The call's logs that stand. Reverting takes logs away from the end, so a log's position tells which of these are left.
    standing: Vec<LogMark>,
    /// Whether transfers of the native currency are written as logs among the real ones.
    transfers: bool,
}

/// What is known of a log beside what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogMark {
    /// Its number in its block.
    pub number: u64,
    /// Whether it tells of a transfer of the native currency: no contract wrote it, and no receipt has it.
    pub transfer: bool,
}

impl LogNumbers {
    /// Numbers a log that was written after `before` others of its call that stand.
    pub fn push(&mut self, before: usize, transfer: bool) {
        self.standing.truncate(before);
        self.standing.push(LogMark { number: self.next, transfer });
        self.next += 1;
    }

    /// Counts a log that is reverted at once.
    pub const fn skip(&mut self) {
        self.next += 1;
    }

    /// The marks of the `count` logs that a call left, the last that has run.
    pub fn standing(&self, count: usize) -> &[LogMark] {
        &self.standing[..count.min(self.standing.len())]
    }

    /// Begins a block: its first log is number zero.
    pub fn restart(&mut self) {
        self.next = 0;
        self.standing.clear();
    }

    /// Whether transfers are to be written as logs.
    pub const fn shows_transfers(&self) -> bool {
        self.transfers
    }

    /// Has transfers written as logs, or not.
    pub const fn show_transfers(&mut self, transfers: bool) {
        self.transfers = transfers;
    }
}
