//! A row of the table of methods.

use std::sync::Arc;

use futures::future::BoxFuture;

use super::services::Services;
use crate::{
    rpc::{
        api::{
            Method, Serve,
            document::{Describe, describe},
            log::{FilterEntry, GetFilterChanges, Poll},
            testing::changes::Testing,
        },
        params,
        protocol::error::Result,
        run::{AnsweredBy, MethodInfo, MethodScope, RunHandler, SealedOnly, request::Request, runner::RequestRunner},
    },
    scheduler::{
        LaneName::Read,
        RunTarget::{self, Inline, On},
    },
};

/// A row of the table of methods.
#[derive(Clone, Copy, Debug)]
pub struct MethodRoute {
    /// The facts of the method that its requests carry.
    pub info: MethodInfo,
    /// The handler that answers the method.
    pub handler: Handler,
    /// Writes the method's part of the document.
    pub describe: Describe,
}

/// The handler of a method.
#[derive(Clone, Copy, Debug)]
pub enum Handler {
    /// One run.
    Run(RunHandler),
    /// Several runs, or none, with other work.
    Serve(ServeHandler),
    /// One run, whose answer moves the position of a filter once its bytes are granted.
    Poll(PollHandler),
}

/// A handler that may wait, and run a request in several steps.
pub type ServeHandler = for<'a> fn(&'a Services, Request) -> BoxFuture<'a, Result<Vec<u8>>>;

/// A handler that finds the news of a filter.
pub type PollHandler = for<'a> fn(&'a Arc<RequestRunner>, Request) -> BoxFuture<'a, Result<Poll>>;

impl MethodRoute {
    const fn new(name: &'static str, target: RunTarget, handler: Handler, describe: Describe) -> Self {
        let (scope, waits, by) = (MethodScope::Any, SealedOnly::Nothing, AnsweredBy::Node);
        let info = MethodInfo { name, index: 0, target, commits: false, scope, waits, by };
        Self { info, handler, describe }
    }

    /// Builds the row of a method that is one run.
    pub const fn run<M: Method>(name: &'static str, target: RunTarget) -> Self {
        let handler = Handler::Run(|backend, run| params::parse::<M>(run.params, run.dialect)?.run(backend, run));
        Self::new(name, target, handler, |name, dialect, schemas| {
            describe::<M, M::Answer>(M::EXAMPLE, name, dialect, schemas)
        })
    }

    /// Builds the row of a method that may wait.
    pub const fn serve<M: Serve>(name: &'static str, target: RunTarget) -> Self
    where
        Services: AsRef<M::Part>,
    {
        let handler = Handler::Serve(|node, request| Box::pin(M::serve(node.as_ref(), &node.runner, request)));
        Self::new(name, target, handler, |name, dialect, schemas| {
            describe::<M, M::Answer>(M::EXAMPLE, name, dialect, schemas)
        })
    }

    /// Builds the row of the method that polls filters.
    pub const fn poll(name: &'static str) -> Self {
        Self::new(name, On(Read), Handler::Poll(GetFilterChanges::poll), |name, dialect, schemas| {
            describe::<GetFilterChanges, Vec<FilterEntry>>(GetFilterChanges::EXAMPLE, name, dialect, schemas)
        })
    }

    /// Builds the row of a method that changes a devnet under test.
    pub const fn change<M: Serve<Part = Testing>>(name: &'static str) -> Self {
        Self::serve::<M>(name, Inline).commits().scope(MethodScope::TestedDevnet)
    }

    /// Builds the row of a method that reads blocks or their contents, which an upstream may know if the node does not.
    pub const fn history<M: Method>(name: &'static str) -> Self {
        Self::run::<M>(name, On(Read)).by(AnsweredBy::WhoKnows)
    }

    /// Sets the part of the answer that waits until `latest` has its block.
    pub const fn waits(mut self, waits: SealedOnly) -> Self {
        self.info.waits = waits;
        self
    }

    /// Sets the node that answers.
    pub const fn by(mut self, by: AnsweredBy) -> Self {
        self.info.by = by;
        self
    }

    /// Sets the nodes that have the method.
    pub const fn scope(mut self, scope: MethodScope) -> Self {
        self.info.scope = scope;
        self
    }

    /// Sets that the method commits something, so that its response must not be lost.
    pub const fn commits(mut self) -> Self {
        self.info.commits = true;
        self
    }
}
