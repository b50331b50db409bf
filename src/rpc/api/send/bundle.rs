//! Bundles of signed transactions that are to be mined, with the fields that Flashbots documents.

use alloy_primitives::{B256, map::B256Map};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    pool::{BundleName, BundleOutcome, SentBundle},
    rpc::{
        json::{
            hex::{Data, Fixed, Number, Quantity},
            shapes,
        },
        params::{add_aliases, check_count, decode},
        protocol::error::{Result, RpcError},
        run::Attempt,
    },
};

/// Maximum number of a bundle's transactions, as Flashbots documents it for its relay.
const MAX_TRANSACTIONS: usize = 100;
/// Maximum length of the name under which a bundle is replaced or cancelled, in bytes. A UUID has 36.
const MAX_UUID: usize = 64;
/// The other names of fields of a bundle.
const ALIASES: &[(&str, &str)] = &[("replacementUuid", "uuid")];

/// A bundle to be mined.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "BundleToMine", transform = add_aliases(ALIASES))]
struct Bundle {
    /// Signed transactions of any type, blob transactions in their network form; at most 300,000 bytes.
    #[schemars(length(min = 1, max = 100))]
    txs: Vec<Data>,
    /// The first block that may have the bundle: the block being built, which is the default, or one of the 25 after it.
    block_number: Option<Number<u64>>,
    /// The last block that may have the bundle, within the same bound; by default the first.
    max_block_number: Option<Number<u64>>,
    /// The earliest timestamp of the block, in Unix seconds; 0 for none.
    min_timestamp: Option<Number<u64>>,
    /// The latest timestamp of the block, in Unix seconds; 0 for none.
    max_timestamp: Option<Number<u64>>,
    /// The transactions of the bundle that may fail and still be included.
    reverting_tx_hashes: Option<Vec<Fixed<32>>>,
    /// A name of the bundle. A later bundle with this name replaces it.
    #[serde(alias = "uuid")]
    #[schemars(length(min = 1, max = 64))]
    replacement_uuid: Option<String>,
}

impl Bundle {
    /// Checks the bundle, and decodes its transactions. The name belongs to the client of `run`.
    fn into_sent(self, run: &mut Attempt<'_>) -> Result<SentBundle> {
        check_count(self.txs.len(), MAX_TRANSACTIONS)?;
        let transactions = self.txs.iter().enumerate().map(|(index, raw)| {
            // Recovering a sender takes about as long as a stride of the meter.
            run.meter.check()?;
            decode(raw, &format_args!("params[0].txs[{index}]"))
        });
        let transactions = transactions.collect::<Result<Vec<_>, _>>()?;
        let mut indices = B256Map::default();
        for (index, sent) in transactions.iter().enumerate() {
            if let Some(first) = indices.insert(*sent.tx.tx_hash(), index) {
                return Err(RpcError::params(format!(
                    "params[0].txs[{index}]: expected another transaction than txs[{first}]"
                )));
            }
        }
        let may_revert: Vec<B256> = self.reverting_tx_hashes.into_iter().flatten().map(B256::from).collect();
        if let Some((index, hash)) = may_revert.iter().enumerate().find(|(_, hash)| !indices.contains_key(*hash)) {
            return Err(RpcError::params(format!(
                "params[0].revertingTxHashes[{index}]: {hash}: expected the hash of a transaction of the bundle"
            )));
        }
        // Zero means that there is no bound, as in mev-geth.
        let [min_timestamp, max_timestamp] =
            [self.min_timestamp, self.max_timestamp].map(|time| time.map_or(0, |time| time.0));
        if max_timestamp != 0 && max_timestamp < min_timestamp {
            return Err(RpcError::params(format!(
                "params[0].maxTimestamp: {max_timestamp}: expected at least minTimestamp, {min_timestamp}"
            )));
        }
        let name = self.replacement_uuid.map(|uuid| name(uuid, run)).transpose()?;
        let max_timestamp = if max_timestamp == 0 { u64::MAX } else { max_timestamp };
        let [block, max_block] = [self.block_number, self.max_block_number].map(|number| number.map(|number| number.0));
        let client = run.client.map(str::to_owned);
        Ok(SentBundle { transactions, block, max_block, min_timestamp, max_timestamp, may_revert, client, name })
    }
}

queries! {
    /// Sends signed transactions to be mined in a block of the devnet, one after the other, all or none. The bundle is
    /// tried in each sub-block of its block. It waits in memory, and is lost at a restart.
    SendBundle = "1 parameter: the bundle", { bundle: Bundle },
        r#"[{"txs": ["0x02f86e827a6980847735940085174876e80083030d409400000000000000000000000000000000000c01ba0180c001a012646864a06130c8ba1e5051c0f0e58b0b94adf2531132f5f28515d7b7eb4da7a07b7f3d0a9b75aa49daaaa3f10979416c7e271d07df42b5657f3a4fe57a5b2c33"]}]"#
        => BundleHash = r#"{"bundleHash": "0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"}"#,
        |asked, backend, run| backend.pool.bundles.add(asked.bundle.into_sent(run)?)?;

    /// Cancels the bundles with a name that are not mined yet. Returns whether there were any.
    CancelBundle = "1 parameter: an object with the replacementUuid", { bundle: NamedBundle },
        r#"[{"replacementUuid": "one"}]"# => bool = "true",
        |asked, backend, run| backend.pool.bundles.cancel(&name(asked.bundle.replacement_uuid, run)?)?;

    /// The outcome of a bundle of `eth_sendBundle`; null if the client has not sent it, or it is forgotten. The last
    /// 10,000 bundles of each client are remembered until a restart, or fewer if all clients' outcomes take more than
    /// 32 MiB.
    GetOutcome = "1 parameter: the hash of a bundle", { bundle_hash: Fixed<32> },
        r#"["0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"]"#
        => Option<SentOutcome> = r#"{"status": "mined", "blockNumber": "0x2a"}"#,
        |asked, backend, run| backend.pool.bundles.outcome(run.client, &B256::from(asked.bundle_hash));
}

/// The name of a bundle to be cancelled.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = add_aliases(ALIASES))]
struct NamedBundle {
    /// The name passed to `eth_sendBundle`.
    #[serde(alias = "uuid")]
    #[schemars(length(min = 1, max = 64))]
    replacement_uuid: String,
}

shapes! {
    /// The hash of a bundle that waits to be mined.
    pub BundleHash: B256 => |hash| {
        /// The Keccak hash of the transactions' hashes.
        bundleHash: Fixed<32> = hash,
    }

    /// The outcome of a bundle.
    pub SentOutcome: BundleOutcome => |outcome| let {
        let (status, block, reason) = match outcome {
            BundleOutcome::Pending => ("pending", None, None),
            BundleOutcome::Mined { block } => ("mined", Some(block), None),
            BundleOutcome::Dropped { reason } => ("dropped", None, Some(reason)),
        };
    } {
        /// Whether the bundle waits, is in a block, or was dropped.
        #[schemars(extend("enum" = ["pending", "mined", "dropped"]))]
        status: String = status,
        /// The block that has the bundle, possibly the one being built.
        blockNumber: Option<Quantity<u64>> = block,
        /// The reason why the bundle was dropped.
        reason: Option<String> = reason,
    }
}

/// Returns the name that the client of `run` has given to a bundle.
fn name(uuid: String, run: &Attempt<'_>) -> Result<BundleName> {
    let length = uuid.len();
    match (1..=MAX_UUID).contains(&length) {
        true => Ok(BundleName { client: run.client.map(str::to_owned), uuid }),
        false => Err(RpcError::params(format!(
            "params[0].replacementUuid: {length} bytes: expected a UUID, or another text of 1 to {MAX_UUID} bytes"
        ))),
    }
}
