//! The methods of standing bundles: what clients ask of their watches.

use std::{
    sync::{Arc, Mutex, atomic::AtomicUsize},
    time::{Duration, Instant},
};

use schemars::JsonSchema;
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};

use super::{WATCH_BYTES, Watch, WatchState, Watches, task::WatchTask};
use super::{
    news::Changes,
    request::{Begin, End, Results, Rewatch, WatchRequest},
};
use crate::watch::WatchId;
use crate::{
    ledger::SnapshotId,
    rpc::{
        api::{Example, Serve},
        json::{
            self, Object,
            hex::{Fixed, Quantity},
        },
        params,
        protocol::error::{Result, RpcError},
        run::{
            Backend, Run,
            request::{Request, begin},
            runner::RequestRunner,
        },
    },
    scheduler::{LaneName, RunPlace},
    watch::{Attendance, StandingBundles},
};

/// The place where payloads are parsed.
const PARSE: RunPlace = RunPlace::On(LaneName::Bundle);

/// The bundles, and the snapshot after which all is news.
///
/// A WebSocket connection is told the news of each snapshot in parts with part and last, and answers that come after the last part
/// with late.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "the handler writes it")]
pub struct Begun {
    /// The name of the bundles.
    watch: Fixed<16>,
    id: Quantity<u64>,
}

impl Serve for Begin {
    type Part = Watches;
    type Answer = Begun;
    const EXAMPLE: Example = Example {
        params: r#"[[{"name": "one", "simulate": {"blockStateCalls": [{"calls": [{"to": "0x00000000000000000000000000000000000000aa", "gas": "0x5208"}]}]}}], "pending"]"#,
        answer: r#"{"watch": "0x4ae1b3f7ad0b86a0f5f2c3d8ab0c1d2e", "id": "0x6b066fff00000001"}"#,
    };

    async fn serve(watches: &Watches, runner: &Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        let list = &watches.0;
        let most = list.limits.bundles;
        let owner = request.caller.client.name().map(str::to_owned);
        let room = list.room(owner.as_deref()).saturating_sub(WATCH_BYTES);
        let parse = move |backend: &Backend, run: &mut Run<'_>| {
            params::parse::<Self>(run.params, run.dialect)?.into_request(run.dialect, &backend.limits.shape, most, room)
        };
        let (parsed, mut out) = runner.run_step(PARSE, request.clone(), parse).await?;
        let WatchRequest { bundles, selector, bytes } = parsed;
        let requests = WATCH_BYTES + bytes;
        let bundles = StandingBundles::new(bundles.into_iter().map(|(name, bundle)| (name, Arc::new(bundle))));
        let bytes = requests + bundles.bytes();
        let state = WatchState {
            bundles,
            running: Vec::new(),
            long_rests_until: None,
            attendance: Attendance::new(Instant::now()),
            begins_block: true,
            complete_at: None,
        };
        let watch = Arc::new(Watch {
            id: WatchId(rand::random()),
            count: state.bundles.bundles().len(),
            owner,
            selector,
            state: Mutex::new(state),
            bytes: AtomicUsize::new(bytes),
            news: watch::Sender::new(0),
            wake: Notify::new(),
        });
        let first = runner.backend.select(&request.published, selector)?.id;
        list.add(watch.clone())?;
        if let Some(starting) = &request.starting {
            starting.watch(watch.id).inspect_err(|_| {
                list.remove(watch.id);
            })?;
        }
        let mut object = Object::new(&mut out);
        json::string(object.key("watch"), &watch.id.to_string());
        // All that is told of this snapshot is new, so that who asks what changed after `id` misses nothing.
        object.quantity("id", first.0.saturating_sub(1));
        object.end();
        let caller = request.caller;
        let task = WatchTask {
            list: list.clone(),
            runner: runner.clone(),
            rules: runner.backend.rules(caller.dialect),
            requests,
            watch,
            caller,
            method: request.method,
        };
        let (list, id) = (list.clone(), task.watch.id);
        tokio::spawn(async move {
            if let Err(error) = tokio::spawn(Arc::new(task).follow()).await {
                tracing::error!(%error, "standing bundles are dropped");
                list.remove(id);
            }
        });
        Ok(out)
    }
}

impl Serve for Rewatch {
    type Part = Watches;
    type Answer = Changes;
    const EXAMPLE: Example = Example {
        params: r#"["0x4ae1b3f7ad0b86a0f5f2c3d8ab0c1d2e", "0x6b066fff00000001"]"#,
        answer: r#"{"watch": "0x4ae1b3f7ad0b86a0f5f2c3d8ab0c1d2e", "id": "0x6b066fff00000002", "changed": [], "behind": []}"#,
    };

    async fn serve(watches: &Watches, runner: &Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        let (id, since) = params::parse::<Self>(&request.params, request.caller.dialect)?.parts();
        let watch = watches.0.find(id, client(&request))?;
        let starting = request.starting.as_ref().ok_or_else(|| {
            RpcError::new(-32601, "presim_rewatch needs a WebSocket connection: presim_results polls over HTTP")
        })?;
        starting.watch(id)?;
        watch.attend();
        answer(runner, &request, |out| watch.write_rewatch(since, out))
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
        let (id, since, wait) = params::parse::<Self>(&request.params, request.caller.dialect)?.parts();
        let watch = watches.0.find(id, client(&request))?;
        poll(watches, &watch, since, wait, &request, runner).await?;
        answer(runner, &request, |out| watch.write_results(since, out))
    }
}

impl Serve for End {
    type Part = Watches;
    type Answer = bool;
    const EXAMPLE: Example = Example { params: r#"["0x4ae1b3f7ad0b86a0f5f2c3d8ab0c1d2e"]"#, answer: "true" };

    async fn serve(Watches(list): &Watches, runner: &Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        let id = params::parse::<Self>(&request.params, request.caller.dialect)?.watch();
        // Only a watch that stands can be another client's.
        if list.watches().contains_key(&id) {
            list.find(id, client(&request))?;
        }
        answer(runner, &request, |out| json::value(out, &list.remove(id)))
    }
}

/// Returns the name of the client.
fn client(request: &Request) -> Option<&str> {
    request.caller.client.name()
}

/// Returns the answer whose result `write` writes.
fn answer(runner: &RequestRunner, request: &Request, write: impl FnOnce(&mut Vec<u8>)) -> Result<Vec<u8>> {
    let mut out = begin(&request.id, "result");
    write(&mut out);
    json::check_length(&out, runner.limits().max_response)?;
    Ok(out)
}

/// Waits until an answer has changed after a snapshot and what is due has run, at most for some time.
async fn poll(
    watches: &Watches,
    watch: &Watch,
    since: SnapshotId,
    wait: Duration,
    request: &Request,
    runner: &RequestRunner,
) -> Result<()> {
    let has_changed = |state: &WatchState| state.bundles.changed_after(since).next().is_some();
    let is_done = || {
        let state = watch.state();
        state.is_complete() && has_changed(&state)
    };
    let mut news = watch.news.subscribe();
    watch.attend();
    if wait.is_zero() || is_done() {
        return Ok(());
    }
    let Ok(_permit) = runner.waiters.permits.try_acquire() else {
        let text = format!("too busy: {} requests wait already", runner.waiters.count);
        return Err(RpcError::limit(text));
    };
    drop(request.starting.as_ref().and_then(|starting| starting.release()));
    let _poll = Poll::of(watch);
    let changed = async {
        // Runs that end with something behind are news, too.
        while !is_done() && news.changed().await.is_ok() && !has_changed(&watch.state()) {}
    };
    let mut stopping = watches.0.stopping.subscribe();
    // Without news in time, the answer says so.
    tokio::select! {
        _ = timeout(wait.min(runner.limits().sync.most), changed) => {}
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
    Ok(())
}

/// A request that polls. Counted until it is dropped.
struct Poll<'a>(&'a Watch);

impl<'a> Poll<'a> {
    fn of(watch: &'a Watch) -> Self {
        watch.state().attendance.begin_poll();
        Self(watch)
    }
}

impl Drop for Poll<'_> {
    fn drop(&mut self) {
        self.0.state().attendance.end_poll(Instant::now());
        self.0.wake.notify_one();
    }
}
