// SPDX-License-Identifier: MIT
pragma solidity ^0.8.20;

import {Counter} from "../src/Counter.sol";

interface Vm {
    function envAddress(string calldata name) external view returns (address);
    function envUint(string calldata name) external view returns (uint256);
}

contract ForkTest {
    Vm constant vm = Vm(0x7109709ECfa91a80626fF3989D68f67F5b1DD12D);

    function testTheCounterIsAsOnTheChainAndChangesHereAlone() external {
        Counter counter = Counter(vm.envAddress("COUNTER"));
        require(block.chainid == 31337 && block.number > 0);
        require(counter.number() == vm.envUint("NUMBER"));
        counter.set(77);
        require(counter.number() == 77);
        require(address(0xa0Ee7A142d267C1f36714E4a8F75612F20a79720).balance > 1000 ether);
    }
}
