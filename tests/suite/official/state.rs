//! State tests: a transaction on a whole state, as an `eth_simulateV1` that overrides all of it.

use std::{collections::BTreeMap, sync::Arc};

use alloy_consensus::Header;
use alloy_eips::{
    eip2718::Decodable2718,
    eip2930::AccessList,
    eip7702::{Authorization, SignedAuthorization},
};
use alloy_genesis::{Genesis, GenesisAccount};
use alloy_primitives::{Address, B256, Bytes, Log, TxKind, U256, keccak256};
use presim::testing::{
    chain::{BlockBody, BlockHashes, ChainSpec, ChainTx, SealedBlock},
    engine::{
        AccountOverride, BaseFeeRule, BlockOverrides, Call, CallFees, CallOutcome, CallResult, ChainExecutor, Engine,
        SimBlock, Simulation, SimulationRules, StorageOverride,
    },
    ledger::Snapshot,
    meter::Meter,
    state::{CodeCache, LocalWorld, Overlay},
};
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::{Map, Value};

use super::{ARCHIVE, CaseOutcome, assert_none_failed, network, run_all};

#[derive(Deserialize)]
pub(super) struct StateTest {
    pub(super) env: Env,
    pub(super) pre: BTreeMap<Address, PreAccount>,
    pub(super) transaction: Template,
    pub(super) post: BTreeMap<String, Vec<Expected>>,
    pub(super) config: Option<TestConfig>,
}

#[derive(Deserialize)]
pub struct TestConfig {
    #[serde(default, rename = "chainid")]
    pub chain_id: Option<U256>,
    #[serde(default, rename = "blobSchedule")]
    pub blobs: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Env {
    pub(super) current_coinbase: Address,
    pub(super) current_gas_limit: U256,
    pub(super) current_number: U256,
    pub(super) current_timestamp: U256,
    #[serde(default)]
    current_difficulty: U256,
    pub(super) current_base_fee: Option<U256>,
    pub(super) current_random: Option<B256>,
    pub(super) current_excess_blob_gas: Option<U256>,
    pub(super) slot_number: Option<U256>,
}

/// An account of a test's state.
#[derive(Deserialize)]
pub struct PreAccount {
    pub balance: U256,
    pub nonce: U256,
    pub code: Bytes,
    pub storage: BTreeMap<U256, U256>,
}

/// A transaction with alternatives for data, gas limit and value.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Template {
    sender: Address,
    to: String,
    nonce: U256,
    data: Vec<Bytes>,
    gas_limit: Vec<Text>,
    value: Vec<Text>,
    gas_price: Option<Text>,
    max_fee_per_gas: Option<Text>,
    max_priority_fee_per_gas: Option<Text>,
    max_fee_per_blob_gas: Option<Text>,
    blob_versioned_hashes: Option<Vec<B256>>,
    #[serde(default)]
    access_lists: Vec<Option<AccessList>>,
    authorization_list: Option<Vec<Delegation>>,
}

/// A number, which may be longer than its field allows.
struct Text(Option<U256>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = text.trim_start_matches("0x:bigint ").trim_start_matches("0x");
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(D::Error::custom(format!("no number: {text}")));
        }
        Ok(Self(U256::from_str_radix(digits, 16).ok()))
    }
}

impl Text {
    fn to<T: TryFrom<U256>>(&self) -> Option<T> {
        T::try_from(self.0?).ok()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Delegation {
    chain_id: U256,
    address: Address,
    nonce: Text,
    v: Text,
    r: U256,
    s: U256,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Expected {
    pub(super) hash: B256,
    pub(super) logs: B256,
    #[serde(default)]
    txbytes: Bytes,
    pub(super) indexes: Indexes,
    pub(super) expect_exception: Option<String>,
    pub(super) receipt: Option<ExpectedReceipt>,
}

/// The receipt of a test's transaction.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExpectedReceipt {
    /// A boolean, or 0 or 1.
    status: Value,
    #[serde(alias = "cumulativeGasUsed")]
    pub(super) gas_used: U256,
    /// Gas of what the block may use, in both dimensions (EIP-8037).
    block_execution_gas_used: Option<U256>,
    block_state_gas_used: Option<U256>,
}

impl ExpectedReceipt {
    pub(super) fn succeeds(&self) -> bool {
        self.status == true || self.status == 1
    }

    /// Compares the receipt with the outcome of a call, and with the gas that its block used.
    fn check(&self, call: &CallResult, block_gas: u64) -> Result<(), String> {
        let succeeds = call.outcome == CallOutcome::Success;
        let told = self.block_execution_gas_used.max(self.block_state_gas_used);
        if succeeds != self.succeeds() {
            Err(format!("{:?}, expected status {}", call.outcome, self.status))
        } else if U256::from(call.gas_used) != self.gas_used {
            Err(format!("gas {}, expected {}", call.gas_used, self.gas_used))
        } else if told.is_some_and(|told| told != U256::from(block_gas)) {
            Err(format!("gas of the block {block_gas}, expected {told:?}"))
        } else {
            Ok(())
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Indexes {
    data: usize,
    gas: usize,
    value: usize,
}

impl Template {
    /// Returns a call with these alternatives; `None` if a number does not fit into its field.
    pub(super) fn call(&self, indexes: &Indexes) -> Option<Call> {
        let fees = match &self.gas_price {
            Some(price) => CallFees::GasPrice(price.to()?),
            None => CallFees::Market {
                max_fee: self.max_fee_per_gas.as_ref().map(|fee| fee.to().ok_or(())).transpose().ok()?,
                max_priority: self.max_priority_fee_per_gas.as_ref().map(|fee| fee.to().ok_or(())).transpose().ok()?,
            },
        };
        let authorizations = self.authorization_list.as_ref().map(|list| {
            list.iter()
                .map(|one| {
                    let inner = Authorization { chain_id: one.chain_id, address: one.address, nonce: one.nonce.to()? };
                    Some(SignedAuthorization::new_unchecked(inner, one.v.to()?, one.r, one.s))
                })
                .collect::<Option<Vec<_>>>()
                .ok_or(())
        });
        Some(Call {
            from: self.sender,
            to: if self.to.is_empty() { TxKind::Create } else { TxKind::Call(self.to.parse().ok()?) },
            gas: Some(self.gas_limit[indexes.gas].to()?),
            fees,
            value: self.value[indexes.value].to()?,
            data: self.data[indexes.data].clone(),
            nonce: Some(u64::try_from(self.nonce).ok()?),
            chain_id: None,
            access_list: self.access_lists.get(indexes.data).cloned().flatten(),
            blob_hashes: self.blob_versioned_hashes.clone(),
            max_fee_per_blob_gas: self.max_fee_per_blob_gas.as_ref().map(|fee| fee.to().ok_or(())).transpose().ok()?,
            authorization_list: authorizations.transpose().ok()?,
        })
    }
}

/// Returns the state of a test's accounts.
pub fn world<'a>(pre: impl Iterator<Item = (&'a Address, &'a PreAccount)>) -> LocalWorld {
    let account = |account: &PreAccount| GenesisAccount {
        nonce: Some(account.nonce.to()),
        balance: account.balance,
        code: Some(account.code.clone()),
        storage: Some(account.storage.iter().map(|(slot, value)| ((*slot).into(), (*value).into())).collect()),
        private_key: None,
    };
    let alloc = pre.map(|(address, pre)| (*address, account(pre))).collect();
    LocalWorld::of_genesis(&Genesis { alloc, ..Genesis::default() }, &CodeCache::new(1 << 20))
}

/// Returns whether the address may be that of a precompile.
pub(super) fn is_precompile(address: &Address) -> bool {
    address.as_slice()[..18].iter().all(|byte| *byte == 0)
}

/// Returns the parent of the block of a test. Its state has the accounts at the addresses of precompiles, because an
/// override of such an account removes the precompile.
fn parent(test: &StateTest) -> Snapshot {
    let env = &test.env;
    let number = env.current_number.to::<u64>() - 1;
    let header = Header {
        number,
        timestamp: env.current_timestamp.to::<u64>().saturating_sub(1),
        gas_limit: env.current_gas_limit.saturating_to(),
        difficulty: env.current_difficulty,
        base_fee_per_gas: env.current_base_fee.map(|fee| fee.to()),
        ..Header::default()
    };
    let world = world(test.pre.iter().filter(|(address, _)| is_precompile(address)));
    let mut hashes = BlockHashes::default();
    for ancestor in number.saturating_sub(255)..=number {
        hashes.push(ancestor, keccak256(ancestor.to_string()));
    }
    Snapshot::at_head(world, Arc::new(SealedBlock::new(header, BlockBody::default())), hashes)
}

fn block(spec: &ChainSpec, env: &Env) -> BlockOverrides {
    let time = env.current_timestamp.to();
    BlockOverrides {
        number: Some(env.current_number.to()),
        time: Some(time),
        gas_limit: Some(env.current_gas_limit.saturating_to()),
        fee_recipient: Some(env.current_coinbase),
        prev_randao: env.current_random,
        base_fee: env.current_base_fee.map(|fee| fee.to()),
        blob_base_fee: env
            .current_excess_blob_gas
            .and_then(|excess| Some(spec.blob_params(time)?.calc_blob_fee(excess.to()))),
        difficulty: Some(env.current_difficulty),
        slot_number: env.slot_number.map(|slot| slot.to()),
        ..BlockOverrides::default()
    }
}

fn overrides(pre: &BTreeMap<Address, PreAccount>) -> Vec<(Address, AccountOverride)> {
    let account = |account: &PreAccount| AccountOverride {
        balance: Some(account.balance),
        nonce: Some(account.nonce.to()),
        code: Some(account.code.clone()),
        storage: StorageOverride::Replace(account.storage.iter().map(|(slot, value)| (*slot, *value)).collect()),
        move_precompile_to: None,
    };
    pre.iter().filter(|(address, _)| !is_precompile(address)).map(|(address, pre)| (*address, account(pre))).collect()
}

/// Executes the signed transaction of a case as one of a block, and returns the state root after it, without a reward.
fn execute(spec: &ChainSpec, test: &StateTest, expected: &Expected) -> Result<B256, String> {
    let tx = ChainTx::decode_2718_exact(&expected.txbytes).map_err(|error| error.to_string())?;
    let tx = tx.recovered().map_err(|error| error.to_string())?;
    let env = &test.env;
    let header = Header {
        number: env.current_number.to(),
        timestamp: env.current_timestamp.to(),
        gas_limit: env.current_gas_limit.saturating_to(),
        beneficiary: env.current_coinbase,
        difficulty: env.current_difficulty,
        mix_hash: env.current_random.unwrap_or_default(),
        base_fee_per_gas: env.current_base_fee.map(|fee| fee.to()),
        excess_blob_gas: env.current_excess_blob_gas.map(|excess| excess.to()),
        slot_number: env.slot_number.map(|slot| slot.to()),
        ..Header::default()
    };
    let mut overlay = Overlay::new(world(test.pre.iter()).into(), parent(test).hashes);
    let mut executor = ChainExecutor::new(spec, &mut overlay, &header, None, &[]);
    executor.execute(&tx).map_err(|error| error.to_string())?;
    let world = executor.overlay().changed_world();
    Ok(world.local().expect("a local state").state_root())
}

/// Rules of transactions that `eth_simulateV1` does not check, as in geth, even with `validation`: EIP-3607 and EIP-7825.
const UNCHECKED: [&str; 2] = ["SENDER_NOT_EOA", "GAS_LIMIT_EXCEEDS_MAXIMUM"];

fn run_case(spec: &ChainSpec, test: &StateTest, expected: &Expected) -> CaseOutcome {
    let Some(call) = test.transaction.call(&expected.indexes) else {
        return if expected.expect_exception.is_some() {
            CaseOutcome::Passed
        } else {
            CaseOutcome::Failed("the transaction cannot be expressed".to_owned())
        };
    };
    let rules = SimulationRules {
        base_fee: BaseFeeRule::ZeroWhenFree,
        keeps_prev_randao: false,
        block_time: Some(std::time::Duration::from_secs(12)),
        state_roots: true,
        gas_cap: u64::MAX,
        max_blocks: 256,
        max_trace: 1 << 20,
        estimate_tolerance: 0.0,
    };
    let snapshot = parent(test);
    let codes = CodeCache::new(1 << 20);
    let mut overlay = Overlay::new(snapshot.world.clone(), snapshot.hashes.clone());
    overlay.meter = Meter::until(std::time::Instant::now() + std::time::Duration::from_secs(120), Arc::default(), None);
    let block = SimBlock { state: overrides(&test.pre), block: block(spec, &test.env), calls: vec![call.into()] };
    let simulation = Simulation { blocks: vec![block], validation: true, ..Simulation::default() };
    let mut engine = Engine { spec, rules: &rules, codes: &codes, overlay: &mut overlay };
    match (engine.simulate(&snapshot, &simulation), &expected.expect_exception) {
        (Err(_), Some(_)) => CaseOutcome::Passed,
        (Err(error), None) => CaseOutcome::Failed(error.to_string()),
        (Ok(_), Some(exception)) if UNCHECKED.iter().any(|unchecked| exception.contains(unchecked)) => {
            match execute(spec, test, expected) {
                Ok(_) => CaseOutcome::Failed(format!("executed: {exception}")),
                Err(_) => CaseOutcome::Passed,
            }
        }
        (Ok(_), Some(exception)) => CaseOutcome::Failed(format!("accepted: {exception}")),
        (Ok(simulated), None) => {
            let block = simulated.blocks.last().unwrap();
            let header = &block.listing.as_ref().unwrap().header;
            let logs: Vec<Log> = block.calls[0].logs.iter().map(|numbered| numbered.log.clone()).collect();
            let logs = keccak256(alloy_rlp::encode(&logs));
            // Before the merge a simulated block has its producer's reward, which state tests leave out.
            let root = if spec.is_post_merge(header.number) {
                header.state_root
            } else {
                match execute(spec, test, expected) {
                    Ok(root) => root,
                    Err(problem) => return CaseOutcome::Failed(problem),
                }
            };
            if root != expected.hash {
                CaseOutcome::Failed(format!("state root {root}, expected {}", expected.hash))
            } else if logs != expected.logs {
                CaseOutcome::Failed(format!("logs {logs}, expected {}", expected.logs))
            } else {
                let checked =
                    expected.receipt.as_ref().map_or(Ok(()), |one| one.check(&block.calls[0], header.gas_used));
                checked.map_or_else(CaseOutcome::Failed, |()| CaseOutcome::Passed)
            }
        }
    }
}

#[test]
fn state_tests_pass() {
    for folder in ["eest/state_tests/", "tests/GeneralStateTests/"] {
        if let Some(tally) = run_all(ARCHIVE, folder, run_file) {
            assert_none_failed(&tally);
        }
    }
}

pub fn run_file(path: &str, content: &[u8], report: &mut dyn FnMut(&str, &str, CaseOutcome)) {
    if path.contains("lockchain") {
        return;
    }
    let tests: BTreeMap<String, StateTest> = match serde_json::from_slice(content) {
        Ok(tests) => tests,
        Err(error) => return report("", "", CaseOutcome::Failed(error.to_string())),
    };
    for (name, test) in &tests {
        for (fork, cases) in &test.post {
            let Some(spec) = network::spec(fork, test.config.as_ref()) else {
                report(fork, name, CaseOutcome::Failed("an unknown fork".to_owned()));
                continue;
            };
            for (at, expected) in cases.iter().enumerate() {
                report(fork, &format!("{name} #{at}"), run_case(&spec, test, expected));
            }
        }
    }
}
