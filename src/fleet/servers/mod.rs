//! A fleet: its names, its connection to NATS, and the facts that its nodes know about its chain.

mod error;
mod identity;
mod link;
mod metrics;
mod nats;
mod parts;
mod port;

use alloy_genesis::ChainConfig;
use alloy_primitives::{Address, B256};
use serde::{Deserialize, Serialize};

pub use self::{
    error::FleetError,
    identity::NodeIdentity,
    link::{FleetLink, fleets},
    metrics::{FleetMetrics, FleetRole},
    parts::{ArrivedPart, headers},
    port::{
        ACK_TIMEOUT, Arrivals, Bucket, BucketEntry, FleetPort, PartAck, REPLY_TIMEOUT, REQUEST_TIMEOUT, ShortMessage,
        StreamEnds, StreamEntry, Topic,
    },
};
use crate::{chain::ChainSpec, ledger::codec::VERSION};

/// The names of a fleet's subjects, its stream and its buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetNames {
    /// The name of the fleet.
    pub fleet: String,
}

impl FleetNames {
    /// Returns the default name of the fleet of a chain: its id, and the beginning of its genesis hash.
    pub fn of_chain(chain_id: u64, genesis: B256) -> Self {
        Self { fleet: format!("{chain_id}-{}", const_hex::encode(&genesis[..4])) }
    }

    /// Returns the name of the stream.
    pub fn stream(&self) -> String {
        format!("presim_{}", self.fleet)
    }

    /// Returns the subject of a topic.
    pub fn subject(&self, topic: Topic) -> String {
        format!("presim.{}.{}", self.fleet, <&str>::from(topic))
    }

    /// Returns the name of a key-value bucket.
    pub fn bucket(&self, bucket: Bucket) -> String {
        match bucket {
            Bucket::Facts => format!("presim_{}", self.fleet),
            Bucket::Lease => format!("presim_{}_lease", self.fleet),
        }
    }

    /// Returns the bucket with the images.
    pub fn images(&self) -> String {
        format!("presim_{}_images", self.fleet)
    }
}

/// The facts about its chain that the nodes of a fleet know, except its state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FleetChain {
    /// The version of the codec.
    pub version: u8,
    /// The hash of the genesis block.
    pub genesis: B256,
    /// The geth-format `config` with the chain's forks.
    pub config: ChainConfig,
    /// Milliseconds between blocks, for simulations of several.
    pub block_time_ms: u64,
    /// The contract that wraps the native currency, if it is known.
    pub wrapper: Option<Address>,
    /// Contracts that presim cannot execute, in addition to the chain's own.
    pub natives: Vec<Address>,
}

impl FleetChain {
    /// The key of the chain in the bucket of facts.
    pub const KEY: &str = "chain";

    /// Describes a chain with these rules, on which the contracts `natives` cannot be executed.
    pub fn of(spec: &ChainSpec, genesis: B256, natives: Vec<Address>) -> Self {
        Self {
            version: VERSION,
            genesis,
            config: spec.config().clone(),
            block_time_ms: u64::try_from(spec.block_time().as_millis()).unwrap_or(u64::MAX),
            wrapper: spec.wrapper(),
            natives,
        }
    }

    /// Returns whether the other is the same chain with the same rules.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.config, self.block_time_ms, self.genesis) == (&other.config, other.block_time_ms, other.genesis)
    }

    /// Returns the chain's id and genesis, for people.
    pub fn name(&self) -> String {
        format!("{} of genesis {}", self.config.chain_id, self.genesis)
    }
}

/// The newest complete image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageKey {
    /// The name of the image in its bucket.
    pub name: String,
    /// The id of the last change in the image.
    pub id: u64,
    /// The sequence in the stream of that change.
    pub sequence: u64,
    /// The bytes of the image.
    pub bytes: u64,
    /// The time at which the image's newest snapshot was published, on the clock of the leader that wrote the image.
    pub dated: u64,
}

impl ImageKey {
    /// The key of the newest image in the bucket of facts.
    pub const KEY: &str = "image";
}

/// The key of the [`NodeIdentity`] that has the wallet, in the bucket of facts.
pub const WALLET_KEY: &str = "wallet";

/// The key of the last epoch in the bucket of facts.
pub const EPOCH_KEY: &str = "epoch";
