"""Plots what a cycle over the devnet's three pairs gains, by the amount that enters it.

python examples/search_to_plot.py [URL] [FILE.png]
"""

import sys

import matplotlib
from presim import Presim
from presim.params import SearchPayload
from web3 import Web3

matplotlib.use("Agg")
import matplotlib.pyplot as plt

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8545"
FILE = sys.argv[2] if len(sys.argv) > 2 else "search.png"
ACCOUNT = "0x90F79bf6EB2c4f870365E785982E1f101E93b906"  # It has ALPHA, and has approved the router.
ALPHA, BETA = "0x9fE46736679d2D9a65F0992F2272dE9f3c7fa6e0", "0xe7f1725E7734CE288F8367e1Bb143E90bb3F0512"
WETH, ROUTER = "0x5FbDB2315678afecb367f032d93F642f64180aa3", "0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9"
ETHER = 10**18

w3 = Web3(Web3.HTTPProvider(URL))
presim = Presim(w3)
TYPES = ["uint256", "uint256", "address[]", "address", "uint256"]
SELECTOR = Web3.keccak(text=f"swapExactTokensForTokens({','.join(TYPES)})")[:4]


def swaps(path: list[str]) -> SearchPayload:
    """Returns a search over the amount of ALPHA that a swap along the path takes."""
    data = SELECTOR + w3.codec.encode(TYPES, [0, 0, path, ACCOUNT, 2**256 - 1])
    return {
        "blockStateCalls": [{"calls": [{"from": ACCOUNT, "to": ROUTER, "gas": 500_000, "data": data}]}],
        "vary": [
            {"path": "blocks[0].calls[0].data", "word": 0, "from": 10 * ETHER, "to": 20_000 * ETHER, "points": 64}
        ],
        "objective": {"account": ACCOUNT, "token": ALPHA},
        "top": 64,
    }


# Both directions on one snapshot, so that the curves belong together.
snapshot = presim.snapshot()
for name, path in {
    "ALPHA, BETA, WETH, ALPHA": [ALPHA, BETA, WETH, ALPHA],
    "ALPHA, WETH, BETA, ALPHA": [ALPHA, WETH, BETA, ALPHA],
}.items():
    frame = presim.search(swaps(path), {"snapshotId": snapshot.id}).to_dataframe().sort_values("value_0")
    amount, gain = frame["value_0"].astype(float) / ETHER, frame["objective"].astype(float) / ETHER
    best = gain.argmax()
    print(f"{name}: {len(frame)} amounts, the best is {amount.iloc[best]:.0f} ALPHA, which gains {gain.iloc[best]:.3f}")
    plt.plot(amount, gain, label=name)
plt.title(f"Gain of a cycle in block {snapshot.block_number}, sub-block {snapshot.index}")
plt.xlabel("ALPHA in")
plt.ylabel("ALPHA gained")
plt.legend()
plt.savefig(FILE)
print(f"written to {FILE}")
