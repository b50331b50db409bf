"""Runs one simulation on the states after past blocks: a price, and what an arbitrage would have gained.

python past_blocks.py [URL] [COUNT]
"""

import sys

from presim import Presim
from presim.params import SearchPayload
from web3 import Web3

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8545"
COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else 10
ACCOUNT = "0x90F79bf6EB2c4f870365E785982E1f101E93b906"
ALPHA, BETA = "0x9fE46736679d2D9a65F0992F2272dE9f3c7fa6e0", "0xe7f1725E7734CE288F8367e1Bb143E90bb3F0512"
WETH, ROUTER = "0x5FbDB2315678afecb367f032d93F642f64180aa3", "0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9"
ETHER = 10**18
TYPES = ["uint256", "uint256", "address[]", "address", "uint256"]

w3 = Web3(Web3.HTTPProvider(URL))
presim = Presim(w3)
quote = bytes(Web3.keccak(text="getAmountsOut(uint256,address[])")[:4])
quote += w3.codec.encode(["uint256", "address[]"], [ETHER, [WETH, ALPHA]])
selector = Web3.keccak(text=f"swapExactTokensForTokens({','.join(TYPES)})")[:4]


def cycle(path: list[str]) -> SearchPayload:
    """Returns a search for the amount of ALPHA that gains most along the path."""
    data = selector + w3.codec.encode(TYPES, [0, 0, path, ACCOUNT, 2**256 - 1])
    return {
        "blockStateCalls": [{"calls": [{"from": ACCOUNT, "to": ROUTER, "gas": 500_000, "data": data}]}],
        "vary": [{"path": "blocks[0].calls[0].data", "word": 0, "maximize": {"from": ETHER, "to": 50_000 * ETHER}}],
        "objective": {"account": ACCOUNT, "token": ALPHA},
        "outputs": ["returnData"],
    }


head = w3.eth.block_number
print("block   ALPHA per WETH   best amount   gain in ALPHA")
for number in range(max(0, head - COUNT + 1), head + 1):
    [block] = presim.simulate({"blockStateCalls": [{"calls": [{"to": ROUTER, "data": quote}]}]}, number)
    [[_, price]] = w3.codec.decode(["uint256[]"], block.calls[0].return_data or b"")
    found = [
        presim.search(cycle(path), number).best[0] for path in ([ALPHA, BETA, WETH, ALPHA], [ALPHA, WETH, BETA, ALPHA])
    ]
    best = max(found, key=lambda one: one.objective or 0)
    print(
        f"{number:>5}   {price / 1e18:>14.3f}   {best.values[0] / 1e18:>11.1f}   {(best.objective or 0) / 1e18:>13.3f}"
    )
