// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity ^0.8.30;

import {Erc20} from "./Erc20.sol";

/// @title Receives control in the middle of a swap that carries data, before paying for it
interface IPairCallee {
    function uniswapV2Call(address sender, uint256 amount0, uint256 amount1, bytes calldata data) external;
}

/// @title A constant-product pair of two tokens, with a fee of 0.3 % of what comes in
/// @notice The pair works on balances: callers send tokens (or shares) first and then call it. It is
///         itself the ERC-20 of its liquidity shares. For tokens that move exactly what is asked.
/// @dev Slot 5 holds the reserves, packed from its low end: reserve0, reserve1, time; slot 6 the lock.
contract Pair is Erc20 {
    /// @notice Shares that stay locked for ever, so that a share's price stays bounded.
    uint256 public constant MINIMUM_LIQUIDITY = 1000;

    /// @notice The contract that made the pair.
    address public immutable factory;
    /// @notice The token with the lower address.
    address public immutable token0;
    /// @notice The token with the higher address.
    address public immutable token1;

    uint112 private _reserve0;
    uint112 private _reserve1;
    uint32 private _updatedAt;
    uint256 private _entered = 1;

    event Mint(address indexed sender, uint256 amount0, uint256 amount1);
    event Burn(address indexed sender, uint256 amount0, uint256 amount1, address indexed to);
    event Swap(
        address indexed sender,
        uint256 amount0In,
        uint256 amount1In,
        uint256 amount0Out,
        uint256 amount1Out,
        address indexed to
    );
    event Sync(uint112 reserve0, uint112 reserve1);

    /// @notice The pair was entered again before it was left.
    error Reentered();
    /// @notice One of the pair's own tokens cannot be the receiver of a swap.
    error InvalidReceiver(address to);
    /// @notice A swap must take something out.
    error NoOutput();
    /// @notice A swap must pay something in.
    error NoInput();
    /// @notice The swap would take a whole reserve, or more.
    error InsufficientReserve(uint256 reserve0, uint256 reserve1);
    /// @notice The swap was not paid for: after the fee, the product of the reserves would fall.
    error ProductDecreased();
    /// @notice The liquidity is too little to be worth a share, or the shares too few to be worth a token.
    error InsufficientLiquidity();
    /// @notice A balance does not fit the 112 bits of a reserve.
    error ReserveOverflow(uint256 balance0, uint256 balance1);
    /// @notice The token answered a transfer with false.
    error TransferFailed(address token);

    modifier lock() {
        if (_entered != 1) revert Reentered();
        _entered = 2;
        _;
        _entered = 1;
    }

    constructor(address token0_, address token1_) Erc20("Pair Share", "PAIR") {
        factory = msg.sender;
        token0 = token0_;
        token1 = token1_;
    }

    /// @notice The reserves the pair trades on, and the time of the block in which they last changed.
    function getReserves() public view returns (uint112 reserve0, uint112 reserve1, uint32 blockTimestampLast) {
        return (_reserve0, _reserve1, _updatedAt);
    }

    /// @notice Makes shares for the tokens sent to the pair since its reserves were last set.
    function mint(address to) external lock returns (uint256 liquidity) {
        (uint112 reserve0, uint112 reserve1, ) = getReserves();
        (uint256 balance0, uint256 balance1) = _balances();
        uint256 amount0 = balance0 - reserve0;
        uint256 amount1 = balance1 - reserve1;

        uint256 supply = totalSupply;
        if (supply == 0) {
            uint256 root = _sqrt(amount0 * amount1);
            if (root <= MINIMUM_LIQUIDITY) revert InsufficientLiquidity();
            liquidity = root - MINIMUM_LIQUIDITY;
            _mint(address(0), MINIMUM_LIQUIDITY);
        } else {
            uint256 by0 = (amount0 * supply) / reserve0;
            uint256 by1 = (amount1 * supply) / reserve1;
            liquidity = by0 < by1 ? by0 : by1;
            if (liquidity == 0) revert InsufficientLiquidity();
        }
        _mint(to, liquidity);
        _setReserves(balance0, balance1);
        emit Mint(msg.sender, amount0, amount1);
    }

    /// @notice Redeems the shares sent to the pair, for both tokens in proportion.
    function burn(address to) external lock returns (uint256 amount0, uint256 amount1) {
        uint256 shares = balanceOf[address(this)];
        uint256 supply = totalSupply;
        if (shares == 0) revert InsufficientLiquidity();
        (uint256 balance0, uint256 balance1) = _balances();
        amount0 = (balance0 * shares) / supply;
        amount1 = (balance1 * shares) / supply;
        if (amount0 == 0 || amount1 == 0) revert InsufficientLiquidity();

        _burn(address(this), shares);
        _send(token0, to, amount0);
        _send(token1, to, amount1);
        _setReserves(balance0 - amount0, balance1 - amount1);
        emit Burn(msg.sender, amount0, amount1, to);
    }

    /// @notice Sends the amounts out and then checks that they are paid for: sent to the pair before
    ///         the call or, when `data` is not empty, within the call that `to` then receives.
    function swap(uint256 amount0Out, uint256 amount1Out, address to, bytes calldata data) external lock {
        if (amount0Out == 0 && amount1Out == 0) revert NoOutput();
        (uint112 reserve0, uint112 reserve1, ) = getReserves();
        if (amount0Out >= reserve0 || amount1Out >= reserve1) revert InsufficientReserve(reserve0, reserve1);
        if (to == token0 || to == token1) revert InvalidReceiver(to);

        if (amount0Out > 0) _send(token0, to, amount0Out);
        if (amount1Out > 0) _send(token1, to, amount1Out);
        if (data.length > 0) IPairCallee(to).uniswapV2Call(msg.sender, amount0Out, amount1Out, data);

        (uint256 amount0In, uint256 amount1In) = _settle(reserve0, reserve1, amount0Out, amount1Out);
        emit Swap(msg.sender, amount0In, amount1In, amount0Out, amount1Out, to);
    }

    /// @notice Sets the reserves to the balances, giving to the pool what was sent without a call.
    function sync() external lock {
        (uint256 balance0, uint256 balance1) = _balances();
        _setReserves(balance0, balance1);
    }

    /// @dev Works out what a swap was paid, checks that it is enough, and sets the new reserves.
    function _settle(
        uint256 reserve0,
        uint256 reserve1,
        uint256 amount0Out,
        uint256 amount1Out
    ) private returns (uint256 amount0In, uint256 amount1In) {
        (uint256 balance0, uint256 balance1) = _balances();
        uint256 kept0 = reserve0 - amount0Out;
        uint256 kept1 = reserve1 - amount1Out;
        amount0In = balance0 > kept0 ? balance0 - kept0 : 0;
        amount1In = balance1 > kept1 ? balance1 - kept1 : 0;
        if (amount0In == 0 && amount1In == 0) revert NoInput();

        // Setting the reserves first bounds the balances to 112 bits: the products below fit.
        _setReserves(balance0, balance1);
        uint256 afterFee0 = balance0 * 1000 - amount0In * 3;
        uint256 afterFee1 = balance1 * 1000 - amount1In * 3;
        if (afterFee0 * afterFee1 < reserve0 * reserve1 * 1_000_000) revert ProductDecreased();
    }

    function _setReserves(uint256 balance0, uint256 balance1) private {
        if (balance0 > type(uint112).max || balance1 > type(uint112).max) revert ReserveOverflow(balance0, balance1);
        _reserve0 = uint112(balance0);
        _reserve1 = uint112(balance1);
        _updatedAt = uint32(block.timestamp);
        emit Sync(uint112(balance0), uint112(balance1));
    }

    function _balances() private view returns (uint256, uint256) {
        return (Erc20(token0).balanceOf(address(this)), Erc20(token1).balanceOf(address(this)));
    }

    function _send(address token, address to, uint256 value) private {
        if (!Erc20(token).transfer(to, value)) revert TransferFailed(token);
    }

    /// @dev The square root, rounded down: Newton's steps from a power of two that is not below it.
    function _sqrt(uint256 x) private pure returns (uint256 root) {
        if (x == 0) return 0;
        root = 1;
        for (uint256 rest = x; rest > 0; rest >>= 2) root <<= 1;
        while (true) {
            uint256 next = (root + x / root) >> 1;
            if (next >= root) return root;
            root = next;
        }
    }
}
