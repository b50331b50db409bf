"""Reports the first of several positions that can be liquidated.

python liquidation_alarm.py [URL]

A position owes one token and has another as its collateral. It can be liquidated when the debt buys more of the
collateral than the position has. The node checks the conditions on each sub-block that moves a price, and sends
nothing while none holds.
"""

import asyncio
import sys
from contextlib import aclosing

from presim import AsyncPresim
from presim.params import SearchPayload, WatchedBundle
from presim.results import Found
from web3 import AsyncHTTPProvider, AsyncWeb3, Web3

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8545"
LIQUIDATOR = "0x23618e81E3f5cdF7f54C3d65f7FBc0aBf5B21E8f"
ALPHA, WETH = "0x9fE46736679d2D9a65F0992F2272dE9f3c7fa6e0", "0x5FbDB2315678afecb367f032d93F642f64180aa3"
ROUTER = "0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9"
ETHER = 10**18
# The token that a position owes, the debt, and the token of its collateral.
POSITIONS = {"long ALPHA": (WETH, 10 * ETHER, ALPHA), "short ALPHA": (ALPHA, 20_000 * ETHER, WETH)}
TYPES = ["uint256", "uint256", "address[]", "address", "uint256"]
SELECTOR = Web3.keccak(text=f"swapExactTokensForTokens({','.join(TYPES)})")[:4]
# The liquidator's balance of WETH, by the layout of the devnet's tokens.
SLOT = Web3.keccak(bytes(12) + bytes.fromhex(LIQUIDATOR[2:]) + bytes(32))


def liquidation(owed: str, debt: int, collateral: str) -> SearchPayload:
    """Returns the purchase of collateral for the debt. On a lending market it is the liquidation itself."""
    data = SELECTOR + Web3().codec.encode(TYPES, [0, 0, [owed, collateral], LIQUIDATOR, 2**256 - 1])
    return {
        "blockStateCalls": [
            {
                "stateOverrides": {WETH: {"stateDiff": {SLOT: 100 * ETHER}}},
                "calls": [{"from": LIQUIDATOR, "to": ROUTER, "gas": 300_000, "data": data}],
            }
        ],
        "vary": [{"path": "blocks[0].calls[0].data", "word": 0, "values": [debt]}],
        "objective": {"account": LIQUIDATOR, "token": collateral},
    }


async def main() -> None:
    w3 = AsyncWeb3(AsyncHTTPProvider(URL))
    presim, bundles = AsyncPresim(w3), list[WatchedBundle]()
    for name, position in POSITIONS.items():
        # For the example, each position has half a per cent more than its debt buys at the moment.
        has = ((await presim.search(liquidation(*position))).best[0].objective or 0) * 1005 // 1000
        bundles.append({"name": name, "search": liquidation(*position), "only": {"above": has}})
        print(f"{name} owes {position[1] / 1e18:.4f} and has {has / 1e18:.4f}")
    await w3.provider.disconnect()
    async with aclosing(presim.watch(bundles)) as updates:
        async for update in updates:
            for change in update.changed:
                if isinstance(change.result, Found):
                    buys = change.result.best[0].objective or 0
                    return print(f"block {update.block_number}: ALARM, {change.name}: the debt buys {buys / 1e18:.4f}")


asyncio.run(main())
