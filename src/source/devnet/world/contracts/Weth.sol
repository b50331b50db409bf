// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity ^0.8.30;

import {Erc20} from "./Erc20.sol";

/// @title Ether as an ERC-20, one to one
/// @dev Like the well-known wrapper, wrapping and unwrapping log `Deposit` and `Withdrawal` and no `Transfer`.
contract Weth is Erc20 {
    event Deposit(address indexed dst, uint256 wad);
    event Withdrawal(address indexed src, uint256 wad);

    /// @notice The account did not accept the ether.
    error EtherRefused(address account);

    constructor() Erc20("Wrapped Ether", "WETH") {}

    /// @notice Plain ether transfers are wrapped too.
    receive() external payable {
        deposit();
    }

    /// @notice Wraps the ether sent with the call, for the caller.
    function deposit() public payable {
        totalSupply += msg.value;
        unchecked {
            balanceOf[msg.sender] += msg.value;
        }
        emit Deposit(msg.sender, msg.value);
    }

    /// @notice Gives `wad` of the caller's wrapped ether back as ether.
    function withdraw(uint256 wad) external {
        _debit(msg.sender, wad);
        unchecked {
            totalSupply -= wad;
        }
        emit Withdrawal(msg.sender, wad);
        (bool accepted, ) = msg.sender.call{value: wad}("");
        if (!accepted) revert EtherRefused(msg.sender);
    }
}
