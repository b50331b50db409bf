//! The kinds of faults of a request, each counted apart.

use serde::Serialize;

/// Why an arrival did not end in a right answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The HTTP status is not 200.
    HttpStatus,
    /// The body is not JSON, or not a JSON-RPC answer.
    NotJson,
    /// The id is not the request's.
    WrongId,
    /// The answer is a JSON-RPC error other than -32005.
    RpcError,
    /// The answer is the JSON-RPC error -32005, with which the target sheds load.
    Refused,
    /// A simulated call has the status `0x0`.
    FailedCall,
    /// The answer differs from the reference's.
    Mismatch,
    /// No answer arrived in time.
    Timeout,
    /// The connection ended before the answer.
    Disconnected,
    /// No connection could be opened.
    Connect,
    /// Open loop: the request was not sent, because as many as `--max-outstanding` allows were waiting.
    Dropped,
}

impl Fault {
    pub const ALL: [Self; 11] = [
        Self::HttpStatus,
        Self::NotJson,
        Self::WrongId,
        Self::RpcError,
        Self::Refused,
        Self::FailedCall,
        Self::Mismatch,
        Self::Timeout,
        Self::Disconnected,
        Self::Connect,
        Self::Dropped,
    ];

    /// Returns the name of the fault in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::HttpStatus => "http_status",
            Self::NotJson => "not_json",
            Self::WrongId => "wrong_id",
            Self::RpcError => "rpc_error",
            Self::Refused => "refused",
            Self::FailedCall => "failed_call",
            Self::Mismatch => "mismatch",
            Self::Timeout => "timeout",
            Self::Disconnected => "disconnected",
            Self::Connect => "connect",
            Self::Dropped => "dropped",
        }
    }

    /// Returns a description of the fault for reports.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::HttpStatus => "HTTP status other than 200",
            Self::NotJson => "no JSON-RPC answer",
            Self::WrongId => "another request's id",
            Self::RpcError => "JSON-RPC error",
            Self::Refused => "refused as too busy (-32005)",
            Self::FailedCall => "a simulated call failed",
            Self::Mismatch => "not the reference's answer",
            Self::Timeout => "no answer in time",
            Self::Disconnected => "connection ended before the answer",
            Self::Connect => "no connection",
            Self::Dropped => "not sent: too many outstanding",
        }
    }
}

/// The number of faults of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults([u64; Fault::ALL.len()]);

impl Faults {
    pub fn count(&mut self, fault: Fault) {
        self.count_many(fault, 1);
    }

    pub fn count_many(&mut self, fault: Fault, count: u64) {
        self.0[fault as usize] += count;
    }

    pub fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize]
    }

    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum += more;
        }
    }

    /// Iterates over the kinds that happened, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (Fault, u64)> {
        Fault::ALL.into_iter().map(|fault| (fault, self.of(fault))).filter(|(_, count)| *count > 0)
    }
}

impl Serialize for Faults {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Fault::ALL.into_iter().map(|fault| (fault.name(), self.of(fault))))
    }
}
