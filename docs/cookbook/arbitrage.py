"""Sends the most profitable cycle over three pairs as a bundle, whenever a sub-block opens one.

python arbitrage.py [URL]        runs until a bundle is mined
"""

import asyncio
import sys
from contextlib import aclosing

from eth_account import Account
from presim import AsyncPresim
from presim.params import SearchPayload, WatchedBundle
from presim.results import Found
from web3 import AsyncHTTPProvider, AsyncWeb3, Web3
from web3.types import RPCEndpoint

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8545"
Account.enable_unaudited_hdwallet_features()
MNEMONIC = "test test test test test test test test test test test junk"
ACCOUNT = Account.from_mnemonic(MNEMONIC, account_path="m/44'/60'/0'/0/5")
ALPHA, BETA = "0x9fE46736679d2D9a65F0992F2272dE9f3c7fa6e0", "0xe7f1725E7734CE288F8367e1Bb143E90bb3F0512"
WETH, ROUTER = "0x5FbDB2315678afecb367f032d93F642f64180aa3", "0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9"
CYCLES = {"by BETA": [ALPHA, BETA, WETH, ALPHA], "by WETH": [ALPHA, WETH, BETA, ALPHA]}
LEAST = 2 * 10**18  # The gain in ALPHA that is worth the gas.
TYPES = ["uint256", "uint256", "address[]", "address", "uint256"]
SELECTOR = Web3.keccak(text=f"swapExactTokensForTokens({','.join(TYPES)})")[:4]


def swap(amount: int, least: int, path: list[str]) -> bytes:
    return SELECTOR + Web3().codec.encode(TYPES, [amount, least, path, ACCOUNT.address, 2**256 - 1])


def search(name: str, path: list[str]) -> WatchedBundle:
    """Returns a search for the amount that gains most, whose answer is sent only if it gains enough."""
    data = swap(0, 0, path)
    payload: SearchPayload = {
        "blockStateCalls": [{"calls": [{"from": ACCOUNT.address, "to": ROUTER, "gas": 500_000, "data": data}]}],
        "vary": [{"path": "blocks[0].calls[0].data", "word": 0, "maximize": {"from": 10**18, "to": 50_000 * 10**18}}],
        "objective": {"account": ACCOUNT.address, "token": ALPHA},
    }
    return {"name": name, "search": payload, "only": {"above": LEAST}}


async def main() -> None:
    w3 = AsyncWeb3(AsyncHTTPProvider(URL))
    presim, sent = AsyncPresim(w3), ""
    async with aclosing(presim.watch([search(*cycle) for cycle in CYCLES.items()])) as updates:
        async for update in updates:
            outcome = await presim.outcome(sent) if sent else None
            if outcome and outcome.status == "mined":
                print(f"mined in block {outcome.block_number}")
                break
            if outcome and outcome.status == "dropped":
                print(f"dropped: {outcome.reason}")
            if outcome is None or outcome.status == "dropped":
                sent = ""  # A node that was restarted does not know the bundle.
            for change in update.changed:
                if sent or update.block_number is None or not isinstance(change.result, Found):
                    continue
                [amount], gain = change.result.best[0].values, change.result.best[0].objective or 0
                print(f"block {update.block_number}, {change.name}: {amount / 1e18:.3f} ALPHA gain {gain / 1e18:.3f}")
                nonce = await w3.eth.get_transaction_count(ACCOUNT.address, "pending")
                fees = {"maxFeePerGas": 2 * (update.base_fee_per_gas or 0), "maxPriorityFeePerGas": 0}
                transaction = {"to": ROUTER, "gas": 500_000, "chainId": 31337, "nonce": nonce, **fees}
                # The bundle reverts, and is not mined, if the cycle gains less by then.
                data = swap(amount, amount + gain, CYCLES[change.name])
                raw = ACCOUNT.sign_transaction({**transaction, "data": data}).raw_transaction
                bundle = {"txs": [raw.to_0x_hex()], "blockNumber": hex(update.block_number)}
                answer = await w3.provider.make_request(RPCEndpoint("eth_sendBundle"), [bundle])
                if "error" in answer:
                    print(f"rejected: {answer['error']}")
                else:
                    sent = answer["result"]["bundleHash"]
    await w3.provider.disconnect()


asyncio.run(main())
