//! The `config` and the L1 attributes of the OP-stack chains that tests build.

use std::fmt::Write;

use alloy_primitives::{Address, B256, Bytes, TxKind, U256, address, hex};
use op_alloy::consensus::{
    TxDeposit,
    post_exec::{SDMGasEntry, TxPostExec, build_post_exec_tx},
};
use serde_json::{Value, json};

pub const L1_BLOCK: Address = address!("4200000000000000000000000000000000000015");
pub const SEQUENCER_FEE_VAULT: Address = address!("4200000000000000000000000000000000000011");
pub const BASE_FEE_VAULT: Address = address!("4200000000000000000000000000000000000019");
pub const L1_FEE_VAULT: Address = address!("420000000000000000000000000000000000001A");
pub const OPERATOR_FEE_VAULT: Address = address!("420000000000000000000000000000000000001b");

/// Returns a genesis `config` with the forks of the OP stack up to `last`, all active from the start.
pub fn config(chain_id: u64, last: &str) -> Value {
    let forks =
        ["regolith", "canyon", "ecotone", "fjord", "granite", "holocene", "isthmus", "jovian", "karst", "lagoon"];
    let mut config = json!({
        "chainId": chain_id,
        "bedrockBlock": 0,
        "terminalTotalDifficulty": 0,
        "terminalTotalDifficultyPassed": true,
        "optimism": { "eip1559Elasticity": 6, "eip1559Denominator": 50, "eip1559DenominatorCanyon": 250 },
    });
    let end = forks.iter().position(|fork| *fork == last).expect("a fork of the OP stack");
    for fork in &forks[..=end] {
        config[format!("{fork}Time")] = json!(0);
    }
    config
}

/// Returns the post-execution transaction of block `number` with these refunds: the index of a transaction, and gas.
pub fn post_exec<T: From<TxPostExec>>(number: u64, refunds: &[(u64, u64)]) -> T {
    let entry = |(index, gas_refund): &(u64, u64)| SDMGasEntry { index: *index, gas_refund: *gas_refund };
    build_post_exec_tx(number, refunds.iter().map(entry).collect()).into()
}

/// The L1 attributes of a Jovian block, which the sequencer sets in the first transaction of each block.
pub struct Attributed {
    base_fee_scalar: u32,
    blob_base_fee_scalar: u32,
    /// Wei for a unit of L1's gas.
    pub base_fee: u64,
    blob_base_fee: u64,
    operator_scalar: u32,
    operator_constant: u64,
    footprint_scalar: u16,
}

pub const ATTRIBUTED: Attributed = Attributed {
    base_fee_scalar: 5_227,
    blob_base_fee_scalar: 1_014_213,
    base_fee: 20_000_000_000,
    blob_base_fee: 3_000_000,
    operator_scalar: 7,
    operator_constant: 1_000,
    footprint_scalar: 400,
};

impl Attributed {
    /// Encodes `setL1BlockValuesJovian` (<https://specs.optimism.io/protocol/jovian/l1-attributes.html>).
    pub fn input(&self) -> Bytes {
        let mut input = hex!("3db6be2b").to_vec();
        input.extend(self.base_fee_scalar.to_be_bytes());
        input.extend(self.blob_base_fee_scalar.to_be_bytes());
        input.extend([0; 8 + 8 + 8]);
        input.extend(U256::from(self.base_fee).to_be_bytes::<32>());
        input.extend(U256::from(self.blob_base_fee).to_be_bytes::<32>());
        input.extend([0; 32 + 32]);
        input.extend(self.operator_scalar.to_be_bytes());
        input.extend(self.operator_constant.to_be_bytes());
        input.extend(self.footprint_scalar.to_be_bytes());
        input.into()
    }

    /// Returns the storage of the `L1Block` contract with these values.
    pub fn storage(&self) -> Value {
        let word = |text: String| format!("0x{text:0>64}");
        let slot = |number: u64| word(format!("{number:x}"));
        let scalars = format!("{:08x}{:08x}{:016x}", self.base_fee_scalar, self.blob_base_fee_scalar, 0);
        let mut operator = String::new();
        write!(operator, "{:04x}{:08x}{:016x}", self.footprint_scalar, self.operator_scalar, self.operator_constant)
            .expect("a text");
        json!({
            slot(1): word(format!("{:x}", self.base_fee)),
            slot(3): word(scalars),
            slot(7): word(format!("{:x}", self.blob_base_fee)),
            slot(8): word(operator),
        })
    }

    /// Returns the deposit that sets them.
    pub fn deposit<T: From<TxDeposit>>(&self) -> T {
        TxDeposit {
            source_hash: B256::with_last_byte(1),
            from: address!("DeaDDEaDDeAdDeAdDEAdDEaddeAddEAdDEAd0001"),
            to: TxKind::Call(L1_BLOCK),
            gas_limit: 1_000_000,
            input: self.input(),
            ..TxDeposit::default()
        }
        .into()
    }

    /// Returns the L1 fee of a transaction with the minimum estimated size of 100 bytes, from Fjord on
    /// (<https://specs.optimism.io/protocol/fjord/exec-engine.html>).
    pub fn l1_fee(&self) -> U256 {
        let a_byte = U256::from(16 * u64::from(self.base_fee_scalar)) * U256::from(self.base_fee)
            + U256::from(self.blob_base_fee_scalar) * U256::from(self.blob_base_fee);
        U256::from(100_000_000) * a_byte / U256::from(1_000_000_000_000_u64)
    }

    /// Returns the operator fee, from Jovian on (<https://specs.optimism.io/protocol/jovian/exec-engine.html>).
    pub fn operator_fee(&self, gas: u64) -> U256 {
        U256::from(gas) * U256::from(self.operator_scalar) * U256::from(100) + U256::from(self.operator_constant)
    }
}
