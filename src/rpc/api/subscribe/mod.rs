//! `eth_subscribe`, `eth_unsubscribe`, and the notifications that follow over WebSocket.

mod announce;
mod changes;
mod feed;
mod logs;
mod round;

pub use announce::announce;

use std::{fmt, sync::Arc};

use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, Visitor, value::MapAccessDeserializer},
};

use super::{Example, Serve};
use crate::{
    ledger::SnapshotId,
    rpc::{
        json::{
            self,
            hex::{Fixed, Quantity, SlotKey},
        },
        params::{FilterParam, LogFilter, OneOrMany, parse},
        protocol::{
            dialect::Dialect,
            error::{Result, RpcError},
        },
        run::{
            request::{Request, begin},
            runner::RequestRunner,
            subscriptions::{ChangeFilter, Shown, Starting, Subject},
        },
    },
    watch::WatchId,
};

/// Maximum number of slots in a filter of changes.
const MAX_SLOTS: usize = 1000;

/// Subscribes a WebSocket connection to newHeads, logs, newPendingTransactions, newFlashblocks, newFlashblockTransactions,
/// pendingLogs, `presim_snapshots`, `presim_stateChanges` or `presim_feed`. The result is the id of the subscription.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 or 2 parameters: what to subscribe to, options")]
pub struct Subscribe {
    subject: Name,
    /// Whether transactions are sent in full, or a filter of logs.
    #[serde(default)]
    options: Option<Options>,
}

/// The names of subscriptions in geth and in the Flashblocks networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
enum Name {
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
#[derive(Debug, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum Options {
    Full(bool),
    Filter(Box<FilterParam>),
    #[expect(dead_code, reason = "a shape: the filter of presim_stateChanges is parsed by itself")]
    Changes(ChangeFilterParam),
}

/// A filter of changes of the state, for `presim_stateChanges`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(inline)]
struct ChangeFilterParam {
    address: Option<OneOrMany<20>>,
    /// The slots of which changes are sent: 1,000 at the most. By default those of all slots and accounts.
    #[schemars(length(max = 1000))]
    slots: Option<Vec<SlotKey>>,
    /// The snapshot since which the first notification has the changes.
    from: Option<Quantity<u64>>,
}

/// The parameters of a subscription to `presim_stateChanges` with a filter.
#[derive(Debug, Deserialize)]
struct SubscribeChanges {
    _subject: Name,
    filter: Option<ChangeFilterParam>,
}

impl Serve for Subscribe {
    type Part = ();
    type Answer = Quantity<u64>;
    const EXAMPLE: Example = Example {
        params: r#"["logs", {"address": "0x5fbdb2315678afecb367f032d93f642f64180aa3"}]"#,
        answer: r#""0x1""#,
    };

    async fn serve<'a>(_: &'a (), _: &'a Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        let starting = starting(&request)?;
        let id = starting.start(subject(&request.params, request.caller.dialect)?)?;
        let mut out = begin(&request.id, "result");
        json::quantity(&mut out, id);
        Ok(out)
    }
}

/// Ends a subscription of the same connection.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: the id of a subscription or filter")]
pub struct Unsubscribe {
    id: Quantity<u64>,
}

impl Serve for Unsubscribe {
    type Part = ();
    type Answer = bool;
    const EXAMPLE: Example = Example { params: r#"["0x1"]"#, answer: "true" };

    async fn serve<'a>(_: &'a (), _: &'a Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        let starting = starting(&request)?;
        // News of a watch name the watch where those of a subscription name the subscription.
        if let Ok((watch,)) = serde_json::from_str::<(Fixed<16>,)>(&request.params) {
            return Err(RpcError::params(format!(
                "params[0]: {}: a watch of presim_watch: expected the id of a subscription; presim_unwatch ends a watch",
                WatchId(watch.0)
            )));
        }
        let Self { id: Quantity(id) } = parse(&request.params, request.caller.dialect)?;
        if !starting.unsubscribe(id) {
            return Err(RpcError::new(
                -32000,
                format!("params[0]: subscription not found: {id:#x} does not belong to this connection"),
            ));
        }
        let mut out = begin(&request.id, "result");
        json::value(&mut out, &true);
        Ok(out)
    }
}

/// Returns the subscriptions that a message starts, if its connection can subscribe.
fn starting(request: &Request) -> Result<&Starting> {
    let name = request.method.name;
    request.starting.as_deref().ok_or_else(|| {
        RpcError::new(-32601, format!("{name} needs a WebSocket connection: notifications cannot be sent over HTTP"))
    })
}

/// Parses the subject of a subscription with its options.
fn subject(params: &str, dialect: &Dialect) -> Result<Subject> {
    // The options of this subscription have a type of their own.
    if let Ok((Name::StateChanges, IgnoredAny)) = serde_json::from_str(params) {
        return Ok(Subject::StateChanges(change_filter(parse(params, dialect)?)?));
    }
    let Subscribe { subject, options } = parse(params, dialect)?;
    let wrong = |expected: &str| RpcError::params(format!("params[1]: expected {expected}"));
    let full = |options: Option<Options>| match options {
        None => Ok(false),
        Some(Options::Full(full)) => Ok(full),
        Some(_) => Err(wrong("a boolean: whether to show transactions in full")),
    };
    let filter = |options: Option<Options>| match options {
        None => Ok(LogFilter::default()),
        // Client libraries also send a filter's block fields, without effect. Only the strict dialect rejects them.
        Some(Options::Filter(filter)) if dialect.refuses_unknown_fields && filter.names_blocks() => {
            Err(wrong("a filter with address and topics only, because a subscription covers future blocks"))
        }
        Some(Options::Filter(filter)) => filter.into_filter("params[1]"),
        Some(_) => Err(wrong("a filter with address and topics")),
    };
    match (subject, options) {
        (Name::NewHeads, None) => Ok(Subject::NewHeads),
        (Name::NewFlashblocks, None) => Ok(Subject::NewFlashblocks),
        (Name::Snapshots, None) => Ok(Subject::Snapshots),
        (Name::Feed, None) => Ok(Subject::Feed),
        (Name::StateChanges, _) => Ok(Subject::StateChanges(ChangeFilter::default())),
        (Name::NewHeads | Name::NewFlashblocks | Name::Snapshots | Name::Feed, Some(_)) => {
            Err(wrong("nothing: this subscription has no options"))
        }
        (Name::Logs, options) => Ok(Subject::Logs(filter(options)?)),
        (Name::PendingLogs, options) => Ok(Subject::PendingLogs(filter(options)?)),
        (Name::NewPendingTransactions, options) => Ok(Subject::NewPendingTransactions { full: full(options)? }),
        (Name::NewFlashblockTransactions, Some(options @ Options::Filter(_))) => {
            Ok(Subject::NewFlashblockTransactions(Shown::Matching(Box::new(filter(Some(options))?))))
        }
        (Name::NewFlashblockTransactions, options) => {
            let shown = if full(options)? { Shown::Full } else { Shown::Hash };
            Ok(Subject::NewFlashblockTransactions(shown))
        }
    }
}

fn change_filter(SubscribeChanges { filter, .. }: SubscribeChanges) -> Result<ChangeFilter> {
    let ChangeFilterParam { address, slots, from } = filter.unwrap_or_default();
    let addresses = address.map(|one| one.addresses("params[1].address")).transpose()?.unwrap_or_default();
    if slots.as_ref().is_some_and(|slots| slots.len() > MAX_SLOTS) {
        return Err(RpcError::params(format!("params[1].slots: too many: expected at most {MAX_SLOTS}")));
    }
    Ok(ChangeFilter {
        addresses: addresses.into_iter().collect(),
        slots: slots.into_iter().flatten().map(|slot| slot.slot).collect(),
        from: from.map(|Quantity(id)| SnapshotId(id)),
    })
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
