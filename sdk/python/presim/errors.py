"""The exceptions of the package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from presim.results import Dropped
from web3.exceptions import Web3RPCError
from web3.types import RPCError, RPCResponse


class PresimError(Web3RPCError):
    """The node has answered an error. A handler of web3.py's `Web3RPCError` handles it, too."""

    code: int
    """The code: https://www.jsonrpc.org/specification, and the table in presim's `src/rpc/README.md`."""
    message: str
    """The message, which names what was wrong and what was expected."""
    data: Any
    """Further data, such as the bytes of a revert in hex, or None."""

    def __init__(self, error: Mapping[str, Any] | RPCError) -> None:
        response = cast(RPCResponse, {"error": error})
        super().__init__(error["message"], rpc_response=response, user_message=error["message"])
        self.code, self.message, self.data = error["code"], error["message"], error.get("data")

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class BundleDropped(Exception):
    """An atomic bundle (`when`) was dropped, because a call did not end as it had to."""

    dropped: Dropped
    """The call, and if requested the reads of the run."""

    def __init__(self, dropped: Dropped) -> None:
        at = dropped.dropped
        super().__init__(f"call {at.call} of block {at.block} has not ended as it had to")
        self.dropped = dropped
