//! Reorganisations that a client makes.

use std::{collections::BTreeMap, sync::Arc};

use alloy_consensus::{Transaction, TxEnvelope, transaction::Recovered};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

use super::changes::Testing;
use crate::{
    rpc::{
        api::{Example, Serve, send},
        json::{
            form::{Forms, from_text, text},
            hex::{Data, Number},
        },
        params::{self, CallObject},
        protocol::error::{Result, RpcError},
        run::{Attempt, Backend, request::Request, runner::RequestRunner},
    },
    source::testing::{ChainChange, ChangeError},
};

/// With --testing: replaces the newest blocks with as many new ones, which contain only these transactions. The
/// removed blocks' transactions are lost. Error: -32000 if a transaction cannot be mined; the other ones are mined.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(expecting = "1 or 2 parameters: number of blocks, pairs of a transaction and its block")]
pub struct Reorganise {
    depth: Number<u64>,
    /// Transactions, each with the index of its block among the new ones.
    #[serde(default)]
    transactions: Vec<(GivenTransaction, Number<u64>)>,
}

/// A signed transaction, or a call that is sent from any account, with missing fields filled in.
#[derive(Debug, JsonSchema)]
#[serde(untagged)]
enum GivenTransaction {
    Signed(Data),
    Call(Box<CallObject>),
}

impl<'de> Deserialize<'de> for GivenTransaction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Forms {
            expected: "a signed transaction or an object",
            scalar: |given| text(given).map(|text| from_text(text).map(Self::Signed)),
            object: Some(|call: CallObject| Ok(Self::Call(call.into()))),
        })
    }
}

impl Serve for Reorganise {
    type Part = Testing;
    type Answer = ();
    const EXAMPLE: Example = Example { params: "[0, []]", answer: "null" };

    async fn serve<'a>(testing: &'a Testing, runner: &'a Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
        let (blocks, _) = runner.run(request.clone(), sign).await?;
        testing.make(&request, ChainChange::Reorganise { blocks }).await?;
        Ok(request.answer::<(), _>(()))
    }
}

/// Returns the transactions of the new blocks, signed.
fn sign(backend: &Backend, run: &mut Attempt<'_>) -> Result<Vec<Vec<Recovered<TxEnvelope>>>> {
    let Reorganise { depth: Number(depth), transactions } = params::parse(run.params, run.dialect)?;
    let published = run.published;
    let head = published.head().number();
    let Some(on) = head.checked_sub(depth).and_then(|number| published.state_after(number)) else {
        let most = head - published.retained_states().oldest.min(head);
        return Err(RpcError::params(format!("params[0]: {}", ChangeError::TooDeep { blocks: depth, most })));
    };
    let mut blocks = vec![Vec::new(); usize::try_from(depth).unwrap_or(usize::MAX)];
    let mut nonces = BTreeMap::new();
    for (index, (given, Number(block))) in transactions.into_iter().enumerate() {
        let path = format!("params[1][{index}]");
        let Some(block) = usize::try_from(block).ok().and_then(|block| blocks.get_mut(block)) else {
            let text = format!("{path}[1]: no new block has the index {block}: expected less than {depth}");
            return Err(RpcError::params(text));
        };
        block.push(match given {
            GivenTransaction::Signed(raw) => params::transaction(&raw, format!("{path}[0]"))?,
            GivenTransaction::Call(call) => {
                send::sign_on(backend, run, on, *call, &format!("{path}[0]"), |run, from| {
                    let known = nonces.get(&from).copied();
                    known.unwrap_or_else(|| run.overlay.look_up(&on.world, from).map_or(0, |account| account.nonce))
                })?
            }
        });
        if let Some(tx) = block.last() {
            nonces.insert(tx.signer(), tx.nonce().saturating_add(1));
        }
    }
    Ok(blocks)
}
