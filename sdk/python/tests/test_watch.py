"""Standing bundles over a WebSocket, through a proxy that cuts it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from presim import AsyncPresim, Presim, PresimError, Update
from presim.params import SearchPayload, WatchedBundle
from web3 import AsyncHTTPProvider, AsyncWeb3, HTTPProvider, Web3, WebSocketProvider
from web3.types import RPCEndpoint, RPCResponse
from websockets.exceptions import InvalidStatus

from tests import world
from tests.world import ACCOUNT, ALPHA, BETA, ETHER, NOBODY, ROUTER, balance_of, swap

BALANCE: WatchedBundle = {
    "name": "balance",
    "simulate": {
        "blockStateCalls": [{"calls": [{"to": ALPHA, "data": balance_of(NOBODY), "gas": 100_000}]}],
        "outputs": ["returnData"],
    },
}


def client(url: str) -> AsyncPresim:
    return AsyncPresim(AsyncWeb3(AsyncHTTPProvider(url)))


def standing(url: str) -> int:
    """Returns the number of bundles that the node keeps."""
    return Presim(Web3(Web3.HTTPProvider(url))).status().standing.count


async def balance(updates: AsyncIterator[Update]) -> tuple[int, bool]:
    """Returns the next balance that the watch reports, and whether the connection was lost before it."""
    async for update in updates:
        for change in update.changed:
            assert isinstance(change.result, list) and change.name == "balance"
            return int.from_bytes(change.result[0].calls[0].return_data or b"", "big"), update.resumed
    raise AssertionError("the watch has ended")


def test_changes_arrive_and_closing_ends_the_bundles() -> None:
    async def main(url: str) -> None:
        async with contextlib.aclosing(client(url).watch([BALANCE])) as updates:
            assert await balance(updates) == (0, False)
            assert standing(url) == 1
            await asyncio.to_thread(world.transfer, url, 5)
            assert await balance(updates) == (5, False)
        assert standing(url) == 0

    with world.node("--traffic", "0") as url:
        asyncio.run(main(url))


def test_watch_survives_cut_connections() -> None:
    async def main(url: str) -> None:
        async with world.proxy(url) as proxy:
            async with contextlib.aclosing(client(proxy.url).watch([BALANCE])) as updates:
                assert await balance(updates) == (0, False)
                for expected in [5, 10]:
                    proxy.cut()
                    await asyncio.to_thread(world.transfer, url, 5)
                    # The same bundles: the answer that changed meanwhile is reported after the reconnect.
                    next_balance = asyncio.create_task(balance(updates))
                    await proxy.open()
                    assert await next_balance == (expected, True)
                await asyncio.to_thread(world.transfer, url, 5)
                assert await balance(updates) == (15, False)
                assert (standing(url), proxy.accepted) == (1, 3)
            assert standing(url) == 0

    with world.node("--traffic", "0") as url:
        asyncio.run(main(url))


def test_reconnect_repeats_no_answer_that_has_arrived() -> None:
    async def main(url: str) -> None:
        async with world.proxy(url) as proxy, contextlib.aclosing(client(proxy.url).watch([BALANCE])) as updates:
            assert await balance(updates) == (0, False)
            # With the end of a later snapshot, the news of the first one are complete.
            first = await anext(updates)
            while not first.last:
                first = await anext(updates)
            proxy.cut()
            await proxy.open()
            resumed = await anext(updates)
            while not resumed.resumed:
                resumed = await anext(updates)
            assert (resumed.changed, resumed.behind) == ([], [])
            assert resumed.id >= first.id

    with world.node("--traffic", "0") as url:
        asyncio.run(main(url))


def test_watch_is_created_again_on_a_node_that_does_not_know_it() -> None:
    async def main(first: str, second: str) -> None:
        async with (
            world.proxy(first) as proxy,
            contextlib.aclosing(client(proxy.url).watch([BALANCE])) as updates,
        ):
            assert (await anext(updates)).begun and not (await anext(updates)).begun
            proxy.cut()
            proxy.target = second
            await proxy.open()
            has_begun = False
            async for update in updates:
                has_begun = has_begun or update.begun
                if has_begun and update.changed:
                    result = update.changed[0].result
                    assert isinstance(result, list) and result[0].calls[0].return_data == bytes(32)
                    break
            assert (has_begun, standing(second)) == (True, 1)

    with world.node("--traffic", "0") as first, world.node("--traffic", "0") as second:
        world.transfer(first, 5)
        asyncio.run(main(first, second))


# Of 1 to 3 ALPHA, the most BETA that nobody can have for it.
SEARCH: SearchPayload = {
    "blockStateCalls": [
        {"calls": [{"from": ACCOUNT.address, "to": ROUTER, "gas": 500_000, "data": swap(0, [ALPHA, BETA], NOBODY)}]}
    ],
    "vary": [{"path": "blocks[0].calls[0].data", "word": 0, "values": [ETHER, 2 * ETHER, 3 * ETHER]}],
    "objective": {"account": NOBODY, "token": BETA},
}


@pytest.mark.parametrize("name", ["additional_headers", "extra_headers"])
def test_watch_sends_the_headers_of_a_websocket(tmp_path: Path, name: str) -> None:
    token = "0123456789abcdef0123456789abcdef"
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'[[token]]\nname = "a"\ntoken = "{token}"\nrate = 1000\n')
    tokens.chmod(0o600)

    async def main(url: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        provider = WebSocketProvider(url.replace("http", "ws"), websocket_kwargs={name: headers})
        async with contextlib.aclosing(AsyncPresim(AsyncWeb3(provider)).watch([BALANCE])) as updates:
            assert await balance(updates) == (0, False)

    with world.node("--traffic", "0", "--token-file", str(tokens)) as url:
        asyncio.run(main(url))


def test_search_is_repeated_and_bounded() -> None:
    async def main(url: str) -> None:
        async with contextlib.aclosing(client(url).watch_search(SEARCH, above=2 * ETHER)) as answers:
            first = await anext(answers)
            assert first.found is not None and first.error is None
            assert (first.found.best[0].values, first.found.runs) == ([3 * ETHER], 3)
            assert first.block_number == 1 and first.id > 0
            # Without its ALPHA the account cannot swap, and nobody gains nothing.
            await asyncio.to_thread(world.transfer, url, 100_000 * ETHER)
            second = await anext(answers)
            assert (second.found, second.error) == (None, None)

    with world.node("--traffic", "0") as url:
        asyncio.run(main(url))


def test_answer_of_a_search_is_void_on_a_node_that_does_not_know_it() -> None:
    async def main(first: str, second: str) -> None:
        async with (
            world.proxy(first) as proxy,
            contextlib.aclosing(client(proxy.url).watch_search(SEARCH, above=2 * ETHER)) as answers,
        ):
            assert (await anext(answers)).found is not None
            proxy.cut()
            proxy.target = second
            await proxy.open()
            void = await anext(answers)
            assert (void.found, void.error) == (None, None)

    with world.node("--traffic", "0") as first, world.node("--traffic", "0") as second:
        # On this node the account has no ALPHA, so the objective is not above the bound.
        world.transfer(second, 100_000 * ETHER)
        asyncio.run(main(first, second))


def test_first_error_is_raised(url: str) -> None:
    async def first(presim: AsyncPresim, bundle: WatchedBundle) -> None:
        async with contextlib.aclosing(presim.watch([bundle])) as updates:
            await anext(updates)

    without_gas: WatchedBundle = {"name": "one", "simulate": {"blockStateCalls": [{"calls": [{"to": NOBODY}]}]}}
    with pytest.raises(PresimError, match=r"gas") as caught:
        asyncio.run(first(client(url), without_gas))
    assert caught.value.code == -32602
    with pytest.raises(InvalidStatus):
        asyncio.run(first(client(f"{url}/nowhere"), BALANCE))
    with pytest.raises(OSError):
        asyncio.run(first(client("http://127.0.0.1:1"), BALANCE))


def test_polled_watch_reports_changes_and_ends() -> None:
    with world.node("--traffic", "0") as url:
        updates = Presim(Web3(Web3.HTTPProvider(url))).watch([BALANCE])
        first = next(update for update in updates if update.changed)
        assert first.changed[0].name == "balance" and standing(url) == 1
        world.transfer(url, 5)
        second = next(update for update in updates if update.changed)
        result = second.changed[0].result
        assert isinstance(result, list) and result[0].calls[0].return_data == (5).to_bytes(32, "big")
        updates.close()
        assert standing(url) == 0


class FailingProvider(HTTPProvider):
    """A provider whose next requests fail with the errors."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.errors: list[Exception] = []

    def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        if self.errors:
            raise self.errors.pop(0)
        return super().make_request(method, params)


def polled_balance(updates: Iterator[Update]) -> tuple[int, bool]:
    """Returns the next balance that the watch reports, and whether the bundles were created before it."""
    has_begun = False
    for update in updates:
        has_begun = has_begun or update.begun
        for change in update.changed:
            assert isinstance(change.result, list)
            return int.from_bytes(change.result[0].calls[0].return_data or b"", "big"), has_begun
    raise AssertionError("the watch has ended")


def http_error(status: int) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError(response=response)


def test_polled_watch_survives_failures_and_a_node_that_does_not_know_it() -> None:
    with world.node("--traffic", "0") as first, world.node("--traffic", "0") as second:
        world.transfer(first, 5)
        provider = FailingProvider(first)
        updates = Presim(Web3(provider)).watch([BALANCE], wait_ms=100)
        assert polled_balance(updates) == (5, True)
        provider.errors = [requests.ConnectionError("refused"), http_error(503)]
        world.transfer(first, 5)
        assert polled_balance(updates) == (10, False) and not provider.errors
        provider.endpoint_uri = Web3.HTTPProvider(second).endpoint_uri
        assert polled_balance(updates) == (0, True) and standing(second) == 1
        provider.errors = [http_error(401)]
        with pytest.raises(requests.HTTPError):
            next(updates)
        assert standing(second) == 0
