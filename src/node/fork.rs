//! The start on a block of an upstream's, on which a chain under test is built (`presim fork`).

use std::{sync::Arc, time::Duration};

use alloy_primitives::{U256, utils::Unit};
use eyre::{WrapErr, bail};
use tokio::time::Instant;

use super::{
    live,
    start::{Beginning, DevAccounts, Start, feed_state, lifted, state_file, testing_source},
    state_cache::StateCache,
};
use crate::{
    chain::{ChainSpec, Family},
    clock::SystemClock,
    config::{Config, Endpoint},
    ledger::{Record, SnapshotId, Snapshots},
    rpc::Testing,
    source::{
        devnet::{Devnet, DevnetSource, RemoteBase},
        testing::fork::{Forking, block},
    },
    state::RemoteSettings,
    store::DataDir,
    upstream::{Fetcher, Upstream},
};

/// Begins a chain of its own on a block of the upstream at `endpoint`, in this epoch of snapshot ids.
///
/// # Errors
///
/// Returns an error that names the flag if the upstream does not answer or does not have the block, or if the rules of its chain are
/// not known.
pub async fn begin(
    endpoint: &Endpoint,
    beginning: Beginning<'_>,
    epoch: u64,
) -> eyre::Result<(Start, Option<StateCache>)> {
    let Beginning { config, codes, metrics, reason, console, .. } = beginning;
    let (live, chain) = (&config.live, &config.test_chain);
    let failed = || format!("fork of {endpoint}");
    let deadline = Instant::now() + live::START_TIMEOUT;
    tracing::info!("asking the upstream {endpoint} for the block to fork");
    reason.set(live::FIRST_ANSWER);
    let upstream = live::connect(endpoint, config, metrics)?;
    let asked = upstream.chain_id(deadline);
    let chain_id = live::report_while_waiting(&upstream, reason, asked).await.wrap_err_with(failed)?;
    let time = config.block_time();
    let spec = match chain.hardfork {
        None => live::chain(config, &upstream, chain_id, deadline).await?,
        Some(_) if ChainSpec::known_with(chain_id, &[]).is_some_and(|known| is_op_stack(&known)) => {
            bail!("--hardfork: chain {chain_id} has the rules of the OP stack: leave the flag out")
        }
        Some(newest) => ChainSpec::up_to(chain_id, newest, &config.fork, time).wrap_err("--hardfork")?,
    };
    let spec = spec.with_block_time(time).with_natives(&live.native).with_lifted(lifted(config));
    reason.set("it waits for the block to fork");
    let head = block(&upstream, &spec, chain.fork_block_number, deadline).await.wrap_err_with(failed)?;
    if chain.hardfork.is_none() && config.genesis.is_none() {
        check_active(&upstream, chain_id, head.header.timestamp, deadline).await?;
    }
    if let Some(at) = spec.unexecuted_fork() {
        bail!("the upstream's chain has {at}, which presim does not execute: give --hardfork, or a newer presim");
    }
    if live.verify_proofs {
        head.check(spec.family()).wrap_err_with(failed)?;
        live::check_proofs(&upstream, head.hash(), deadline).await?;
    }
    let most = (live.cache_mb as usize) << 20;
    let directory = config.data_dir.as_ref().map(|dir| DataDir::open(dir, config.data_dir_shared)).transpose()?;
    let image = directory.as_ref().and_then(|dir| StateCache::of_fork(dir, chain_id, head.hash(), most));
    let fetcher = Arc::new(Fetcher::new(upstream.clone(), codes.clone(), live::fetching(config), metrics));
    let accounts = DevAccounts::derive(config)?.users;
    // A client that waits for a block still hears why there is none.
    let fetch_time = live::WAVE_TIMEOUT.min(Duration::from_millis(config.deadline_ms).mul_f32(0.8));
    let forking = Forking {
        spec: spec.clone(),
        chain_id,
        codes: codes.clone(),
        fetcher: fetcher.clone(),
        client: live::client_config(endpoint, config),
        metrics: metrics.clone(),
        timeout: fetch_time,
        cache: RemoteSettings { bytes: most, blocks: config.keep_blocks as usize, is_of_fleet: false },
        kept: config.retention(),
        feed: feed_state(config),
        funded: accounts.iter().map(|account| account.address()).collect(),
        balance: Unit::ETHER.wei() * U256::from(chain.balance),
        loaded: chain.loaded_state().map(state_file).transpose()?,
    };
    reason.set("it fetches the accounts that it sets");
    let head_time = head.header.timestamp;
    let beneficiary = head.header.beneficiary;
    let begun = forking.begin(&upstream, head, image, SnapshotId::begin(epoch)).await.wrap_err_with(failed)?;
    let snapshots = Arc::new(Snapshots::from(begun));
    let clock = Arc::new(SystemClock::default());
    let mut devnet =
        Devnet::new(clock, spec.clone(), config.sub_blocks(), config.sub_block(), config.fee_recipient, None);
    let fee_recipient = if config.fee_recipient.is_zero() { beneficiary } else { config.fee_recipient };
    devnet.begin_at(chain.timestamp.unwrap_or(head_time), fee_recipient);
    devnet.choose_first(chain.set_block_gas(), chain.base_fee);
    let remote = RemoteBase { fetcher: fetcher.clone(), timeout: fetch_time };
    let mut source = DevnetSource::new(devnet, config.sub_block());
    (source.remote, source.console) = (Some(remote), Some(console.clone()));
    let newest = snapshots.newest();
    let first = source.build(|devnet| devnet.first(&newest).map(Some)).await;
    if let Some(first) = first.wrap_err("the first block cannot be opened")? {
        snapshots.apply(Record::from(first))?;
    }
    let (source, control) = testing_source(config, source, &snapshots, codes);
    let source = Box::new(source.forked(forking));
    let cache = directory.map(|directory| StateCache::new(snapshots.clone(), directory, Some(chain_id)));
    let start = Start {
        testing: Testing::Devnet(control),
        accounts,
        builtin: true,
        remote: Some(fetcher),
        ..Start::of_foreign(spec, snapshots, source)
    };
    Ok((start, cache))
}

fn is_op_stack<E>(known: &Result<ChainSpec, E>) -> bool {
    known.as_ref().is_ok_and(|known| known.family() == Family::OpStack)
}

/// Checks that the rules which the upstream announces were active at the block, if nothing else is known of its rules.
async fn check_active(upstream: &Upstream, chain_id: u64, timestamp: u64, deadline: Instant) -> eyre::Result<()> {
    if ChainSpec::known_with(chain_id, &[]).is_some() {
        return Ok(());
    }
    let Ok(announced) = upstream.forks(deadline).await else { return Ok(()) };
    let active = announced.active_since();
    if timestamp < active {
        bail!(
            "the block's time is {timestamp}, and the fork that the upstream announces is active since {active}: give --hardfork NAME \
             with the fork of the block, {}",
            Config::hardforks()
        );
    }
    Ok(())
}
