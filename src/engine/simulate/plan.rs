//! The plan of a simulation: the numbers and times of its blocks, and the blocks that fill gaps.

use std::{borrow::Cow, time::Duration};

use alloy_consensus::Header;
use alloy_primitives::{Sealed, U256};

use crate::{
    chain::{Attributes, ChainSpec, Family, block_instant},
    engine::{
        error::SimulationError,
        request::{BlockOverrides, SimBlock, Simulation, SimulationRules, StateOverrides},
    },
    ledger::{OpenBlock, Snapshot},
};

/// A block to simulate. Its number and time are settled; its parent's results are not known yet.
pub(in crate::engine) struct PlannedBlock<'a> {
    pub block: Cow<'a, SimBlock>,
    pub number: u64,
    /// Unix time, in seconds.
    pub time: u64,
    /// The milliseconds beyond it, if the chain's blocks have them.
    pub millis: Option<u64>,
    /// The block's index in the request. `None` if it fills a gap.
    pub asked: Option<usize>,
    /// The block being built, if this block continues it.
    pub continues: Option<&'a OpenBlock>,
    pub header: PlannedHeader,
    /// The rules of its fork.
    pub spec: &'a ChainSpec,
    pub rules: CallRules<'a>,
}

/// The header of a planned block before its calls run.
pub(in crate::engine) enum PlannedHeader {
    /// A given header, regardless of the parent.
    Given(Box<Header>),
    /// The header that follows from the parent, with these fields from the previous block and the overrides.
    Next { attributes: Attributes, difficulty: U256 },
}

/// The rules by which the calls of a block are filled in and checked.
#[derive(Clone, Copy)]
pub(in crate::engine) enum CallRules<'a> {
    /// The rules of geth's `eth_simulateV1`.
    Simulation,
    /// The rules of `eth_callBundle`: gas is checked before blobs, and the EVM checks fees before nonces.
    Bundle,
    /// The rules of Erigon's `eth_callMany`. The calls run in a block that neither begins nor ends, and whose gas is
    /// no bound, under the state overrides of the first block.
    Many(&'a StateOverrides),
}

impl PlannedBlock<'_> {
    /// Returns the name of the fork whose rules apply to the block.
    pub(super) fn fork_name(&self) -> &'static str {
        self.spec.fork_name(&Header { number: self.number, timestamp: self.time, ..Header::default() })
    }

    /// Returns the header before the calls run, on `parent`, with the base fee that the chain or an override sets.
    pub(super) fn header(&self, parent: &Sealed<Header>) -> Header {
        let spec = self.spec;
        let (attributes, difficulty) = match &self.header {
            PlannedHeader::Given(header) => return Header::clone(header),
            PlannedHeader::Next { attributes, difficulty } => (*attributes, *difficulty),
        };
        let overrides = &self.block.block;
        let base_fee = overrides.base_fee.map(Some).unwrap_or_else(|| match self.continues {
            Some(open) => open.header.base_fee_per_gas,
            None => spec.next_base_fee(parent, self.number, self.time),
        });
        let next = spec.next_header(parent, self.number, attributes);
        let slot_number = self.continues.map_or(next.slot_number, |open| open.header.slot_number);
        // A block of a fork that the chain does not have yet begins the slots.
        let slot_number = slot_number.or(spec.fork_override().map(|_| 0));
        Header {
            difficulty,
            base_fee_per_gas: base_fee,
            slot_number: overrides.slot_number.or(slot_number).filter(|_| next.block_access_list_hash.is_some()),
            ..next
        }
    }
}

/// Returns the blocks with their numbers and times, and with fillers in the gaps.
pub(super) fn plan<'a>(
    spec: &'a ChainSpec,
    snapshot: &'a Snapshot,
    simulation: &'a Simulation,
    rules: &SimulationRules,
) -> Result<Vec<PlannedBlock<'a>>, SimulationError> {
    let base = snapshot.head.header.inner();
    let open = snapshot.open.as_ref();
    let mut planned: Vec<PlannedBlock<'a>> = Vec::with_capacity(simulation.blocks.len());
    // A timestamp is in whole seconds, so that blocks less than a second apart may share one.
    let step = rules.step(spec, snapshot);
    let repeats = step < Duration::from_secs(1);
    let (mut number, mut time) = (base.number, spec.instant_of(&snapshot.head));
    // Each block inherits these values from the previous one.
    let mut last = (base.gas_limit, base.beneficiary, base.difficulty);

    let mut push = |block: Cow<'a, SimBlock>, spec: &'a ChainSpec, number: u64, time: Duration, asked| {
        let continues = open.filter(|open| open.header.number == number);
        let (gas_limit, fee_recipient, difficulty) =
            continues.map_or(last, |open| (open.header.gas_limit, open.header.beneficiary, open.header.difficulty));
        let overrides = &block.block;
        let inherited_root = continues.and_then(|open| open.header.parent_beacon_block_root).unwrap_or_default();
        let inherited_randao = continues.filter(|_| rules.keeps_prev_randao).map(|open| open.header.mix_hash);
        let attributes = Attributes {
            timestamp: time.as_secs(),
            fee_recipient: overrides.fee_recipient.unwrap_or(fee_recipient),
            prev_randao: overrides.prev_randao.or(inherited_randao).unwrap_or_default(),
            beacon_root: overrides.beacon_root.unwrap_or(inherited_root),
            gas_limit: overrides.gas_limit.unwrap_or(gas_limit),
        };
        let difficulty =
            if spec.is_post_merge(number) { U256::ZERO } else { overrides.difficulty.unwrap_or(difficulty) };
        last = (attributes.gas_limit, attributes.fee_recipient, difficulty);
        planned.push(PlannedBlock {
            number,
            time: time.as_secs(),
            millis: spec.has_base_time(time.as_secs()).then(|| time.subsec_millis().into()),
            asked,
            continues,
            header: PlannedHeader::Next { attributes, difficulty },
            spec,
            rules: CallRules::Simulation,
            block,
        });
    };
    // The open block's own time if it is that block, else one step after the previous block.
    let default_time = |number: u64, before: Duration| match open {
        Some(open) if open.header.number == number => block_instant(open.header.timestamp, open.millis()),
        _ => before.saturating_add(step),
    };

    let mut ruled = spec;
    for (index, block) in simulation.blocks.iter().enumerate() {
        ruled = block.block.fork.as_ref().map_or(Ok(ruled), |_| block.block.rules(spec))?;
        if spec.family() == Family::OpStack && block.block.withdrawals.as_ref().is_some_and(|list| !list.is_empty()) {
            return Err(SimulationError::Params(
                "blockOverrides.withdrawals: a block of the OP stack has no withdrawals: expected none".into(),
            ));
        }
        let BlockOverrides { number: asked, time: asked_time, .. } = block.block;
        let wanted = asked.unwrap_or_else(|| number.saturating_add(1));
        if wanted <= number {
            return Err(SimulationError::BlockNumber { number: wanted, previous: number });
        }
        let span = wanted - base.number;
        if span > rules.max_blocks {
            return Err(SimulationError::TooManyBlocks { span, limit: rules.max_blocks });
        }
        for gap in number + 1..wanted {
            time = default_time(gap, time);
            push(Cow::Owned(SimBlock::default()), ruled, gap, time, None);
        }
        let next = default_time(wanted, time);
        let wanted_time = match asked_time {
            // Among blocks that share a second, the next one is a step later, if that is in the second still.
            Some(asked) if asked == next.as_secs() => next,
            Some(asked) if asked == time.as_secs() => time,
            Some(asked) => Duration::from_secs(asked),
            None => next,
        };
        let (seconds, previous) = (wanted_time.as_secs(), time.as_secs());
        if seconds < previous || seconds == previous && !repeats {
            return Err(SimulationError::BlockTime { time: seconds, previous });
        }
        (number, time) = (wanted, wanted_time);
        push(Cow::Borrowed(block), ruled, number, time, Some(index));
    }
    Ok(planned)
}
