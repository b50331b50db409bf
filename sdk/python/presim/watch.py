"""Standing bundles over a WebSocket that is opened again when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from hexbytes import HexBytes
from presim.codec import Quantity, Result, decode, encode
from presim.errors import PresimError
from presim.params import BlockSelector, WatchedBundle
from presim.results import Begun, BehindBundle, ChangedAnswer, Changes, Found, RunError
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
"""Seconds before the first attempt to connect again, and the limit to which they double."""

END_TIMEOUT = 5.0
"""Seconds in which a node should end the bundles of a watch that is closed. Otherwise it ends them by itself later."""

TRANSIENT_CODES = {-32000, -32005, -32016, -32603}
"""Errors of a node that starts, stops, or is overloaded. After a reconnect, the request is repeated."""

TRANSIENT_STATUSES = {408, 429}
"""HTTP statuses below 500 with which a connection is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update(Result):
    """News of a watch. A bundle in neither `changed` nor `behind` has the answer it had, unless the update is late."""

    id: Quantity
    """The snapshot for which the answers hold."""
    changed: list[ChangedAnswer]
    """The answers that differ from before."""
    behind: list[BehindBundle]
    """The bundles whose answers hold only up to an earlier snapshot."""
    block_number: Quantity | None = None
    """The block being built, or the sealed block of a watch at `latest`."""
    timestamp: Quantity | None = None
    base_fee_per_gas: Quantity | None = None
    last: bool = False
    """Whether no further update of this snapshot follows, except late ones."""
    late: bool = False
    """Whether the update says something only about the bundles in its lists."""
    begun: bool = False
    """Whether the update is the first since the bundles were created: at the beginning, and again if the node no longer
    had them. Answers from before are void, also those that are not repeated."""
    resumed: bool = False
    """Whether the update has the changes since the last complete snapshot, after the connection was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAnswer(Result):
    """A new answer of a standing search."""

    id: Quantity
    """The snapshot for which the answer holds."""
    block_number: Quantity | None
    """The block being built on it."""
    found: Found | None = None
    """The answer. None if the objective is no longer above the bound, if the search has failed, or if the node was
    restarted."""
    error: RunError | None = None
    """The reason why the search has failed."""


def update_of(changes: Changes, *, resumed: bool) -> Update:
    """Returns the update of an answer to `presim_rewatch` or `presim_results`."""
    return Update(
        id=changes.id,
        changed=changes.changed,
        behind=changes.behind,
        block_number=changes.block_number,
        timestamp=changes.timestamp,
        base_fee_per_gas=changes.base_fee_per_gas,
        last=True,
        resumed=resumed,
    )


class Connection:
    """Requests, and the notifications of one watch, on a WebSocket."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._ids = socket, itertools.count(1)
        self._notifications: deque[dict[str, Any]] = deque()

    async def request(self, method: str, params: list[Any], result: Any) -> Any:
        request_id = next(self._ids)
        await self._socket.send(json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}))
        while True:
            message = json.loads(await self._socket.recv())
            if message.get("id") == request_id:
                if "error" in message:
                    raise PresimError(message["error"])
                return decode(message["result"], result)
            if "params" in message:
                self._notifications.append(message)

    async def notification(self, watch: HexBytes) -> Update:
        while True:
            message = self._notifications.popleft() if self._notifications else json.loads(await self._socket.recv())
            params = message.get("params", {})
            if params.get("subscription") == "0x" + watch.hex():
                update: Update = decode(params["result"], Update)
                return update


async def watch(
    url: str, settings: dict[str, Any], bundles: Sequence[WatchedBundle], block: BlockSelector
) -> AsyncGenerator[Update, None]:
    """Yields the news of bundles, and survives lost connections.

    After a reconnect the node sends what has changed since the last complete snapshot (`presim_rewatch`). If the node
    no longer has the watch, for example because it was restarted, the bundles are created again.
    """
    begun: Begun | None = None
    position, pause = 0, FIRST_PAUSE
    while True:
        try:
            async with connect(url, **settings) as socket:
                connection = Connection(socket)
                update, is_first = None, False
                if begun is not None:
                    try:
                        name = encode(begun.watch, HexBytes)
                        changes = await connection.request("presim_rewatch", [name, hex(position)], Changes)
                        update = update_of(changes, resumed=True)
                    except PresimError as error:
                        if error.code != -32000:
                            raise
                if update is None:
                    wire = [encode(bundles, Sequence[WatchedBundle]), encode(block, BlockSelector)]
                    begun = await connection.request("presim_watch", wire, Begun)
                    position, is_first = begun.id, True
                assert begun is not None
                pause = FIRST_PAUSE
                try:
                    while True:
                        update = update or await connection.notification(begun.watch)
                        if update.last:
                            position = update.id
                        yield dataclasses.replace(update, begun=True) if is_first else update
                        update, is_first = None, False
                finally:
                    # Without effect if the connection is lost: then the node keeps the bundles for `presim_rewatch`.
                    with contextlib.suppress(ConnectionClosed, PresimError, asyncio.TimeoutError):
                        end = connection.request("presim_unwatch", [encode(begun.watch, HexBytes)], bool)
                        await asyncio.wait_for(end, END_TIMEOUT)
        except (OSError, ConnectionClosed, InvalidHandshake, PresimError) as error:
            if begun is None or not is_transient(error):
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def is_transient(error: Exception) -> bool:
    """Whether a request that has failed may succeed later, with no change of the request."""
    if isinstance(error, PresimError):
        return error.code in TRANSIENT_CODES
    # Of HTTP, and of the handshake of a WebSocket. A connection that was lost has none.
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status is None or status >= 500 or status in TRANSIENT_STATUSES
