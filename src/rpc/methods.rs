//! The methods: which there are, which lane each runs on, and what each answers.

use std::sync::Arc;

use alloy_primitives::Bytes;
use revm::context::result::ExecutionResult;

use super::{
    dialect::Dialect,
    discover, encode,
    error::RpcError,
    wire::{self, ShapeLimits},
};
use crate::{
    chain::ChainSpec,
    engine::{self, HaltText, Rules},
    executor::LaneName,
    state::{CodeCache, FeedState, Meter, Overlay, Published, Selector, Snapshot},
};

/// A method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `eth_call`
    Call,
    /// `eth_simulateV1`
    Simulate,
    /// `eth_getCode`
    GetCode,
    /// `eth_chainId`
    ChainId,
    /// `eth_blockNumber`
    BlockNumber,
    /// `net_version`
    NetVersion,
    /// `web3_clientVersion`
    ClientVersion,
    /// `presim_snapshot`
    Snapshot,
    /// `rpc.discover`
    Discover,
}

/// Where a method runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Right where the request was read: it is a look-up.
    Here,
    /// First where the request was read, in a small bound; past it, on a lane.
    HereThen(LaneName),
    /// On a lane.
    On(LaneName),
}

impl Method {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Call,
        Self::Simulate,
        Self::GetCode,
        Self::ChainId,
        Self::BlockNumber,
        Self::NetVersion,
        Self::ClientVersion,
        Self::Snapshot,
        Self::Discover,
    ];

    /// The method of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Call => "eth_call",
            Self::Simulate => "eth_simulateV1",
            Self::GetCode => "eth_getCode",
            Self::ChainId => "eth_chainId",
            Self::BlockNumber => "eth_blockNumber",
            Self::NetVersion => "net_version",
            Self::ClientVersion => "web3_clientVersion",
            Self::Snapshot => "presim_snapshot",
            Self::Discover => "rpc.discover",
        }
    }

    /// Where it runs.
    pub const fn place(self) -> Place {
        match self {
            Self::Call => Place::HereThen(LaneName::Short),
            Self::Simulate => Place::On(LaneName::Bundle),
            _ => Place::Here,
        }
    }
}

/// What the methods answer from, besides the snapshot that a request brings along.
#[derive(Debug)]
pub struct Backend {
    /// The chain.
    pub spec: ChainSpec,
    /// Analysed bytecode.
    pub codes: Arc<CodeCache>,
    /// Limits on simulations.
    pub limits: SimulationLimits,
    /// Refuse `pending` while the feed is broken.
    pub strict_pending: bool,
    /// Gas simulated, for the metrics.
    pub gas: GasCounter,
}

/// Counts simulated gas.
pub struct GasCounter(pub metrics::Counter);

impl std::fmt::Debug for GasCounter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GasCounter")
    }
}

/// Limits on a simulation and its answer.
#[derive(Clone, Copy, Debug)]
pub struct SimulationLimits {
    /// Of its shape.
    pub shape: ShapeLimits,
    /// Gas for a whole request.
    pub gas_cap: u64,
    /// Bytes of an answer.
    pub max_response: usize,
}

/// What a request asks, and of what.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The parameters, as JSON.
    pub params: &'a str,
    /// What was published when it arrived.
    pub published: &'a Published,
    /// How its client speaks.
    pub dialect: &'a Dialect,
}

impl Backend {
    /// Answers a method: the JSON of its result is appended to `out`. Runs in `overlay`, as long as `meter` lets it.
    pub fn answer(
        &self,
        method: Method,
        asked: Asked<'_>,
        overlay: &mut Overlay,
        meter: Meter,
        out: &mut Vec<u8>,
    ) -> Result<(), RpcError> {
        let Asked { params, published, dialect } = asked;
        match method {
            Method::Call => self.call(asked, overlay, meter, out)?,
            Method::Simulate => self.simulate(asked, overlay, meter, out)?,
            Method::GetCode => self.get_code(asked, out)?,
            Method::Snapshot => {
                wire::parse_none(params, dialect)?;
                snapshot(published, out);
            }
            Method::ChainId => {
                wire::parse_none(params, dialect)?;
                encode::quantity(out, self.spec.chain_id());
            }
            Method::BlockNumber => {
                wire::parse_none(params, dialect)?;
                encode::quantity(out, published.newest.head.number());
            }
            Method::NetVersion => {
                wire::parse_none(params, dialect)?;
                encode::string(out, &self.spec.chain_id().to_string());
            }
            Method::ClientVersion => {
                wire::parse_none(params, dialect)?;
                encode::string(out, concat!("presim/v", env!("CARGO_PKG_VERSION")));
            }
            Method::Discover => {
                wire::parse_none(params, dialect)?;
                out.extend_from_slice(discover::DOCUMENT.as_bytes());
            }
        }
        if out.len() > self.limits.max_response {
            return Err(encode::too_long(self.limits.max_response));
        }
        Ok(())
    }

    fn call(&self, asked: Asked<'_>, overlay: &mut Overlay, meter: Meter, out: &mut Vec<u8>) -> Result<(), RpcError> {
        let Asked { params, published, dialect } = asked;
        let (request, selector) = wire::parse_call(params, dialect)?;
        let snapshot = self.select(published, selector)?;
        overlay.reset(snapshot.world.clone(), snapshot.hashes.clone(), meter);
        let rules = self.rules(dialect);
        let result = engine::call(&self.spec, &snapshot, &request, &rules, &self.codes, overlay)
            .map_err(|error| RpcError::from(error).outside_simulation())?;
        self.gas.0.increment(result.tx_gas_used());
        match result {
            ExecutionResult::Success { output, .. } => {
                encode::data(out, output.data());
                Ok(())
            }
            ExecutionResult::Revert { output, .. } => Err((dialect.revert)(output)),
            ExecutionResult::Halt { reason, .. } => Err((dialect.halt)(HaltText(reason).to_string())),
        }
    }

    fn simulate(
        &self,
        asked: Asked<'_>,
        overlay: &mut Overlay,
        meter: Meter,
        out: &mut Vec<u8>,
    ) -> Result<(), RpcError> {
        let Asked { params, published, dialect } = asked;
        let (simulation, selector, full_transactions) = wire::parse_simulation(params, dialect, &self.limits.shape)?;
        let snapshot = self.select(published, selector)?;
        overlay.reset(snapshot.world.clone(), snapshot.hashes.clone(), meter);
        let rules = self.rules(dialect);
        let blocks = engine::simulate(&self.spec, &snapshot, &simulation, &rules, &self.codes, overlay)?;
        self.gas.0.increment(blocks.iter().map(|block| block.header.gas_used).sum());
        encode::simulation(out, &blocks, dialect, full_transactions, self.limits.max_response)
    }

    fn get_code(&self, asked: Asked<'_>, out: &mut Vec<u8>) -> Result<(), RpcError> {
        let Asked { params, published, dialect } = asked;
        let (address, selector) = wire::parse_address(params, dialect)?;
        let snapshot = self.select(published, selector)?;
        let code =
            snapshot.world.account(&address).map_or_else(Bytes::new, |account| account.code.bytecode.original_bytes());
        encode::data(out, &code);
        Ok(())
    }

    fn select(&self, published: &Published, selector: Selector) -> Result<Arc<Snapshot>, RpcError> {
        if self.strict_pending && selector == Selector::Pending && published.feed == FeedState::Degraded {
            return Err(RpcError::new(-32000, "pending is refused: the feed is broken, and --strict-pending is set"));
        }
        Ok(published.select(selector)?)
    }

    fn rules(&self, dialect: &Dialect) -> Rules {
        Rules {
            base_fee: dialect.base_fee,
            block_time: (dialect.block_time)(&self.spec),
            state_roots: dialect.state_roots,
            gas_cap: self.limits.gas_cap,
            max_blocks: self.limits.shape.max_blocks as u64,
        }
    }
}

/// `presim_snapshot`: the newest snapshot, how old it is, and how its feed is.
fn snapshot(published: &Published, out: &mut Vec<u8>) {
    use std::io::Write;
    let newest = &published.newest;
    // Writing to memory cannot fail.
    let _ = write!(
        out,
        r#"{{"id":"{:#x}","blockNumber":"{:#x}","index":"{:#x}","ageMs":{},"head":{{"number":"{:#x}","hash":"{}"}},"feed":"{}"}}"#,
        newest.id.0,
        newest.header().number,
        newest.index(),
        newest.published.elapsed().as_millis(),
        newest.head.number(),
        newest.head_hash(),
        published.feed.as_str(),
    );
}
