//! The Flashblocks stream: the events that it reports for each behaviour of a server.

use std::time::Duration;

use op_alloy::rpc_types_engine::{OpFlashblockPayload, OpFlashblockPayloadBase};
use support::upstream::{FlashblocksServer, compress};
use tokio::{net::TcpListener, time::timeout};
use tokio_tungstenite::tungstenite::Message;

use super::{Event, Events, Settings, open};
use crate::upstream::link::{LinkError, LinkSettings};

/// A test that waits for longer than this hangs.
const BOUND: Duration = Duration::from_secs(120);

/// Returns settings with timeouts that a test can wait for.
fn settings(url: &str) -> Settings {
    let usual = Settings::new(url.parse().unwrap());
    let link = LinkSettings { min_pause: Duration::from_millis(1), idle_timeout: BOUND, ..usual.link };
    Settings { link, silent_after: BOUND, stalled_after: BOUND, ..usual }
}

fn payload(index: u64) -> OpFlashblockPayload {
    let base = (index == 0).then(OpFlashblockPayloadBase::default);
    OpFlashblockPayload { index, base, ..Default::default() }
}

async fn next(events: &mut Events) -> Event {
    timeout(BOUND, events.next()).await.expect("something happens").expect("the stream goes on")
}

async fn index(events: &mut Events) -> u64 {
    match next(events).await {
        Event::Flashblock { flashblock, .. } => flashblock.index,
        other => panic!("no sub-block: {other:?}"),
    }
}

async fn disconnected(events: &mut Events) -> LinkError {
    match next(events).await {
        Event::Disconnected(error) => error,
        other => panic!("not disconnected: {other:?}"),
    }
}

async fn connected(events: &mut Events) {
    let event = next(events).await;
    assert!(matches!(event, Event::Connected), "{event:?}");
}

/// Starts a server and a stream that is connected to it.
async fn pair(change: impl FnOnce(&mut Settings)) -> (FlashblocksServer, Events) {
    let server = FlashblocksServer::start().await;
    let mut settings = settings(&server.url());
    change(&mut settings);
    let mut events = open(settings);
    connected(&mut events).await;
    server.connected(1).await;
    (server, events)
}

#[tokio::test]
async fn sub_blocks_come_in_order_as_text_and_as_brotli() {
    let (server, mut events) = pair(|_| {}).await;
    server.send(&payload(0));
    server.send_brotli(&payload(1));
    server.send_message(Message::binary(serde_json::to_vec(&payload(2)).unwrap()));
    for expected in 0..3 {
        assert_eq!(index(&mut events).await, expected);
    }
}

#[tokio::test]
async fn garbage_is_told_and_what_follows_is_read() {
    let (server, mut events) = pair(|settings| settings.link.max_message = 10_000).await;
    server.send_message(Message::text("not JSON"));
    server.send_message(Message::binary(vec![0xff; 100]));
    server.send_message(Message::text("{\"index\":1}"));
    server.send_message(Message::binary(compress(&vec![b' '; 1 << 20])));
    server.send(&payload(7));
    let texts = [
        "message: ",
        "binary message of 100 bytes: neither",
        "message: missing field",
        "the message has more than 10000 bytes",
    ];
    for expected in texts {
        let Event::Garbage(error) = next(&mut events).await else { panic!("garbage is taken") };
        assert!(error.to_string().starts_with(expected), "{error}");
    }
    assert_eq!(index(&mut events).await, 7);
}

#[tokio::test]
async fn a_lost_connection_is_opened_again() {
    let (server, mut events) = pair(|_| {}).await;
    server.send(&payload(0));
    assert_eq!(index(&mut events).await, 0);
    server.drop_connections();
    disconnected(&mut events).await;
    connected(&mut events).await;
    server.connected(2).await;
    server.close("maintenance");
    assert_eq!(disconnected(&mut events).await, LinkError::Closed("1012 maintenance".to_owned()));
    connected(&mut events).await;
    server.connected(3).await;
    server.send(&payload(1));
    assert_eq!(index(&mut events).await, 1);
}

#[tokio::test]
async fn a_server_that_refuses_is_asked_again_until_it_does_not() {
    let server = FlashblocksServer::start().await;
    server.refuse(true);
    let mut events = open(settings(&server.url()));
    for _ in 0..3 {
        assert_eq!(disconnected(&mut events).await, LinkError::Status(503));
    }
    server.refuse(false);
    loop {
        match next(&mut events).await {
            Event::Connected => break,
            Event::Disconnected(LinkError::Status(503)) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_or_does_not_answer_is_told_without_the_key_in_its_url() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut hasty = settings(&format!("ws://{address}/secret-key"));
    hasty.link.connect_timeout = Duration::from_millis(50);
    let mut events = open(hasty);
    assert_eq!(disconnected(&mut events).await, LinkError::ConnectTimeout(Duration::from_millis(50)));
    drop(listener);
    let mut events = open(settings(&format!("ws://{address}/secret-key")));
    let error = disconnected(&mut events).await;
    assert!(matches!(error, LinkError::Other(_)) && !error.to_string().contains("secret-key"), "{error}");
}

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up() {
    let (server, mut events) = pair(|settings| {
        settings.link.ping_every = Duration::from_millis(10);
        settings.link.idle_timeout = Duration::from_millis(300);
    })
    .await;
    server.stall(true);
    assert_eq!(disconnected(&mut events).await, LinkError::Idle(Duration::from_millis(300)));
    server.stall(false);
    connected(&mut events).await;
}

#[tokio::test]
async fn a_server_that_answers_pings_is_kept_and_its_silence_told_once() {
    let (server, mut events) = pair(|settings| {
        settings.link.ping_every = Duration::from_millis(10);
        settings.silent_after = Duration::from_millis(100);
    })
    .await;
    assert!(matches!(next(&mut events).await, Event::Silent));
    server.send_message(Message::text("garbage"));
    assert!(matches!(next(&mut events).await, Event::Garbage(_)));
    server.send(&payload(0));
    assert_eq!(index(&mut events).await, 0);
    assert!(matches!(next(&mut events).await, Event::Silent));
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_server_that_is_cut_off_from_its_builder_is_left() {
    let (server, mut events) = pair(|settings| {
        settings.link.ping_every = Duration::from_millis(10);
        settings.stalled_after = Duration::from_millis(200);
    })
    .await;
    assert_eq!(disconnected(&mut events).await, LinkError::Stalled(Duration::from_millis(200)));
    server.connected(2).await;
}

#[tokio::test]
async fn a_message_that_is_too_long_ends_the_connection() {
    let (server, mut events) = pair(|settings| settings.link.max_message = 10_000).await;
    server.send_message(Message::text(" ".repeat(10_001)));
    assert_eq!(disconnected(&mut events).await, LinkError::MessageTooLong { limit: 10_000 });
    connected(&mut events).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_is_too_slow_is_told_how_many_it_missed() {
    too_slow(|settings| settings.capacity = 4).await;
    too_slow(|settings| settings.max_waiting = 5_000).await;
}

async fn too_slow(change: impl FnOnce(&mut Settings)) {
    let (server, mut events) = pair(change).await;
    const SENT: u64 = 100;
    for index in 0..SENT {
        server.send(&payload(index));
    }
    // The close cannot overtake messages, so all of them have been read when the connection has ended. The client may
    // open the next one at once, or only when its reader has room for the news of the end.
    server.close("done");
    tokio::select! {
        () = server.open(0) => {}
        () = server.connected(2) => {}
    }
    let (mut seen, mut missed) = (0, 0);
    loop {
        match next(&mut events).await {
            Event::Flashblock { flashblock, .. } => {
                assert_eq!(flashblock.index, seen + missed, "nothing is lost without a word");
                seen += 1;
            }
            Event::Lagged { missed: more } => missed += more,
            Event::Disconnected(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(seen > 0 && missed > 0, "{seen} seen, {missed} missed");
    assert_eq!(seen + missed, SENT);
}

#[tokio::test]
async fn many_streams_read_one_server_and_leave_it_when_they_are_dropped() {
    let server = FlashblocksServer::start().await;
    let mut streams: Vec<Events> = (0..20).map(|_| open(settings(&server.url()))).collect();
    for events in &mut streams {
        connected(events).await;
    }
    server.open(20).await;
    server.send(&payload(0));
    for events in &mut streams {
        assert_eq!(index(events).await, 0);
    }
    drop(streams);
    server.open(0).await;
}
