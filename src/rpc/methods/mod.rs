//! The methods: which there are, where each runs, and what each answers.

mod block;
mod bundle;
mod estimate;
mod fee;
mod filter;
mod log;
mod many;
mod run;
mod send;
mod state;
mod trace;
mod wallet;

pub use send::{Awaited, SyncTimeouts};
pub use wallet::Admitted;

use std::sync::Arc;

use alloy_primitives::{U256, keccak256};

use super::{
    dialect::Dialect,
    discover, encode,
    error::RpcError,
    filters::Filters,
    wire::{self, HashParam, SelectorParam, ShapeLimits},
};
use crate::{
    chain::ChainSpec,
    engine::{Engine, Rules},
    executor::LaneName,
    feed::pool::Pool,
    state::{Block, CodeCache, KnownBlock, Meter, Overlay, Published, Selector, Snapshot, Stopped},
    store::Commit,
    wallet::Wallet,
};

/// Where a method runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Right where the request was read: it is a look-up.
    Here,
    /// First where the request was read, in a small bound; past it, on a lane.
    HereThen(LaneName),
    /// On a lane.
    On(LaneName),
    /// On the connection that it came over: it is about what that is told.
    Connection,
    /// On a lane; then its client waits for a receipt, and no worker does.
    OnThenWait(LaneName),
    /// On a lane; then, where that is the policy, its client waits for somebody to approve it, and it goes on there.
    OnThenAsk(LaneName),
}

/// Makes the enum of methods, a line each: its name on the wire, and where it runs.
macro_rules! methods {
    ($($variant:ident $name:literal $place:expr;)*) => {
        /// A method.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Method {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl Method {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The method of this name.
            pub fn by_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Where it runs.
            pub const fn place(self) -> Place {
                match self {
                    $(Self::$variant => $place,)*
                }
            }
        }
    };
}

use LaneName::{Bundle, Short};
use Place::{Connection, Here, HereThen, On, OnThenAsk, OnThenWait};

methods! {
    // Runs.
    Call "eth_call" HereThen(Short);
    // A small one ends before it could be handed over.
    Simulate "eth_simulateV1" HereThen(Bundle);
    // Many runs of a call: between two of them short calls may pass.
    EstimateGas "eth_estimateGas" On(Bundle);
    CreateAccessList "eth_createAccessList" On(Bundle);
    CallBundle "eth_callBundle" On(Bundle);
    CallMany "eth_callMany" On(Bundle);
    TraceCall "debug_traceCall" On(Bundle);
    TraceCallMany "debug_traceCallMany" On(Bundle);
    // State.
    GetBalance "eth_getBalance" Here;
    GetStorageAt "eth_getStorageAt" Here;
    GetStorageValues "eth_getStorageValues" Here;
    GetTransactionCount "eth_getTransactionCount" Here;
    GetCode "eth_getCode" Here;
    // Hashes what nobody has asked for yet.
    GetProof "eth_getProof" On(Short);
    // Blocks, and what is in them. Their answers are long, and the block being built is hashed for the first who asks.
    BlockNumber "eth_blockNumber" Here;
    GetBlockByNumber "eth_getBlockByNumber" On(Short);
    GetBlockByHash "eth_getBlockByHash" On(Short);
    GetBlockTransactionCountByNumber "eth_getBlockTransactionCountByNumber" On(Short);
    GetBlockTransactionCountByHash "eth_getBlockTransactionCountByHash" On(Short);
    GetUncleCountByBlockNumber "eth_getUncleCountByBlockNumber" On(Short);
    GetUncleCountByBlockHash "eth_getUncleCountByBlockHash" On(Short);
    GetBlockReceipts "eth_getBlockReceipts" On(Short);
    GetTransactionByHash "eth_getTransactionByHash" On(Short);
    GetTransactionByBlockNumberAndIndex "eth_getTransactionByBlockNumberAndIndex" On(Short);
    GetTransactionByBlockHashAndIndex "eth_getTransactionByBlockHashAndIndex" On(Short);
    GetTransactionReceipt "eth_getTransactionReceipt" On(Short);
    GetLogs "eth_getLogs" On(Short);
    // Fees.
    GasPrice "eth_gasPrice" On(Short);
    MaxPriorityFeePerGas "eth_maxPriorityFeePerGas" On(Short);
    BaseFee "eth_baseFee" Here;
    BlobBaseFee "eth_blobBaseFee" Here;
    FeeHistory "eth_feeHistory" On(Short);
    // Filters, for clients that cannot subscribe.
    NewFilter "eth_newFilter" Here;
    NewBlockFilter "eth_newBlockFilter" Here;
    NewPendingTransactionFilter "eth_newPendingTransactionFilter" Here;
    GetFilterChanges "eth_getFilterChanges" On(Short);
    GetFilterLogs "eth_getFilterLogs" On(Short);
    UninstallFilter "eth_uninstallFilter" Here;
    // Subscriptions.
    Subscribe "eth_subscribe" Connection;
    Unsubscribe "eth_unsubscribe" Connection;
    // Sending. Signatures and blob proofs are worked out.
    SendRawTransaction "eth_sendRawTransaction" On(Short);
    SendRawTransactionSync "eth_sendRawTransactionSync" OnThenWait(Short);
    SendTransaction "eth_sendTransaction" On(Short);
    Accounts "eth_accounts" Here;
    // The wallet. A batch is simulated, and its calls may be many.
    SendCalls "wallet_sendCalls" OnThenAsk(Bundle);
    GetCallsStatus "wallet_getCallsStatus" On(Short);
    ShowCallsStatus "wallet_showCallsStatus" On(Short);
    GetCapabilities "wallet_getCapabilities" On(Short);
    // The node and its chain.
    ChainId "eth_chainId" Here;
    NetVersion "net_version" Here;
    NetListening "net_listening" Here;
    NetPeerCount "net_peerCount" Here;
    Syncing "eth_syncing" Here;
    ForkConfig "eth_config" Here;
    ClientVersion "web3_clientVersion" Here;
    Sha3 "web3_sha3" On(Short);
    Snapshot "presim_snapshot" Here;
    Discover "rpc.discover" Here;
}

impl Method {
    /// Whether it commits something, so that its answer must not be lost.
    pub const fn commits(self) -> bool {
        matches!(
            self,
            Self::SendRawTransaction | Self::SendRawTransactionSync | Self::SendTransaction | Self::SendCalls
        )
    }

    /// Whether it is about blocks and what is in them: of those that presim does not have, another node may know.
    pub const fn is_history(self) -> bool {
        matches!(
            self,
            Self::GetBlockByNumber
                | Self::GetBlockByHash
                | Self::GetBlockTransactionCountByNumber
                | Self::GetBlockTransactionCountByHash
                | Self::GetUncleCountByBlockNumber
                | Self::GetUncleCountByBlockHash
                | Self::GetBlockReceipts
                | Self::GetTransactionByHash
                | Self::GetTransactionByBlockNumberAndIndex
                | Self::GetTransactionByBlockHashAndIndex
                | Self::GetTransactionReceipt
                | Self::GetLogs
                | Self::FeeHistory
        )
    }
}

/// What the methods answer from, besides the snapshot that a request brings along.
#[derive(Debug)]
pub struct Backend {
    /// The chain.
    pub spec: ChainSpec,
    /// Analysed bytecode.
    pub codes: Arc<CodeCache>,
    /// What was sent and is in no block yet.
    pub pool: Arc<Pool>,
    /// Signs for its accounts.
    pub wallet: Wallet,
    /// The filters that clients have installed.
    pub filters: Filters,
    /// Limits on requests.
    pub limits: RequestLimits,
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

/// Limits on a request and its answer.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Of its shape.
    pub shape: ShapeLimits,
    /// Gas for a whole request.
    pub gas_cap: u64,
    /// Blocks that one filter of logs may span.
    pub max_log_blocks: u64,
    /// Logs that one request may return.
    pub max_logs: usize,
    /// Bytes that the traces of a request may take while it runs.
    pub max_trace: usize,
    /// How long a request may wait for a receipt.
    pub sync: SyncTimeouts,
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
    /// Its client's name, where clients have names.
    pub client: Option<&'a str>,
    /// Whether its client may use the wallet.
    pub may_use_wallet: bool,
}

/// What a run is given: memory of its own, and bounds.
#[derive(Debug)]
struct Worker<'a> {
    overlay: &'a mut Overlay,
    meter: Meter,
}

impl<'a> Worker<'a> {
    /// The overlay over the state of `snapshot`, as long as the meter lets it.
    fn stand_on(self, snapshot: &Snapshot) -> &'a mut Overlay {
        self.overlay.reset(snapshot.world.clone(), snapshot.hashes.clone(), self.meter);
        self.overlay
    }

    /// The same for one of several runs.
    fn again(&mut self) -> Worker<'_> {
        Worker { overlay: &mut *self.overlay, meter: std::mem::take(&mut self.meter) }
    }

    /// Refuses to go on to what lasts, where a run has missed something: it runs again.
    fn be_complete(&self) -> Result<(), RpcError> {
        be_complete(self.overlay)
    }

    /// Leaves a request that is seen to be long, in a run that must be short, to a lane.
    fn give_up(self) -> RpcError {
        self.overlay.meter.stop(Stopped::TooLong);
        RpcError::from(Stopped::TooLong)
    }
}

impl Backend {
    /// Answers a method: the JSON of its result is appended to `out`. Runs in `overlay`, as long as `meter` lets it. The answer is not to go
    /// out before what it acknowledges is on the disk.
    pub fn answer(
        &self,
        method: Method,
        asked: Asked<'_>,
        overlay: &mut Overlay,
        mut meter: Meter,
        out: &mut Vec<u8>,
    ) -> Result<Commit, RpcError> {
        let Asked { params, dialect, .. } = asked;
        let mut commit = Commit::done();
        match method {
            Method::Call => self.call(asked, Worker { overlay, meter }, out)?,
            Method::Simulate => self.simulate(asked, Worker { overlay, meter }, out)?,
            Method::EstimateGas => self.estimate_gas(asked, Worker { overlay, meter }, out)?,
            Method::CreateAccessList => self.create_access_list(asked, Worker { overlay, meter }, out)?,
            Method::CallBundle => self.call_bundle(asked, Worker { overlay, meter }, out)?,
            Method::CallMany => self.call_many(asked, Worker { overlay, meter }, out)?,
            Method::TraceCall => self.trace_call(asked, Worker { overlay, meter }, out)?,
            Method::TraceCallMany => self.trace_call_many(asked, Worker { overlay, meter }, out)?,
            Method::GetBalance => self.get_balance(asked, overlay, out)?,
            Method::GetStorageAt => self.get_storage_at(asked, overlay, out)?,
            Method::GetStorageValues => self.get_storage_values(asked, overlay, out)?,
            Method::GetTransactionCount => self.get_transaction_count(asked, overlay, out)?,
            Method::GetCode => self.get_code(asked, overlay, out)?,
            Method::GetProof => self.get_proof(asked, out)?,
            Method::GetBlockByNumber => self.get_block::<SelectorParam>(asked, out)?,
            Method::GetBlockByHash => self.get_block::<HashParam>(asked, out)?,
            Method::GetBlockTransactionCountByNumber => self.get_count::<SelectorParam>(asked, out, Block::len)?,
            Method::GetBlockTransactionCountByHash => self.get_count::<HashParam>(asked, out, Block::len)?,
            Method::GetUncleCountByBlockNumber => {
                self.get_count::<SelectorParam>(asked, out, |block| block.ommers().len())?;
            }
            Method::GetUncleCountByBlockHash => {
                self.get_count::<HashParam>(asked, out, |block| block.ommers().len())?;
            }
            Method::GetBlockReceipts => self.get_block_receipts(asked, out)?,
            Method::GetTransactionByHash => self.get_transaction(asked, out)?,
            Method::GetTransactionByBlockNumberAndIndex => self.get_transaction_at::<SelectorParam>(asked, out)?,
            Method::GetTransactionByBlockHashAndIndex => self.get_transaction_at::<HashParam>(asked, out)?,
            Method::GetTransactionReceipt => self.get_transaction_receipt(asked, out)?,
            Method::NewFilter => self.new_filter(asked, out)?,
            Method::GetFilterChanges => self.get_filter_changes(asked, &mut meter, out)?,
            Method::GetFilterLogs => self.get_filter_logs(asked, &mut meter, out)?,
            Method::UninstallFilter => self.uninstall_filter(asked, out)?,
            Method::GetLogs => self.get_logs(asked, &mut meter, out)?,
            Method::FeeHistory => self.fee_history(asked, &mut meter, out)?,
            Method::SendRawTransaction => commit = self.send_raw(asked, out)?,
            Method::SendTransaction => commit = self.send_transaction(asked, Worker { overlay, meter }, out)?,
            Method::SendRawTransactionSync => {
                return Err(RpcError::internal("a receipt was to be waited for on a worker"));
            }
            Method::GetCallsStatus => self.get_calls_status(asked, overlay, out)?,
            Method::ShowCallsStatus => self.show_calls_status(asked, overlay, out)?,
            Method::GetCapabilities => self.get_capabilities(asked, overlay, out)?,
            Method::SendCalls => {
                return Err(RpcError::internal("a batch was to be taken without waiting for the disk"));
            }
            Method::Sha3 => sha3(asked, out)?,
            Method::Subscribe | Method::Unsubscribe => {
                return Err(RpcError::internal("a subscription was to be answered without its connection"));
            }
            Method::GasPrice
            | Method::MaxPriorityFeePerGas
            | Method::BaseFee
            | Method::BlobBaseFee
            | Method::NewBlockFilter
            | Method::NewPendingTransactionFilter
            | Method::BlockNumber
            | Method::Accounts
            | Method::ChainId
            | Method::NetVersion
            | Method::NetListening
            | Method::NetPeerCount
            | Method::Syncing
            | Method::ForkConfig
            | Method::ClientVersion
            | Method::Snapshot
            | Method::Discover => {
                wire::parse_none(params, dialect)?;
                self.answer_plain(method, asked, out)?;
            }
        }
        if out.len() > self.limits.max_response {
            return Err(encode::too_long(self.limits.max_response));
        }
        Ok(commit)
    }

    /// Answers a method without parameters.
    fn answer_plain(&self, method: Method, asked: Asked<'_>, out: &mut Vec<u8>) -> Result<(), RpcError> {
        let published = asked.published;
        match method {
            Method::GasPrice => self.gas_price(published, out),
            Method::MaxPriorityFeePerGas => encode::quantity_u256(out, U256::from(self.wallet.fees.tip(published))),
            Method::BaseFee => self.base_fee(published, out),
            Method::BlobBaseFee => self.blob_base_fee(published, out),
            Method::NewBlockFilter => self.new_block_filter(asked, out),
            Method::NewPendingTransactionFilter => self.new_pending_filter(asked, out),
            Method::BlockNumber => encode::quantity(out, published.head().number()),
            Method::Accounts => self.accounts(out),
            Method::ChainId => encode::quantity(out, self.spec.chain_id()),
            Method::NetVersion => encode::string(out, &self.spec.chain_id().to_string()),
            Method::NetListening => out.extend_from_slice(b"true"),
            // presim follows a feed, and no peers.
            Method::NetPeerCount => encode::quantity(out, 0),
            Method::Syncing => out.extend_from_slice(b"false"),
            Method::ForkConfig => return self.fork_config(published, out),
            Method::ClientVersion => encode::string(out, concat!("presim/v", env!("CARGO_PKG_VERSION"))),
            Method::Snapshot => snapshot(published, out),
            Method::Discover => out.extend_from_slice(discover::DOCUMENT.as_bytes()),
            _ => return Err(RpcError::internal("a method with parameters was answered without them")),
        }
        Ok(())
    }

    /// `eth_config` (EIP-7910).
    fn fork_config(&self, published: &Published, out: &mut Vec<u8>) -> Result<(), RpcError> {
        let genesis = published.find(Selector::Earliest)?;
        let config = genesis.and_then(|genesis| {
            let (header, hash) = (genesis.header().inner(), genesis.header().hash());
            self.spec.fork_config(header, hash, &published.head().header)
        });
        let config = config
            .ok_or_else(|| RpcError::new(-32000, "eth_config begins with Cancun, and the chain has not come there"))?;
        encode::value(out, &config);
        Ok(())
    }

    /// The snapshot that `selector` names.
    fn select(&self, published: &Published, selector: Selector) -> Result<Arc<Snapshot>, RpcError> {
        self.admit(published, selector)?;
        Ok(published.select(selector)?)
    }

    /// Refuses `pending` while the feed is broken, where that was asked for.
    fn admit(&self, published: &Published, selector: Selector) -> Result<(), RpcError> {
        if self.strict_pending
            && selector == Selector::Pending
            && let Some(problem) = published.feed.problem()
        {
            return Err(RpcError::new(
                -32000,
                format!(
                    "pending is refused: the feed is broken ({}: {}), and --strict-pending is set",
                    problem.as_str(),
                    problem.meaning()
                ),
            ));
        }
        Ok(())
    }

    /// The block that `selector` names, if there is one, by its header at least.
    fn find(&self, published: &Published, selector: Selector) -> Result<Option<KnownBlock>, RpcError> {
        self.admit(published, selector)?;
        Ok(published.find(selector)?)
    }

    /// The block that `selector` names, if there is one.
    fn block(&self, published: &Published, selector: Selector) -> Result<Option<Block>, RpcError> {
        self.admit(published, selector)?;
        Ok(published.block(selector)?)
    }

    /// What runs in `overlay`, under `rules`, go by.
    fn engine<'a>(&'a self, rules: &'a Rules, overlay: &'a mut Overlay) -> Engine<'a> {
        Engine { spec: &self.spec, rules, codes: &self.codes, overlay }
    }

    fn rules(&self, dialect: &Dialect) -> Rules {
        Rules {
            base_fee: dialect.base_fee,
            block_time: (dialect.block_time)(&self.spec),
            state_roots: dialect.state_roots,
            gas_cap: self.limits.gas_cap,
            max_blocks: self.limits.shape.max_blocks as u64,
            estimate_tolerance: dialect.estimate_tolerance,
        }
    }
}

/// Refuses to go on to what lasts, where runs in `overlay` have missed something. Nobody sees the error: the request runs again.
fn be_complete(overlay: &Overlay) -> Result<(), RpcError> {
    if overlay.has_missed() { Err(RpcError::new(-32603, "the state is not complete")) } else { Ok(()) }
}

/// `web3_sha3`: the Keccak-256 hash of some bytes.
fn sha3(asked: Asked<'_>, out: &mut Vec<u8>) -> Result<(), RpcError> {
    let bytes = wire::parse_bytes(asked.params, asked.dialect)?;
    encode::data(out, keccak256(bytes).as_slice());
    Ok(())
}

/// `presim_snapshot`: the newest snapshot, how old it is, and how its feed is.
fn snapshot(published: &Published, out: &mut Vec<u8>) {
    use std::io::Write;
    let newest = &published.newest;
    // Writing to memory cannot fail.
    let _ = write!(
        out,
        r#"{{"id":"{:#x}","blockNumber":"{:#x}","index":"{:#x}","ageMs":{},"head":{{"number":"{:#x}","hash":"{}"}},"feed":"{}""#,
        newest.id.0,
        newest.header().number,
        newest.index(),
        newest.published.elapsed().as_millis(),
        published.head().number(),
        published.head().hash(),
        published.feed.as_str(),
    );
    if let Some(problem) = published.feed.problem() {
        let _ = write!(out, r#","reason":"{}""#, problem.as_str());
    }
    out.push(b'}');
}
