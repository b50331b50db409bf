"""Compares the calls of a contract's users under the rules of today and of another fork.

python next_fork.py [URL] [FORK]        exits with 1 if a call breaks that more gas does not repair
"""

import sys

from presim import Presim
from presim.params import Call
from presim.results import SimulatedCallResult
from web3 import Web3

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8545"
FORK = sys.argv[2] if len(sys.argv) > 2 else "amsterdam"
USER = "0xa0Ee7A142d267C1f36714E4a8F75612F20a79720"
RECEIVER = "0x5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
ALPHA, BETA = "0x9fE46736679d2D9a65F0992F2272dE9f3c7fa6e0", "0xe7f1725E7734CE288F8367e1Bb143E90bb3F0512"
WETH, ROUTER = "0x5FbDB2315678afecb367f032d93F642f64180aa3", "0xDc64a140Aa3E981100a9becA4E685f962f0cF6C9"
ETHER, NEVER = 10**18, 2**256 - 1
SWAP = "(uint256,uint256,address[],address,uint256)"

presim = Presim(Web3(Web3.HTTPProvider(URL)))


def call(to: str, function: str, *values: object, value: int = 0) -> Call:
    types = [one for one in function[function.index("(") + 1 : -1].split(",") if one]
    data = Web3.keccak(text=function)[:4] + Web3().codec.encode(types, values)
    return {"from": USER, "to": to, "value": value, "data": data}


CALLS = {
    "transfer": call(ALPHA, "transfer(address,uint256)", RECEIVER, ETHER),
    "approve": call(ALPHA, "approve(address,uint256)", RECEIVER, ETHER),
    "deposit": call(WETH, "deposit()", value=ETHER),
    "token for token": call(ROUTER, f"swapExactTokensForTokens{SWAP}", ETHER, 0, [ALPHA, BETA], USER, NEVER),
    "token for ether": call(ROUTER, f"swapExactTokensForETH{SWAP}", ETHER, 0, [ALPHA, WETH], USER, NEVER),
}


def run(one: Call, fork: str, gas: int) -> SimulatedCallResult:
    """Runs a call by itself on the newest state, under the rules of a fork."""
    limited: Call = {**one, "gas": gas}
    [block] = presim.simulate(
        {
            "blockStateCalls": [{"blockOverrides": {"fork": fork}, "calls": [limited]}],
            "outputs": ["status", "gasUsed", "error"],
        }
    )
    return block.calls[0]


today, broken = presim.snapshot().fork, False
print(f"{'gas':16}{today:>10}{FORK:>12}   with the limit of today's wallets")
for name, one in CALLS.items():
    now, then = run(one, today, 5_000_000), run(one, FORK, 5_000_000)
    # Wallets add a fifth to the gas that a call needs.
    limit = (now.max_used_gas or 0) * 6 // 5
    if now.status != 1:
        verdict = f"fails today: {now.error}"
    elif then.status != 1:
        verdict, broken = f"BREAKS: {then.error}", True
    elif run(one, FORK, limit).status != 1:
        verdict = f"runs out of gas at {limit:,}"
    else:
        verdict = "succeeds"
    print(f"{name:16}{now.gas_used or 0:>10,}{then.gas_used or 0:>12,}   {verdict}")
sys.exit(1 if broken else 0)
