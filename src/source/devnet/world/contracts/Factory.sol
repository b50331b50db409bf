// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity ^0.8.30;

import {Pair} from "./Pair.sol";

/// @title Makes pairs, one for every two tokens, and finds them again
contract Factory {
    /// @notice The pair of two tokens, in either order; zero when there is none.
    mapping(address => mapping(address => address)) public getPair;
    /// @notice Every pair, in the order of creation.
    address[] public allPairs;

    event PairCreated(address indexed token0, address indexed token1, address pair, uint256 count);

    /// @notice A pair needs two different tokens, neither of them zero.
    error InvalidTokens(address tokenA, address tokenB);
    /// @notice The tokens have a pair already.
    error PairExists(address pair);

    /// @notice How many pairs there are.
    function allPairsLength() external view returns (uint256) {
        return allPairs.length;
    }

    /// @notice Makes the pair of the two tokens, at an address that follows from them.
    function createPair(address tokenA, address tokenB) external returns (address pair) {
        (address token0, address token1) = tokenA < tokenB ? (tokenA, tokenB) : (tokenB, tokenA);
        if (token0 == token1 || token0 == address(0)) revert InvalidTokens(tokenA, tokenB);
        pair = getPair[token0][token1];
        if (pair != address(0)) revert PairExists(pair);

        pair = address(new Pair{salt: keccak256(abi.encodePacked(token0, token1))}(token0, token1));
        getPair[token0][token1] = pair;
        getPair[token1][token0] = pair;
        allPairs.push(pair);
        emit PairCreated(token0, token1, pair, allPairs.length);
    }
}
