//! Replicas that follow by the messages about the records, and start again from an image at any moment.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{
    fleet::replica::{Applier, LeaderClock},
    ledger::{Chain, LeaderTime, Retention, Snapshot, SnapshotId, StreamMessage, codec::image},
    publish::{Change, Sink},
    state::{CodeCache, Lookup, World},
    store::StoreError,
};
use rand::{Rng, SeedableRng, rngs::SmallRng};

use alloy_primitives::{Address, U256};

/// The messages that no replica has read yet.
type Messages = Arc<Mutex<Vec<(SnapshotId, Vec<u8>)>>>;

/// Two replicas: one from the start, and one that starts again now and then.
#[derive(Debug)]
pub struct Replicas {
    messages: Messages,
    appliers: [Applier; 2],
    kept: Retention,
    rng: SmallRng,
}

/// Writes the messages about the records.
#[derive(Debug)]
struct Messenger(Messages);

impl Sink for Messenger {
    fn take(&mut self, change: Change, _after: &Arc<Chain>) -> Result<(), StoreError> {
        let message = change.message(LeaderTime(0)).expect("replicas follow each record of an upstream's chain");
        lock(&self.0).push((change.id, message));
        Ok(())
    }
}

impl Replicas {
    /// Creates replicas of `chain`.
    pub fn new(chain: &Arc<Chain>, kept: Retention, seed: u64) -> Self {
        let appliers = [(); 2].map(|()| begin(chain, kept));
        Self { messages: Messages::default(), appliers, kept, rng: SmallRng::seed_from_u64(seed) }
    }

    /// Returns the sink of the source's feed, from which the replicas have their messages.
    pub fn sink(&self) -> Box<dyn Sink> {
        Box::new(Messenger(self.messages.clone()))
    }

    /// Lets the replicas follow to `chain`, and compares what they have with it.
    pub fn follow(&mut self, chain: &Arc<Chain>, accounts: &[Address]) -> Result<(), String> {
        for (id, bytes) in std::mem::take(&mut *lock(&self.messages)) {
            for applier in &mut self.appliers {
                let (dated, message) = StreamMessage::read(&bytes).map_err(|error| format!("{id:?}: {error}"))?;
                applier.apply(id, dated, message).map_err(|error| format!("{id:?}: {error}"))?;
            }
        }
        if self.rng.random_ratio(1, 20) {
            self.appliers[1] = begin(chain, self.kept);
        }
        for applier in &self.appliers {
            let followed = applier.chain();
            if followed.last != chain.last {
                return Err(format!("a replica is at {:?}, and its leader at {:?}", followed.last, chain.last));
            }
            same(&followed.newest, &chain.newest, accounts)?;
            same(followed.latest(), chain.latest(), accounts)?;
        }
        Ok(())
    }
}

/// Returns a replica that begins from an image of `chain`.
fn begin(chain: &Arc<Chain>, kept: Retention) -> Applier {
    let image = image::write(chain);
    let codes = Arc::new(CodeCache::new(1 << 20));
    let state = image::read(&image, &codes, kept, 1 << 24).expect("the image can be read");
    Applier::new(state.into(), codes, LeaderClock::default())
}

/// Compares a replica's snapshot with its leader's.
fn same(followed: &Snapshot, own: &Snapshot, accounts: &[Address]) -> Result<(), String> {
    let place = format!("snapshot {:?} of block {} on {}", own.id, own.header().number, own.head_hash());
    let (blocks, parts) = ((followed.head_hash(), own.head_hash()), (followed.index(), own.index()));
    if blocks.0 != blocks.1 || parts.0 != parts.1 {
        return Err(format!("{place}: a replica is on {} at sub-block {}", blocks.0, parts.0));
    }
    let content =
        |snapshot: &Snapshot| snapshot.open.as_ref().map(|open| (open.refunds.clone(), open.receipts.clone()));
    if content(followed) != content(own) {
        return Err(format!("{place}: a replica has {:?}, and its leader {:?}", content(followed), content(own)));
    }
    for address in accounts {
        if let (Some(is), Some(should)) = (balance(&followed.world, address), balance(&own.world, address))
            && is != should
        {
            return Err(format!("{place}: a replica has {is} wei of {address}, and its leader {should}"));
        }
    }
    Ok(())
}

fn balance(world: &World, address: &Address) -> Option<U256> {
    match world.look_up(address) {
        Lookup::Known(info) => Some(info.map_or(U256::ZERO, |info| info.balance)),
        Lookup::Unknown => None,
    }
}

fn lock(messages: &Messages) -> MutexGuard<'_, Vec<(SnapshotId, Vec<u8>)>> {
    messages.lock().unwrap_or_else(PoisonError::into_inner)
}
