//! `eth_subscribe`, `eth_unsubscribe`, and the notifications that follow over WebSocket.

mod announce;
mod changes;
mod feed;
mod logs;
mod round;

pub use announce::announce;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, Unexpected},
};

use super::{
    Example, Serve,
    watch::{self, Watches, request::WatchedParam},
};
use crate::{
    ledger::SnapshotId,
    objects,
    rpc::{
        json::{
            form::{Forms, from_text, text},
            hex::{Fixed, Quantity, SlotKey},
        },
        params::{FilterParam, LogFilter, OneOrMany, SelectorParam, parse},
        protocol::{
            dialect::Dialect,
            error::{Result, RpcError},
        },
        run::{
            request::Request,
            runner::RequestRunner,
            subscriptions::{ChangeFilter, PendingSubscriptions, Shown, Subject},
        },
    },
    watch::WatchId,
};

/// Maximum number of slots in a filter of changes.
const MAX_SLOTS: usize = 1000;

/// Subscribes a connection of a WebSocket or the Unix socket to newHeads, logs, syncing, newPendingTransactions, newFlashblocks, newFlashblockTransactions,
/// pendingLogs, `presim_snapshots`, `presim_stateChanges`, `presim_feed` or `presim_watch`. The result is the id of the subscription, with
/// `presim_watch` the name of the standing bundles.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 or 2 parameters: what to subscribe to, options")]
pub struct Subscribe {
    subject: Name,
    /// Whether transactions are sent in full, a filter of logs or of changes, or the bundles to watch.
    #[serde(default)]
    options: Option<Options>,
    /// pending or latest, with `presim_watch` only: the snapshots on which the bundles run. pending by default.
    #[serde(default)]
    block: Option<SelectorParam>,
}

/// The names of subscriptions in geth and in the Flashblocks networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
enum Name {
    NewHeads,
    Logs,
    NewPendingTransactions,
    Syncing,
    NewFlashblocks,
    NewFlashblockTransactions,
    PendingLogs,
    #[serde(rename = "presim_snapshots")]
    Snapshots,
    #[serde(rename = "presim_stateChanges")]
    StateChanges,
    #[serde(rename = "presim_feed")]
    Feed,
    #[serde(rename = "presim_watch")]
    Watch,
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
    #[expect(dead_code, reason = "a shape: the bundles of presim_watch are parsed by themselves")]
    Bundles(Vec<WatchedParam>),
}

/// A filter of changes of the state, for `presim_stateChanges`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(inline)]
struct ChangeFilterParam {
    address: Option<OneOrMany<20>>,
    /// The slots whose changes are sent: at most 1,000. By default all slots and accounts.
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

/// The id of a subscription, which for `presim_watch` is the name of the standing bundles.
#[derive(Clone, Copy, Debug, JsonSchema)]
#[serde(untagged)]
pub enum SubscriptionId {
    /// The number of a subscription.
    Number(Quantity<u64>),
    /// The name of standing bundles.
    Watch(Fixed<16>),
}

impl<'de> Deserialize<'de> for SubscriptionId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Forms::<Self> {
            expected: "the id of a subscription: a quantity, like \"0x1f\", or with presim_watch 16 bytes",
            scalar: |given| {
                text(given).map(|text| match text.len() == WATCH_TEXT {
                    true => from_text(text).map(Self::Watch),
                    false => from_text(text).map(Self::Number),
                })
            },
            object: None,
        })
    }
}

/// The length of the name of standing bundles: `0x` and 32 hex digits. No other id is as long.
const WATCH_TEXT: usize = 34;

impl Serve for Subscribe {
    type Part = Watches;
    type Answer = SubscriptionId;
    const EXAMPLE: Example = Example {
        params: r#"["logs", {"address": "0x5fbdb2315678afecb367f032d93f642f64180aa3"}]"#,
        answer: r#""0x1""#,
    };

    async fn serve(watches: &Watches, runner: &Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        let starting = starting(&request)?;
        if is_watch(&request.params) {
            return watch::serve::subscribe(watches, runner, &request).await;
        }
        let id = starting.start(subject(&request.params, request.caller.dialect)?)?;
        Ok(request.answer::<Quantity<u64>, _>(id))
    }
}

/// Ends a subscription of the same connection. Ending one of `presim_watch` also ends its bundles.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 parameter: the id of a subscription or filter")]
pub struct Unsubscribe {
    id: SubscriptionId,
}

impl Serve for Unsubscribe {
    type Part = Watches;
    type Answer = bool;
    const EXAMPLE: Example = Example { params: r#"["0x1"]"#, answer: "true" };

    async fn serve(watches: &Watches, _: &Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        let starting = starting(&request)?;
        let Self { id } = parse(&request.params, request.caller.dialect)?;
        let (ended, shown) = match id {
            SubscriptionId::Number(Quantity(id)) => (starting.unsubscribe(id), format!("{id:#x}")),
            SubscriptionId::Watch(Fixed(id)) => {
                let id = WatchId(id);
                (starting.is_told_of(id) && watches.end(id), id.to_string())
            }
        };
        if !ended {
            return Err(RpcError::new(
                -32000,
                format!("params[0]: subscription not found: {shown} does not belong to this connection"),
            ));
        }
        Ok(request.answer::<bool, _>(true))
    }
}

/// Returns the subscriptions that a message starts, if its connection can subscribe.
fn starting(request: &Request) -> Result<&PendingSubscriptions> {
    let name = request.method.name;
    request.starting.as_deref().ok_or_else(|| {
        RpcError::new(
            -32601,
            format!(
                "{name} needs a connection over WebSocket or the Unix socket: notifications cannot be sent over HTTP"
            ),
        )
    })
}

/// Returns whether the parameters request standing bundles. They may be long, and are then parsed on a worker.
fn is_watch(params: &str) -> bool {
    params.trim_start().strip_prefix('[').is_some_and(|params| params.trim_start().starts_with("\"presim_watch\""))
}

/// Parses the subject of a subscription with its options.
fn subject(params: &str, dialect: &Dialect) -> Result<Subject> {
    // The options of this subscription have a type of their own.
    if let Ok((Name::StateChanges, IgnoredAny)) = objects::from_str(params) {
        return Ok(Subject::StateChanges(change_filter(parse(params, dialect)?)?));
    }
    let Subscribe { subject, options, block } = parse(params, dialect)?;
    if block.is_some() {
        return Err(RpcError::params("params[2]: expected nothing: only presim_watch has a block"));
    }
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
        (Name::Syncing, None) => Ok(Subject::Syncing),
        (Name::Snapshots, None) => Ok(Subject::Snapshots),
        (Name::Feed, None) => Ok(Subject::Feed),
        (Name::StateChanges, _) => Ok(Subject::StateChanges(ChangeFilter::default())),
        (Name::Watch, _) => Err(wrong("the bundles that are to stand")),
        (Name::NewHeads | Name::Syncing | Name::NewFlashblocks | Name::Snapshots | Name::Feed, Some(_)) => {
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
        deserializer.deserialize_any(Forms {
            expected: "a boolean (transactions in full) or a filter (address, topics)",
            scalar: |given| if let Unexpected::Bool(full) = given { Some(Ok(Self::Full(full))) } else { None },
            object: Some(|filter| Ok(Self::Filter(Box::new(filter)))),
        })
    }
}
