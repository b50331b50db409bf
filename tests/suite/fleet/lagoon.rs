//! Refunds of gas in a fleet: the stream, its images and restarts carry them.

use alloy_primitives::Bytes;
use serde_json::json;

use super::{
    live::{head, ingester, replica, same},
    server::NatsServer,
};
use crate::{
    live::{
        built::{Built, OP_CHAIN, SOMEBODY, sent_by, transfer},
        lagoon::{SubBlock, applied, balances, balances_at, sub_blocks},
        stage::serve,
    },
    support::{TestNode, hex, items},
    upstream::FlashblocksServer,
};

/// Checks that nodes answer the same, and that the receipts are those of this block, which is `pending`.
async fn same_refunds(nodes: &[&TestNode], built: &Built, refunds: &[(u64, u64)]) {
    let id = same(nodes).await;
    let at = json!({ "snapshotId": hex(id.0) });
    for node in nodes {
        let receipts = node.result("/", "eth_getBlockReceipts", json!([at])).await;
        for (index, receipt) in items(&receipts).iter().enumerate() {
            let refund = refunds.iter().find(|(at, _)| *at == index as u64);
            assert_eq!(receipt.get("opGasRefund"), refund.map(|(_, gas)| hex(*gas)).as_ref(), "{receipt}");
        }
        assert_eq!(balances_at(node, &at).await, balances(built));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refunds_that_change_reach_replicas_late_ones_and_restarted_nodes() {
    let Some(server) = NatsServer::start() else { return };
    let first = Built::lagoon();
    let (upstream, builder, dir) =
        (serve(&[&first]).await, FlashblocksServer::start().await, tempfile::tempdir().unwrap());
    let stream = builder.url();
    let flags = ["--flashblocks", &stream, "--data-dir", dir.path().to_str().expect("UTF-8")];
    let mut leader = ingester(&server, &upstream.url(), &first.config, &flags).await;
    builder.connected(1).await;
    let early = replica(&server, &[]);
    let subs: [SubBlock; 6] = [
        (1, &[(1, 5_000)]),
        (2, &[(1, 5_000), (2, 700)]),
        (2, &[(2, 600)]),
        (3, &[(2, 600)]),
        (4, &[]),
        (4, &[(1, 10), (3, 20_000), (4, 9)]),
    ];
    // Without logs, so that a node that starts has the receipts of the upstream's head whole.
    let transfers = |nonce| {
        let other = |nonce| sent_by(1, OP_CHAIN, nonce, SOMEBODY, 6, Bytes::new());
        vec![transfer(OP_CHAIN, nonce, 5), other(nonce), transfer(OP_CHAIN, nonce + 1, 7), other(nonce + 1)]
    };
    let mut parent = first.clone();
    for at in 0..3 {
        let sent = sub_blocks(&parent, &transfers(2 * at), &subs);
        // Another replica begins in the middle of the block, from an image.
        let mut late = None;
        for (index, (built, message)) in sent.iter().enumerate() {
            builder.send_json(message);
            applied(&leader, built.number(), index).await;
            if index == 2 {
                late = Some(replica(&server, &[]));
            }
            let nodes: Vec<&TestNode> = [&leader, &early].into_iter().chain(&late).collect();
            same_refunds(&nodes, built, subs[index].1).await;
        }
        let nodes: Vec<&TestNode> = [&leader, &early].into_iter().chain(&late).collect();
        let (last, _) = &sent[5];
        upstream.push(last.block.clone());
        for node in &nodes {
            head(node, last.hash()).await;
            let block = node.result("/", "eth_getBlockByHash", json!([last.hash(), true])).await;
            assert_eq!(block["transactions"][5]["type"], "0x7d", "{block}");
        }
        same_refunds(&nodes, last, subs[5].1).await;
        parent = last.clone();
        leader.node.stop();
        leader = ingester(&server, &upstream.url(), &first.config, &flags).await;
        builder.connected(at as usize + 2).await;
        head(&leader, parent.hash()).await;
        assert_eq!(balances_at(&leader, &json!("latest")).await, balances(&parent));
    }
    assert_eq!(leader.result("/", "presim_divergences", json!([])).await, json!([]));
}
