// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity ^0.8.30;

/// @title Balances, allowances and transfers, shared by every token of the world
/// @dev The state variables below are the first of every token contract, so balances always lie in
///      the mapping at slot 0, allowances at slot 1 and the total supply in slot 2.
abstract contract Erc20 {
    /// @notice Tokens held by each account.
    mapping(address account => uint256) public balanceOf;
    /// @notice Tokens that `spender` may still move out of `owner`'s balance.
    mapping(address owner => mapping(address spender => uint256)) public allowance;
    /// @notice Tokens in existence.
    uint256 public totalSupply;
    /// @notice The token's long name.
    string public name;
    /// @notice The token's ticker.
    string public symbol;
    /// @notice Digits after the decimal point.
    uint8 public constant decimals = 18;

    event Transfer(address indexed from, address indexed to, uint256 value);
    event Approval(address indexed owner, address indexed spender, uint256 value);

    /// @notice The sender of the tokens holds `have`, the transfer takes `want`.
    error InsufficientBalance(uint256 have, uint256 want);
    /// @notice The caller may move `have`, the transfer takes `want`.
    error InsufficientAllowance(uint256 have, uint256 want);

    constructor(string memory name_, string memory symbol_) {
        name = name_;
        symbol = symbol_;
    }

    /// @notice Lets `spender` move up to `value` of the caller's tokens; the largest value never runs out.
    function approve(address spender, uint256 value) external returns (bool) {
        allowance[msg.sender][spender] = value;
        emit Approval(msg.sender, spender, value);
        return true;
    }

    /// @notice Moves `value` of the caller's tokens to `to`.
    function transfer(address to, uint256 value) external returns (bool) {
        _transfer(msg.sender, to, value);
        return true;
    }

    /// @notice Moves `value` of `from`'s tokens to `to`, within the caller's allowance.
    function transferFrom(address from, address to, uint256 value) external returns (bool) {
        uint256 allowed = allowance[from][msg.sender];
        if (allowed != type(uint256).max) {
            if (allowed < value) revert InsufficientAllowance(allowed, value);
            unchecked {
                allowance[from][msg.sender] = allowed - value;
            }
        }
        _transfer(from, to, value);
        return true;
    }

    function _transfer(address from, address to, uint256 value) internal {
        _debit(from, value);
        // The sum of all balances is the total supply: this addition cannot overflow.
        unchecked {
            balanceOf[to] += value;
        }
        emit Transfer(from, to, value);
    }

    function _mint(address to, uint256 value) internal {
        totalSupply += value;
        unchecked {
            balanceOf[to] += value;
        }
        emit Transfer(address(0), to, value);
    }

    function _burn(address from, uint256 value) internal {
        _debit(from, value);
        unchecked {
            totalSupply -= value;
        }
        emit Transfer(from, address(0), value);
    }

    function _debit(address from, uint256 value) internal {
        uint256 held = balanceOf[from];
        if (held < value) revert InsufficientBalance(held, value);
        unchecked {
            balanceOf[from] = held - value;
        }
    }
}
