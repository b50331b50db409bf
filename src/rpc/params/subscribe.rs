//! Parameters of subscriptions.

use std::fmt;

use alloy_primitives::{
    U256,
    map::{AddressSet, HashSet},
};
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, Visitor, value::MapAccessDeserializer},
};

use super::{
    log::{FilterParam, LogFilter, OneOrMany},
    parse,
};
use crate::watch::WatchId;
use crate::{
    ledger::SnapshotId,
    rpc::{
        json::hex::{Fixed, Quantity, SlotKey},
        protocol::{
            dialect::Dialect,
            error::{Result, RpcError},
        },
    },
};

/// Maximum number of slots in a filter of changes.
const MAX_SLOTS: usize = 1000;

params! {
    SubscribeParams(SubscriptionKind; Options) = "1 or 2 parameters: what to subscribe to, options";
    SubscriptionIdParams(Quantity<u64>) = "1 parameter: the id of a subscription or filter";
    SubscribeChangesParams(SubscriptionKind; ChangeFilterParam) = "1 or 2 parameters: presim_stateChanges, a filter";
}

/// The names of subscriptions in geth and in the Flashblocks networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum SubscriptionKind {
    NewHeads,
    Logs,
    NewPendingTransactions,
    NewFlashblocks,
    NewFlashblockTransactions,
    PendingLogs,
    #[serde(rename = "presim_snapshots")]
    Snapshots,
    #[serde(rename = "presim_stateChanges")]
    StateChanges,
    #[serde(rename = "presim_feed")]
    Feed,
}

/// The options of a subscription: whether to show transactions in full, or a filter.
#[derive(Debug)]
enum Options {
    Full(bool),
    Filter(Box<FilterParam>),
}

/// The subject of a subscription, which determines the notifications that it sends.
#[derive(Clone, Debug)]
pub enum Subject {
    /// The header of each sealed block.
    NewHeads,
    /// The logs of sealed blocks that match the filter.
    Logs(LogFilter),
    /// Each transaction that enters the pool.
    NewPendingTransactions {
        /// Whether the transaction is sent in full instead of as its hash.
        full: bool,
    },
    /// The block being built, in full, after each sub-block.
    NewFlashblocks,
    /// Each pre-confirmed transaction.
    NewFlashblockTransactions(Shown),
    /// The logs of pre-confirmed transactions that match the filter.
    PendingLogs(LogFilter),
    /// Each snapshot: its place, its new transactions, and the accounts that it touches.
    Snapshots,
    /// The changes of the state with each snapshot.
    StateChanges(ChangeFilter),
    /// The state of the feed: at once, and on each change.
    Feed,
    /// The answers of standing bundles.
    Watch(WatchId),
}

/// The changes of the state that a client asks for.
#[derive(Clone, Debug, Default)]
pub struct ChangeFilter {
    /// The accounts. All, if it names none.
    pub addresses: AddressSet,
    /// The slots, of which alone changes are told. If it names none, changes of all slots and of the accounts are told.
    pub slots: HashSet<U256>,
    /// The snapshot since which the first notification tells the changes.
    pub from: Option<SnapshotId>,
}

#[derive(Debug, Default, Deserialize)]
struct ChangeFilterParam {
    address: Option<OneOrMany<20>>,
    slots: Option<Vec<SlotKey>>,
    from: Option<Quantity<u64>>,
}

/// The form in which a pre-confirmed transaction is shown.
#[derive(Clone, Debug)]
pub enum Shown {
    /// The hash of a transaction.
    Hash,
    /// The full transaction, with the fields of its receipt.
    Full,
    /// The full transaction, only if one of its logs matches the filter.
    Matching(Box<LogFilter>),
}

/// Parses the subject of a subscription with its options.
pub fn parse_subscribe(params: &str, dialect: &Dialect) -> Result<Subject> {
    if let Some(filter) = parse_change_filter(params, dialect)? {
        return Ok(Subject::StateChanges(filter));
    }
    let SubscribeParams(kind, options, ()) = parse(params, dialect)?;
    let wrong = |expected: &str| RpcError::params(format!("params[1]: expected {expected}"));
    let full = |options: Option<Options>| match options {
        None => Ok(false),
        Some(Options::Full(full)) => Ok(full),
        Some(Options::Filter(_)) => Err(wrong("a boolean: whether to show transactions in full")),
    };
    let filter = |options: Option<Options>| match options {
        None => Ok(LogFilter::default()),
        // Client libraries also send a filter's block fields, without effect. Only the strict dialect rejects them.
        Some(Options::Filter(filter)) if dialect.refuses_unknown_fields && filter.names_blocks() => {
            Err(wrong("a filter with address and topics only, because a subscription covers future blocks"))
        }
        Some(Options::Filter(filter)) => filter.into_filter("params[1]"),
        Some(Options::Full(_)) => Err(wrong("a filter with address and topics")),
    };
    match (kind, options) {
        (SubscriptionKind::NewHeads, None) => Ok(Subject::NewHeads),
        (SubscriptionKind::NewFlashblocks, None) => Ok(Subject::NewFlashblocks),
        (SubscriptionKind::Snapshots, None) => Ok(Subject::Snapshots),
        (SubscriptionKind::Feed, None) => Ok(Subject::Feed),
        (SubscriptionKind::StateChanges, _) => Ok(Subject::StateChanges(ChangeFilter::default())),
        (
            SubscriptionKind::NewHeads
            | SubscriptionKind::NewFlashblocks
            | SubscriptionKind::Snapshots
            | SubscriptionKind::Feed,
            Some(_),
        ) => Err(wrong("nothing: this subscription has no options")),
        (SubscriptionKind::Logs, options) => Ok(Subject::Logs(filter(options)?)),
        (SubscriptionKind::PendingLogs, options) => Ok(Subject::PendingLogs(filter(options)?)),
        (SubscriptionKind::NewPendingTransactions, options) => {
            Ok(Subject::NewPendingTransactions { full: full(options)? })
        }
        (SubscriptionKind::NewFlashblockTransactions, Some(options @ Options::Filter(_))) => {
            Ok(Subject::NewFlashblockTransactions(Shown::Matching(Box::new(filter(Some(options))?))))
        }
        (SubscriptionKind::NewFlashblockTransactions, options) => {
            let shown = if full(options)? { Shown::Full } else { Shown::Hash };
            Ok(Subject::NewFlashblockTransactions(shown))
        }
    }
}

/// Parses the filter of `presim_stateChanges`, whose options are its own. Returns `None` for any other subscription.
fn parse_change_filter(params: &str, dialect: &Dialect) -> Result<Option<ChangeFilter>> {
    let kind = serde_json::from_str::<(SubscriptionKind, IgnoredAny)>(params);
    if !matches!(kind, Ok((SubscriptionKind::StateChanges, _))) {
        return Ok(None);
    }
    let SubscribeChangesParams(SubscriptionKind::StateChanges, filter, ()) = parse(params, dialect)? else {
        return Ok(None);
    };
    let filter = filter.unwrap_or_default();
    let addresses = filter.address.map(|one| one.addresses("params[1].address")).transpose()?.unwrap_or_default();
    if filter.slots.as_ref().is_some_and(|slots| slots.len() > MAX_SLOTS) {
        return Err(RpcError::params(format!("params[1].slots: too many: expected at most {MAX_SLOTS}")));
    }
    Ok(Some(ChangeFilter {
        addresses: addresses.into_iter().collect(),
        slots: filter.slots.into_iter().flatten().map(|slot| slot.slot).collect(),
        from: filter.from.map(|Quantity(id)| SnapshotId(id)),
    }))
}

/// Parses the parameter of `eth_unsubscribe`.
pub fn parse_unsubscribe(params: &str, dialect: &Dialect) -> Result<u64> {
    // News of a watch name the watch where those of a subscription name the subscription.
    if let Ok((watch,)) = serde_json::from_str::<(Fixed<16>,)>(params) {
        return Err(RpcError::params(format!(
            "params[0]: {}: a watch of presim_watch: expected the id of a subscription; presim_unwatch ends a watch",
            WatchId(watch.0)
        )));
    }
    let SubscriptionIdParams(Quantity(id), ()) = parse(params, dialect)?;
    Ok(id)
}

impl<'de> Deserialize<'de> for Options {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OptionsVisitor;

        impl<'de> Visitor<'de> for OptionsVisitor {
            type Value = Options;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a boolean (transactions in full) or a filter (address, topics)")
            }

            fn visit_bool<E: Error>(self, full: bool) -> Result<Options, E> {
                Ok(Options::Full(full))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Options, A::Error> {
                FilterParam::deserialize(MapAccessDeserializer::new(map))
                    .map(|filter| Options::Filter(Box::new(filter)))
            }
        }

        deserializer.deserialize_any(OptionsVisitor)
    }
}
