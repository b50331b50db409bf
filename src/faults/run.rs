//! Runs a script.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex},
};

use crate::{
    config::Config,
    meter::Meter,
    source::{
        devnet::world::dev_signers,
        testing::{AccountEdit, ChainChange, ChangeOutcome},
    },
    state::Overlay,
    store::{Commit, StoreError},
    wallet::{BatchCall, BatchRequest},
};
use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope};
use alloy_eips::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, U256};
use alloy_signer::SignerSync;
use alloy_signer_local::PrivateKeySigner;
use futures::{FutureExt, future::BoxFuture};
use rand::{SeedableRng, rngs::SmallRng};

use super::{
    life::{Life, Mutant, SimClock, config},
    record::{ALIVE, Broken, Place, Record},
    script::{Cut, Nonce, Script, Step},
    shrink::{Simulated, Violation},
};
use crate::faults::disk::Disk;

const CHAIN: u64 = 31337;
const GWEI: u128 = 1_000_000_000;
/// The accounts that send transactions, and those that send batches. One does both.
const SENDERS: std::ops::Range<usize> = 0..3;
const WALLETS: std::ops::Range<usize> = 2..5;
/// The account that tests edit.
const EDITED: Address = Address::repeat_byte(0x55);
/// The time between sub-blocks, in microseconds.
const EVERY: u64 = 200_000;

/// Totals of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub steps: usize,
    pub starts: usize,
    pub cuts: usize,
    pub transactions: usize,
    pub batches: usize,
    pub blocks: u64,
    pub returns: usize,
    /// The bitwise sum of the hashes of the last blocks.
    pub heads: B256,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.starts += other.starts;
        self.cuts += other.cuts;
        self.transactions += other.transactions;
        self.batches += other.batches;
        self.blocks += other.blocks;
        self.returns += other.returns;
        self.heads ^= other.heads;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, starts, cuts, transactions, batches, blocks, returns, heads: _ } = self;
        write!(f, "{steps} steps, {starts} starts, {cuts} power cuts during a step, {returns} reorgs, ")?;
        write!(f, "{transactions} transactions and {batches} batches acknowledged, {blocks} blocks")
    }
}

/// Runs a script, and then lets the node go on without faults.
///
/// # Errors
///
/// Returns the [`Violation`] of the first invariant that does not hold.
pub fn run(script: &Script, mutant: Mutant) -> Result<Counts, Violation> {
    let mut step = 0;
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let mut simulation = Simulation::start(script, mutant)?;
        for (index, what) in script.steps.iter().enumerate() {
            step = index;
            simulation.step(*what)?;
        }
        step = script.steps.len();
        simulation.finish()
    }));
    let broken = match ran {
        Ok(Ok(counts)) => return Ok(counts),
        Ok(Err(broken)) => broken,
        Err(panic) => ("nothing panics", panic.downcast_ref::<String>().cloned().unwrap_or_default()),
    };
    Err(Violation { invariant: broken.0, text: broken.1, step })
}

/// An answer that a client waits for.
struct Waiting {
    what: Asked,
    answer: BoxFuture<'static, Result<(), StoreError>>,
}

/// A request that is not acknowledged yet.
#[derive(Clone, Copy)]
enum Asked {
    Transaction { place: Place, hash: B256, payment: usize },
    Batch(usize),
}

/// A transaction that a client has signed.
#[derive(Clone)]
struct Signed {
    raw: Vec<u8>,
    place: Place,
    payment: usize,
}

/// A batch that was admitted.
struct Admitted {
    batch: usize,
    payments: Vec<usize>,
    exclusive: bool,
}

struct Simulation {
    config: Config,
    mutant: Mutant,
    clock: Arc<SimClock>,
    disk: Disk,
    /// The disk after a power cut.
    left: Arc<Mutex<Option<Disk>>>,
    life: Life,
    signers: Vec<PrivateKeySigner>,
    record: Record,
    waiting: Vec<Waiting>,
    signed: Vec<Signed>,
    /// In the order of [`Life::prepared`].
    admitted: Vec<Admitted>,
    counts: Counts,
}

impl Simulation {
    fn start(script: &Script, mutant: Mutant) -> Result<Self, Broken> {
        let (config, clock, disk) = (config(&script.flags, script.testing), Arc::new(SimClock::new()), Disk::default());
        let life = Life::start(&config, &disk, clock.clone(), mutant).map_err(not_started)?;
        let signers = dev_signers().map_err(|error| not_started(error.into()))?;
        let shared = signers[WALLETS.start..SENDERS.end].iter().map(|signer| signer.address()).collect();
        Ok(Self {
            config,
            mutant,
            clock,
            disk,
            left: Arc::default(),
            life,
            signers,
            record: Record::new(shared),
            waiting: Vec::new(),
            signed: Vec::new(),
            admitted: Vec::new(),
            counts: Counts { starts: 1, ..Counts::default() },
        })
    }

    fn step(&mut self, step: Step) -> Result<(), Broken> {
        self.counts.steps += 1;
        let failed = self.life.store.failure().is_some().then(|| self.life.snapshots.newest().id);
        match step {
            Step::Crash { cut, again } => {
                let left = self.disk.left(cut.leaves, SmallRng::seed_from_u64(cut.seed));
                return self.restart(left, again);
            }
            Step::Kill => return self.restart(self.disk.copy(), None),
            Step::Stop => while self.life.store.commit_waiting() {},
            step => self.act(step)?,
        }
        if let Some(left) = self.take_left() {
            self.counts.cuts += 1;
            return self.restart(left, None);
        }
        let acknowledged = self.hear()?;
        if failed.is_some_and(|newest| acknowledged > 0 || self.life.snapshots.newest().id != newest) {
            return Err(("a failed store stops everything", format!("{acknowledged} acknowledged")));
        }
        self.record.check(&self.life)?;
        if matches!(step, Step::Stop) { self.restart(self.disk.copy(), None) } else { Ok(()) }
    }

    /// Makes a step that is not the end of a life.
    fn act(&mut self, step: Step) -> Result<(), Broken> {
        match step {
            Step::Tick => {
                self.clock.advance(EVERY);
                self.life.tick();
            }
            Step::Commit => {
                self.life.store.commit_waiting();
            }
            Step::Jump(seconds) => self.clock.jump(seconds),
            Step::Slow(micros) => self.clock.set_look(micros),
            Step::Send { account, nonce, tip } => self.send(account, nonce, tip),
            Step::Again(index) if !self.signed.is_empty() => {
                self.deliver(self.signed[index % self.signed.len()].clone());
            }
            Step::Admit { account, calls, atomic, id } => self.admit(account, calls, atomic, id)?,
            Step::Submit(index) if !self.admitted.is_empty() => self.submit(index % self.admitted.len()),
            Step::Withdraw(index) if !self.admitted.is_empty() => {
                let index = index % self.admitted.len();
                drop((self.admitted.remove(index), self.life.prepared.remove(index)));
            }
            Step::Fail(after) => self.disk.fail_after(after),
            Step::Fill(after) => self.disk.fill_after(after),
            Step::Cut(cut) => self.cut(cut),
            Step::Mine { blocks, interval } => {
                self.life.change(ChainChange::Mine { blocks, interval, timestamp: None });
            }
            Step::Edit(wei) => {
                let edit = AccountEdit { address: EDITED, balance: Some(U256::from(wei)), ..AccountEdit::default() };
                self.life.change(ChainChange::Edit(edit));
            }
            Step::Save => {
                self.life.change(ChainChange::Save);
            }
            Step::Return(id) => {
                if let Some(Ok(ChangeOutcome::Found(true))) = self.life.change(ChainChange::Return(id)) {
                    self.counts.returns += 1;
                    self.record.forget_branch();
                }
            }
            Step::Forward(seconds) => {
                self.life.change(ChainChange::MoveClock(seconds));
            }
            _ => {}
        }
        Ok(())
    }

    /// Signs a transaction and sends it.
    fn send(&mut self, account: usize, nonce: Nonce, tip: u64) {
        let signer = &self.signers[SENDERS.start + account % SENDERS.len()];
        let newest = self.life.snapshots.newest();
        let first = newest.world.account(&signer.address()).map_or(0, |account| account.nonce);
        let nonce = match nonce {
            Nonce::Next => self.life.pool.next_nonce(signer.address(), first),
            Nonce::After(ahead) => first + ahead,
        };
        let (payment, to, value) = self.record.pay();
        let tx = TxEip1559 {
            chain_id: CHAIN,
            nonce,
            gas_limit: 21_000,
            max_fee_per_gas: 20 * u128::from(tip) * GWEI,
            max_priority_fee_per_gas: u128::from(tip) * GWEI,
            to: to.into(),
            value: U256::from(value),
            ..TxEip1559::default()
        };
        let signature = signer.sign_hash_sync(&tx.signature_hash()).unwrap();
        let raw = TxEnvelope::from(tx.into_signed(signature)).encoded_2718();
        let signed = Signed { raw, place: (signer.address(), nonce), payment };
        self.signed.push(signed.clone());
        self.deliver(signed);
    }

    /// Sends the bytes of a transaction.
    fn deliver(&mut self, Signed { raw, place, payment }: Signed) {
        if let Ok((hash, commit)) = self.life.pool.add_raw(&raw) {
            self.record.take(place, hash, payment);
            self.wait(Asked::Transaction { place, hash, payment }, commit);
        }
    }

    fn admit(&mut self, account: usize, calls: u64, atomic: bool, id: Option<usize>) -> Result<(), Broken> {
        let account = WALLETS.start + account % WALLETS.len();
        let exclusive = !SENDERS.contains(&account);
        let (batch, id) = self.record.batch(id, exclusive);
        let paid: Vec<_> = (0..calls).map(|_| self.record.pay()).collect();
        let call = |(_, to, value): &(usize, _, u64)| BatchCall {
            to: Some(*to),
            value: U256::from(*value),
            data: Bytes::new(),
            gas_limit: None,
            capabilities: Vec::new(),
        };
        let request = BatchRequest {
            id: Some(id),
            from: Some(self.signers[account].address()),
            chain_id: Some(CHAIN),
            atomic_required: atomic,
            calls: paid.iter().map(call).collect(),
            capabilities: Vec::new(),
            transaction: None,
        };
        let published = self.life.snapshots.load();
        let mut overlay = Overlay::new(published.newest.world.clone(), published.newest.hashes.clone());
        let Ok(prepared) = self.life.wallet.admit(request, true, &mut overlay, Meter::default()) else {
            return Ok(());
        };
        self.record.admit(batch)?;
        self.life.prepared.push(prepared);
        let payments = paid.iter().map(|(payment, ..)| *payment).collect();
        self.admitted.push(Admitted { batch, payments, exclusive });
        Ok(())
    }

    fn submit(&mut self, index: usize) {
        let Admitted { batch, payments, exclusive } = self.admitted.remove(index);
        if let Ok((commit, _)) = self.life.wallet.submit(self.life.prepared.remove(index)) {
            self.record.take_batch(batch, payments, exclusive);
            self.wait(Asked::Batch(batch), commit);
        }
    }

    fn wait(&mut self, what: Asked, commit: Commit) {
        let commit = if self.mutant == Mutant::EarlyAnswer { Commit::done() } else { commit };
        self.waiting.push(Waiting { what, answer: commit.wait().boxed() });
    }

    /// Takes the answers that have come. Returns the number of things that were acknowledged.
    fn hear(&mut self) -> Result<usize, Broken> {
        let mut acknowledged = 0;
        for mut waiting in std::mem::take(&mut self.waiting) {
            match ((&mut waiting.answer).now_or_never(), waiting.what) {
                (None, what) => {
                    if let Asked::Transaction { hash, payment, .. } = what {
                        self.record.check_unstored(&self.life, &hash, payment)?;
                    }
                    self.waiting.push(waiting);
                }
                (Some(Err(_)), _) => {}
                (Some(Ok(())), what) => {
                    acknowledged += 1;
                    match what {
                        Asked::Transaction { place, .. } => {
                            self.counts.transactions += 1;
                            self.record.acknowledge(place);
                        }
                        Asked::Batch(batch) => {
                            self.counts.batches += 1;
                            self.record.acknowledge_batch(batch);
                        }
                    }
                }
            }
        }
        Ok(acknowledged)
    }

    fn cut(&self, Cut { after, leaves, seed }: Cut) {
        let left = self.left.clone();
        let done = move |disk, _| *left.lock().unwrap() = Some(disk);
        self.disk.cut_then(after, leaves, SmallRng::seed_from_u64(seed), || (), done);
    }

    fn take_left(&self) -> Option<Disk> {
        self.left.lock().unwrap().take()
    }

    /// Starts the node again on a disk, the power failing meanwhile if there is a cut.
    fn restart(&mut self, disk: Disk, cut: Option<Cut>) -> Result<(), Broken> {
        // A process that has ended answers no client.
        (self.waiting, self.admitted) = (Vec::new(), Vec::new());
        self.disk = disk;
        if let Some(cut) = cut {
            self.cut(cut);
        }
        let mut life = Life::start(&self.config, &self.disk, self.clock.clone(), self.mutant);
        self.counts.starts += 1;
        if let Some(left) = self.take_left() {
            self.disk = left;
            self.counts.cuts += 1;
            self.counts.starts += 1;
            life = Life::start(&self.config, &self.disk, self.clock.clone(), self.mutant);
        }
        self.life = life.map_err(not_started)?;
        self.record.check(&self.life)
    }

    /// Ends the faults, and checks that everything acknowledged is done.
    fn finish(mut self) -> Result<Counts, Broken> {
        self.clock.set_look(0);
        if !self.config.testing {
            self.restart(self.disk.copy(), None)?;
        }
        let before = self.life.snapshots.load().head().number();
        for account in SENDERS {
            let address = self.signers[account].address();
            let next = |life: &Life| {
                let newest = life.snapshots.newest();
                life.pool.next_nonce(address, newest.world.account(&address).map_or(0, |account| account.nonce))
            };
            // Fills the gaps, and sends one transaction more.
            let end = self.record.end(address);
            loop {
                let sent = next(&self.life);
                self.send(account, Nonce::Next, 5);
                if next(&self.life) == sent {
                    return Err((ALIVE, format!("nonce {sent} of {address} is not taken")));
                }
                if sent >= end {
                    break;
                }
            }
        }
        while self.life.store.commit_waiting() {}
        self.hear()?;
        if !self.waiting.is_empty() {
            return Err((ALIVE, "a client waits for its answer".to_owned()));
        }
        for _ in 0..4 * self.config.sub_blocks() {
            self.act(Step::Tick)?;
            self.record.check(&self.life)?;
        }
        let head = self.life.snapshots.load().head().clone();
        let after = head.number();
        if after <= before || self.life.feed.status.is_degraded() {
            return Err((ALIVE, format!("the chain stands at block {after}")));
        }
        self.record.check_done(&self.life)?;
        (self.counts.blocks, self.counts.heads) = (after, head.hash());
        Ok(self.counts)
    }
}

fn not_started(error: eyre::Report) -> Broken {
    ("a node starts on what its disk has kept", format!("{error:#}"))
}

impl Simulated for Script {
    type Mutant = Mutant;
    type Step = Step;
    type Counts = Counts;

    const SOUND: Mutant = Mutant::None;
    const FOUND: &[u64] = &[
        // On a store that had failed, a batch read old blocks for its fees, which panicked, instead of naming the failure.
        183,
        // A batch counted as pruned when its first transaction's block was, though others of it still waited; the same after a
        // restart.
        3520, 6431,
    ];

    fn of(seed: u64) -> Self {
        Self::of(seed)
    }

    fn steps(&mut self) -> &mut Vec<Step> {
        &mut self.steps
    }

    fn run(&self, mutant: Mutant) -> Result<Counts, Violation> {
        run(self, mutant)
    }

    fn add(total: &mut Counts, ran: &Counts) {
        total.add(ran);
    }
}
