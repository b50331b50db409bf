//! A build without fleets (the cargo feature `fleet`): it begins nothing in one, and its flags are refused.

use std::sync::Arc;

use alloy_primitives::B256;
use eyre::bail;
use tokio::runtime::Runtime;

use super::{
    live::LiveStart,
    start::{Beginning, Start},
};
use crate::{
    config::Config,
    fleet::settings::Servers,
    pool::{PoolDrops, TxOutbox},
    rpc::{Access, Front, IoMemory, Leader, ServerConfig},
};

/// A membership in a fleet, which no node has.
#[derive(Clone, Debug)]
pub enum Membership {}

/// The answering of requests, of which none arrives.
#[derive(Debug)]
pub enum ServedRequests {}

pub fn outbox(membership: &Membership, _: &Runtime, _: PoolDrops) -> eyre::Result<Box<dyn TxOutbox>> {
    match *membership {}
}

pub fn leader(membership: &Membership) -> Arc<dyn Leader> {
    match *membership {}
}

pub async fn serve(
    membership: &Membership,
    _: &Config,
    _: Arc<Front>,
    _: Arc<Access>,
    _: Arc<IoMemory>,
    _: ServerConfig,
    _: bool,
) -> eyre::Result<ServedRequests> {
    match *membership {}
}

pub fn publish(_: Beginning<'_>, servers: &Servers, _: &Runtime) -> eyre::Result<Start> {
    refused("--publish", servers)
}

pub async fn publish_live(_: Beginning<'_>, servers: &Servers, _: LiveStart, _: B256) -> eyre::Result<Start> {
    refused("--publish", servers)
}

pub fn follow(_: Beginning<'_>, servers: &Servers, _: &Runtime) -> eyre::Result<Start> {
    refused("--follow", servers)
}

fn refused(flag: &str, servers: &Servers) -> eyre::Result<Start> {
    bail!(
        "{flag} {servers}: this presim was built without fleets: build it with the cargo feature fleet, which is on by default"
    )
}
