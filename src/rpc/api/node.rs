//! Methods about the node and its chain.

use alloy_primitives::{Bytes, keccak256};

use crate::rpc::run::{Backend, Run};
use crate::{
    engine::precompiles_of,
    ledger::Selector,
    rpc::{
        json,
        protocol::error::{Result, RpcError},
    },
};

/// The name and the version of the program, as clients are told them.
pub const CLIENT_VERSION: &str = concat!("presim/v", env!("CARGO_PKG_VERSION"));

impl Backend {
    /// Answers `eth_config` (EIP-7910).
    pub fn fork_config(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        let genesis = run.published.find(Selector::Earliest)?;
        let config = genesis.and_then(|genesis| {
            let (header, hash) = (genesis.header().inner(), genesis.header().hash());
            self.spec.fork_config(header, hash, &run.published.head().header, precompiles_of)
        });
        let config = config
            .ok_or_else(|| RpcError::new(-32000, "eth_config is defined only for Ethereum chains from Cancun on"))?;
        json::value(&mut run.out, &config);
        Ok(())
    }

    /// Answers `eth_capabilities`: the blocks that this node retains. Of an upstream's chain, older blocks than these
    /// may be answered by the upstream, whose own capabilities tell.
    pub fn capabilities(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        let published = run.published;
        let (states, bodies) = (published.retained_states(), published.retained_bodies());
        json::retained(&mut run.out, published.head(), states, bodies);
        Ok(())
    }

    /// Answers `web3_sha3`: the Keccak-256 hash of the given bytes.
    pub fn sha3(&self, run: &mut Run<'_>, bytes: Bytes) -> Result<()> {
        json::data(&mut run.out, keccak256(bytes).as_slice());
        Ok(())
    }

    /// Answers `presim_snapshot`: the newest snapshot, its age, and the state of its feed.
    pub fn snapshot(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
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
    pub fn divergences(&self, run: &mut Run<'_>, (): ()) -> Result<()> {
        json::divergences(&mut run.out, &self.divergences.newest_first());
        Ok(())
    }
}
