//! `traceTransfers`: transfers of the native currency as ERC-20 logs, in order among the real logs.

use alloy_primitives::{Address, B256, Log, LogData, U256, address, b256};
use revm::{
    context_interface::{ContextTr, JournalTr},
    interpreter::FrameInput,
};

use crate::state::{LogOrigin, Overlay};

/// The address in the log of a transfer (execution-apis, `eth_simulateV1`).
const EMITTER: Address = address!("eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee");
/// The topic of `Transfer(address,address,uint256)`.
pub(super) const TRANSFER: B256 = b256!("ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef");

/// A log with its number among all logs of its block, including reverted ones.
#[derive(Clone, Debug)]
pub struct NumberedLog {
    /// The log's number, from 0.
    pub number: u64,
    /// The log itself.
    pub log: Log,
}

/// A transfer of the native currency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The account that pays.
    pub from: Address,
    /// The recipient.
    pub to: Address,
    /// Value in wei.
    pub value: U256,
}

impl Transfer {
    /// Reads a transfer from the log that [`write_log`](Self::write_log) or the protocol wrote.
    pub(super) fn of_log(log: &Log) -> Option<Self> {
        let [_, from, to] = log.topics() else { return None };
        let value = U256::try_from_be_slice(&log.data.data)?;
        Some(Self { from: Address::from_word(*from), to: Address::from_word(*to), value })
    }

    /// Returns the transfer with which a frame begins, or `None` if the frame transfers nothing. The contract that a frame is to create is
    /// the zero address here.
    pub(super) fn of_frame(frame: &FrameInput) -> Option<Self> {
        let (from, to, value) = match frame {
            FrameInput::Call(call) => {
                (call.transfer_from(), call.transfer_to(), call.transfer_value().unwrap_or_default())
            }
            FrameInput::Create(create) => (create.caller(), Address::ZERO, create.value()),
            FrameInput::Empty => return None,
        };
        (!value.is_zero()).then_some(Self { from, to, value })
    }

    /// Writes the transfer as a log of the open frame, so that a revert of the frame also reverts the log.
    pub(super) fn write_log<'a>(self, context: &mut impl ContextTr<Db = &'a mut Overlay>) {
        let topics = vec![TRANSFER, self.from.into_word(), self.to.into_word()];
        let data = LogData::new_unchecked(topics, self.value.to_be_bytes::<32>().into());
        let journal = context.journal_mut();
        let before = journal.logs().len();
        journal.log(Log { address: EMITTER, data });
        journal.db_mut().log_numbers.push(before, LogOrigin::Simulation);
    }
}
