//! The parts of the node that methods use in addition to the runner of requests.

use std::sync::Arc;

use crate::rpc::{
    api::{status::StatusBoard, testing::changes::Testing, watch::Watches},
    run::runner::RequestRunner,
};

/// The parts of the node that methods use.
#[derive(Debug)]
pub struct Services {
    /// The executor, and everything else a run needs.
    pub runner: Arc<RequestRunner>,
    /// The standing bundles.
    pub watches: Watches,
    /// The scope of the methods for testing.
    pub testing: Testing,
    /// The load that the status shows.
    pub board: StatusBoard,
}

impl AsRef<()> for Services {
    fn as_ref(&self) -> &() {
        &()
    }
}

impl AsRef<Watches> for Services {
    fn as_ref(&self) -> &Watches {
        &self.watches
    }
}

impl AsRef<Testing> for Services {
    fn as_ref(&self) -> &Testing {
        &self.testing
    }
}

impl AsRef<StatusBoard> for Services {
    fn as_ref(&self) -> &StatusBoard {
        &self.board
    }
}
