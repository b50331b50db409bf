//! Compares sampled answers with a reference's.
//!
//! What can be compared soundly is only what both were asked about the same state:
//!
//! - An answer at `pending` from presim is [dated](crate::dating); for a single request over a WebSocket `presim_snapshot` is asked after it as well,
//!   and the two must be equal. The request is asked again with `{"snapshotId": id}`.
//! - An answer at `latest` is taken between two questions for the head on the same connection, whose hashes must be equal. The request is asked
//!   again with `{"blockHash": hash}`; where the reference's block 0 is another, with the block's number, and compared is what calls did.
//! - A state that the reference does not keep (any more), or never had, is *not comparable*: a read of nothing at the same selector fails then.
//! - What changes the state is never asked again. What became of a wallet batch is asked after the run.

use std::{collections::HashMap, time::Duration};

use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    body::select,
    compare::{Sameness, difference, same},
    dating,
    rpc::Rpc,
    sample::{Pin, Sample},
    target::Target,
};

/// Wallet batches whose end is asked for, at most.
const MAX_BATCHES: usize = 1_000;
/// How long a wallet batch may take to be in a block after the run.
const BATCH_PATIENCE: Duration = Duration::from_secs(10);
/// Mismatches whose text is kept.
const EXAMPLES: usize = 3;

/// What came of the samples of one target.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Checked {
    /// Answers that are the reference's.
    pub equal: u64,
    /// Answers that are not.
    pub mismatches: u64,
    /// Mismatches by workload, in the order of the mix.
    #[serde(skip)]
    pub by_workload: HashMap<usize, u64>,
    pub examples: Vec<String>,
    /// Samples that could not be compared, with why.
    pub not_comparable: HashMap<String, u64>,
    /// What became of sampled wallet batches.
    pub wallet: Batches,
    #[serde(skip)]
    batches: Vec<String>,
}

/// Wallet batches after the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Batches {
    pub confirmed: u64,
    pub failed: u64,
    pub pending: u64,
}

/// Who knows better than a target.
#[derive(Clone, Debug)]
pub struct Reference {
    pub target: Target,
    /// Its block 0 is the target's: it may have blocks with the same hashes.
    pub same_chain: bool,
}

/// Compares one sample after another.
pub struct Checker {
    targets: Vec<Rpc>,
    /// By target; none where nobody knows better.
    references: Vec<Option<(Rpc, Sameness)>>,
    checked: Vec<Checked>,
}

impl Checker {
    /// `references` has that of each target, in their order.
    pub fn new(targets: &[Target], references: Vec<Option<Reference>>, timeout: Duration) -> Self {
        let known = |reference: Reference| {
            let sameness = if reference.same_chain { Sameness::All } else { Sameness::Calls };
            (Rpc::new(&reference.target, timeout), sameness)
        };
        Self {
            targets: targets.iter().map(|target| Rpc::new(&target.over(false), timeout)).collect(),
            references: references.into_iter().map(|reference| reference.map(known)).collect(),
            checked: vec![Checked::default(); targets.len()],
        }
    }

    /// Compares what comes until nobody sends samples any more, then asks what became of wallet batches.
    pub async fn run(mut self, mut samples: mpsc::Receiver<Sample>) -> Vec<Checked> {
        while let Some(sample) = samples.recv().await {
            self.compare(sample).await;
        }
        for target in 0..self.targets.len() {
            self.follow_batches(target).await;
        }
        self.checked
    }

    async fn compare(&mut self, sample: Sample) {
        let (target, workload) = (sample.target, sample.workload);
        let compared = match &mut self.references[target] {
            None => Compared::Not("there is no reference"),
            Some((reference, sameness)) => compare(reference, *sameness, &sample).await,
        };
        let checked = &mut self.checked[target];
        match compared {
            Compared::Equal => checked.equal += 1,
            Compared::Mismatch(text) => {
                checked.mismatches += 1;
                *checked.by_workload.entry(workload).or_default() += 1;
                if checked.examples.len() < EXAMPLES {
                    checked.examples.push(text);
                }
            }
            Compared::Batch(id) => {
                if checked.batches.len() < MAX_BATCHES {
                    checked.batches.push(id);
                }
            }
            Compared::Not(why) => *checked.not_comparable.entry(why.to_owned()).or_default() += 1,
        }
    }

    async fn follow_batches(&mut self, target: usize) {
        let (rpc, checked) = (&mut self.targets[target], &mut self.checked[target]);
        let until = tokio::time::Instant::now() + BATCH_PATIENCE;
        for id in &checked.batches {
            let end = loop {
                let status = rpc.call("wallet_getCallsStatus", json!([id])).await;
                let status = status.ok().and_then(|status| status.get("status")?.as_u64());
                // EIP-5792: 1xx is under way, 200 is done, all else failed in part or whole.
                match status {
                    Some(100..=199) if tokio::time::Instant::now() < until => {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    status => break status,
                }
            };
            match end {
                Some(200) => checked.wallet.confirmed += 1,
                Some(100..=199) => checked.wallet.pending += 1,
                _ => checked.wallet.failed += 1,
            }
        }
    }
}

enum Compared {
    Equal,
    Mismatch(String),
    Batch(String),
    Not(&'static str),
}

async fn compare(reference: &mut Rpc, sameness: Sameness, sample: &Sample) -> Compared {
    let selector = match &sample.pin {
        Pin::Snapshot(id) => json!({"snapshotId": format!("{id:#x}")}),
        Pin::Block { hash, .. } if sameness == Sameness::All => json!({"blockHash": hash}),
        Pin::Block { number, .. } => json!(format!("{number:#x}")),
        Pin::Unknown(why) => return Compared::Not(why),
        Pin::Write => {
            let answer: Value = serde_json::from_slice(&sample.answer).unwrap_or_default();
            return match answer.pointer("/result/id").and_then(Value::as_str) {
                Some(id) => Compared::Batch(id.to_owned()),
                None => Compared::Not("the request changed the state"),
            };
        }
    };
    // The request was made here, and the answer was checked to be JSON.
    let (Ok(mut request), Ok(mut answer)) =
        (serde_json::from_slice::<Value>(&sample.request), serde_json::from_slice::<Value>(&sample.answer))
    else {
        return Compared::Not("no JSON");
    };
    dating::forget(&mut request);
    dating::forget(&mut answer);
    select(&mut request, &selector);
    let Ok(expected) = reference.send(request.to_string().into()).await else {
        return Compared::Not("the reference did not answer");
    };
    if same(&answer, &expected, sameness) {
        return Compared::Equal;
    }
    // An error may mean that the reference does not know this state: then it cannot read anything there.
    let nothing = json!(["0x0000000000000000000000000000000000000000", selector]);
    if reference.call("eth_getBalance", nothing).await.is_err() {
        return Compared::Not("the reference does not have the state");
    }
    Compared::Mismatch(difference(&selector, &sample.request, &answer, &expected, sameness))
}
