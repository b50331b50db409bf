//! The pool of a chain under test: transactions that a client removes from it, and its lowest price.

use alloy_primitives::{Address, B256};

use crate::rpc::{
    json::hex::{Fixed, Number},
    protocol::error::RpcError,
    run::Backend,
};

const HASH: &str = r#"["0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"]"#;

queries! {
    /// With --testing: removes a transaction from the pool. Returns its hash; null if it is not in the pool.
    Drop = "1 parameter: the hash of a transaction", { hash: Fixed<32> },
        HASH => Option<Fixed<32>> = r#""0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421""#,
        |asked, backend, _| drop(backend, asked.hash);

    /// With --testing: removes a transaction from the pool. Returns whether it was there.
    DropIfThere = "1 parameter: the hash of a transaction", { hash: Fixed<32> }, HASH => bool = "true",
        |asked, backend, _| drop(backend, asked.hash).is_some();

    /// With --testing: removes the transactions of an account from the pool.
    DropFrom = "1 parameter: address", { address: Fixed<20> },
        r#"["0x00000000000000000000000000000000000000aa"]"# => () = "null",
        |asked, backend, _| {
            let sender = Address::from(asked.address);
            backend.pool.withdraw(|tx| tx.signer() == sender);
        };

    /// With --testing: sets the lowest price of a transaction. Refused from London on, where base fees are the chain's.
    SetMinGasPrice = "1 parameter: wei per unit of gas", { price: Number<u64> }, r#"["0x1"]"# => () = "null",
        |asked, backend, run| {
            if run.published.newest.header().base_fee_per_gas.is_some() {
                return Err(RpcError::params("anvil_setMinGasPrice is not supported when EIP-1559 is active"));
            }
            backend.pool.set_min_tip(asked.price.0);
        };
}

without_params! {
    /// With --testing: removes all transactions from the pool.
    DropAll -> () = "null", |backend, _| { backend.pool.withdraw(|_| true); };
}

/// Removes a transaction from the pool. Returns its hash if it was there.
fn drop(backend: &Backend, hash: Fixed<32>) -> Option<B256> {
    let hash = B256::from(hash);
    backend.pool.withdraw(|tx| *tx.tx_hash() == hash).first().copied()
}
