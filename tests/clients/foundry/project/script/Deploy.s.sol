// SPDX-License-Identifier: MIT
pragma solidity ^0.8.20;

import {Counter} from "../src/Counter.sol";

interface Vm {
    function startBroadcast() external;
    function stopBroadcast() external;
}

contract Deploy {
    bool public IS_SCRIPT = true;
    Vm constant vm = Vm(0x7109709ECfa91a80626fF3989D68f67F5b1DD12D);

    function run() external returns (Counter counter) {
        vm.startBroadcast();
        counter = new Counter(1);
        for (uint256 next = 2; next <= 5; next++) counter.set(next);
        vm.stopBroadcast();
        require(counter.number() == 5);
    }
}
