// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity ^0.8.30;

import {Erc20} from "./Erc20.sol";
import {Factory} from "./Factory.sol";
import {Pair} from "./Pair.sol";
import {Weth} from "./Weth.sol";

/// @title The entrance to the pairs: takes the caller's tokens, trades along a path, and holds to a minimum
/// @dev It keeps no state and, between transactions, no tokens and no ether.
contract Router {
    /// @notice Where the pairs are found.
    Factory public immutable factory;
    /// @notice The wrapped ether that stands for ether in paths.
    Weth public immutable WETH;

    modifier before(uint256 deadline) {
        require(block.timestamp <= deadline, "Router: expired");
        _;
    }

    constructor(Factory factory_, Weth weth) {
        factory = factory_;
        WETH = weth;
    }

    /// @notice Takes ether only from the unwrapping.
    receive() external payable {
        require(msg.sender == address(WETH), "Router: ether not from WETH");
    }

    /// @notice Adds liquidity at the pair's price, with at most the desired amounts and at least the
    ///         minima; the first liquidity makes the pair and sets its price.
    function addLiquidity(
        address tokenA,
        address tokenB,
        uint256 amountADesired,
        uint256 amountBDesired,
        uint256 amountAMin,
        uint256 amountBMin,
        address to,
        uint256 deadline
    ) external before(deadline) returns (uint256 amountA, uint256 amountB, uint256 liquidity) {
        if (factory.getPair(tokenA, tokenB) == address(0)) factory.createPair(tokenA, tokenB);
        Pair pair = _pair(tokenA, tokenB);
        (amountA, amountB) = _fit(pair, tokenA, tokenB, amountADesired, amountBDesired);
        require(amountA >= amountAMin, "Router: insufficient A amount");
        require(amountB >= amountBMin, "Router: insufficient B amount");
        _take(tokenA, pair, amountA);
        _take(tokenB, pair, amountB);
        liquidity = pair.mint(to);
    }

    /// @notice Sells exactly `amountIn` of the path's first token for its last.
    function swapExactTokensForTokens(
        uint256 amountIn,
        uint256 amountOutMin,
        address[] calldata path,
        address to,
        uint256 deadline
    ) external before(deadline) returns (uint256[] memory amounts) {
        amounts = _quote(amountIn, amountOutMin, path);
        _take(path[0], _pair(path[0], path[1]), amountIn);
        _swap(amounts, path, to);
    }

    /// @notice Sells exactly the ether sent for the path's last token; the path starts with WETH.
    function swapExactETHForTokens(
        uint256 amountOutMin,
        address[] calldata path,
        address to,
        uint256 deadline
    ) external payable before(deadline) returns (uint256[] memory amounts) {
        amounts = _quote(msg.value, amountOutMin, path);
        require(path[0] == address(WETH), "Router: invalid path");
        WETH.deposit{value: msg.value}();
        require(WETH.transfer(address(_pair(path[0], path[1])), msg.value), "Router: transfer failed");
        _swap(amounts, path, to);
    }

    /// @notice Sells exactly `amountIn` of the path's first token for ether; the path ends with WETH.
    function swapExactTokensForETH(
        uint256 amountIn,
        uint256 amountOutMin,
        address[] calldata path,
        address to,
        uint256 deadline
    ) external before(deadline) returns (uint256[] memory amounts) {
        amounts = _quote(amountIn, amountOutMin, path);
        require(path[path.length - 1] == address(WETH), "Router: invalid path");
        _take(path[0], _pair(path[0], path[1]), amountIn);
        _swap(amounts, path, address(this));
        uint256 amountOut = amounts[amounts.length - 1];
        WETH.withdraw(amountOut);
        (bool accepted, ) = to.call{value: amountOut}("");
        require(accepted, "Router: ether refused");
    }

    /// @notice What `amountIn` of the path's first token would bring, at every step of the path.
    function getAmountsOut(
        uint256 amountIn,
        address[] calldata path
    ) public view returns (uint256[] memory amounts) {
        require(path.length >= 2, "Router: invalid path");
        amounts = new uint256[](path.length);
        amounts[0] = amountIn;
        for (uint256 i = 1; i < path.length; i++) {
            (uint256 reserveIn, uint256 reserveOut) = _reserves(_pair(path[i - 1], path[i]), path[i - 1], path[i]);
            amounts[i] = getAmountOut(amounts[i - 1], reserveIn, reserveOut);
        }
    }

    /// @notice What `amountIn` brings from a pair with these reserves, after the fee of 0.3 %.
    function getAmountOut(
        uint256 amountIn,
        uint256 reserveIn,
        uint256 reserveOut
    ) public pure returns (uint256 amountOut) {
        require(amountIn > 0, "Router: insufficient input amount");
        require(reserveIn > 0 && reserveOut > 0, "Router: insufficient liquidity");
        uint256 afterFee = amountIn * 997;
        amountOut = (afterFee * reserveOut) / (reserveIn * 1000 + afterFee);
    }

    function _quote(
        uint256 amountIn,
        uint256 amountOutMin,
        address[] calldata path
    ) private view returns (uint256[] memory amounts) {
        amounts = getAmountsOut(amountIn, path);
        require(amounts[amounts.length - 1] >= amountOutMin, "Router: insufficient output amount");
    }

    /// @dev Each pair pays straight into the next one; the first has been paid already.
    function _swap(uint256[] memory amounts, address[] calldata path, address to) private {
        for (uint256 i = 1; i < path.length; i++) {
            address receiver = i + 1 < path.length ? address(_pair(path[i], path[i + 1])) : to;
            (uint256 out0, uint256 out1) = path[i] < path[i - 1] ? (amounts[i], uint256(0)) : (uint256(0), amounts[i]);
            _pair(path[i - 1], path[i]).swap(out0, out1, receiver, "");
        }
    }

    /// @dev The largest amounts within the desired ones that are in proportion to the reserves.
    function _fit(
        Pair pair,
        address tokenA,
        address tokenB,
        uint256 desiredA,
        uint256 desiredB
    ) private view returns (uint256 amountA, uint256 amountB) {
        (uint256 reserveA, uint256 reserveB) = _reserves(pair, tokenA, tokenB);
        if (reserveA == 0 && reserveB == 0) return (desiredA, desiredB);
        require(reserveA > 0 && reserveB > 0, "Router: insufficient liquidity");
        amountB = (desiredA * reserveB) / reserveA;
        if (amountB <= desiredB) return (desiredA, amountB);
        return ((desiredB * reserveA) / reserveB, desiredB);
    }

    function _reserves(
        Pair pair,
        address tokenA,
        address tokenB
    ) private view returns (uint256 reserveA, uint256 reserveB) {
        (uint256 reserve0, uint256 reserve1, ) = pair.getReserves();
        return tokenA < tokenB ? (reserve0, reserve1) : (reserve1, reserve0);
    }

    function _pair(address tokenA, address tokenB) private view returns (Pair) {
        address pair = factory.getPair(tokenA, tokenB);
        require(pair != address(0), "Router: no such pair");
        return Pair(pair);
    }

    function _take(address token, Pair pair, uint256 amount) private {
        require(Erc20(token).transferFrom(msg.sender, address(pair), amount), "Router: transfer failed");
    }
}
