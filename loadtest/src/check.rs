//! Compares sampled answers with a reference's.
//!
//! What can be compared soundly is only what both were asked about the same state:
//!
//! - An answer at `pending` from presim names its snapshot (`x-presim-snapshot`; over a WebSocket and for batches the connection asks
//!   `presim_snapshot` before and after, and the two must be equal). The request is asked again with `{"snapshotId": id}`.
//! - An answer at `latest` is taken between two questions for the head on the same connection, whose hashes must be equal. The request is asked
//!   again with `{"blockHash": hash}`.
//! - A state that the reference does not keep (any more), or never had, is *not comparable*: a read of nothing at the same selector fails then.
//! - What changes the state is never asked again. What became of a wallet batch is asked after the run.

use std::{collections::HashMap, time::Duration};

use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    answer::shown,
    body::select,
    generate::{Pin, Sample},
    rpc::Rpc,
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

/// Compares one sample after another.
pub struct Checker {
    targets: Vec<Rpc>,
    /// Who knows better, by target; none where nobody does.
    references: Vec<Option<Rpc>>,
    checked: Vec<Checked>,
}

impl Checker {
    /// `presim` says of each target whether it is presim: it can be its own reference, as it can be asked about a state again.
    pub fn new(targets: &[Target], presim: &[bool], reference: Option<&Target>, timeout: Duration) -> Self {
        let rpc = |target: &Target| Rpc::new(&target.over(false), timeout);
        let references = targets
            .iter()
            .zip(presim)
            .map(|(target, presim)| match reference {
                Some(reference) => Some(Rpc::new(reference, timeout)),
                None => presim.then(|| rpc(target)),
            })
            .collect();
        Self {
            targets: targets.iter().map(rpc).collect(),
            references,
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
            Some(reference) => compare(reference, &sample).await,
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

async fn compare(reference: &mut Rpc, sample: &Sample) -> Compared {
    let selector = match &sample.pin {
        Pin::Snapshot(id) => json!({"snapshotId": format!("{id:#x}")}),
        Pin::Block(hash) => json!({"blockHash": hash}),
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
    let (Ok(mut request), Ok(answer)) =
        (serde_json::from_slice::<Value>(&sample.request), serde_json::from_slice::<Value>(&sample.answer))
    else {
        return Compared::Not("no JSON");
    };
    select(&mut request, &selector);
    let Ok(expected) = reference.send(request.to_string().into()).await else {
        return Compared::Not("the reference did not answer");
    };
    if results(&answer) == results(&expected) {
        return Compared::Equal;
    }
    // An error may mean that the reference does not know this state: then it cannot read anything there.
    let nothing = json!(["0x0000000000000000000000000000000000000000", selector]);
    if reference.call("eth_getBalance", nothing).await.is_err() {
        return Compared::Not("the reference does not have the state");
    }
    Compared::Mismatch(difference(&selector, &sample.request, &answer, &expected))
}

/// What was answered, by id, without what carries it: the order in a batch is free.
fn results(answer: &Value) -> Vec<(String, &Value)> {
    let one = |answer: &'_ Value| answer["id"].to_string();
    let result = |answer| -> &Value {
        let answer: &Value = answer;
        answer.get("result").unwrap_or_else(|| &answer["error"])
    };
    let mut results: Vec<_> = match answer {
        Value::Array(answers) => answers.iter().map(|answer| (one(answer), result(answer))).collect(),
        answer => vec![(one(answer), result(answer))],
    };
    results.sort_by(|a, b| a.0.cmp(&b.0));
    results
}

fn difference(selector: &Value, request: &[u8], answer: &Value, expected: &Value) -> String {
    let (ours, theirs) = (answer.to_string(), expected.to_string());
    // What comes before the first difference is no help.
    let at = ours.bytes().zip(theirs.bytes()).take_while(|(a, b)| a == b).count().saturating_sub(40);
    let part = |text: &str| shown(text.as_bytes().get(at..).unwrap_or_default());
    format!("at {selector}: {} … expected {} … for {}", part(&ours), part(&theirs), shown(request))
}
