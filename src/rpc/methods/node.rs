//! Methods about the node and its chain.

use alloy_primitives::{Bytes, keccak256};

use super::{Backend, MethodRoute, Run};
use crate::{
    engine::precompiles_of,
    ledger::Selector,
    rpc::{
        encode,
        error::{Result, RpcError},
    },
};

impl Backend {
    /// Answers `eth_config` (EIP-7910).
    pub(super) fn fork_config(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        let genesis = run.published.find(Selector::Earliest)?;
        let config = genesis.and_then(|genesis| {
            let (header, hash) = (genesis.header().inner(), genesis.header().hash());
            self.spec.fork_config(header, hash, &run.published.head().header, precompiles_of)
        });
        let config = config
            .ok_or_else(|| RpcError::new(-32000, "eth_config is defined only for Ethereum chains from Cancun on"))?;
        encode::value(&mut run.out, &config);
        Ok(())
    }

    /// Answers `eth_capabilities`: the blocks that this node retains. Of an upstream's chain, older blocks than these
    /// may be answered by the upstream, whose own capabilities tell.
    pub(super) fn capabilities(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        let published = run.published;
        let (states, bodies) = (published.retained_states(), published.retained_bodies());
        encode::retained(&mut run.out, published.head(), states, bodies);
        Ok(())
    }

    /// Answers `web3_sha3`: the Keccak-256 hash of the given bytes.
    pub(super) fn sha3(&self, run: &mut Run<'_>, bytes: Bytes) -> Result<()> {
        encode::data(&mut run.out, keccak256(bytes).as_slice());
        Ok(())
    }

    /// Answers `presim_snapshot`: the newest snapshot, its age, and the state of its feed.
    pub(super) fn snapshot(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        use std::io::Write;
        let (published, newest, feed) = (run.published, &run.published.newest, run.published.feed());
        // Writing to memory cannot fail.
        let _ = write!(
            run.out,
            r#"{{"id":"{:#x}","blockNumber":"{:#x}","index":"{:#x}","ageMs":{},"head":{{"number":"{:#x}","hash":"{}"}},"feed":"{}""#,
            newest.id.0,
            newest.header().number,
            newest.index(),
            newest.published.elapsed().as_millis(),
            published.head().number(),
            published.head().hash(),
            feed.as_str(),
        );
        if let Some(cause) = feed.cause() {
            let _ = write!(run.out, r#","reason":"{}""#, cause.as_str());
        }
        if let Some(lag) = feed.lag() {
            let _ = write!(run.out, r#","lagMs":{},"lagSubBlocks":{}"#, lag.ms(), lag.waiting);
        }
        let _ = write!(run.out, r#","verified":"{}""#, newest.verified.as_str());
        run.out.push(b'}');
        Ok(())
    }

    /// Answers `presim_divergences`: the last differences from what was pre-confirmed, newest first.
    pub(super) fn divergences(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        encode::divergences(&mut run.out, &self.divergences.newest_first());
        Ok(())
    }

    /// Answers `rpc.discover`: the `OpenRPC` document.
    pub(super) fn discover(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        run.out.extend_from_slice(MethodRoute::document(run.dialect).as_bytes());
        Ok(())
    }
}
