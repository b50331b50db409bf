//! The fees that a chain of the OP stack takes in addition to gas: for a transaction's data on L1, and for its
//! operator.

use alloy_eips::eip7702::{Authorization, SignedAuthorization};
use alloy_primitives::{Address, U256};

use super::accounts::{TxFields, encoded};
use crate::{
    chain::{ChainSpec, Fork, L1BlockInfo},
    engine::Call,
    ledger::Snapshot,
    state::Overlay,
};

/// The parameters of these fees in the newest block.
#[derive(Clone, Debug)]
pub(super) struct DataFee {
    info: L1BlockInfo,
    chain_id: u64,
}

impl DataFee {
    /// Reads the parameters from the state of `at`, which `overlay` is over. Returns `None` on other chains.
    pub(super) fn at(spec: &ChainSpec, at: &Snapshot, overlay: &mut Overlay) -> Option<Self> {
        let Fork::OpStack(fork) = spec.fork(at.header()) else { return None };
        let Ok(info) = L1BlockInfo::read(overlay, fork);
        Some(Self { info, chain_id: spec.chain_id() })
    }

    /// Returns the fees in wei of a call with this gas limit, and with an authorization of its sender if `authorizes`.
    pub(super) fn of(&self, call: &Call, gas: u64, authorizes: bool) -> U256 {
        let mut call = Call { gas: None, ..call.clone() };
        if authorizes {
            let authorization = Authorization { chain_id: U256::from(self.chain_id), address: Address::ZERO, nonce: 1 };
            let unsigned = SignedAuthorization::new_unchecked(authorization, 0, U256::MAX, U256::MAX >> 1);
            call.authorization_list = Some(vec![unsigned]);
        }
        // A call that cannot be a transaction is rejected when it is signed.
        let Ok(encoded) = encoded(call, TxFields { chain_id: self.chain_id, nonce: 1, gas }) else { return U256::ZERO };
        self.info.data_fee(&encoded).saturating_add(self.info.operator_fee(gas))
    }
}
