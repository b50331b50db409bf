//! The program is killed between each two steps of a batch.

use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::Duration,
};

use alloy_primitives::{U256, bytes};
use serde_json::{Value, json};

use super::{super::stage::launch_by, LiveWallet, call, key, mined, reason, with_receipts};
use crate::{
    live::{
        built::{Built, ETHEREUM, SOMEBODY, sent_by},
        with_usual,
    },
    process::{Presim, eventually, text},
    support::{items, number, request, say, signal},
};

/// The id of the batch.
const ID: &str = "the-batch";
/// Longer than any test lasts.
const NEVER: Duration = Duration::from_secs(3_600);

/// The last step of a batch before the program is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum BatchStep {
    /// The batch is simulated, and the upstream is asked for the nonce.
    Simulated,
    /// The client has its answer, so the batch is stored. The upstream is gone.
    Stored,
    /// The upstream has the request that sends it, and does not read it.
    Sent,
    /// The upstream has taken the transaction, and has not answered.
    Taken,
    /// The upstream has answered.
    Known,
    /// The upstream has a block with the transaction, and answers with it.
    Mined,
    /// The status is 200.
    Seen,
    /// The upstream answers that the block is final.
    Final,
    /// The outcome is stored.
    Settled,
}

const STEPS: [BatchStep; 9] = [
    BatchStep::Simulated,
    BatchStep::Stored,
    BatchStep::Sent,
    BatchStep::Taken,
    BatchStep::Known,
    BatchStep::Mined,
    BatchStep::Seen,
    BatchStep::Final,
    BatchStep::Settled,
];

/// The program with a wallet, and the upstream that it follows.
struct KilledWallet {
    live: LiveWallet,
    presim: Presim,
}

impl KilledWallet {
    async fn new() -> Self {
        let live = LiveWallet::unstarted(Built::ethereum(), None).await;
        let presim = Self::run(&live).await;
        let this = Self { live, presim };
        // The state that the batch reads is known.
        let from = key(0).address();
        this.ask("eth_call", json!([{"from": from, "to": SOMEBODY, "value": "0x1"}, "pending"])).await;
        this.ask("wallet_getCapabilities", json!([from])).await;
        this
    }

    async fn run(live: &LiveWallet) -> Presim {
        let flags = [
            "--data-dir",
            text(live.data.path()),
            "--wallet-resend-ms",
            "200",
            "--wallet-key-file",
            text(live.keys[0].path()),
            "--metrics",
            "127.0.0.1:0",
            "--upstream-timeout-ms",
            "5000",
        ];
        let start = |flags: &[&str]| Ok(Presim::start(flags));
        let started = launch_by(&live.upstream.url(), Some(&live.newest.config), &with_usual(&flags), start).await;
        started.unwrap()
    }

    /// Kills the program when the upstream is about to give an answer that satisfies the condition.
    fn kill_before_the_answer(&self, is: impl Fn(&str, &Value, &Value) -> bool + Send + 'static) {
        let (id, is_alive) = (self.presim.child.id(), AtomicBool::new(true));
        self.live.upstream.lie(move |method, params, truth| {
            if is(method, params, &truth) && is_alive.swap(false, SeqCst) {
                signal(id, "KILL");
            }
            truth
        });
    }

    /// Waits until the program has been killed, and starts it again.
    async fn start_again(&mut self) {
        eventually("it is killed", async || self.presim.child.try_wait().unwrap()).await;
        self.live.upstream.well();
        self.presim = Self::run(&self.live).await;
    }

    async fn ask(&self, method: &str, params: Value) -> Value {
        self.presim.try_post(request(1, method, params).to_string()).await.unwrap_or_default()
    }

    /// Sends the batch. Returns whether it was accepted.
    async fn send(&self) -> bool {
        let mut batch = self.live.batch(0, false, &[call(SOMEBODY, 7, bytes!())]);
        batch[0]["id"] = json!(ID);
        self.ask("wallet_sendCalls", batch).await["result"]["id"] == ID
    }

    async fn status_when(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let ask = async || {
            let status = self.ask("wallet_getCallsStatus", json!([ID])).await["result"].take();
            is(&status).then_some(status)
        };
        eventually(what, ask).await
    }

    async fn settled(&self) -> Value {
        self.status_when("it is confirmed", |status| status["status"] == 200).await
    }

    /// Waits until the upstream has taken the transaction, and adds a block with it.
    async fn mine(&mut self) {
        let sent = self.live.sent(1).await;
        self.live.newest = self.live.newest.next(mined(sent), 1);
        self.live.upstream.push(with_receipts(self.live.newest.block.clone()));
    }

    /// Brings the batch to a step, and kills the program there.
    async fn kill_after(&mut self, step: BatchStep) {
        let sends = "eth_sendRawTransaction";
        match step {
            BatchStep::Simulated => {
                self.kill_before_the_answer(|method, params, _| {
                    method == "eth_getTransactionCount" && params[1] == "pending"
                });
                assert!(!self.send().await, "it is not accepted");
                return;
            }
            BatchStep::Stored => self.live.upstream.go_away(),
            BatchStep::Sent => self.live.upstream.slow(sends, NEVER),
            BatchStep::Taken => self.kill_before_the_answer(move |method, _, _| method == sends),
            _ => {}
        }
        // The upstream may take the transaction before the client is answered.
        assert!(self.send().await || step == BatchStep::Taken, "{step:?}: it is accepted");
        match step {
            BatchStep::Simulated => {}
            BatchStep::Stored => {
                self.status_when("it cannot be sent", |status| reason(status).contains("upstream")).await;
            }
            BatchStep::Sent => self.live.upstream.is_asked(sends, 1).await,
            BatchStep::Taken => return,
            _ => {
                self.status_when("it is known", |status| reason(status).contains("no block has it yet")).await;
            }
        }
        if step == BatchStep::Mined {
            let next = self.live.newest.number() + 1;
            let is_next = move |answer: &Value| answer["number"].is_string() && number(&answer["number"]) == next;
            self.kill_before_the_answer(move |_, _, truth| is_next(truth));
        }
        if step >= BatchStep::Mined {
            self.mine().await;
        }
        if step >= BatchStep::Seen {
            self.settled().await;
        }
        let mined = self.live.newest.number();
        if step == BatchStep::Final {
            self.kill_before_the_answer(move |_, params, truth| {
                params[0] == "finalized" && number(&truth["number"]) == mined
            });
        }
        if step >= BatchStep::Final {
            self.live.upstream.change(|chain| chain.finalized = Some(mined));
            self.live.newest = self.live.newest.next(vec![], 1);
            self.live.upstream.push(self.live.newest.block.clone());
        }
        if step == BatchStep::Settled {
            let is_stored = async || {
                let metrics = self.presim.scrape().await;
                metrics.contains("presim_wallet_settled_total{fate=\"mined\"} 1\n").then_some(())
            };
            eventually("it is stored", is_stored).await;
        }
        if ![BatchStep::Mined, BatchStep::Final].contains(&step) {
            self.presim.child.kill().unwrap();
        }
        if step == BatchStep::Stored {
            self.live.upstream.come_back().await;
        }
        self.live.upstream.slow(sends, Duration::ZERO);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_any_two_steps_a_batch_is_made_once_and_not_signed_again() {
    for step in STEPS {
        say(&format!("killed after: {step:?}"));
        let mut wallet = KilledWallet::new().await;
        wallet.kill_after(step).await;
        let (sends, receipts) = ("eth_sendRawTransaction", "eth_getTransactionReceipt");
        let before = (wallet.live.upstream.asked(sends), wallet.live.upstream.asked(receipts));
        wallet.start_again().await;
        if step == BatchStep::Simulated {
            // Nothing is left of it: the id is free.
            let answer = wallet.ask("wallet_getCallsStatus", json!([ID])).await;
            assert_eq!(answer["error"]["code"], 5730, "{step:?}: {answer}");
            assert_eq!(wallet.live.upstream.asked(sends), 0, "{step:?}: what is not stored is not sent");
            assert!(wallet.send().await, "{step:?}");
        }
        if step < BatchStep::Mined {
            wallet.mine().await;
        }
        let status = wallet.settled().await;
        let sent = wallet.live.sent(1).await;
        assert_eq!(sent.len(), 1, "{step:?}: nothing is signed again");
        assert_eq!(items(&status["receipts"])[0]["transactionHash"], json!(sent[0].tx_hash()), "{step:?}: {status}");
        assert_eq!(wallet.live.newest.balance(SOMEBODY), U256::from(7), "{step:?}");
        if step == BatchStep::Settled {
            let after = (wallet.live.upstream.asked(sends), wallet.live.upstream.asked(receipts));
            assert_eq!(before, after, "it is over: neither sent nor asked about again");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_names_the_transaction_that_took_a_nonce() {
    let mut wallet = KilledWallet::new().await;
    assert!(wallet.send().await);
    let own = *wallet.live.sent(1).await[0].tx_hash();
    let foreign = sent_by(0, ETHEREUM, 0, SOMEBODY, 3, bytes!());
    let by = *foreign.tx_hash();
    wallet.live.upstream.push(with_receipts(wallet.live.newest.next(vec![foreign], 1).block));
    wallet.status_when("it has failed", |status| status["status"] == 400).await;
    wallet.presim.signal("TERM");
    let (_, told) = wallet.presim.ended().await;
    let lines: Vec<&str> =
        told.lines().filter(|line| line.contains("another transaction has used the nonce")).collect();
    assert!(lines.len() == 1 && lines[0].contains(&own.to_string()) && lines[0].contains(&by.to_string()), "{told}");
}
