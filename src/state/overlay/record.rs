//! Records the reads of an overlay's runs, in one place, so that its cost can be counted.

use alloy_primitives::Address;

use super::Overlay;
use crate::state::reads::{AccountRead, AccountReads, BlockReads, ReadSet};

impl Overlay {
    /// Sets whether the reads of runs are recorded. [`Overlay::reset`] forgets the record.
    pub fn record_reads(&mut self, on: bool) {
        self.reads.on = on;
    }

    /// Returns whether the reads of runs are recorded.
    #[inline(always)]
    pub fn records_reads(&self) -> bool {
        self.reads.on
    }

    /// Records that a run read `parts` of an account, except for those that an override gives. Does nothing
    /// unless reads are recorded.
    pub fn note_account(&mut self, address: Address, parts: AccountReads) {
        if self.reads.on {
            self.entry(address).note(parts);
        }
    }

    /// Records that a run read `fields` of its block. Does nothing unless reads are recorded.
    pub fn note_block(&mut self, fields: BlockReads) {
        if self.reads.on {
            self.reads.block |= fields;
        }
    }

    /// Returns the fields of the block that runs have read since the last call, and forgets them.
    pub fn take_block_reads(&mut self) -> BlockReads {
        std::mem::take(&mut self.reads.block)
    }

    /// Returns whether a run has accessed the account at `address`, as far as that was recorded.
    pub fn has_accessed(&self, address: &Address) -> bool {
        self.ids.get(address).is_some_and(|id| self.entries[*id].read.is_some())
    }

    /// Records that the run's results hold only while the block has `gas` left. Does nothing unless reads are recorded.
    pub fn note_gas(&mut self, gas: u64) {
        if self.reads.on {
            self.reads.gas = self.reads.gas.max(gas);
        }
    }

    /// Records that a run may have read anything. Does nothing unless reads are recorded.
    pub fn note_everything(&mut self) {
        self.reads.everything |= self.reads.on;
    }

    /// Adds the reads of other runs to [`Overlay::reads`].
    pub fn add_reads(&mut self, reads: ReadSet) {
        let passed = self.reads.passed.take();
        self.reads.passed = Some(Box::new(match passed {
            Some(passed) => reads.merge(&passed),
            None => reads,
        }));
    }

    /// Returns the recorded reads of all runs since the last [`Overlay::reset`].
    pub fn reads(&self) -> ReadSet {
        let record = &self.reads;
        let mut accounts: Vec<AccountRead> = Vec::new();
        let mut indices = vec![None; self.ids.len()];
        for (id, entry) in self.entries[..self.ids.len()].iter().enumerate() {
            if let Some(parts) = entry.read {
                indices[id] = Some(accounts.len());
                accounts.push(AccountRead { address: entry.now.address, parts, slots: Vec::new() });
            }
        }
        for (id, slot) in &record.slots {
            let index = *indices[*id].get_or_insert_with(|| {
                accounts.push(AccountRead { address: self.entries[*id].now.address, ..AccountRead::default() });
                accounts.len() - 1
            });
            accounts[index].slots.push(*slot);
        }
        if record.everything || accounts.len() + record.slots.len() + record.hashes.len() > ReadSet::MAX_READS {
            return ReadSet::everything();
        }
        accounts.sort_unstable_by_key(|account| account.address);
        accounts.iter_mut().for_each(|account| account.slots.sort_unstable());
        let reads = ReadSet {
            everything: false,
            accounts,
            block: record.block,
            hashes: record.hashes.clone(),
            gas: record.gas,
        };
        match &record.passed {
            Some(passed) => reads.merge(passed),
            None => reads,
        }
    }
}
