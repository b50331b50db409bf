//! Log filters: blocks, addresses and topics.

use std::borrow::Cow;

use alloy_consensus::TxReceipt;
use alloy_primitives::{Address, B256, Bloom, Log};
use alloy_rpc_types_eth::Filter;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};

use super::{SelectorParam, select};
use crate::{
    chain::SealedBlock,
    ledger::{Block, Selector},
    rpc::{
        json::{TxPosition, hex::Fixed},
        protocol::error::{Result, RpcError},
    },
};

/// Maximum number of addresses in a filter, and of alternatives for one topic, as in geth.
const MAX_ALTERNATIVES: usize = 1000;
/// Maximum number of topics of a log.
const TOPICS: usize = 4;

/// A filter object of `eth_getLogs`, `eth_newFilter` or a subscription.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "LogFilter")]
pub struct FilterParam {
    from_block: Option<SelectorParam>,
    to_block: Option<SelectorParam>,
    block_hash: Option<Fixed<32>>,
    address: Option<OneOrMany<20>>,
    /// The topics by their position. Null matches any topic.
    #[schemars(length(max = 4))]
    topics: Option<Vec<Option<OneOrMany<32>>>>,
}

/// One value in a list of alternatives. Null matches any value, as in geth.
type Alternative<const N: usize> = Option<Fixed<N>>;

/// One value or a list of alternatives.
#[derive(Debug)]
pub struct OneOrMany<const N: usize>(Vec<Alternative<N>>);

/// A filter of logs by their addresses and topics.
#[derive(Clone, Debug, Default)]
pub struct LogFilter {
    /// The addresses, and the topics at each position. An empty set matches all.
    filter: Filter,
    /// Minimum number of topics of a log. As in geth, positions that match any topic count too.
    topics: usize,
}

impl LogFilter {
    /// Returns whether a log matches.
    pub fn matches(&self, log: &Log) -> bool {
        self.topics <= log.topics().len() && self.filter.matches(log)
    }

    /// Returns whether the logs of a bloom may include one that matches.
    pub fn matches_bloom(&self, bloom: Bloom) -> bool {
        self.filter.matches_bloom(bloom)
    }

    /// Returns the matching logs of a block's transactions from the index `start` on, each with its position and its index
    /// in the block. The blooms of the block and of each receipt are checked first.
    pub fn logs_in<'a>(
        &'a self,
        block: &'a Block,
        start: usize,
    ) -> impl Iterator<Item = (TxPosition<'a>, u64, &'a Log)> {
        // The bloom of a block being built would need all its receipts, but each receipt's bloom is available.
        let may_match = block.is_open() || self.matches_bloom(block.header().logs_bloom);
        let transactions = may_match.then(|| block.transactions_from(start)).into_iter().flatten();
        transactions.filter(|included| self.matches_bloom(included.receipt.bloom())).flat_map(move |included| {
            let mut position = None;
            let logs = included.receipt.logs().iter().zip(included.first_log..);
            // Only a log that matches takes the hash of the block.
            logs.filter(|(log, _)| self.matches(log)).map(move |(log, index)| {
                (*position.get_or_insert_with(|| TxPosition::of(block, &included)), index, log)
            })
        })
    }

    /// Returns the matching logs of a block whose transactions are not known, as [`logs_in`](Self::logs_in) does.
    pub fn logs_alone_in<'a>(&'a self, block: &'a SealedBlock) -> impl Iterator<Item = (TxPosition<'a>, u64, &'a Log)> {
        let may_match = self.matches_bloom(block.header.logs_bloom);
        let logs = may_match.then(|| TxPosition::of_logs_alone(block)).into_iter().flatten();
        logs.filter(|(.., log)| self.matches(log))
    }
}

/// The blocks that are searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogRange {
    /// One block, by its hash.
    Block(B256),
    /// The blocks from the first selector to the second, both included.
    Range(Selector, Selector),
}

impl OneOrMany<20> {
    /// Returns the addresses. Errors name `path`.
    pub fn addresses(self, path: &str) -> Result<Vec<Address>> {
        bound(self.0.len(), path)?;
        if let Some(index) = self.0.iter().position(Option::is_none) {
            return Err(RpcError::params(format!("{path}[{index}]: null: expected an address")));
        }
        Ok(self.0.into_iter().flatten().map(Address::from).collect())
    }
}

impl FilterParam {
    /// Returns the blocks that the filter searches.
    pub fn range(&self) -> Result<LogRange> {
        match (self.block_hash, self.from_block, self.to_block) {
            (Some(hash), None, None) => Ok(LogRange::Block(hash.into())),
            (Some(_), ..) => Err(RpcError::params(
                "params[0].blockHash: given together with fromBlock or toBlock: expected either a hash or a range",
            )),
            (None, from, to) => Ok(LogRange::Range(select(from), select(to))),
        }
    }

    /// Converts to a filter for logs of any block. Errors name fields of `path`.
    pub fn into_filter(self, path: &str) -> Result<LogFilter> {
        let addresses = self.address.map(|list| list.addresses(&format!("{path}.address")));
        let addresses = addresses.transpose()?.unwrap_or_default();
        let topics = self.topics.unwrap_or_default();
        if topics.len() > TOPICS {
            return Err(RpcError::params(format!(
                "{path}.topics: {} topics: a log has at most {TOPICS}",
                topics.len()
            )));
        }
        let count = topics.len();
        let mut filter = Filter::new().address(addresses);
        for (index, alternatives) in topics.into_iter().enumerate() {
            let alternatives = alternatives.map_or_else(Vec::new, |list| list.0);
            bound(alternatives.len(), &format!("{path}.topics[{index}]"))?;
            let alternatives: Option<Vec<B256>> = alternatives.into_iter().map(|topic| topic.map(B256::from)).collect();
            filter.topics[index] = alternatives.unwrap_or_default().into();
        }
        Ok(LogFilter { filter, topics: count })
    }

    /// Returns whether the filter names blocks, which has no meaning in a subscription.
    pub const fn names_blocks(&self) -> bool {
        self.from_block.is_some() || self.to_block.is_some() || self.block_hash.is_some()
    }
}

fn bound(count: usize, path: &str) -> Result<()> {
    if count > MAX_ALTERNATIVES {
        return Err(RpcError::params(format!("{path}: too many: {count}, at most {MAX_ALTERNATIVES}")));
    }
    Ok(())
}

impl<const N: usize> JsonSchema for OneOrMany<N>
where
    Fixed<N>: JsonSchema,
{
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "OneOrMany".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<Fixed<N>>();
        // An address cannot be null.
        let item = if N == 20 { one.clone() } else { generator.subschema_for::<Alternative<N>>() };
        json_schema!({"anyOf": [one, {"type": "array", "items": item, "maxItems": MAX_ALTERNATIVES}]})
    }
}

impl<'de, const N: usize> Deserialize<'de> for OneOrMany<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor<const N: usize>;

        impl<'de, const N: usize> serde::de::Visitor<'de> for ListVisitor<N> {
            type Value = OneOrMany<N>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{N} bytes in hex, or a list of them")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Fixed::deserialize(serde::de::value::StrDeserializer::new(text)).map(|one| OneOrMany(vec![Some(one)]))
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(serde::de::value::SeqAccessDeserializer::new(seq)).map(OneOrMany)
            }
        }

        deserializer.deserialize_any(ListVisitor)
    }
}
