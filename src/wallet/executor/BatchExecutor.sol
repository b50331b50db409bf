// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity ^0.8.28;

/// @title What an account delegates to by EIP-7702, so that one transaction of it makes many calls: all of them or none.
/// @notice The interface is ERC-7821's. The code keeps nothing: it has no storage, no owner and no upgrade, so every account that
/// delegates to it is alone with it, and what an account may do is what its key signs.
contract BatchExecutor {
    struct Call {
        address to;
        uint256 value;
        bytes data;
    }

    /// The caller is not the account itself.
    error Unauthorized(address caller);
    /// Neither of the two modes below.
    error UnsupportedExecutionMode(bytes32 mode);
    /// `opData` has another count of gas limits than there are calls.
    error GasLimitCountMismatch(uint256 gasLimits, uint256 calls);
    /// What is left of the transaction's gas does not suffice to give the call at `index` its limit.
    error NotEnoughGas(uint256 index, uint256 gasLimit);

    /// The first ten bytes of a mode, after ERC-7579: a batch (01), which reverts when a call does (00), four reserved bytes, and four
    /// that select the encoding. The other 22 are free.
    bytes10 private constant SINGLE_BATCH = 0x01000000000000000000;
    bytes10 private constant SINGLE_BATCH_WITH_OP_DATA = 0x01000000000078210001;

    /// More than a CALL takes beside what it gives: 2600 each for a callee and for its delegate that are not warm, 9000 for value, 25000
    /// for a new account (EIP-2929, EIP-7702), and 800 for the instructions between the check and the CALL.
    uint256 private constant CALL_COST = 40_000;
    /// What the EVM adds to the gas of a call that bears value.
    uint256 private constant STIPEND = 2300;

    /// n / 2 of secp256k1: of the two values of `s` that verify, only the lower is a signature (EIP-2).
    uint256 private constant HIGHEST_S = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0;

    bytes4 private constant ERC165 = 0x01ffc9a7;
    bytes4 private constant ERC721_RECEIVER = 0x150b7a02;
    bytes4 private constant ERC1155_RECEIVER = 0x4e2312e0;

    /// An account takes ether, delegated or not.
    receive() external payable {}

    /// A call with data that no function here is for does nothing and succeeds, as a call of an account without code does.
    fallback() external payable {}

    /// Makes the calls of `executionData` in order. The first that reverts reverts all, with its own data.
    ///
    /// `executionData` is `abi.encode(Call[])`, or with the mode for it `abi.encode(Call[], bytes opData)`. Without `opData` the callee 0 is
    /// the account, as ERC-7821 has it. `opData` that is not empty is `abi.encode(uint256[] gasLimits)`, one for each call; then 0 is
    /// the address 0, and a batch does exactly what it says.
    function execute(bytes32 mode, bytes calldata executionData) external payable {
        // No other caller is ever right: the account's own transaction is the one way in, and it was signed.
        if (msg.sender != address(this)) revert Unauthorized(msg.sender);
        if (!supportsExecutionMode(mode)) revert UnsupportedExecutionMode(mode);
        Call[] memory calls;
        bytes memory opData;
        // With two values the first word is the offset of the first of them, behind both: 64 or more.
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

    /// ERC-1271: whether the account's own key signed `hash`. A delegated account has code, so that contracts ask here what they would have
    /// recovered themselves before.
    function isValidSignature(bytes32 hash, bytes calldata signature) external view returns (bytes4) {
        return _isOwn(hash, signature) ? this.isValidSignature.selector : bytes4(0xffffffff);
    }

    /// ERC-721: tokens that are sent by `safeTransferFrom` are taken, as before the account had code.
    function onERC721Received(address, address, uint256, bytes calldata) external pure returns (bytes4) {
        return this.onERC721Received.selector;
    }

    /// ERC-1155: the same.
    function onERC1155Received(address, address, uint256, uint256, bytes calldata) external pure returns (bytes4) {
        return this.onERC1155Received.selector;
    }

    /// ERC-1155: the same.
    function onERC1155BatchReceived(address, address, uint256[] calldata, uint256[] calldata, bytes calldata)
        external
        pure
        returns (bytes4)
    {
        return this.onERC1155BatchReceived.selector;
    }

    /// ERC-165, which ERC-1155 asks of a receiver.
    function supportsInterface(bytes4 id) external pure returns (bool) {
        return id == ERC165 || id == ERC721_RECEIVER || id == ERC1155_RECEIVER;
    }

    /// The gas to make the call with, so that the callee has `limit`: a CALL that is asked for more than 63/64 of what is left gives just
    /// that, and says nothing (EIP-150). A callee with value always has the stipend, so that its limit is never less.
    function _gasOf(uint256 index, uint256 limit, uint256 value) private view returns (uint256) {
        uint256 left = gasleft();
        if (limit == 0) return left;
        uint256 available = left > CALL_COST ? left - CALL_COST : 0;
        if (available - available / 64 < limit) revert NotEnoughGas(index, limit);
        if (value == 0) return limit;
        return limit > STIPEND ? limit - STIPEND : 0;
    }

    /// Calls, and reverts with what the callee reverts with. In assembly, as Solidity copies what a call returns where nobody reads it:
    /// that would be paid for by the account, and as long as the callee likes.
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
        // Nobody is 0, which is what a signature that nobody can have made recovers to.
        return signer != address(0) && signer == address(this);
    }
}
