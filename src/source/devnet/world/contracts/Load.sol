// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity ^0.8.30;

/// @title A load on the chain: uses the gas of a transaction, without work
contract Load {
    /// @dev The inner call ends at INVALID, which takes all of its gas: 63 of 64 parts of the transaction's
    ///      (EIP-150). The transaction itself succeeds.
    fallback() external {
        if (msg.sender == address(this)) {
            assembly {
                invalid()
            }
        }
        (bool done, ) = address(this).call("");
        done;
    }
}
