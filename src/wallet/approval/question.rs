//! The questions to an approver: requests in words, with the results of the simulation.

use std::{collections::BTreeMap, sync::Arc};

use alloy_consensus::{EthereumTypedTransaction, Transaction, TxEip4844};
use alloy_primitives::{Address, Bytes, U256};
use revm::bytecode::Bytecode;

use super::{
    Asked, AskedBatch, AskedCall, AskedMessage, AskedTransaction, AskedTypedData, CallWords, ReadCall, RequestedAction,
    Requester, WordReader, ether,
};
use crate::{
    engine::{AccountOverride, Call, CallFees, Engine, Outputs, SimBlock, SimCall, Simulation, TokenInfo},
    ledger::{Chain, Selector, Snapshot},
    meter::{Meter, Stopped},
    state::{Lookup, Overlay},
    wallet::{
        BatchId, MessageToSign, PreparedBatch, ShownField, SignatureRequest, SimulatedCall, Wallet, WalletError,
        ahead::pending,
    },
};

/// Number of tokens that are asked for their symbols in one question. Each may use some gas.
const MAX_TOKENS: usize = 64;
/// Seconds that an approver should know about: a contract that is younger is new to everybody.
const A_DAY: u64 = 86_400;

impl Wallet {
    /// Returns a batch as it is shown to an approver: its calls in words, and the assets that move in a simulation of its
    /// transactions.
    ///
    /// # Errors
    /// Returns [`WalletError::Deadline`] if `meter` stops the simulation.
    pub fn question(
        &self,
        prepared: &PreparedBatch,
        asker: Requester,
        overlay: &mut Overlay,
        meter: Meter,
    ) -> Result<Asked, WalletError> {
        let PreparedBatch { batch, claim, account, plan, bounds, base } = prepared;
        let mut reader = QuestionReader::new(self, &base.published, base.snapshot.clone(), overlay, meter);
        let outcome = |index: usize| match plan.simulation.get(index) {
            Some(SimulatedCall { error: Some(error), .. }) => format!("fails: {error}"),
            Some(SimulatedCall { gas_used, error: None }) => format!("succeeds, {gas_used} gas"),
            None => match &plan.failure {
                Some(reason) => format!("fails with the whole batch: {reason}"),
                None => "succeeds with the whole batch".to_owned(),
            },
        };
        let calls = batch.calls.iter().enumerate().map(|(index, call)| AskedCall {
            to: call.to,
            value: call.value,
            data: call.data.clone(),
            gas_limit: call.gas_limit,
            outcome: outcome(index),
            words: call.to.map_or_else(Vec::new, |to| {
                reader.call(ReadCall { account: *account, to, value: call.value, data: &call.data })
            }),
        });
        let calls = calls.collect();
        let transactions: Vec<Call> = plan
            .transactions
            .iter()
            // Without fees, which are shown apart and must not fail the simulation.
            .map(|planned| Call { gas: Some(planned.gas), fees: CallFees::default(), ..planned.call.clone() })
            .collect();
        let act = RequestedAction::Batch(AskedBatch {
            atomic: plan.atomic,
            upgrade: plan.upgrade,
            transactions: transactions.len(),
            most_fees: bounds.gas,
            data_fees: bounds.data,
            calls,
            assets: reader.assets(*account, plan.upgrade, transactions)?,
        });
        Ok(Asked { id: claim.id.clone(), from: *account, chain_id: self.spec.chain_id(), asker, act })
    }

    /// Returns a message or a transaction that is not sent as it is shown to an approver.
    ///
    /// # Errors
    /// Returns [`WalletError::Deadline`] if `meter` stops the run, and [`WalletError::Refused`] if there is no `pending`.
    pub fn signature_question(
        &self,
        request: &SignatureRequest,
        asker: Requester,
        published: &Chain,
        overlay: &mut Overlay,
        meter: Meter,
    ) -> Result<Asked, WalletError> {
        let hash = request.message.hash();
        let act = match &request.message {
            MessageToSign::Personal(message) => {
                RequestedAction::Message(AskedMessage { message: message.clone(), hash })
            }
            MessageToSign::Typed(message) => {
                let mut reader = QuestionReader::new(self, published, pending(published)?, overlay, meter);
                let words = reader.words(|words| words.message(message));
                reader.check_time()?;
                RequestedAction::TypedData(AskedTypedData {
                    domain: message.domain_fields(),
                    primary_type: message.primary_type.clone(),
                    fields: message.fields(),
                    words,
                    hash,
                })
            }
            MessageToSign::Transaction(tx) => {
                let mut reader = QuestionReader::new(self, published, pending(published)?, overlay, meter);
                let words = tx.to().map_or_else(Vec::new, |to| {
                    reader.call(ReadCall { account: request.account, to, value: tx.value(), data: tx.input() })
                });
                reader.check_time()?;
                RequestedAction::Transaction(AskedTransaction { fields: transaction_fields(tx), words, hash })
            }
        };
        Ok(Asked { id: BatchId::random(), from: request.account, chain_id: self.spec.chain_id(), asker, act })
    }
}

/// Returns the fields of a transaction as they are shown to an approver.
fn transaction_fields(tx: &EthereumTypedTransaction<TxEip4844>) -> Vec<ShownField> {
    let most_fees = U256::from(tx.gas_limit()) * U256::from(tx.max_fee_per_gas());
    let to = tx.to().map_or_else(|| "none: it creates a contract".to_owned(), |to| to.to_string());
    let slots = tx.access_list().filter(|list| !list.is_empty()).map(|list| {
        let slots: usize = list.iter().map(|item| item.storage_keys.len()).sum();
        format!("{} addresses, {slots} slots", list.len())
    });
    let fields = [
        ("nonce", tx.nonce().to_string()),
        ("to", to),
        ("value", format!("{} ether", ether(tx.value()))),
        ("gas", format!("{}, for at most {} ether of fees", tx.gas_limit(), ether(most_fees))),
        ("data", tx.input().to_string()),
    ];
    let lists = slots.map(|slots| ("accessList", slots));
    fields.into_iter().chain(lists).map(|(name, value)| ShownField { name: name.to_owned(), value }).collect()
}

/// The state in which a question is put in words.
struct QuestionReader<'a> {
    wallet: &'a Wallet,
    published: &'a Chain,
    snapshot: Arc<Snapshot>,
    overlay: &'a mut Overlay,
    tokens: BTreeMap<Address, TokenInfo>,
}

impl<'a> QuestionReader<'a> {
    fn new(
        wallet: &'a Wallet,
        published: &'a Chain,
        snapshot: Arc<Snapshot>,
        overlay: &'a mut Overlay,
        meter: Meter,
    ) -> Self {
        overlay.reset(snapshot.world.clone(), snapshot.hashes.clone(), meter);
        Self { wallet, published, snapshot, overlay, tokens: BTreeMap::new() }
    }

    /// Returns the words for a call, with a warning of young contracts.
    fn call(&mut self, call: ReadCall<'_>) -> Vec<String> {
        let mut lines = self.words(|words| words.call(call));
        lines.extend(self.age(call.to).map(|age| format!("calls a contract that is {age}")));
        lines
    }

    /// Reads words, and adds a warning if a contract that may spend is young.
    fn words(&mut self, read: impl FnOnce(&mut WordReader<'_>) -> CallWords) -> Vec<String> {
        let CallWords { mut lines, spenders } = self.read(read);
        for spender in spenders {
            lines.extend(self.age(spender).map(|age| format!("{spender} is a contract that is {age}")));
        }
        lines
    }

    fn read<T>(&mut self, read: impl FnOnce(&mut WordReader<'_>) -> T) -> T {
        let Self { wallet, snapshot, overlay, tokens, .. } = self;
        let mut info = |token: Address| {
            if let Some(known) = tokens.get(&token) {
                return known.clone();
            }
            if tokens.len() >= MAX_TOKENS {
                return TokenInfo::default();
            }
            let mut engine = Engine { spec: &wallet.spec, rules: &wallet.rules, codes: &wallet.codes, overlay };
            let info = engine.token_info(snapshot.header(), token);
            tokens.insert(token, info.clone());
            info
        };
        read(&mut WordReader::new(&mut info))
    }

    /// Returns how young a contract is, if it is known to be younger than a day: its code is absent from a retained
    /// state after which all blocks are of the last day.
    fn age(&self, address: Address) -> Option<String> {
        let has_code = |snapshot: &Snapshot| match snapshot.world.look_up(&address) {
            Lookup::Known(info) => Some(info.is_some_and(|info| !info.is_empty_code_hash())),
            Lookup::Unknown => None,
        };
        if has_code(&self.snapshot) != Some(true) {
            return None;
        }
        let now = self.snapshot.header().timestamp;
        // The last block that is older than a day, because all blocks after it are younger, or else the oldest.
        let blocks = || self.published.blocks(self.published.oldest_state(), self.published.head().number());
        let older = blocks().take_while(|block| block.header.timestamp.saturating_add(A_DAY) < now).last();
        let number = older.or_else(|| blocks().next())?.header.number;
        let then = self.published.select(Selector::Number(number)).ok()?;
        (has_code(&then) == Some(false)).then(|| format!("younger than a day: it was not there at block {number}"))
    }

    /// Runs the transactions of a batch, and returns the account's changes of assets in words.
    fn assets(
        &mut self,
        account: Address,
        upgrade: Option<Address>,
        calls: Vec<Call>,
    ) -> Result<Vec<String>, WalletError> {
        let Self { wallet, snapshot, overlay, .. } = self;
        // Simulates the effect of the authorization, which is not signed yet.
        let delegated = upgrade.map(|executor| {
            let code: Bytes = Bytecode::new_eip7702(executor).original_bytes();
            (account, AccountOverride { code: Some(code), ..AccountOverride::default() })
        });
        let simulation = Simulation {
            blocks: vec![SimBlock {
                state: delegated.into_iter().collect(),
                calls: calls.into_iter().map(SimCall::from).collect(),
                ..SimBlock::default()
            }],
            outputs: Outputs::STATUS | Outputs::ASSETS,
            ..Simulation::default()
        };
        let meter = std::mem::take(&mut overlay.meter);
        overlay.reset(snapshot.world.clone(), snapshot.hashes.clone(), meter);
        let mut engine = Engine { spec: &wallet.spec, rules: &wallet.rules, codes: &wallet.codes, overlay };
        let simulated = engine.simulate(snapshot, &simulation);
        self.check_time()?;
        let simulated = match simulated {
            Ok(simulated) => simulated,
            Err(error) => return Ok(vec![format!("not known: {error}")]),
        };
        self.tokens.extend(simulated.tokens);
        let changes = simulated.blocks.into_iter().filter_map(|block| block.assets).flatten();
        let own = changes.filter(|(of, _)| *of == account).flat_map(|(_, assets)| assets);
        Ok(own.map(|(asset, change)| self.read(|words| words.change(asset, &change))).collect())
    }

    fn check_time(&self) -> Result<(), WalletError> {
        match self.overlay.meter.stopped() {
            Some(Stopped::Deadline) => Err(WalletError::Deadline),
            _ => Ok(()),
        }
    }
}
