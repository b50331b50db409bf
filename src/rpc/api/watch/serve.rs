//! The methods of standing bundles, by which clients control their watches.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{
    Watches,
    news::{Changes, Connections, Watch, write_results, write_rewatch},
    request::{Begin, BeginBySubscription, End, Results, Rewatch, WatchRequest, WatchRoom},
    run::NodeBundle,
};
use crate::{
    ledger::SnapshotId,
    rpc::{
        api::{Example, Serve},
        json::{
            self, Shape,
            hex::{Fixed, Quantity},
            shapes,
        },
        params::{self, ShapeLimits},
        protocol::error::{Result, RpcError},
        run::{
            Attempt, Backend,
            request::{Request, open_answer},
            runner::RequestRunner,
        },
    },
    watch::{WatchId, WatchTask},
};

shapes! {
    /// The bundles, and the snapshot after which everything is news.
    ///
    /// A WebSocket connection receives the news of each snapshot in parts with part and last, and answers that arrive
    /// after the last part with late.
    pub Begun: (WatchId, SnapshotId) => |(watch, since)| {
        /// The name of the bundles.
        watch: Fixed<16> = watch.0,
        id: Quantity<u64> = since.0,
    }
}

impl Serve for Begin {
    type Part = Watches;
    type Answer = Begun;
    const EXAMPLE: Example = Example {
        params: r#"[[{"name": "one", "simulate": {"blockStateCalls": [{"calls": [{"to": "0x00000000000000000000000000000000000000aa", "gas": "0x5208"}]}]}}], "pending"]"#,
        answer: r#"{"watch": "0x4ae1b3f7ad0b86a0f5f2c3d8ab0c1d2e", "id": "0x6b066fff00000001"}"#,
    };

    async fn serve(watches: &Watches, runner: &Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        let parse = |run: &Attempt<'_>, limits: &ShapeLimits, room: WatchRoom| {
            let Self { bundles, block } = params::parse(run.params, run.dialect)?;
            WatchRequest::of(bundles, block, 0, run.dialect, limits, room)
        };
        let (begun, mut out) = begin_watch(watches, runner, &request, parse).await?;
        Begun::write(&mut out, begun);
        Ok(out)
    }
}

/// Registers the bundles of an `eth_subscribe`. The result is only the name of the watch, because client libraries
/// take it for the id of a subscription, by which they route its notifications.
///
/// # Errors
///
/// Returns the same errors as `presim_watch`.
pub async fn subscribe(watches: &Watches, runner: &Arc<RequestRunner>, request: &Request) -> Result<Vec<u8>> {
    let parse = |run: &Attempt<'_>, limits: &ShapeLimits, room: WatchRoom| {
        let BeginBySubscription { bundles, block, .. } = params::parse(run.params, run.dialect)?;
        WatchRequest::of(bundles, block, 1, run.dialect, limits, room)
    };
    let ((id, _), mut out) = begin_watch(watches, runner, request, parse).await?;
    json::string(&mut out, &id.to_string());
    Ok(out)
}

/// Registers the bundles that `parse` reads. Returns their name and the snapshot after which everything is news, and
/// the beginning of the answer.
async fn begin_watch(
    watches: &Watches,
    runner: &Arc<RequestRunner>,
    request: &Request,
    parse: fn(&Attempt<'_>, &ShapeLimits, WatchRoom) -> Result<WatchRequest>,
) -> Result<((WatchId, SnapshotId), Vec<u8>)> {
    let list = &watches.list;
    let owner = request.caller.client.name().map(str::to_owned);
    let bytes = list.room(owner.as_deref()).saturating_sub(Watch::BYTES);
    let room = WatchRoom { bundles: list.limits.bundles, bytes };
    let parse = move |backend: &Backend, run: &mut Attempt<'_>| parse(run, &backend.limits.shape, room);
    let (parsed, out) = runner.run(request.clone(), parse).await?;
    let WatchRequest { bundles, selector, bytes } = parsed;
    let (dialect, backend, id) = (request.caller.dialect, &runner.backend, WatchId(rand::random()));
    let bundles = bundles
        .into_iter()
        .map(|(name, bundle)| (name, NodeBundle { request: bundle, dialect, backend: backend.clone() }));
    let listener = Connections { subscriptions: watches.subscriptions.clone(), id, selector };
    let watch = Arc::new(Watch::new(id, owner, selector, bundles, bytes, listener));
    backend.admit(&request.published, selector)?;
    let first = request.published.select(selector).map_err(RpcError::from)?.id;
    list.add(&watch).map_err(|error| RpcError::limit(error.to_string()))?;
    if let Some(starting) = &request.starting {
        starting.watch(id).inspect_err(|_| {
            list.remove(id);
        })?;
    }
    let (list, host, strict_pending) = (list.clone(), runner.host.clone(), backend.strict_pending);
    let (rules, flow) = (backend.rules(dialect), request.caller.client.flow().clone());
    WatchTask { list, watch, host, rules, flow, strict_pending }.spawn();
    // All news of the first snapshot are new, so a client that asks for changes after this one misses nothing.
    Ok(((id, SnapshotId(first.0.saturating_sub(1))), out))
}

impl Serve for Rewatch {
    type Part = Watches;
    type Answer = Changes;
    const EXAMPLE: Example = Example {
        params: r#"["0x4ae1b3f7ad0b86a0f5f2c3d8ab0c1d2e", "0x6b066fff00000001"]"#,
        answer: r#"{"watch": "0x4ae1b3f7ad0b86a0f5f2c3d8ab0c1d2e", "id": "0x6b066fff00000002", "changed": [], "behind": []}"#,
    };

    async fn serve(watches: &Watches, runner: &Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        let Self { watch: Fixed(id), id: Quantity(since) } = params::parse(&request.params, request.caller.dialect)?;
        let (id, since) = (WatchId(id), SnapshotId(since));
        let watch = find(watches, id, &request)?;
        let starting = request.starting.as_ref().ok_or_else(|| {
            RpcError::new(
                -32601,
                "presim_rewatch needs a connection over WebSocket or the Unix socket: presim_results polls over HTTP",
            )
        })?;
        starting.watch(id)?;
        watch.attend();
        answer(runner, &request, |out| write_rewatch(&watch, since, out))
    }
}

impl Serve for Results {
    type Part = Watches;
    type Answer = Changes;
    const EXAMPLE: Example = Example {
        params: r#"["0x4ae1b3f7ad0b86a0f5f2c3d8ab0c1d2e", "0x6b066fff00000001", 200]"#,
        answer: r#"{"id": "0x6b066fff00000002", "changed": [{"name": "one", "result": [{"calls": [{"status": "0x1"}]}]}], "behind": []}"#,
    };

    async fn serve(watches: &Watches, runner: &Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        let Self { watch, id, wait_ms } = params::parse(&request.params, request.caller.dialect)?;
        let (since, wait) = (SnapshotId(id.0), Duration::from_millis(wait_ms.map_or(0, |wait| wait.0)));
        let watch = find(watches, WatchId(watch.0), &request)?;
        poll(watches, &watch, since, wait, &request, runner).await?;
        answer(runner, &request, |out| write_results(&watch, since, out))
    }
}

impl Serve for End {
    type Part = Watches;
    type Answer = bool;
    const EXAMPLE: Example = Example { params: r#"["0x4ae1b3f7ad0b86a0f5f2c3d8ab0c1d2e"]"#, answer: "true" };

    async fn serve(watches: &Watches, _: &Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        let Self { watch: Fixed(id) } = params::parse(&request.params, request.caller.dialect)?;
        let id = WatchId(id);
        // Only an existing watch can belong to another client.
        if watches.list.get(id).is_some() {
            find(watches, id, &request)?;
        }
        Ok(request.answer::<bool, _>(watches.list.remove(id)))
    }
}

/// Returns a watch of the client.
fn find(watches: &Watches, id: WatchId, request: &Request) -> Result<Arc<Watch>> {
    let client = request.caller.client.name();
    watches.list.get(id).filter(|watch| watch.owner.as_deref() == client).ok_or_else(|| {
        RpcError::new(-32000, format!("params[0]: {id}: no such watch: it ended or expired, or the node restarted"))
    })
}

/// Returns the answer with the result written by `write`.
fn answer(runner: &RequestRunner, request: &Request, write: impl FnOnce(&mut Vec<u8>)) -> Result<Vec<u8>> {
    let mut out = open_answer(&request.id);
    write(&mut out);
    json::check_length(&out, runner.backend.limits.max_response)?;
    Ok(out)
}

/// Waits until an answer has changed after a snapshot and all due bundles have run, at most for some time.
async fn poll(
    watches: &Watches,
    watch: &Watch,
    since: SnapshotId,
    wait: Duration,
    request: &Request,
    runner: &RequestRunner,
) -> Result<()> {
    watch.attend();
    if wait.is_zero() || watch.has_news_since(since) {
        return Ok(());
    }
    let Ok(_permit) = runner.waiters.permits.try_acquire() else {
        let text = format!("too busy: {} requests wait already", runner.waiters.count);
        return Err(RpcError::limit(text));
    };
    drop(request.starting.as_ref().and_then(|starting| starting.release()));
    let poll = watch.poll();
    let mut stopping = watches.list.stopping();
    // Without news in time, the answer has none.
    tokio::select! {
        _ = timeout(wait.min(runner.backend.limits.sync.most), poll.changed_after(since)) => {}
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
    Ok(())
}
