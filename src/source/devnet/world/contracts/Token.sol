// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity ^0.8.30;

import {Erc20} from "./Erc20.sol";

/// @title A plain ERC-20 whose whole supply is made once, at creation
contract Token is Erc20 {
    /// @param name_ The token's long name.
    /// @param symbol_ The token's ticker.
    /// @param supply The total supply, in the smallest unit.
    /// @param holder The account that receives all of it.
    constructor(string memory name_, string memory symbol_, uint256 supply, address holder) Erc20(name_, symbol_) {
        _mint(holder, supply);
    }
}
