//! Compares sampled answers with a reference's.
//!
//! A comparison is sound only if both answers are about the same state:
//!
//! - An answer at `pending` from presim is [dated](crate::dating), for single requests over a WebSocket both before and
//!   after it: the two snapshots must be equal. The request is asked again with `{"snapshotId": id}`.
//! - An answer at `latest` is taken between two questions for the head on the same connection, whose hashes must be
//!   equal. The request is asked again with `{"blockHash": hash}`. If the reference's block 0 is another, it is asked
//!   with the block's number, and only the results of calls are compared.
//! - A sample whose state the reference lacks is *not comparable*. Then a read at that state fails.
//! - A request that changes the state is never asked again. The outcome of wallet batches is asked for after the run.

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

/// Most wallet batches whose outcome is asked for.
const MAX_BATCHES: usize = 1_000;
/// Longest time that a wallet batch may take to be in a block after the run.
const BATCH_PATIENCE: Duration = Duration::from_secs(10);
/// Most mismatches whose text is kept.
const EXAMPLES: usize = 3;

/// The outcome of the samples of one target.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Checked {
    /// Number of answers equal to the reference's.
    pub equal: u64,
    /// Number of answers that differ from the reference's.
    pub mismatches: u64,
    /// Number of mismatches by index of the workload in the mix.
    #[serde(skip)]
    pub by_workload: HashMap<usize, u64>,
    pub examples: Vec<String>,
    /// Number of samples that could not be compared, by reason.
    pub not_comparable: HashMap<String, u64>,
    /// The outcome of sampled wallet batches.
    pub wallet: Batches,
    #[serde(skip)]
    batches: Vec<String>,
}

/// Numbers of sampled wallet batches by their state after the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Batches {
    pub confirmed: u64,
    pub failed: u64,
    pub pending: u64,
}

/// A node whose answers count as right.
#[derive(Clone, Debug)]
pub struct Reference {
    pub target: Target,
    /// Whether its block 0 is the target's, so that it may have blocks with the same hashes.
    pub same_chain: bool,
}

/// Compares samples with the references, one after another.
pub struct Checker {
    targets: Vec<Rpc>,
    /// The reference of each target; `None` if it has none.
    references: Vec<Option<(Rpc, Sameness)>>,
    /// The reason of the first request that a reference did not answer, by target.
    failures: Vec<Option<String>>,
    checked: Vec<Checked>,
}

impl Checker {
    /// Creates a checker. `references` holds the reference of each of `targets`, in the same order.
    pub fn new(targets: &[Target], references: Vec<Option<Reference>>, timeout: Duration) -> Self {
        let known = |reference: Reference| {
            let sameness = if reference.same_chain { Sameness::All } else { Sameness::Calls };
            (Rpc::new(&reference.target, timeout), sameness)
        };
        Self {
            targets: targets.iter().map(|target| Rpc::new(&target.for_calls(), timeout)).collect(),
            references: references.into_iter().map(|reference| reference.map(known)).collect(),
            failures: vec![None; targets.len()],
            checked: vec![Checked::default(); targets.len()],
        }
    }

    /// Compares samples until their channel closes, then asks for the outcome of wallet batches.
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
            None => Compared::Not("there is no reference".to_owned()),
            Some((reference, sameness)) => compare(reference, *sameness, &sample, &mut self.failures[target]).await,
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
            Compared::Not(why) => *checked.not_comparable.entry(why).or_default() += 1,
        }
    }

    async fn follow_batches(&mut self, target: usize) {
        let (rpc, checked) = (&mut self.targets[target], &mut self.checked[target]);
        let until = tokio::time::Instant::now() + BATCH_PATIENCE;
        let mut failure = None;
        for id in &checked.batches {
            let end = loop {
                let status = rpc.call("wallet_getCallsStatus", json!([id])).await;
                if let Err(error) = &status {
                    let cause = failure.get_or_insert_with(|| error.to_string());
                    let why = format!("the outcome of a wallet batch is unknown: {cause}");
                    *checked.not_comparable.entry(why).or_default() += 1;
                }
                let status = status.ok().and_then(|status| status.get("status")?.as_u64());
                // EIP-5792: 1xx is pending, 200 is confirmed, and all others failed in part or whole.
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
    Not(String),
}

/// Compares a sample with the reference's answer. `failure` holds the reason of the first request that the reference did not answer.
async fn compare(reference: &mut Rpc, sameness: Sameness, sample: &Sample, failure: &mut Option<String>) -> Compared {
    let selector = match &sample.pin {
        Pin::Snapshot(id) => json!({"snapshotId": format!("{id:#x}")}),
        Pin::Block { hash, .. } if sameness == Sameness::All => json!({"blockHash": hash}),
        Pin::Block { number, .. } => json!(format!("{number:#x}")),
        Pin::Unknown(why) => return Compared::Not((*why).to_owned()),
        Pin::Write => {
            let answer: Value = serde_json::from_slice(&sample.answer).unwrap_or_default();
            return match answer.pointer("/result/id").and_then(Value::as_str) {
                Some(id) => Compared::Batch(id.to_owned()),
                None => Compared::Not("the request changed the state".to_owned()),
            };
        }
    };
    // Neither fails: the request was made here, and the answer was checked to be JSON.
    let (Ok(mut request), Ok(mut answer)) =
        (serde_json::from_slice::<Value>(&sample.request), serde_json::from_slice::<Value>(&sample.answer))
    else {
        return Compared::Not("the sample is not JSON".to_owned());
    };
    dating::forget(&mut request);
    dating::forget(&mut answer);
    select(&mut request, &selector);
    let expected = match reference.send(request.to_string().into()).await {
        Ok(expected) => expected,
        Err(error) => {
            let cause = failure.get_or_insert_with(|| error.to_string());
            return Compared::Not(format!("the reference did not answer: {cause}"));
        }
    };
    if same(&answer, &expected, sameness) {
        return Compared::Equal;
    }
    // An error may mean that the reference does not have this state: then it cannot read anything there.
    let nothing = json!(["0x0000000000000000000000000000000000000000", selector]);
    if reference.call("eth_getBalance", nothing).await.is_err() {
        return Compared::Not("the reference does not have the state".to_owned());
    }
    Compared::Mismatch(difference(&selector, &sample.request, &answer, &expected, sameness))
}
