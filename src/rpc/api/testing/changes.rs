//! The methods that change a devnet under test, under the names of anvil, hardhat and ganache. The chain's source makes the changes.

use std::{marker::PhantomData, sync::Arc};

use alloy_primitives::U256;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use tokio::time::timeout_at;

use crate::{
    rpc::{
        api::{Example, Serve},
        json::{
            self,
            form::Forms,
            hex::{Data, Fixed, Number, Quantity, Word},
        },
        params,
        protocol::error::{Result, RpcError},
        run::{
            MethodInfo, MethodScope,
            request::{Request, open_answer},
            runner::RequestRunner,
        },
    },
    source::testing::{
        AccountEdit, ChainChange, ChainControl, ChangeError, ChangeOutcome, FieldChoice, Mining, fork::ForkTarget,
    },
};

/// The scope of the methods for testing.
#[derive(Clone, Debug)]
pub enum Testing {
    /// No method exists, because the node runs without `--testing`.
    Off,
    /// No method exists, because a command has started the node for itself.
    Command,
    /// Methods that build blocks. The chain is static.
    Static,
    /// All methods, the changes through this handle.
    Devnet(ChainControl),
}

/// The answer to a change, in the format of the tool that named the method.
pub trait Answer: JsonSchema + 'static {
    /// The JSON of the answer; an example if the change has its own outcome.
    const JSON: &'static str;

    /// Writes when blocks are mined.
    fn write_mining(out: &mut Vec<u8>, _mining: Mining) {
        out.extend_from_slice(Self::JSON.as_bytes());
    }
}

/// Defines answers by their JSON.
macro_rules! answers {
    ($($type:ty = $json:literal;)*) => {$(
        impl Answer for $type {
            const JSON: &'static str = $json;
        }
    )*};
}

impl Answer for IsAutomine {
    const JSON: &'static str = "true";

    fn write_mining(out: &mut Vec<u8>, mining: Mining) {
        json::value(out, &(mining == Mining::OnArrival));
    }
}

impl Answer for MiningInterval {
    const JSON: &'static str = "12";

    fn write_mining(out: &mut Vec<u8>, mining: Mining) {
        let seconds = if let Mining::Interval(every) = mining { Some(every.as_secs()) } else { None };
        json::value(out, &seconds);
    }
}

answers! {
    () = "null";
    True = "true";
    Zero = r#""0x0""#;
    Quantity<u64> = r#""0x1""#;
    bool = "true";
    i64 = "3600";
}

/// Hardhat's answer.
#[derive(JsonSchema)]
#[schemars(inline, extend("const" = true))]
#[expect(dead_code, reason = "a shape")]
pub struct True(bool);

/// Whether each transaction is mined when it arrives.
#[derive(JsonSchema)]
#[schemars(inline)]
#[expect(dead_code, reason = "a shape")]
pub struct IsAutomine(bool);

/// Seconds between two blocks; null unless they are mined at an interval.
#[derive(JsonSchema)]
#[schemars(inline)]
#[expect(dead_code, reason = "a shape")]
pub struct MiningInterval(Option<u64>);

/// Ganache's answer.
#[derive(JsonSchema)]
#[schemars(inline, extend("const" = "0x0"))]
#[expect(dead_code, reason = "a shape")]
pub struct Zero(String);

/// Defines methods that change the chain: the text by which an error counts their parameters, the parameters, an
/// example of these, and the change. Their type is generic over the answer, because several tools name the same
/// change.
macro_rules! changes {
    ($($(#[$doc:meta])* $name:ident = $expecting:literal, { $($params:tt)* }, $example:literal, |$given:ident| $change:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Deserialize, JsonSchema)]
        #[serde(expecting = $expecting)]
        pub struct $name<A = ()> {
            #[serde(skip)]
            _answer: PhantomData<fn() -> A>,
            $($params)*
        }

        impl<A: Answer> Serve for $name<A> {
            type Part = Testing;
            type Answer = A;
            const EXAMPLE: Example = Example { params: $example, answer: A::JSON };

            async fn serve<'a>(testing: &'a Testing, _: &'a Arc<RequestRunner>, request: Request) -> Result<Vec<u8>> {
                let $given: Self = params::parse(&request.params, request.caller.dialect)?;
                testing.change::<A>(&request, $change).await
            }
        }
    )*};
}

changes! {
    /// With --testing: mines blocks on a devnet, the first with the pool's waiting transactions.
    Mine = "at most 2 parameters: number of blocks, seconds between them", {
        /// The default is 1.
        #[serde(default)]
        blocks: Option<Number<u64>>,
        /// Seconds between two of the blocks.
        #[serde(default)]
        interval: Option<Number<u64>>,
    }, r#"["0x2", 12]"#, |given| mine(given.blocks, given.interval, None);

    /// With --testing: mines a block, or several.
    MineAt = "at most 1 parameter: a timestamp, or an object of timestamp and blocks", {
        /// The timestamp of the first block, or an object.
        #[serde(default)]
        options: Option<MineOptions>,
    }, r#"[{"blocks": 2}]"#, |given| mine_by(given.options);

    /// With --testing: sets the balance of an account.
    SetBalance = "2 parameters: address, balance", { address: Fixed<20>, balance: Number<U256> },
        r#"["0x00000000000000000000000000000000000000aa", "0xde0b6b3a7640000"]"#,
        |given| edit(given.address, |account| account.balance = Some(given.balance.0));

    /// With --testing: sets the nonce of an account.
    SetNonce = "2 parameters: address, nonce", { address: Fixed<20>, nonce: Number<u64> },
        r#"["0x00000000000000000000000000000000000000aa", "0x1"]"#,
        |given| edit(given.address, |account| account.nonce = Some(given.nonce.0));

    /// With --testing: sets the code of an account.
    SetCode = "2 parameters: address, code", { address: Fixed<20>, code: Data },
        r#"["0x00000000000000000000000000000000000000aa", "0x6001600055"]"#,
        |given| edit(given.address, |account| account.code = Some(given.code.0));

    /// With --testing: sets a storage slot.
    SetStorageAt = "3 parameters: address, storage slot, value", { address: Fixed<20>, slot: Word, value: Word },
        r#"["0x00000000000000000000000000000000000000aa", "0x0", "0x1"]"#,
        |given| edit(given.address, |account| account.slot = Some((given.slot.0, given.value.0)));

    /// With --testing: adds ether to the balance of an account.
    AddBalance = "2 parameters: address, ether in wei", { address: Fixed<20>, credit: Number<U256> },
        r#"["0x00000000000000000000000000000000000000aa", "0xde0b6b3a7640000"]"#,
        |given| edit(given.address, |account| account.credit = given.credit.0);

    /// With --testing: sets the receiver of the fees of all later blocks.
    SetCoinbase = "1 parameter: address", { address: Fixed<20> },
        r#"["0x00000000000000000000000000000000000000aa"]"#,
        |given| ChainChange::Choose(FieldChoice::FeeRecipient(given.address.into()));

    /// With --testing: sets the gas limit of later blocks.
    SetGasLimit = "1 parameter: gas", { gas: Number<u64> }, r#"["0x1c9c380"]"#,
        |given| ChainChange::Choose(FieldChoice::GasLimit(given.gas.0));

    /// With --testing: sets the base fee of the next block.
    SetBaseFee = "1 parameter: wei per unit of gas", { fee: Number<u64> }, r#"["0x3b9aca00"]"#,
        |given| ChainChange::Choose(FieldChoice::BaseFee(given.fee.0));

    /// With --testing: sets the randomness of the next block (EIP-4399).
    SetPrevRandao = "1 parameter: 32 bytes", { random: Word },
        r#"["0x0000000000000000000000000000000000000000000000000000000000000007"]"#,
        |given| ChainChange::Choose(FieldChoice::PrevRandao(given.random.0.into()));

    /// With --testing: sets the time from each block to the next, in place of the clock's.
    SetTimestampInterval = "1 parameter: seconds", { seconds: Number<u64> }, "[12]",
        |given| ChainChange::SetTimestampInterval(Some(given.seconds.0));

    /// With --testing: sets the time from each block to the next, overriding the clock. viem passes milliseconds here.
    SetTimestampIntervalMs = "1 parameter: milliseconds", { milliseconds: Number<u64> }, "[12000]",
        |given| ChainChange::SetTimestampInterval(Some(given.milliseconds.0 / 1000));

    /// With --testing: uses the clock's time for blocks again. Returns whether another interval was set.
    RemoveTimestampInterval = "no parameters", {}, "[]", |_given| ChainChange::SetTimestampInterval(None);

    /// With --testing: removes the newest blocks, whose transactions are lost.
    RollBack = "at most 1 parameter: number of blocks", {
        /// The number of blocks; 1 where absent.
        #[serde(default)]
        blocks: Option<Number<u64>>,
    }, "[0]", |given| ChainChange::RollBack { blocks: given.blocks.map_or(1, |blocks| blocks.0) };

    /// With --testing: returns to the beginning, or, on a fork, begins on another block of the upstream's, without the transactions
    /// that wait and the states that were saved.
    Reset = "at most 1 parameter: an object", {
        #[serde(default)]
        options: Option<ResetOptions>,
    }, "[]", |given| {
        let forking = given.options.map(|ResetOptions { forking, json_rpc_url, block_number }| {
            forking.unwrap_or(ForkedBlock { json_rpc_url, block_number })
        });
        ChainChange::Reset(forking.map(|ForkedBlock { json_rpc_url: url, block_number }| {
            ForkTarget { url, block: block_number.map(|number| number.0) }
        }))
    };

    /// With --testing: fetches the state of a fork from another node of the same chain.
    SetRpcUrl = "1 parameter: a URL", { url: String }, r#"["http://127.0.0.1:8546"]"#, |given| ChainChange::FetchFrom(given.url);

    /// With --testing: moves the clock of the blocks to a time. Returns the seconds by which it has moved forward.
    SetTime = "1 parameter: Unix time in seconds", { timestamp: Number<u64> }, "[4102444800]",
        |given| ChainChange::MoveClockTo(given.timestamp.0);

    /// With --testing: saves the chain's state and returns an id to return to it.
    Save = "no parameters", {}, "[]", |_given| ChainChange::Save;

    /// With --testing: returns to a saved state. Forgets it and the states saved after it. Returns whether it existed.
    Return = "1 parameter", { id: Number<u64> }, r#"["0x1"]"#, |given| ChainChange::Return(given.id.0);

    /// With --testing: moves the clock of the blocks forward. Returns the seconds that it is ahead.
    MoveClock = "1 parameter", { seconds: Number<u64> }, "[3600]", |given| ChainChange::MoveClock(given.seconds.0);

    /// With --testing: mines each transaction in its own block on arrival, so that its receipt exists when the sending
    /// request is answered; or ends that, so that blocks are mined on request.
    SetAutomine = "1 parameter: whether transactions are mined when they arrive", { on: bool }, "[true]",
        |given| ChainChange::SetAutomine(given.on);

    /// With --testing: mines a block at each interval, with the pool's waiting transactions.
    SetInterval = "1 parameter: seconds, 0 to mine on request", {
        /// Seconds between two blocks; 0 to mine on request.
        seconds: Number<u64>,
    }, "[12]", |given| ChainChange::SetInterval(given.seconds.0);

    /// With --testing: returns whether each transaction is mined when it arrives.
    GetAutomine = "no parameters", {}, "[]", |_given| ChainChange::Describe;

    /// With --testing: returns the interval at which blocks are mined.
    GetInterval = "no parameters", {}, "[]", |_given| ChainChange::Describe;

    /// With --testing: sets the timestamp of the next block. The clock continues from there.
    SetClock = "1 parameter", { timestamp: Number<u64> }, "[4102444800]", |given| ChainChange::SetClock(given.timestamp.0);
}

/// The options of a reset.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
struct ResetOptions {
    /// The upstream's block on which to begin, on a fork. Elsewhere its fields are null.
    forking: Option<ForkedBlock>,
    /// As in `forking`, where that is absent.
    json_rpc_url: Option<String>,
    /// As in `forking`, where that is absent.
    block_number: Option<Number<u64>>,
}

/// A block of an upstream's.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
struct ForkedBlock {
    /// The URL of a node of the same chain; the fork's own where absent.
    json_rpc_url: Option<String>,
    /// The number of the block; the newest where absent.
    block_number: Option<Number<u64>>,
}

/// Returns the change of `evm_mine`.
pub(super) fn mine_by(options: Option<MineOptions>) -> ChainChange {
    match options {
        None => mine(None, None, None),
        Some(MineOptions::At(timestamp)) => mine(None, None, Some(timestamp)),
        Some(MineOptions::Object(MineObject { timestamp, blocks })) => mine(blocks, None, timestamp),
    }
}

fn mine(blocks: Option<Number<u64>>, interval: Option<Number<u64>>, timestamp: Option<Number<u64>>) -> ChainChange {
    let number = |given: Option<Number<u64>>| given.map(|Number(number)| number);
    ChainChange::Mine { blocks: number(blocks).unwrap_or(1), interval: number(interval), timestamp: number(timestamp) }
}

fn edit(address: Fixed<20>, set: impl FnOnce(&mut AccountEdit)) -> ChainChange {
    let mut account = AccountEdit { address: address.into(), ..AccountEdit::default() };
    set(&mut account);
    ChainChange::Edit(account)
}

/// A timestamp, or an object.
#[derive(Debug, JsonSchema)]
#[serde(untagged)]
pub(super) enum MineOptions {
    At(Number<u64>),
    Object(MineObject),
}

/// The timestamp of the first block, and the number of blocks.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct MineObject {
    timestamp: Option<Number<u64>>,
    blocks: Option<Number<u64>>,
}

impl<'de> Deserialize<'de> for MineOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Forms {
            expected: "a timestamp, or an object of timestamp and blocks",
            scalar: |given| Number::of_scalar(given).map(|timestamp| timestamp.map(Self::At)),
            object: Some(|object| Ok(Self::Object(object))),
        })
    }
}

impl Testing {
    /// Returns the scope of the methods that the node has.
    pub const fn scope(&self) -> MethodScope {
        match self {
            Self::Off => MethodScope::Any,
            Self::Command => MethodScope::Command,
            Self::Static => MethodScope::Testing,
            Self::Devnet(_) => MethodScope::TestedDevnet,
        }
    }

    /// Checks that the node has the method.
    ///
    /// # Errors
    ///
    /// Returns -32601 if the node lacks the method.
    pub fn check(&self, method: &MethodInfo) -> Result<()> {
        if self.scope().has(method.scope) { Ok(()) } else { Err(self.lacks(method)) }
    }

    fn lacks(&self, method: &MethodInfo) -> RpcError {
        let needs = match self {
            _ if method.scope == MethodScope::Command => "is for `presim shadow`, which starts a node of its own",
            Self::Off | Self::Command => "is for testing: start the node with --testing",
            Self::Static | Self::Devnet(_) => "needs a devnet: this chain is static",
        };
        RpcError::new(-32601, format!("{} {needs}", method.name))
    }

    /// Makes a change, if the chain is a devnet under test, and returns the answer.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`make`](Self::make).
    async fn change<A: Answer>(&self, request: &Request, change: ChainChange) -> Result<Vec<u8>> {
        let outcome = self.make(request, change).await?;
        let mut out = open_answer(&request.id);
        match outcome {
            ChangeOutcome::Done => out.extend_from_slice(A::JSON.as_bytes()),
            ChangeOutcome::Saved(id) => json::quantity(&mut out, id),
            ChangeOutcome::Found(found) => json::value(&mut out, &found),
            ChangeOutcome::Ahead(seconds) => json::value(&mut out, &seconds),
            ChangeOutcome::Description { mining, .. } => A::write_mining(&mut out, mining),
        }
        Ok(out)
    }

    /// Makes a change for a request.
    ///
    /// # Errors
    ///
    /// Returns -32601 on a static chain, -32000 if the change cannot be made, -32005 if too many wait, and -32016 at the deadline.
    pub async fn make(&self, request: &Request, change: ChainChange) -> Result<ChangeOutcome> {
        let Self::Devnet(control) = self else { return Err(self.lacks(request.method)) };
        match timeout_at(request.ticket.deadline().into(), control.make(change)).await {
            Ok(made) => made.map_err(|error| match error {
                ChangeError::Busy => RpcError::limit(error.to_string()),
                ChangeError::TooManyBlocks { .. } | ChangeError::TooDeep { .. } => {
                    RpcError::params(format!("params[0]: {error}"))
                }
                ChangeError::State(error) => error.into(),
                ChangeError::Timestamp { .. }
                | ChangeError::TooLate(_)
                | ChangeError::NoFork
                | ChangeError::LeftOut { .. }
                | ChangeError::Fork(_)
                | ChangeError::Failed => RpcError::new(-32000, error.to_string()),
            }),
            Err(_) => Err(RpcError::new(-32016, "the change was not made in time: it may still be made")),
        }
    }
}
