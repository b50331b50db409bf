//! The parameters of `mev_simBundle`: a bundle in MEV-Share's format, of signed transactions and of further bundles.
//! Its source is <https://github.com/flashbots/mev-share/blob/main/specs/bundles/v0.1.md>.

use std::ops::RangeInclusive;

use alloy_primitives::{Address, B256};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::{
    engine::{BlockOverrides, CallIndex, Conditions, Outputs, RequiredEnd, SimBlock, SimCall, Simulation},
    ledger::Selector,
    rpc::{
        json::hex::{Data, Fixed, Number},
        params::{SelectorParam, ShapeLimits, add_aliases, transaction},
        protocol::error::{Result, RpcError},
    },
    shown,
};

/// Maximum number of bundles within bundles, as in Flashbots' builder.
const MAX_NESTED: usize = 5;
/// The versions of MEV-Share's API, which have the same bundles.
const VERSIONS: [&str; 2] = ["v0.1", "beta-1"];

/// Runs a bundle of MEV-Share in one block, and returns its producer's profit and its refunds.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 or 2 parameters: the bundle, and the block in which it runs")]
pub struct SimBundle {
    bundle: MevBundleParam,
    #[serde(default)]
    block: Option<SimBundleBlockParam>,
}

/// A bundle of MEV-Share.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "MevBundle")]
#[serde(rename_all = "camelCase")]
struct MevBundleParam {
    /// v0.1 or beta-1.
    version: String,
    inclusion: InclusionParam,
    /// Signed transactions, and bundles, in order. A transaction that cannot revert breaks the bundle if it does.
    #[schemars(length(min = 1))]
    body: Vec<MevItemParam>,
    validity: Option<ValidityParam>,
    /// Has no effect: it is meant for services that share a bundle.
    #[serde(rename = "privacy")]
    #[schemars(with = "Option<Value>")]
    _privacy: Option<Box<RawValue>>,
    /// Has no effect: it is meant for services that share a bundle.
    #[serde(rename = "metadata")]
    #[schemars(with = "Option<Value>")]
    _metadata: Option<Box<RawValue>>,
}

/// The blocks that may include a bundle.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Inclusion")]
#[serde(rename_all = "camelCase")]
struct InclusionParam {
    block: Number<u64>,
    max_block: Option<Number<u64>>,
}

/// An item of a bundle, which has one of the fields `tx`, `bundle` and `hash`.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "MevItem")]
#[serde(rename_all = "camelCase")]
struct MevItemParam {
    tx: Option<Data>,
    bundle: Option<Box<MevBundleParam>>,
    /// Rejected: only MEV-Share knows the transaction with this hash.
    hash: Option<Fixed<32>>,
    can_revert: Option<bool>,
}

/// The refunds of a bundle.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "Validity")]
#[serde(rename_all = "camelCase")]
struct ValidityParam {
    refund: Option<Vec<RefundParam>>,
    refund_config: Option<Vec<RecipientParam>>,
}

/// The refund to the owner of an item.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Refund")]
#[serde(rename_all = "camelCase")]
struct RefundParam {
    body_idx: usize,
    #[schemars(range(max = 100))]
    percent: u8,
}

/// An address to which a bundle around this one refunds.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "RefundRecipient")]
struct RecipientParam {
    #[serde(rename = "address")]
    _address: Fixed<20>,
    #[schemars(range(max = 100))]
    percent: u8,
}

/// The block in which a bundle runs, under the names of Flashbots and of alloy.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "SimBundleBlock", transform = add_aliases(&[
    ("blockNumber", "number"), ("coinbase", "feeRecipient"), ("timestamp", "time"), ("baseFee", "baseFeePerGas"),
]))]
#[serde(rename_all = "camelCase")]
struct SimBundleBlockParam {
    /// The block on which the bundle runs; latest by default.
    parent_block: Option<SelectorParam>,
    #[serde(alias = "number")]
    block_number: Option<Number<u64>>,
    #[serde(alias = "feeRecipient")]
    coinbase: Option<Fixed<20>>,
    #[serde(alias = "time")]
    timestamp: Option<Number<u64>>,
    gas_limit: Option<Number<u64>>,
    #[serde(alias = "baseFeePerGas")]
    base_fee: Option<Number<u64>>,
    /// Milliseconds.
    timeout: Option<Number<u64>>,
}

/// The parsed parameters of `mev_simBundle`.
#[derive(Debug)]
pub struct SimBundleRequest {
    /// The bundle.
    pub bundle: MevBundle,
    /// The bundle's transactions, in the order in which they run, in one block.
    pub simulation: Simulation,
    /// The block whose state the bundle runs on.
    pub parent: Selector,
    /// The client's time limit in milliseconds. `None` and zero leave the node's own limit.
    pub timeout: Option<u64>,
}

/// A bundle that may contain bundles, and that may refund a part of its profit.
#[derive(Debug)]
pub struct MevBundle {
    /// The blocks that may include the bundle.
    pub blocks: RangeInclusive<u64>,
    /// The items, in order.
    pub items: Vec<MevItem>,
    /// The number of addresses to which a bundle around this one refunds.
    pub recipients: u64,
}

/// An item of a bundle.
#[derive(Debug)]
pub struct MevItem {
    /// The item's transactions.
    pub part: MevPart,
    /// The percentage of the bundle's refundable value that the item's owner gets. `None` if the item gets no refund.
    pub refund: Option<u8>,
}

/// The transactions of a bundle's item.
#[derive(Debug)]
pub enum MevPart {
    /// A transaction with this hash.
    Tx(B256),
    /// A bundle.
    Bundle(MevBundle),
}

impl SimBundle {
    /// Converts the bundle and the block in which it runs: decodes the transactions and recovers their senders.
    ///
    /// # Errors
    ///
    /// Returns -32602 with the path of the wrong field, or -32005 if there are too many transactions or bundles in bundles.
    pub fn into_request(self, limits: &ShapeLimits) -> Result<SimBundleRequest> {
        let Self { bundle, block } = self;
        let block = block.unwrap_or_default();
        let mut calls = FlatCalls { calls: Vec::new(), when: Conditions::default(), most: limits.max_block_calls };
        let bundle = bundle.into_bundle("params[0]", 0, &mut calls)?;
        let overrides = BlockOverrides {
            number: block.block_number.map(|number| number.0),
            time: block.timestamp.map(|time| time.0),
            gas_limit: block.gas_limit.map(|gas| gas.0),
            fee_recipient: block.coinbase.map(Address::from),
            base_fee: block.base_fee.map(|fee| fee.0),
            ..BlockOverrides::default()
        };
        let simulation = Simulation {
            blocks: vec![SimBlock { block: overrides, calls: calls.calls, ..SimBlock::default() }],
            validation: true,
            outputs: Outputs::STATUS | Outputs::GAS_USED | Outputs::RETURN_DATA | Outputs::LOGS | Outputs::COINBASE,
            when: Some(calls.when),
            ..Simulation::default()
        };
        Ok(SimBundleRequest {
            bundle,
            simulation,
            parent: block.parent_block.map_or(Selector::Latest, Selector::from),
            timeout: block.timeout.map(|timeout| timeout.0),
        })
    }
}

/// The transactions of a bundle and of its nested bundles, in the order in which they run.
struct FlatCalls {
    calls: Vec<SimCall>,
    when: Conditions,
    most: usize,
}

impl MevBundleParam {
    fn into_bundle(self, path: &str, depth: usize, calls: &mut FlatCalls) -> Result<MevBundle> {
        if !VERSIONS.contains(&self.version.as_str()) {
            let shown = shown::wrong(&self.version);
            let text = format!("{path}.version: {shown}: unknown version: expected one of {}", VERSIONS.join(", "));
            return Err(RpcError::params(text));
        }
        if depth > MAX_NESTED {
            return Err(RpcError::limit(format!("{path}: a bundle within {depth} others: at most {MAX_NESTED}")));
        }
        if self.body.is_empty() {
            return Err(RpcError::params(format!("{path}.body: empty: expected at least one item")));
        }
        let first = self.inclusion.block.0;
        // Zero means that there is no other block, as in Flashbots' builder.
        let last = self.inclusion.max_block.map(|block| block.0).filter(|block| *block != 0).unwrap_or(first);
        if last < first {
            return Err(RpcError::params(format!(
                "{path}.inclusion.maxBlock: {last}: expected at least inclusion.block, {first}"
            )));
        }
        let ValidityParam { refund, refund_config } = self.validity.unwrap_or_default();
        let (refunds, config) = (refund.unwrap_or_default(), refund_config.unwrap_or_default());
        check_percentages(refunds.iter().map(|refund| refund.percent), &format!("{path}.validity.refund"))?;
        check_percentages(config.iter().map(|one| one.percent), &format!("{path}.validity.refundConfig"))?;
        let count = self.body.len();
        let mut percents = vec![None; count];
        for (index, RefundParam { body_idx, percent }) in refunds.into_iter().enumerate() {
            let path = format!("{path}.validity.refund[{index}].bodyIdx");
            let percent_of = percents.get_mut(body_idx).ok_or_else(|| {
                RpcError::params(format!("{path}: {body_idx}: the body has {count} items: expected an index from 0"))
            })?;
            if percent_of.replace(percent).is_some() {
                return Err(RpcError::params(format!(
                    "{path}: {body_idx}: named twice: expected one refund for an item"
                )));
            }
        }
        let items = self.body.into_iter().zip(percents).enumerate();
        let items = items.map(|(index, (item, refund))| {
            let part = item.into_part(&format!("{path}.body[{index}]"), depth, calls)?;
            Ok(MevItem { part, refund })
        });
        let items = items.collect::<Result<Vec<_>>>()?;
        let recipients = match config.len() {
            0 => items.first().map_or(0, |item| item.part.recipients()),
            named => named as u64,
        };
        Ok(MevBundle { blocks: first..=last, items, recipients })
    }
}

impl MevItemParam {
    fn into_part(self, path: &str, depth: usize, calls: &mut FlatCalls) -> Result<MevPart> {
        match self {
            Self { hash: Some(hash), .. } => Err(RpcError::params(format!(
                "{path}.hash: {}: a transaction that only MEV-Share knows: expected its bytes in tx",
                B256::from(hash)
            ))),
            Self { tx: Some(raw), bundle: None, can_revert, .. } => {
                if calls.calls.len() == calls.most {
                    return Err(RpcError::limit(format!("{path}: too many transactions: at most {}", calls.most)));
                }
                let tx = transaction(&raw, format_args!("{path}.tx"))?;
                if can_revert.unwrap_or_default() {
                    let at = CallIndex { block: 0, call: calls.calls.len() };
                    calls.when.0.insert(at, RequiredEnd::Any);
                }
                let hash = *tx.tx_hash();
                calls.calls.push(SimCall::Signed(Box::new(tx)));
                Ok(MevPart::Tx(hash))
            }
            Self { bundle: Some(bundle), tx: None, can_revert: None, .. } => {
                bundle.into_bundle(&format!("{path}.bundle"), depth + 1, calls).map(MevPart::Bundle)
            }
            _ => Err(RpcError::params(format!("{path}: expected either tx, with or without canRevert, or bundle"))),
        }
    }
}

impl MevPart {
    /// Returns the number of addresses to which a bundle with this part refunds: the sender of a transaction, or the
    /// addresses named by the bundle.
    pub const fn recipients(&self) -> u64 {
        match self {
            Self::Tx(_) => 1,
            Self::Bundle(bundle) => bundle.recipients,
        }
    }
}

fn check_percentages(percents: impl Iterator<Item = u8>, path: &str) -> Result<()> {
    match percents.map(u64::from).sum() {
        0..=100 => Ok(()),
        sum => Err(RpcError::params(format!("{path}: {sum} percent in all: expected at most 100"))),
    }
}
