//! Parts that no request reaches alone: digests, and the time and the bounds of withdrawn ids.

use std::{collections::HashSet, sync::Arc, time::Duration};

use alloy_primitives::{Address, U256, bytes};
use futures::FutureExt;

use super::{Approvals, Asked, AskedBatch, AskedCall, DigestPrefix, RequestedAction, Requester};
use crate::{
    telemetry::Metrics,
    wallet::{BatchId, WalletError},
};

const ACCOUNT: Address = Address::repeat_byte(1);
const CALLEE: Address = Address::repeat_byte(2);

/// Returns a batch with this id and two calls.
fn batch(id: &str) -> Asked {
    let call = |to, value: u64| AskedCall {
        to,
        value: U256::from(value),
        data: bytes!("a9059cbb"),
        gas_limit: None,
        outcome: "succeeds".to_owned(),
        words: Vec::new(),
    };
    Asked {
        id: BatchId::new(id.to_owned()).unwrap(),
        from: ACCOUNT,
        chain_id: 31_337,
        asker: Requester::default(),
        act: RequestedAction::Batch(AskedBatch {
            atomic: true,
            upgrade: Some(CALLEE),
            transactions: 2,
            most_fees: U256::from(7),
            data_fees: U256::ZERO,
            calls: vec![call(Some(CALLEE), 5), call(None, 0)],
            assets: Vec::new(),
        }),
    }
}

/// Returns the part of a request that only a batch has.
fn parts(asked: &mut Asked) -> &mut AskedBatch {
    match &mut asked.act {
        RequestedAction::Batch(batch) => batch,
        other => panic!("no batch: {other:?}"),
    }
}

#[test]
fn whatever_an_approver_decides_on_changes_the_digest() {
    let changes: [fn(&mut Asked); 15] = [
        |_| {},
        |asked| asked.chain_id += 1,
        |asked| asked.from = CALLEE,
        |asked| parts(asked).atomic = false,
        |asked| parts(asked).upgrade = None,
        |asked| parts(asked).upgrade = Some(ACCOUNT),
        |asked| parts(asked).transactions += 1,
        |asked| parts(asked).calls[0].to = Some(ACCOUNT),
        |asked| parts(asked).calls[0].to = None,
        |asked| parts(asked).calls[0].value += U256::from(1),
        |asked| parts(asked).calls[0].data = bytes!("a9059cbc"),
        |asked| parts(asked).calls[0].gas_limit = Some(0),
        |asked| parts(asked).calls[0].gas_limit = Some(21_000),
        |asked| parts(asked).calls.swap(0, 1),
        |asked| parts(asked).calls.truncate(1),
    ];
    let digests = changes.map(|change| {
        let mut asked = batch("any");
        change(&mut asked);
        asked.digest()
    });
    assert_eq!(digests.iter().collect::<HashSet<_>>().len(), changes.len(), "{digests:?}");
    // Fields that are not signed or not yet known do not change the digest.
    let mut same = batch("other");
    same.asker.page = Some("https://page.example".to_owned());
    parts(&mut same).calls[0].outcome = "reverts".to_owned();
    parts(&mut same).calls[0].words = vec!["send".to_owned()];
    parts(&mut same).most_fees += U256::from(1);
    assert_eq!(same.digest(), digests[0]);
}

#[test]
fn eight_digits_of_a_digest_suffice_and_fewer_do_not() {
    let digest = batch("any").digest();
    let text = digest.to_string();
    let (bare, upper) = (text.trim_start_matches("0x"), text[2..].to_uppercase());
    for given in [&text, &text[..10], bare, &bare[..8], &upper, &upper[..9]] {
        assert!(given.parse::<DigestPrefix>().unwrap().begins(&digest), "{given}");
    }
    for given in ["", "0x", &text[..9], &bare[..7], &format!("{text}0"), "0xabcdefgh", "0x0xabcdef", "abcdef0☃"] {
        let error = given.parse::<DigestPrefix>().unwrap_err().to_string();
        assert!(error.contains("8 to 64 in hex") && error.contains("presim wallet list"), "{given}: {error}");
    }
    // The digest of another batch, or a part that is not its beginning.
    for given in [&bare[1..], "00000000"] {
        assert!(!given.parse::<DigestPrefix>().unwrap().begins(&digest), "{given}");
    }
}

fn approvals(timeout: Duration) -> Approvals {
    Approvals::new(8, timeout, &Metrics::default())
}

/// Asks for approval, and disconnects.
fn withdraw(approvals: &Approvals, id: &str) {
    assert!(approvals.ask(batch(id)).now_or_never().is_none(), "{id} does not wait");
}

#[tokio::test]
async fn a_withdrawn_id_stays_taken_until_its_time_is_up() {
    let long = approvals(Duration::from_secs(3_600));
    withdraw(&long, "gone");
    assert!(long.waiting().is_empty());
    assert!(long.approve("gone", &batch("gone").digest().into()).unwrap_err().to_string().contains("\"gone\""));
    let error = long.ask(batch("gone")).await.unwrap_err();
    assert_eq!(error.code(), 5720, "{error}");
    let detail = error.detail().unwrap();
    assert!(detail.contains("params[0].id: gone") && detail.contains("was withdrawn"), "{detail}");

    let short = approvals(Duration::from_millis(200));
    withdraw(&short, "gone");
    // The time of a later batch is up, and so is the first one's.
    assert!(matches!(short.ask(batch("later")).await, Err(WalletError::Rejected(_))));
    assert_eq!(short.check_id(&batch("gone").id), Ok(()));
}

#[tokio::test]
async fn withdrawn_ids_are_bounded_with_those_that_wait() {
    let approvals = approvals(Duration::from_secs(3_600)).with_withdrawn(3, Arc::default());
    withdraw(&approvals, "a");
    withdraw(&approvals, "b");
    let mut waiting = Box::pin(approvals.ask(batch("c")));
    assert!((&mut waiting).now_or_never().is_none());
    let error = approvals.ask(batch("d")).await.unwrap_err();
    assert_eq!(error.code(), -32005, "{error}");
    let text = error.to_string();
    for part in ["wait for approval: 1; ", "taken: 2: ", "(--wallet-max-withdrawn)"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // All three ids are still remembered.
    for id in ["a", "b", "c"] {
        assert_eq!(approvals.ask(batch(id)).await.unwrap_err().code(), 5720, "{id}");
    }
    // A node that stops rejects waiting batches and later ones.
    approvals.stop();
    for rejected in [waiting.await, approvals.ask(batch("e")).await] {
        assert!(rejected.unwrap_err().detail().is_some_and(|detail| detail.contains("the node stops")));
    }
}
