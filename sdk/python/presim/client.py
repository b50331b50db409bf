"""The clients on web3.py's `Web3` and `AsyncWeb3`."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any

from presim.codec import decode, encode
from presim.errors import BundleDropped, PresimError
from presim.methods import Args, AsyncMethods, Methods
from presim.params import BlockSelector, Payload, SearchPayload, WatchedBundle
from presim.results import Begun, Dropped, SimulatedBlock, SimulatedBlocks
from presim.watch import FIRST_PAUSE, LONGEST_PAUSE, SearchAnswer, Update, is_transient, update_of, watch
from web3 import AsyncHTTPProvider, AsyncWeb3, Web3, WebSocketProvider
from web3.exceptions import Web3RPCError
from web3.method import Method
from web3.module import Module
from web3.types import RPCEndpoint
from websockets.exceptions import WebSocketException


class Presim(Module, Methods):
    """The methods of presim on a `Web3`: `Presim(w3)`, or `w3.attach_modules({"presim": Presim})`."""

    w3: Web3

    def __init__(self, w3: Web3) -> None:
        if not isinstance(w3, Web3):
            raise TypeError(f"Presim() needs a Web3, not {type(w3).__name__}: for an AsyncWeb3 there is AsyncPresim()")
        super().__init__(w3)

    def _request(self, method: str, args: Args, result: Any) -> Any:
        try:
            return decode(_call(self, method, args), result)
        except Web3RPCError as error:
            raise _typed(error) from error

    def simulate(self, payload: Payload, block: BlockSelector = "pending") -> list[SimulatedBlock]:
        """`presim_simulate`: simulates blocks of calls, and returns the named outputs only.

        Raises `BundleDropped` if `payload` has `when` and a call does not end as it has to.
        """
        return _blocks(super().simulate(payload, block))

    def watch(
        self, bundles: Sequence[WatchedBundle], block: BlockSelector = "pending", *, wait_ms: int = 1000
    ) -> Generator[Update, None, None]:
        """Yields the news of bundles by polling (`presim_results`), each time after at most `wait_ms`.

        If the node is not reached, it is asked again, after pauses that grow from 0.1 to 5 seconds. If it no longer has
        the watch, for example because it was restarted, the bundles are created again. Only an error of the first
        request, or one that a repetition cannot change, ends the iterator. To end the bundles, close the iterator.
        """
        first = self.create_watch(bundles, block)
        begun: Begun | None = first
        position, is_first, pause = first.id, True, FIRST_PAUSE
        try:
            while True:
                try:
                    if begun is None:
                        begun = self.create_watch(bundles, block)
                        position, is_first = begun.id, True
                    changes = self.results(begun.watch, position, wait_ms)
                except (OSError, WebSocketException, PresimError) as error:
                    if not is_transient(error):
                        raise
                    if isinstance(error, PresimError) and error.code == -32000:
                        begun = None
                    time.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
                    continue
                position, pause = changes.id, FIRST_PAUSE
                yield dataclasses.replace(update_of(changes, resumed=False), begun=is_first)
                is_first = False
        finally:
            # The node ends the bundles by itself if it is not reached.
            with contextlib.suppress(Exception):
                if begun is not None:
                    self.unwatch(begun.watch)


class AsyncPresim(Module, AsyncMethods):
    """The methods of presim on an `AsyncWeb3`: `AsyncPresim(w3)`, or `w3.attach_modules({"presim": AsyncPresim})`."""

    is_async = True
    w3: AsyncWeb3[Any]

    def __init__(self, w3: AsyncWeb3[Any]) -> None:
        if not isinstance(w3, AsyncWeb3):
            raise TypeError(f"AsyncPresim() needs an AsyncWeb3, not {type(w3).__name__}: for a Web3 there is Presim()")
        super().__init__(w3)

    async def _request(self, method: str, args: Args, result: Any) -> Any:
        try:
            return decode(await _call(self, method, args), result)
        except Web3RPCError as error:
            raise _typed(error) from error

    async def simulate(self, payload: Payload, block: BlockSelector = "pending") -> list[SimulatedBlock]:
        """`presim_simulate`: simulates blocks of calls, and returns the named outputs only.

        Raises `BundleDropped` if `payload` has `when` and a call does not end as it has to.
        """
        return _blocks(await super().simulate(payload, block))

    def watch(self, bundles: Sequence[WatchedBundle], block: BlockSelector = "pending") -> AsyncGenerator[Update, None]:
        """Yields the news of bundles over a WebSocket, and survives lost connections.

        The WebSocket is the iterator's own: its URL is the provider's, with `ws` in place of `http`. After a reconnect
        the node sends what has changed since the last complete snapshot (`presim_rewatch`). If the node no longer has
        the watch, for example because it was restarted, the bundles are created again. Only an error of the first
        connection, or one that a repetition cannot change, ends the iterator.

        To end the bundles, close the iterator (`contextlib.aclosing`). Each unsigned call must set `gas`.
        """
        return watch(*_socket(self.w3.provider), bundles, block)

    async def watch_search(
        self,
        payload: SearchPayload,
        block: BlockSelector = "pending",
        *,
        above: int | None = None,
    ) -> AsyncGenerator[SearchAnswer, None]:
        """Yields each new answer of a search, which runs again when a snapshot changes something that it has read.

        With `above`, yields only answers whose objective is above it, and one without `found` when it no longer is, or
        when the node was restarted and has no such answer yet. Connections are handled as by `watch`.
        """
        bundle: WatchedBundle = {"name": "search", "search": payload}
        has_found = False
        if above is not None:
            bundle["only"] = {"above": above}
        async with contextlib.aclosing(self.watch([bundle], block)) as updates:
            async for update in updates:
                if update.begun and has_found and not update.changed:
                    has_found = False
                    yield SearchAnswer(id=update.id, block_number=update.block_number)
                for change in update.changed:
                    has_found = change.result is not None
                    assert change.result is None or not isinstance(change.result, (list, Dropped))
                    yield SearchAnswer(
                        id=update.id if change.id is None else change.id,
                        block_number=update.block_number if change.block_number is None else change.block_number,
                        found=change.result,
                        error=change.error,
                    )


def _call(module: Module, method: str, args: Args) -> Any:
    """Calls a method as web3.py's own modules do, without the arguments at the end that are None."""
    params = [encode(value, hint) for value, hint in args]
    while params and params[-1] is None:
        params.pop()
    return module.retrieve_caller_fn(Method(RPCEndpoint(method)))(*params)


def _typed(error: Web3RPCError) -> Web3RPCError:
    response = error.rpc_response["error"] if error.rpc_response else None
    return PresimError(response) if response else error


def _blocks(result: SimulatedBlocks) -> list[SimulatedBlock]:
    if isinstance(result, Dropped):
        raise BundleDropped(result)
    return result


def _socket(provider: Any) -> tuple[str, dict[str, Any]]:
    """Returns the URL of the node's WebSocket, and the settings of a connection to it."""
    if isinstance(provider, WebSocketProvider):
        settings = {"max_size": None, **provider.websocket_kwargs}
        if "extra_headers" in settings:  # The name in web3.py 7, which uses the legacy API of websockets.
            settings["additional_headers"] = settings.pop("extra_headers")
        return str(provider.endpoint_uri), settings
    if isinstance(provider, AsyncHTTPProvider):
        given = dict(provider.get_request_kwargs()).get("headers", {})
        headers = {name: value for name, value in given.items() if name.lower() not in ("content-type", "user-agent")}
        url = str(provider.endpoint_uri).replace("http", "ws", 1)
        return url, {"max_size": None, "additional_headers": headers}
    raise TypeError(f"watch() needs an AsyncHTTPProvider or a WebSocketProvider, not {type(provider).__name__}")
