// SPDX-License-Identifier: MIT
pragma solidity ^0.8.20;

contract Counter {
    uint256 public number;
    event Set(address indexed who, uint256 number);
    error TooMuch(uint256 most);

    constructor(uint256 first) {
        number = first;
    }

    function set(uint256 next) external {
        if (next > 1000) revert TooMuch(1000);
        number = next;
        emit Set(msg.sender, next);
    }
}
