//! The methods of standing bundles: what clients ask of their watches.

use std::{
    sync::{Arc, Mutex, atomic::AtomicUsize},
    time::{Duration, Instant},
};

use tokio::{
    sync::{Notify, watch},
    time::timeout,
};

use super::request::{self, WatchRequest};
use super::{WATCH_BYTES, Watch, WatchState, Watches, task::WatchTask};
use crate::watch::WatchId;
use crate::{
    ledger::SnapshotId,
    rpc::{
        json::{self, Object},
        protocol::error::{Result, RpcError},
        run::{
            Backend, Run,
            access::Client,
            request::{Request, begin},
            runner::RequestRunner,
        },
    },
    scheduler::{LaneName, RunPlace},
    watch::{Attendance, StandingBundles},
};

/// The place where payloads are parsed.
const PARSE: RunPlace = RunPlace::On(LaneName::Bundle);

/// A method of the standing bundles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchMethod {
    /// Bundles begin to stand.
    Begin,
    /// A connection takes standing bundles over.
    Rewatch,
    /// A client polls for what changed.
    Results,
    /// Bundles no longer stand.
    End,
}

impl Watches {
    /// Answers a method of the standing bundles.
    ///
    /// # Errors
    ///
    /// Returns -32602 if the parameters are wrong, -32005 if the client's bundles take too much memory, and -32000 if
    /// the client has no such watch, except to `presim_unwatch` if nobody has.
    pub async fn answer(&self, method: WatchMethod, request: Request, runner: &Arc<RequestRunner>) -> Result<Vec<u8>> {
        let list = &self.0;
        let client = request.caller.client.as_deref().map(Client::name);
        let dialect = request.caller.dialect;
        let mut out = begin(&request.id, "result");
        match method {
            WatchMethod::Begin => return self.begin(request, runner).await,
            WatchMethod::Rewatch => {
                let (id, since) = request::parse_rewatch(&request.params, dialect)?;
                let watch = list.find(id, client)?;
                let starting = request.starting.as_ref().ok_or_else(|| {
                    RpcError::new(-32601, "presim_rewatch needs a WebSocket connection: presim_results polls over HTTP")
                })?;
                starting.watch(id)?;
                watch.attend();
                watch.write_rewatch(since, &mut out);
            }
            WatchMethod::Results => {
                let (id, since, wait) = request::parse_results(&request.params, dialect)?;
                let watch = list.find(id, client)?;
                self.poll(&watch, since, Duration::from_millis(wait), &request, runner).await?;
                watch.write_results(since, &mut out);
            }
            WatchMethod::End => {
                let id = request::parse_unwatch(&request.params, dialect)?;
                // Only a watch that stands can be another client's.
                if list.watches().contains_key(&id) {
                    list.find(id, client)?;
                }
                json::value(&mut out, &list.remove(id));
            }
        }
        json::check_length(&out, runner.limits().max_response)?;
        Ok(out)
    }

    /// Lets the bundles of a request stand.
    async fn begin(&self, request: Request, runner: &Arc<RequestRunner>) -> Result<Vec<u8>> {
        let list = &self.0;
        let most = list.limits.bundles;
        let owner = request.caller.client.as_deref().map(|client| client.name().to_owned());
        let room = list.room(owner.as_deref()).saturating_sub(WATCH_BYTES);
        let parse = move |backend: &Backend, run: &mut Run<'_>| {
            request::parse_watch(run.params, run.dialect, &backend.limits.shape, most, room)
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

    /// Waits until an answer has changed after a snapshot and what is due has run, at most for some time.
    async fn poll(
        &self,
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
        let mut stopping = self.0.stopping.subscribe();
        // Without news in time, the answer says so.
        tokio::select! {
            _ = timeout(wait.min(runner.limits().sync.most), changed) => {}
            _ = stopping.wait_for(|stopping| *stopping) => {}
        }
        Ok(())
    }
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
