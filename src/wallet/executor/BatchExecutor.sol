// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity ^0.8.28;

/// @title The code that an account delegates to by EIP-7702, so that one of its transactions makes many calls: all of
/// them or none.
/// @notice The interface is ERC-7821. The contract has no storage, no owner and no upgrade, so accounts that delegate
/// to it do not affect each other, and an account does only what its key signs.
contract BatchExecutor {
    struct Call {
        address to;
        uint256 value;
        bytes data;
    }

    /// The caller is not the account itself.
    error Unauthorized(address caller);
    /// The mode is neither of the two below.
    error UnsupportedExecutionMode(bytes32 mode);
    /// The number of gas limits in `opData` differs from the number of calls.
    error GasLimitCountMismatch(uint256 gasLimits, uint256 calls);
    /// The remaining gas of the transaction does not suffice to give the call at `index` its limit.
    error NotEnoughGas(uint256 index, uint256 gasLimit);

    /// The first ten bytes of a mode (ERC-7579): a batch (01) that reverts if a call does (00), four reserved bytes,
    /// and four that select the encoding. The other 22 bytes are ignored.
    bytes10 private constant SINGLE_BATCH = 0x01000000000000000000;
    bytes10 private constant SINGLE_BATCH_WITH_OP_DATA = 0x01000000000078210001;

    /// An upper bound on the gas of a CALL without the gas that it forwards: 2600 each for a cold callee and its cold
    /// delegate, 9000 for value, 25000 for a new account (EIP-2929, EIP-7702), and 800 for the instructions between the
    /// check and the CALL.
    uint256 private constant CALL_COST = 40_000;
    /// The gas that the EVM adds to a call with value.
    uint256 private constant STIPEND = 2300;

    /// n / 2 of secp256k1: of the two values of `s` that verify, only the lower is accepted (EIP-2).
    uint256 private constant HIGHEST_S = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0;

    bytes4 private constant ERC165 = 0x01ffc9a7;
    bytes4 private constant ERC721_RECEIVER = 0x150b7a02;
    bytes4 private constant ERC1155_RECEIVER = 0x4e2312e0;

    /// Accepts ether, as an account without code does.
    receive() external payable {}

    /// Accepts a call with data that selects no function, and does nothing, like a call to an account without code.
    fallback() external payable {}

    /// Makes the calls of `executionData` in order. The first call that reverts reverts all of them, with its own data.
    ///
    /// `executionData` is `abi.encode(Call[])`, or in the second mode also `abi.encode(Call[], bytes opData)`. Without
    /// `opData` the callee 0 is the account, as in ERC-7821. `opData` that is not empty is
    /// `abi.encode(uint256[] gasLimits)`, one for each call; the callee 0 is then the zero address.
    function execute(bytes32 mode, bytes calldata executionData) external payable {
        // Only the account's own transaction may enter here, because the account has signed it.
        if (msg.sender != address(this)) revert Unauthorized(msg.sender);
        if (!supportsExecutionMode(mode)) revert UnsupportedExecutionMode(mode);
        Call[] memory calls;
        bytes memory opData;
        // With two values, the first word is the offset of the first value, which is 64 or more.
        if (bytes10(mode) == SINGLE_BATCH_WITH_OP_DATA && uint256(bytes32(executionData[:32])) >= 64) {
            (calls, opData) = abi.decode(executionData, (Call[], bytes));
        } else {
            calls = abi.decode(executionData, (Call[]));
        }
        if (opData.length == 0) {
            for (uint256 i = 0; i < calls.length; ++i) {
                Call memory plain = calls[i];
                _call(gasleft(), plain.to == address(0) ? address(this) : plain.to, plain.value, plain.data);
            }
            return;
        }
        uint256[] memory gasLimits = abi.decode(opData, (uint256[]));
        if (gasLimits.length != calls.length) revert GasLimitCountMismatch(gasLimits.length, calls.length);
        for (uint256 i = 0; i < calls.length; ++i) {
            Call memory literal = calls[i];
            _call(_gasOf(i, gasLimits[i], literal.value), literal.to, literal.value, literal.data);
        }
    }

    /// Whether `execute` takes this mode.
    function supportsExecutionMode(bytes32 mode) public pure returns (bool) {
        return bytes10(mode) == SINGLE_BATCH || bytes10(mode) == SINGLE_BATCH_WITH_OP_DATA;
    }

    /// ERC-1271: whether the account's own key signed `hash`. A delegated account has code, so contracts ask here
    /// instead of recovering the signer.
    function isValidSignature(bytes32 hash, bytes calldata signature) external view returns (bytes4) {
        return _isOwn(hash, signature) ? this.isValidSignature.selector : bytes4(0xffffffff);
    }

    /// ERC-721: accepts tokens that are sent by `safeTransferFrom`, as before the account had code.
    function onERC721Received(address, address, uint256, bytes calldata) external pure returns (bytes4) {
        return this.onERC721Received.selector;
    }

    /// ERC-1155: accepts tokens like `onERC721Received`.
    function onERC1155Received(address, address, uint256, uint256, bytes calldata) external pure returns (bytes4) {
        return this.onERC1155Received.selector;
    }

    /// ERC-1155: accepts tokens like `onERC721Received`.
    function onERC1155BatchReceived(address, address, uint256[] calldata, uint256[] calldata, bytes calldata)
        external
        pure
        returns (bytes4)
    {
        return this.onERC1155BatchReceived.selector;
    }

    /// ERC-165, which ERC-1155 requires of a receiver.
    function supportsInterface(bytes4 id) external pure returns (bool) {
        return id == ERC165 || id == ERC721_RECEIVER || id == ERC1155_RECEIVER;
    }

    /// The gas to make the call with, so that the callee gets `limit`. Reverts if too little is left, because a CALL
    /// for more than 63/64 of the remaining gas silently forwards just that (EIP-150). A call with value always gets
    /// the stipend, so its limit is never lower.
    function _gasOf(uint256 index, uint256 limit, uint256 value) private view returns (uint256) {
        uint256 left = gasleft();
        if (limit == 0) return left;
        uint256 available = left > CALL_COST ? left - CALL_COST : 0;
        if (available - available / 64 < limit) revert NotEnoughGas(index, limit);
        if (value == 0) return limit;
        return limit > STIPEND ? limit - STIPEND : 0;
    }

    /// Makes a call, and reverts with the callee's data if the callee reverts. In assembly, because Solidity copies
    /// return data even if it is not read: the account would pay for a length that the callee chooses.
    function _call(uint256 gasLimit, address to, uint256 value, bytes memory data) private {
        assembly ("memory-safe") {
            if iszero(call(gasLimit, to, value, add(data, 32), mload(data), 0, 0)) {
                let start := mload(0x40)
                returndatacopy(start, 0, returndatasize())
                revert(start, returndatasize())
            }
        }
    }

    function _isOwn(bytes32 hash, bytes calldata signature) private view returns (bool) {
        if (signature.length != 65) return false;
        bytes32 r = bytes32(signature[:32]);
        bytes32 s = bytes32(signature[32:64]);
        uint8 v = uint8(signature[64]);
        if (uint256(s) > HIGHEST_S || (v != 27 && v != 28)) return false;
        address signer = ecrecover(hash, v, r, s);
        // An invalid signature recovers to 0, which is the address of no account.
        return signer != address(0) && signer == address(this);
    }
}
