"""Nodes of the given binary, and the contracts of their devnet."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from eth_account import Account
from eth_typing import ChecksumAddress
from hexbytes import HexBytes
from web3 import Web3
from web3.types import TxReceipt

BINARY = os.environ["PRESIM_BINARY"]
WETH = Web3.to_checksum_address("0x5FbDB2315678afecb367f032d93F642f64180aa3")
ALPHA = Web3.to_checksum_address("0x9fE46736679d2D9a65F0992F2272dE9f3c7fa6e0")
BETA = Web3.to_checksum_address("0xe7f1725E7734CE288F8367e1Bb143E90bb3F0512")
ROUTER = Web3.to_checksum_address("0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9")
PAIR = Web3.to_checksum_address("0xee48C640427246F01f96c32897AD9B6ab6964fE7")
NOBODY = Web3.to_checksum_address("0x00000000000000000000000000000000000000aa")
# The fourth account of the published test mnemonic.
ACCOUNT = Account.from_key("0x7c852118294e51e653712a81e05800f419141751be58f605c371e15141b007a6")
ETHER = 10**18


@contextlib.contextmanager
def node(*flags: str) -> Iterator[str]:
    """Runs a node, and yields its URL."""
    command = [BINARY, "--listen", "127.0.0.1:0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if match := re.search(r" listens on (http:\S+)", line):
                break
        else:
            raise RuntimeError("the node ended before it listened")
        yield match[1]
    finally:
        process.terminate()
        process.communicate()


def call_data(signature: str, types: list[str], values: list[Any]) -> HexBytes:
    return HexBytes(Web3.keccak(text=signature)[:4] + Web3().codec.encode(types, values))


def balance_of(account: ChecksumAddress) -> HexBytes:
    return call_data("balanceOf(address)", ["address"], [account])


def swap(amount: int, path: list[ChecksumAddress], to: ChecksumAddress) -> HexBytes:
    types = ["uint256", "uint256", "address[]", "address", "uint256"]
    signature = f"swapExactTokensForTokens({','.join(types)})"
    return call_data(signature, types, [amount, 0, path, to, 2**256 - 1])


def transfer(url: str, amount: int) -> TxReceipt:
    """Sends ALPHA to NOBODY, and returns the receipt once the transaction is in a sealed block."""
    w3 = Web3(Web3.HTTPProvider(f"{url}/standard"))
    data = call_data("transfer(address,uint256)", ["address", "uint256"], [NOBODY, amount])
    transaction = {
        "to": ALPHA,
        "data": data,
        "gas": 100_000,
        "maxFeePerGas": 10**11,
        "maxPriorityFeePerGas": 1,
        "nonce": w3.eth.get_transaction_count(ACCOUNT.address, "pending"),
        "chainId": 31337,
    }
    raw = ACCOUNT.sign_transaction(transaction).raw_transaction
    return w3.eth.wait_for_transaction_receipt(w3.eth.send_raw_transaction(raw))


class Proxy:
    """A TCP proxy in front of a node, which cuts its connections on demand."""

    def __init__(self, target: str) -> None:
        self.target, self.accepted, self.port = target, 0, 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def open(self) -> None:
        """Begins to accept connections, on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Cuts all connections, and accepts no more."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        host, port = self.target.removeprefix("http://").split(":")
        upstream_reader, upstream_writer = await asyncio.open_connection(host, int(port))
        self._writers |= {writer, upstream_writer}
        await asyncio.gather(_pipe(reader, upstream_writer), _pipe(upstream_reader, writer))
        self._writers -= {writer, upstream_writer}


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def proxy(target: str) -> AsyncGenerator[Proxy, None]:
    one = Proxy(target)
    await one.open()
    try:
        yield one
    finally:
        one.cut()
